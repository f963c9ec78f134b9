// This page's end of the stream, and what is said of it.

import { read } from "./source.js";

const SAYS = {
  lost: "The server does not answer. What you see may be old; trying again …",
  out: "You are logged out. ",
};

export function link({ events, again }) {
  const place = document.getElementById("link");
  let state = null;
  const heard = (told) => {
    if (told.events) events(told.events);
    if (!told.state) return;
    if (told.state === "open") again();
    if (told.state !== state) say(place, told.state);
    state = told.state;
  };
  if (typeof SharedWorker === "function") {
    let worker = null;
    const join = () => {
      worker = new SharedWorker(new URL("./worker.js", import.meta.url), { type: "module", name: "oaken" });
      worker.port.onmessage = ({ data }) => heard(data);
      worker.onerror = () => alone(heard);
    };
    join();
    addEventListener("pagehide", () => worker.port.postMessage("bye"));
    addEventListener("pageshow", ({ persisted }) => persisted && join());
  } else {
    alone(heard);
  }
}

export function say(place, state) {
  place.replaceChildren(SAYS[state] ?? "");
  if (state === "out") {
    const anchor = document.createElement("a");
    anchor.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    anchor.textContent = "Log in again";
    place.append(anchor);
  }
}

// Where tabs cannot share a stream, each has its own while somebody looks at it.
function alone(heard) {
  let end = null;
  const look = () => {
    if (document.hidden) {
      end?.abort();
      end = null;
    } else if (!end) {
      end = new AbortController();
      read(heard, end.signal);
    }
  };
  document.addEventListener("visibilitychange", look);
  look();
}

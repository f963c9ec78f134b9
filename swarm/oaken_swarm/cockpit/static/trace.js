// The trace as it is written, while somebody follows it and looks.

import { visible } from "./bodies.js";
import { dim, told } from "./events.js";
import { moment } from "./times.js";

const MOST = 100;
const FACTS = ["verb", "plugin", "operation", "provider", "model", "tool", "error_type"];
const SHOWN = 20_000;

export function trace() {
  const section = document.querySelector("[data-trace]");
  if (!section) return;
  const place = section.querySelector("[data-new]");
  const follow = document.querySelector("[data-follow]");
  let stream = null;
  let following = false;
  let waiting = [];

  follow.hidden = false;
  follow.onclick = () => {
    following = !following;
    follow.setAttribute("aria-pressed", String(following));
    follow.textContent = following ? "Stop following" : "Follow";
    open();
  };
  document.addEventListener("visibilitychange", open);
  section.addEventListener("pointerleave", () => setTimeout(show));

  function open() {
    const wanted = following && !document.hidden;
    if (wanted && !stream) {
      const query = section.dataset.trace ? `?${section.dataset.trace}` : "";
      stream = new EventSource(`/v1/trace/stream${query}`);
      stream.addEventListener("trace_row", ({ data }) => {
        waiting.push(JSON.parse(data));
        if (waiting.length > MOST) waiting.shift();
        show();
      });
    } else if (!wanted && stream) {
      stream.close();
      stream = null;
    }
  }

  function show(asked = false) {
    if (!waiting.length) return place.replaceChildren();
    if (!asked && (section.matches(":hover") || section.contains(document.activeElement))) {
      const button = place.querySelector("button") ?? document.createElement("button");
      button.type = "button";
      button.textContent = `${waiting.length} new`;
      button.onclick = () => show(true);
      if (!button.isConnected) place.replaceChildren(button);
      return;
    }
    section.querySelector(".empty")?.remove();
    for (const row of waiting) put(section, place, row);
    waiting = [];
    place.replaceChildren();
    for (const old of [...section.querySelectorAll("article")].slice(MOST)) old.remove();
  }
}

// A row goes to its attempt: what that was told, what it answered, or what was added in between.
function put(section, place, row) {
  const name = `${Number(row.job_id)}-${Number(row.epoch)}`;
  let made = section.querySelector(`article[data-key="${name}"]`);
  if (!made) {
    made = article(row, name);
    place.after(made);
  }
  if (row.event === "agent") {
    const added = document.createElement("section");
    added.className = "added";
    added.append(facts(row), sides(side("Prompt", row.input), side("Completion", row.output)));
    made.querySelector("[data-added]").append(added);
    return;
  }
  made.insertBefore(facts(row), made.querySelector(".sides"));
  const which = row.event === "lease" ? "input" : "output";
  made.querySelector(`[data-side="${which}"]`).replaceWith(marked(which, row[which]));
}

function article(row, name) {
  const made = document.createElement("article");
  made.className = "row";
  made.dataset.key = name;
  const head = document.createElement("h2");
  const anchor = document.createElement("a");
  anchor.href = `/activity/${Number(row.job_id)}`;
  anchor.textContent = `Job ${row.job_id}`;
  head.append(anchor, " ", told(row.kind ?? ""));
  const added = document.createElement("div");
  added.dataset.added = "";
  made.append(head, sides(marked("input"), marked("output")), added);
  return made;
}

function facts(row) {
  const made = document.createElement("p");
  made.className = "dim";
  made.append(moment(row.ts, "at"), ` · ${row.event} · `, told(row.agent));
  for (const name of FACTS) if (row[name]) made.append(` · ${name.replace("_", " ")} `, told(row[name]));
  for (const [name, value] of Object.entries(row.usage ?? {})) made.append(" · ", told(name), " ", dim(String(value)));
  if (row.cost_usd !== undefined && row.cost_usd !== null) made.append(` · cost $${row.cost_usd}`);
  return made;
}

function sides(...two) {
  const made = document.createElement("div");
  made.className = "sides";
  made.append(...two);
  return made;
}

function marked(name, value) {
  const made = side(name === "input" ? "Told" : "Answered", value);
  made.dataset.side = name;
  return made;
}

function side(label, value) {
  const made = document.createElement("div");
  const head = document.createElement("h3");
  head.textContent = label;
  made.append(head);
  if (value === undefined || value === null) return made;
  const text = document.createElement("pre");
  text.className = "wrap told";
  text.dir = "auto";
  text.tabIndex = 0;
  text.textContent = visible(typeof value === "string" ? value : JSON.stringify(value, null, 2)).slice(0, SHOWN);
  made.append(text);
  return made;
}

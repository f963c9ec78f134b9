// The list of events: new ones come in at the top, unless somebody points at it, has paused it, or has scrolled.

import { visible } from "./bodies.js";
import { moment } from "./times.js";

const LONGEST_MS = 10_000;
const CATCH_UP = 5; // pages of what was missed; what is older is not shown in a list of the newest

export function events() {
  const table = document.querySelector("[data-events]");
  if (!table) return null;
  const body = table.tBodies[0];
  const kinds = table.dataset.kinds ? new Set(table.dataset.kinds.split(",")) : null;
  const most = Number(table.dataset.most);
  const place = document.querySelector("[data-new]");
  const pause = document.querySelector("[data-pause]");
  let cursor = Number(table.dataset.after);
  let waiting = [];
  let missed = 0;
  let paused = false;
  let frame = 0;
  let filling = null;

  pause.hidden = false;
  pause.onclick = () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    show(!paused);
  };
  table.addEventListener("pointerleave", () => setTimeout(show));

  function take(batch) {
    for (const one of batch) {
      const id = Number(one.id);
      if (id <= cursor) continue;
      cursor = id;
      if (kinds && !kinds.has(one.kind)) continue;
      if (table.dataset.job && String(one.data.job_id) !== table.dataset.job) continue;
      waiting.push(one);
    }
    if (waiting.length > most) missed += waiting.splice(0, waiting.length - most).length;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      show();
    });
  }

  function show(asked = false) {
    const count = waiting.length + missed;
    if (!count) return place.replaceChildren();
    const moves = paused || table.matches(":hover") || body.contains(document.activeElement);
    if (moves && !asked) {
      let button = place.querySelector("button");
      if (!button) {
        button = document.createElement("button");
        button.type = "button";
        button.onclick = () => show(true);
        place.replaceChildren(button);
      }
      button.textContent = `${count} new`;
      return;
    }
    document.querySelector("[data-none]")?.remove();
    body.prepend(...waiting.reverse().map(row));
    while (body.rows.length > most) body.lastElementChild.remove();
    waiting = [];
    missed = 0;
    place.replaceChildren();
  }

  function fill() {
    filling ??= missing().finally(() => {
      filling = null;
    });
    return filling;
  }

  async function missing() {
    try {
      for (let page = 0; page < CATCH_UP; page += 1) {
        const signal = AbortSignal.timeout(LONGEST_MS);
        const answer = await fetch(`/v1/events/wait?after=${cursor}&seconds=0&limit=500`, { cache: "no-store", signal });
        if (!answer.ok) return;
        const told = await answer.json();
        take(told.events);
        if (told.events.length < 500) return;
      }
      cursor = 0; // so far behind that the stream goes on from now
    } catch {
      // The stream says when the server is back.
    }
  }

  return {
    fill,
    events(batch) {
      if (!filling) take(batch);
      else filling.then(() => take(batch)); // what is being read came before
    },
  };
}

function row({ ts, kind, id, data }) {
  const line = document.createElement("tr");
  line.dataset.id = id;
  const when = cell(line);
  when.className = "when";
  when.append(moment(ts, "at"));
  cell(line).append(kind);
  const about = cell(line);
  if (data.job_id) {
    const anchor = document.createElement("a");
    anchor.href = `/activity/${Number(data.job_id)}`;
    anchor.textContent = `job ${data.job_id}`;
    about.append(anchor, " ", dim(data.job_kind ?? ""));
  } else about.append(told(data.name ?? ""));
  const change = cell(line);
  change.append(data.verb);
  if (data.from !== data.to) change.append(" ", dim(`${data.from ? `${data.from} → ` : ""}${data.to ?? ""}`));
  if (data.percent !== undefined) change.append(` ${data.percent} %`);
  cell(line).append(told(data.actor.id), " ", dim(data.actor.via));
  return line;
}

function cell(line) {
  return line.insertCell();
}

export function dim(text) {
  const span = document.createElement("span");
  span.className = "dim told";
  span.textContent = visible(text);
  return span;
}

export function told(text) {
  const isolated = document.createElement("bdi");
  isolated.className = "told";
  isolated.textContent = visible(String(text));
  return isolated;
}

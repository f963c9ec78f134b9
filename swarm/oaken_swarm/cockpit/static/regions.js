// Parts of the page that are read anew when something has happened, and from time to time, since grades and waits change by themselves.

import { key, morph } from "./morph.js";
import { say } from "./link.js";
import { written } from "./times.js";

const SOONEST_MS = 1_000;
const SHARE = 8; // the server may rest for so many times as long as an answer took
const USUAL_MS = 5_000;
const COUNTING_MS = 700;
const LONGEST_MS = 10_000; // what takes longer may have been lost on the way

export function regions() {
  const all = [...document.querySelectorAll("[data-live]")];
  if (!all.length) return null;
  const job = document.querySelector("[data-job]")?.dataset.job;
  let timer = null;
  let due = 0; // when the next look may begin
  let busy = false;
  let stale = false;

  async function look() {
    timer = null;
    if (document.hidden) {
      stale = true;
      return;
    }
    busy = true;
    stale = false;
    const began = performance.now();
    let took = 0;
    try {
      const signal = AbortSignal.timeout(LONGEST_MS);
      const answer = await fetch(location.pathname + location.search, { cache: "no-store", headers: { accept: "*/*" }, signal });
      if (answer.status === 404) return location.reload(); // the job has been erased, or forgotten
      if (answer.status === 401) say(document.getElementById("link"), "out");
      if (answer.ok) apply(new DOMParser().parseFromString(await answer.text(), "text/html"));
      took = performance.now() - began;
    } catch {
      // The server is away; the stream says so.
    }
    busy = false;
    due = performance.now() + Math.max(SOONEST_MS, SHARE * took);
    const counting = document.querySelector("[data-again]");
    if (stale) soon();
    else timer ??= setTimeout(look, counting ? COUNTING_MS : Math.max(USUAL_MS, SHARE * took));
  }

  function soon() {
    stale = true;
    if (busy || document.hidden) return;
    clearTimeout(timer);
    timer = setTimeout(look, Math.max(0, due - performance.now()));
  }

  function apply(fresh) {
    for (const region of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(region.id);
      if (other) (region.dataset.live === "list" ? list : held)(region, other);
    }
    written();
  }

  for (const region of all) {
    for (const left of ["pointerleave", "focusout"]) {
      region.addEventListener(left, () => setTimeout(() => region.release?.()));
    }
  }
  document.addEventListener("visibilitychange", () => !document.hidden && stale && soon());
  timer = setTimeout(look, document.querySelector("[data-again]") ? COUNTING_MS : USUAL_MS);
  return {
    now: soon,
    events(batch) {
      if (!job || batch.some((one) => concerns(one, job))) soon();
    },
  };
}

function concerns(event, job) {
  const id = event.data.job_id;
  return !id || String(id) === job || document.querySelector(`a[href="/activity/${Number(id)}"]`) !== null;
}

// Nothing moves under the pointer, nor away from who writes in it. What changes without moving, changes.
function held(region, fresh) {
  const touched = region.matches(":hover") || region.contains(document.activeElement);
  if (region.dataset.live !== "hold" || !touched || same(region, fresh)) {
    region.release = null;
    delete region.dataset.held;
    if (!writes(region)) morph(region, fresh);
    return;
  }
  region.dataset.held = "1";
  region.release = () => {
    if (!region.matches(":hover") && !region.contains(document.activeElement)) held(region, fresh);
  };
}

function writes(region) {
  return region.contains(document.activeElement) && document.activeElement.matches("input, textarea, select");
}

function same(region, fresh) {
  const keys = (from) => [...from.querySelectorAll("[data-key], form, tr")].map((one) => key(one) ?? one.getAttribute("action") ?? "").join("\n");
  return keys(region) === keys(fresh);
}

// A list keeps its rows until somebody asks for the new ones; those that are there change in place.
function list(region, fresh) {
  const body = region.querySelector("[data-rows]");
  const other = fresh.querySelector("[data-rows]");
  const place = region.querySelector("[data-new]");
  if (!body || !other) {
    if (!body !== !other) offer(place, region, fresh, "Show what is there now");
    return;
  }
  const shown = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const top = [...other.children].filter((row) => !shown.has(row.dataset.key));
  const last = Number(body.firstElementChild?.dataset.key ?? 0);
  for (const row of other.children) {
    const old = shown.get(row.dataset.key);
    if (old) morph(old, row);
  }
  const count = region.dataset.first === "1" ? top.filter((row) => region.querySelector("#feed") || Number(row.dataset.key) > last).length : 0;
  if (count) offer(place, region, fresh, count === other.children.length ? `${count} or more new` : `${count} new`);
}

function offer(place, region, fresh, says) {
  let button = place.querySelector("button");
  if (!button) {
    button = document.createElement("button");
    button.type = "button";
    place.replaceChildren(button);
  }
  if (button.textContent !== says) button.textContent = says;
  button.onclick = () => {
    morph(region, fresh);
    written();
    region.querySelector("tbody a, a")?.focus({ preventScroll: true });
  };
}

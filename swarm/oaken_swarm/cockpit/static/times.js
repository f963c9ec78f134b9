// Times as people read them: how long ago, or in their own zone.

const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60]];
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });

// The server's clock counts, since a browser's may be wrong: by how much it is ahead shows where the page began to come.
const [page] = performance.getEntriesByType("navigation");
const ahead = Date.now() - performance.now() + page.responseStart - Number(document.body.dataset.now);

export function times() {
  written();
  setInterval(() => document.hidden || written(), 1_000);
}

// The same words as the server's.
export function span(ms) {
  const seconds = Math.max(ms, 0) / 1_000;
  for (const [unit, length] of UNITS) if (seconds >= length) return `${(seconds / length).toFixed(0)} ${unit}`;
  return `${Math.max(seconds, 1).toFixed(0)} s`;
}

export function written(root = document) {
  const now = Date.now() - ahead;
  for (const time of root.querySelectorAll("time[data-time]")) {
    const text = shown(time, now);
    if (time.textContent !== text) time.textContent = text;
  }
}

function shown(time, now) {
  const at = Date.parse(time.dateTime);
  if (time.dataset.time === "ago") return at <= now ? `${span(now - at)} ago` : `in ${span(at - now)}`;
  const today = new Date(at).toDateString() === new Date(now).toDateString();
  return (today && time.dataset.time === "at" ? clock : day).format(at);
}

export function moment(iso, form) {
  const time = document.createElement("time");
  time.dateTime = iso;
  time.title = `${iso.slice(0, 19).replace("T", " ")} UTC`;
  time.dataset.time = form;
  time.textContent = shown(time, Date.now() - ahead);
  return time;
}

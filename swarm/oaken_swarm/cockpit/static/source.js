// The stream of events of one browser: read, and read on after whatever interrupts it, from where it was.

const SILENT_MS = 20_000; // the server says something every 15 s; one that is only slow is asked again, from where it was
const SOONEST_MS = 300;
const LATEST_MS = 5_000;
const BATCH_MS = 100;

// Tells `heard({ state })`, "open", "lost" or "out" (nobody is logged in), and `heard({ events })`, an array, until `signal` is aborted.
export async function read(heard, signal) {
  let cursor = null;
  let wait = SOONEST_MS;
  const batch = [];
  let timer = null;
  const flush = () => {
    timer = null;
    if (batch.length) heard({ events: batch.splice(0) });
  };
  while (!signal.aborted) {
    let state = "lost";
    try {
      const after = cursor === null ? "" : `?after=${encodeURIComponent(cursor)}`;
      await opened(`/v1/events${after}`, signal, (answer) => {
        wait = SOONEST_MS;
        heard({ state: "open" });
      }, (event) => {
        cursor = event.id ?? cursor;
        if (event.event === "resync") heard({ state: "open" });
        else if (event.data) batch.push(event.data);
        timer ??= setTimeout(flush, BATCH_MS);
      });
    } catch (error) {
      if (error.status === 401) state = "out";
    }
    flush();
    if (signal.aborted) return;
    heard({ state });
    await new Promise((done) => setTimeout(done, wait * (0.75 + Math.random() / 2)));
    wait = Math.min(LATEST_MS, wait * 2);
  }
}

// Reads one answer to its end. Raises where it breaks off or is refused.
async function opened(url, signal, begun, happened) {
  const own = new AbortController();
  const end = () => own.abort();
  signal.addEventListener("abort", end);
  let silence = null;
  const lives = () => {
    clearTimeout(silence);
    silence = setTimeout(end, SILENT_MS);
  };
  lives();
  try {
    const answer = await fetch(url, { signal: own.signal, cache: "no-store", headers: { accept: "text/event-stream" } });
    if (!answer.ok) throw Object.assign(new Error("refused"), { status: answer.status });
    lives();
    begun(answer);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      lives();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const event = parsed(part);
        if (event) happened(event);
      }
    }
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", end);
    own.abort();
  }
}

function parsed(text) {
  const event = {};
  for (const line of text.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) event[line.slice(0, at)] = line.slice(at + 2);
  }
  if (event.data) event.data = JSON.parse(event.data);
  return event.event ? event : null;
}

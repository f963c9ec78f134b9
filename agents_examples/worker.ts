// A worker in TypeScript, without a library: leases jobs, keeps their leases, does them, and ends them. Node 22.18 or later runs it as it is.
//
//     OAKEN_TOKEN=$(cat shouter.token) node agents_examples/worker.ts
//
// Also read from the environment: OAKEN_URL, OAKEN_AGENT (NAME/INSTANCE, where NAME is the token's), OAKEN_LEASE_SECONDS, and OAKEN_GRACE
// (seconds that running jobs have when it stops).

type Json = Record<string, any>;
type Job = { id: number; kind: string; payload: Json; attempts: number; started_at: string };
type Lease = { lease_id: string; expires_at: string; job: Job; instructions?: string };

const KIND = "shout";
const CONCURRENCY = 4;

/** What becomes of one job. `signal` is aborted when the job is cancelled, its lease is lost, or the worker has to leave. */
async function handle(job: Job, signal: AbortSignal): Promise<Json> {
  const { text, seconds = 0 } = job.payload;
  if (typeof text !== "string") throw new PermanentError("there is no text to shout");
  await sleep(seconds * 1000, signal);
  return { text: text.toUpperCase() };
}

/** Thrown by a handler: trying again would not help. */
class PermanentError extends Error {}

// What follows is the same for every worker.

const BASE = (process.env.OAKEN_URL ?? "http://127.0.0.1:8787").replace(/\/+$/, "");
const TOKEN = process.env.OAKEN_TOKEN ?? "";
const AGENT = process.env.OAKEN_AGENT; // what is undefined is left out of JSON
const LEASE_SECONDS = process.env.OAKEN_LEASE_SECONDS ? Number(process.env.OAKEN_LEASE_SECONDS) : undefined;
const GRACE_SECONDS = Number(process.env.OAKEN_GRACE ?? 30);
const WAIT_SECONDS = 20;
const CALL_SECONDS = 30;
const HOPELESS = [401, 403, 422];

/** An answer that refuses a call: `code` is Oaken's, such as `lease_lost`. */
class Refusal extends Error {
  code: string;
  status: number;
  retryAfter: number;

  constructor(status: number, problem: Json, retryAfter: number) {
    super(problem.detail ?? `refused with status ${status}`);
    this.code = problem.code ?? "internal";
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

class Stopping extends Error {}
class Lost extends Error {}
class Cancelled extends Error {}

function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const aborted = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** One call, once. `waits`: seconds that the server may take on top. */
async function post(path: string, body: Json, waits = 0, signal?: AbortSignal): Promise<Json> {
  const limit = AbortSignal.timeout((CALL_SECONDS + waits) * 1000);
  const answer = await fetch(`${BASE}/v1${path}`, {
    method: "POST",
    headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(answer.status, told, Number(answer.headers.get("Retry-After")) || 0);
  return told;
}

/** Whether the same call may do better in a moment: the server is away, busy, or broken. */
function passing(error: unknown): boolean {
  return !(error instanceof Refusal) || error.status === 429 || error.status >= 500;
}

/** How long to wait before the next try: ever longer, never less than was asked for, and not all workers for the same time. */
function pause(failures: number, error: unknown, most = 30): number {
  const asked = error instanceof Refusal ? error.retryAfter : 0;
  return 1000 * (asked + Math.min(most, 0.5 * 2 ** Math.min(failures, 10)) * (0.5 + Math.random() / 2));
}

/** An ending of a lease, repeated until the server has heard it: the same one twice is harmless. */
async function finish(lease: Lease, verb: string, body: Json, seconds: number): Promise<void> {
  const deadline = Date.now() + seconds * 1000;
  for (let failures = 0; ; failures++) {
    try {
      await post(`/leases/${lease.lease_id}/${verb}`, body);
      return;
    } catch (error) {
      if (error instanceof Refusal && verb === "complete" && [400, 413, 422].includes(error.status))
        return finish(lease, "fail", { error: `the result was refused: ${error.code}`, permanent: true }, seconds);
      const wait = pause(failures, error, 5);
      if (!passing(error) || Date.now() + wait > deadline) {
        console.error(`job ${lease.job.id}: ${verb} was not taken: ${error}`);
        return;
      }
      await sleep(wait);
    }
  }
}

/** Keeps a lease until `ended`, beating every third of it; aborts `work` when it is lost or its job cancelled. */
async function beat(lease: Lease, seconds: number, work: AbortController, ended: AbortSignal): Promise<void> {
  let expires = Date.now() + seconds * 1000;
  for (let failures = 0; !ended.aborted; ) {
    try {
      await sleep(failures ? Math.min(pause(failures, undefined), (seconds * 1000) / 3) : (seconds * 1000) / 3, ended);
      const sent = Date.now();
      const told = await post(`/leases/${lease.lease_id}/heartbeat`, {}, 0, ended);
      expires = sent + seconds * 1000;
      failures = 0;
      if (told.cancelling) work.abort(new Cancelled());
    } catch (error) {
      if (ended.aborted) return;
      failures++;
      if (!passing(error) || Date.now() > expires) {
        work.abort(new Lost(String(error)));
        return;
      }
    }
  }
}

/** A job from its lease to its end. */
async function work(lease: Lease, stop: AbortSignal): Promise<void> {
  // Both times are the server's, so that its clock and ours need not agree.
  const seconds = (Date.parse(lease.expires_at) - Date.parse(lease.job.started_at)) / 1000;
  const working = new AbortController();
  const ended = new AbortController();
  const leave = () => working.abort(new Stopping());
  stop.addEventListener("abort", leave, { once: true });
  const beats = beat(lease, seconds, working, ended.signal);
  let ending: [string, Json] | undefined;
  try {
    ending = ["complete", { result: await handle(lease.job, working.signal) }];
  } catch (error) {
    const why = working.signal.reason;
    if (why instanceof Cancelled) ending = ["cancelled", {}];
    else if (why instanceof Stopping) ending = ["release", {}];
    else ending = ["fail", { error: String(error), permanent: error instanceof PermanentError }];
  }
  ended.abort();
  stop.removeEventListener("abort", leave);
  await beats;
  if (working.signal.reason instanceof Lost) console.error(`job ${lease.job.id}: the lease is lost; nothing is written`);
  else await finish(lease, ending[0], ending[1], stop.aborted ? 5 : seconds);
}

async function main(): Promise<void> {
  const stopping = new AbortController(); // takes nothing new
  const leaving = new AbortController(); // the grace is over
  const stop = () => {
    // A second signal has its usual effect.
    for (const name of ["SIGINT", "SIGTERM"] as const) process.removeAllListeners(name);
    console.error(`stopping: waiting up to ${GRACE_SECONDS} s for ${running.size} jobs`);
    stopping.abort(new Stopping());
    // Not at once: the server is to hear first that nobody waits for work any more, or it gives what comes back to this one again.
    setTimeout(() => leaving.abort(new Stopping()), Math.max(GRACE_SECONDS * 1000, 200)).unref();
  };
  const running = new Set<Promise<void>>();
  for (const name of ["SIGINT", "SIGTERM"] as const) process.on(name, stop);

  for (let failures = 0; !stopping.signal.aborted; ) {
    if (running.size >= CONCURRENCY) {
      await Promise.race(running);
      continue;
    }
    try {
      const room = CONCURRENCY - running.size;
      const asked = { agent: AGENT, kinds: [KIND], max: room, lease_seconds: LEASE_SECONDS, wait_seconds: WAIT_SECONDS };
      const { leases } = await post("/leases", asked, WAIT_SECONDS, stopping.signal);
      failures = 0;
      for (const lease of leases as Lease[]) {
        const job = work(lease, leaving.signal).finally(() => running.delete(job));
        running.add(job);
      }
    } catch (error) {
      if (stopping.signal.aborted) break;
      if (error instanceof Refusal && HOPELESS.includes(error.status)) {
        console.error(`oaken worker: ${error.message}`);
        process.exitCode = 1;
        break;
      }
      console.error(`leasing failed, trying again: ${error}`);
      await sleep(pause(failures++, error), stopping.signal).catch(() => {});
    }
  }
  await Promise.all(running);
}

await main();
export {};

"""The rules of jobs once more, as plain Python over dictionaries: what the service must do, said without a database.

One method a verb. Each changes the model and returns a copy of the job, or raises `Refused` with the code the service refuses with.
It shares no code with the core, so that a slip there is not repeated here; it scans every job for every question, because it only has
to be right. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

FINAL = ("succeeded", "failed", "cancelled")
LIVE = ("queued", "running")
JUMP = 2_000
"""A wall clock that moved by more than this, against time passed, has jumped."""
STALL = 6_000
"""Silence after which a process that writes every second knows that it stood still."""
DAY = 86_400_000
CORRECTIONS = 2


class Refused(Exception):
    """The service must refuse this, with this code; `job` is what the refusal left of the job where it changed it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class ModelKind:
    """What the model knows of a kind. `picky` ones take only results that fit."""

    queue: str = "default"
    limit: int | None = None
    on_lost: str = "requeue"
    picky: bool = False
    delays: tuple[int, ...] = ()


@dataclass(frozen=True)
class Terms:
    """Configuration, in milliseconds."""

    kinds: Mapping[str, ModelKind]
    lease: int = 60_000
    max_attempts: int = 5
    backoff_base: int = 5_000
    backoff_max: int = 3_600_000
    recovery_grace: int = 20_000
    cancel_grace: int = 300_000
    ask_timeout: int = 7 * DAY


@dataclass
class ModelJob:
    id: int
    workspace: str
    kind: str
    queue: str
    priority: int
    payload: int
    run_at: int
    max_attempts: int
    dedupe_key: str | None = None
    target: str | None = None
    serial_key: str | None = None
    parent: int | None = None
    expires_at: int | None = None
    state: str = "queued"
    attempts: int = 0
    epoch: int = 0
    lost: int = 0
    deferrals: int = 0
    coalesced: int = 0
    misfits: int = 0
    cancelling: bool = False
    cancel_deadline: int | None = None
    reason: str | None = None
    agent: str | None = None
    holder: str | None = None
    lease_expires: int | None = None
    lease_ms: int | None = None
    question: str | None = None
    joining: bool = False
    """Given back until its children are final."""
    joined: bool = False
    """Its leases list its children."""


@dataclass
class ModelAttempt:
    number: int
    holder: str
    agent: str
    outcome: str | None = None
    verb: str | None = None
    body: Any = None
    answer: ModelJob | None = None
    late: bool = False
    """A result came after the lease was lost, and is kept; `fits` says whether it fits its kind."""
    fits: bool = False


@dataclass(frozen=True)
class Caller:
    """Who calls: `holder` is what leases are bound to, `agent` what they show, `workspace` what the caller is bound to."""

    holder: str
    agent: str
    workspace: str | None = None


@dataclass(frozen=True)
class LeaseOf:
    """A lease, as its lease id names it."""

    job: int
    epoch: int


@dataclass
class Model:
    """All jobs of all workspaces, and a clock. Call `began` before a verb that writes."""

    terms: Terms
    now: int
    """Wall time; `passed` is time since the start, that no jump moves."""
    passed: int = 0
    jobs: dict[int, ModelJob] = field(default_factory=dict[int, ModelJob])
    attempts: dict[LeaseOf, ModelAttempt] = field(default_factory=dict[LeaseOf, ModelAttempt])
    paused: set[str] = field(default_factory=set[str])
    drained: set[str] = field(default_factory=set[str])
    enqueued_once: dict[tuple[str, str], tuple[Any, ModelJob, bool, int]] = field(default_factory=dict)
    leased_once: dict[tuple[str, str], tuple[Any, list[LeaseOf], int]] = field(default_factory=dict)
    questions: dict[int, list[tuple[str, str | None]]] = field(default_factory=dict)
    """By job: what it asked, and what it was told."""
    steady: bool = False
    """The process writes every second, so silence means that it stood still."""
    _offset: int = 0
    _written: int = 0

    def __post_init__(self) -> None:
        self._offset = self.now

    # Time.

    def advance(self, ms: int) -> None:
        """Time passes."""
        self.now += ms
        self.passed += ms

    def jump(self, ms: int) -> None:
        """Somebody sets the clock."""
        self.now += ms

    def restart(self, *, served: bool, steady: bool) -> None:
        """Another process has the database now. One that serves gives running leases a grace first."""
        self._offset, self._written, self.steady = self.now - self.passed, self.passed, steady
        if served:
            self._recover()

    def _began(self) -> None:
        """A write: after a jump of the clock or a standstill, running leases first get a grace."""
        jumped = abs(self.now - self.passed - self._offset) > JUMP
        stalled = self.steady and self.passed - self._written > STALL
        self._offset, self._written = self.now - self.passed, self.passed
        if jumped or stalled:
            self._recover()

    def _recover(self) -> None:
        for job in self.running():
            longest = min(job.lease_expires or 0, self.now + (job.lease_ms or 0))
            soonest = self.now + self.terms.recovery_grace
            job.lease_expires = max(soonest, longest)
            if job.cancel_deadline is not None:
                at_most = self.now + self.terms.cancel_grace
                job.cancel_deadline = max(soonest, min(job.cancel_deadline, at_most))

    # Adding jobs.

    def enqueue(
        self,
        who: Caller,
        kind: str,
        priority: int,
        payload: int,
        *,
        workspace: str | None = None,
        delay: int = 0,
        ttl: int | None = None,
        max_attempts: int | None = None,
        dedupe_key: str | None = None,
        target: str | None = None,
        serial_key: str | None = None,
        parent: int | None = None,
        on_duplicate: str = "keep",
        idempotency_key: str | None = None,
    ) -> tuple[ModelJob, bool, bool]:
        """The job, whether it is new, and whether this is an earlier answer again."""
        self._began()
        request = (kind, priority, payload, workspace, delay, ttl, max_attempts, dedupe_key, target, serial_key, parent)
        request = (*request, on_duplicate)
        once = (who.holder, idempotency_key) if idempotency_key else None
        known = self.enqueued_once.get(once) if once else None
        if known and self.now - known[3] < DAY:
            if known[0] != request:
                raise Refused("idempotency_conflict")
            return known[1], known[2], True
        if parent is not None:
            workspace = self._seen(who, parent).workspace
        workspace = workspace or who.workspace or "default"
        live = self._live(workspace, kind, dedupe_key, target)
        created = live is None
        if live:
            if on_duplicate == "replace" and live.kind != kind:
                raise Refused("conflict")
            if on_duplicate == "replace" and live.state == "queued":
                live.payload = payload
            live.coalesced += 1
            job = live
        else:
            if ttl is not None and ttl <= delay:
                raise Refused("invalid_request")
            job = ModelJob(
                len(self.jobs) + 1,
                workspace,
                kind,
                self.terms.kinds[kind].queue,
                priority,
                payload,
                self.now + delay,
                max_attempts or self.terms.max_attempts,
                dedupe_key,
                target,
                serial_key,
                parent,
                self.now + ttl if ttl is not None else None,
            )
            self.jobs[job.id] = job
        if once:
            self.enqueued_once[once] = (request, replace(job), created, self.now)
        return replace(job), created, False

    def _live(self, workspace: str, kind: str, dedupe_key: str | None, target: str | None) -> ModelJob | None:
        """The live job with this key, else the one with this target."""
        here = [job for job in self.jobs.values() if job.state in LIVE and job.workspace == workspace]
        for job in here:
            if dedupe_key is not None and job.dedupe_key == dedupe_key:
                return job
        for job in here:
            if target is not None and (job.kind, job.target) == (kind, target):
                return job
        return None

    # Handing out.

    def claimable(self, who: Caller, queues: Iterable[str] | None, kinds: Iterable[str] | None) -> list[ModelJob]:
        """What a request may take, best first: higher priority, then what became runnable first, then the lower id."""
        found = [
            job
            for job in self._queued()
            if job.run_at <= self.now
            and not job.joining
            and (job.expires_at is None or job.expires_at > self.now)
            and job.queue not in self.paused
            and (queues is None or job.queue in queues)
            and (kinds is None or job.kind in kinds)
            and who.workspace in (None, job.workspace)
        ]
        return sorted(found, key=lambda job: (-job.priority, job.run_at, job.id))

    def lease(
        self,
        who: Caller,
        max: int,
        *,
        lease_ms: int | None = None,
        queues: tuple[str, ...] | None = None,
        kinds: tuple[str, ...] | None = None,
        idempotency_key: str | None = None,
    ) -> list[ModelJob]:
        """Jobs handed out, in order."""
        self._began()
        self._sweep()
        request = (who.agent, max, lease_ms, queues, kinds)
        once = (who.holder, idempotency_key) if idempotency_key else None
        known = self.leased_once.get(once) if once else None
        if known and self.now - known[2] < DAY:
            if known[0] != request:
                raise Refused("idempotency_conflict")
            return [replace(self.jobs[lease.job]) for lease in known[1] if self.holds(lease, who.holder)]
        if who.agent in self.drained or who.agent.split("/")[0] in self.drained:
            return []
        handed: list[ModelJob] = []
        for job in self.claimable(who, queues, kinds):
            if len(handed) == max:
                break
            if self.room(job):
                self._claim(job, who, lease_ms)
                handed.append(replace(job))
        if once and handed:
            self.leased_once[once] = (request, [LeaseOf(job.id, job.epoch) for job in handed], self.now)
        return handed

    def room(self, job: ModelJob) -> bool:
        """Whether its kind is under its cap and nobody of its serial key runs."""
        limit = self.terms.kinds[job.kind].limit
        running = self.running()
        if limit is not None and sum(other.kind == job.kind for other in running) >= limit:
            return False
        key = (job.workspace, job.serial_key)
        return job.serial_key is None or all((other.workspace, other.serial_key) != key for other in running)

    def _claim(self, job: ModelJob, who: Caller, lease_ms: int | None) -> None:
        job.state, job.question, job.misfits = "running", None, 0
        job.attempts += 1
        job.epoch += 1
        job.holder, job.agent = who.holder, who.agent
        job.lease_ms = lease_ms or self.terms.lease
        job.lease_expires = self.now + job.lease_ms
        self.attempts[LeaseOf(job.id, job.epoch)] = ModelAttempt(job.attempts, who.holder, who.agent)

    def resume(self, who: Caller, lease_ms: int | None = None) -> list[ModelJob]:
        """The caller's own living leases again, each under a new epoch."""
        self._began()
        found: list[ModelJob] = []
        for job in self.running():
            old = LeaseOf(job.id, job.epoch)
            if job.agent == who.agent and self.holds(old, who.holder):
                self.attempts[old].outcome = "resumed"
                job.epoch += 1
                job.misfits = 0
                job.lease_ms = lease_ms or job.lease_ms or 0
                job.lease_expires = self.now + job.lease_ms
                self.attempts[LeaseOf(job.id, job.epoch)] = ModelAttempt(job.attempts, who.holder, who.agent)
                found.append(replace(job))
        return found

    def drain(self, agent: str, draining: bool) -> bool:
        """Whether that changed anything."""
        self._began()
        changed = (agent in self.drained) != draining
        (self.drained.add if draining else self.drained.discard)(agent)
        return changed

    # What a holder says.

    def holds(self, lease: LeaseOf, holder: str) -> bool:
        """Whether this is the job's living lease, in these hands."""
        job = self.jobs[lease.job]
        current = job.state == "running" and job.epoch == lease.epoch and job.holder == holder
        return current and (job.lease_expires or 0) > self.now

    def beat(self, who: Caller, lease: LeaseOf, lease_ms: int | None = None, *, progress: bool = False) -> ModelJob:
        """A heartbeat, or a report of progress."""
        self._began()
        if not self.holds(lease, who.holder):
            raise Refused("lease_lost")
        job = self.jobs[lease.job]
        job.lease_ms = lease_ms or job.lease_ms or 0
        job.lease_expires = self.now + job.lease_ms
        if progress and job.cancelling:
            job.cancel_deadline = self.now + self.terms.cancel_grace
        return replace(job)

    def finish(self, who: Caller, lease: LeaseOf, verb: str, **body: Any) -> ModelJob:
        """complete (`fits`), fail (`permanent`, `delay`), defer (`delay`), release (`after_children`), ask (`text`, `delay`),
        cancelled. A repeat of an accepted one gets its answer again."""
        self._began()
        attempt = self.attempts[lease]
        if not self.holds(lease, who.holder):
            return self._stale(self.jobs[lease.job], attempt, who, verb, body)
        job = self.jobs[lease.job]
        outcome = self._finish(job, verb, body)
        attempt.verb, attempt.body, attempt.outcome, attempt.answer = verb, body, outcome, replace(job)
        if outcome == "refused":
            raise Refused("result_invalid")
        return replace(job)

    def _stale(self, job: ModelJob, attempt: ModelAttempt, who: Caller, verb: str, body: dict[str, Any]) -> ModelJob:
        if attempt.verb is not None and attempt.holder == who.holder:
            if (attempt.verb, attempt.body) != (verb, body):
                raise Refused("conflict")
            if attempt.outcome == "refused":
                raise Refused("result_invalid")
            assert attempt.answer is not None
            return attempt.answer
        if verb == "complete" and attempt.holder == who.holder and job.state != "succeeded" and not attempt.late:
            attempt.late, attempt.fits = True, body["fits"]
        raise Refused("lease_lost")

    def _finish(self, job: ModelJob, verb: str, body: dict[str, Any]) -> str:
        """Ends the lease; how the attempt ended."""
        if verb == "complete":
            return self._complete(job, fits=body["fits"])
        if verb == "cancelled" and not job.cancelling:
            raise Refused("conflict")
        if job.cancelling:
            self._end(job, "cancelled", "cancelled_by_user")
            return "cancelled"
        if verb == "fail":
            if body["permanent"] or job.attempts >= job.max_attempts:
                self._end(job, "failed", "permanent" if body["permanent"] else "out_of_attempts")
                return "failed"
            self._back(job, self.now + max(self.backoff(job), body["delay"]))
            return "retry"
        job.attempts -= 1
        if verb == "defer":
            job.deferrals += 1
            self._back(job, self.now + body["delay"])
            return "deferred"
        if verb == "ask":
            job.question = body["text"]
            self.questions.setdefault(job.id, []).append((body["text"], None))
            self._back(job, self.now + (body["delay"] or self.terms.ask_timeout))
            return "asked"
        self._back(job, job.run_at)
        if body["after_children"]:
            job.joining = job.joined = True
            self._join(job)
        return "released"

    def _complete(self, job: ModelJob, *, fits: bool) -> str:
        if fits or not self.terms.kinds[job.kind].picky:
            self._end(job, "succeeded", None)
            return "succeeded"
        job.misfits += 1
        if job.misfits <= CORRECTIONS:
            raise Refused("result_invalid")
        stopping = job.cancelling
        self._end(job, *("cancelled", "cancelled_by_user") if stopping else ("failed", "result_invalid"))
        return "refused"

    def backoff(self, job: ModelJob) -> int:
        """How long a job waits after this many attempts."""
        delays = self.terms.kinds[job.kind].delays
        if delays:
            return delays[min(job.attempts, len(delays)) - 1]
        return min(self.terms.backoff_max, self.terms.backoff_base * 2 ** (job.attempts - 1))

    # What others say.

    def cancel(self, who: Caller, job_id: int) -> tuple[ModelJob, bool]:
        """The job, and whether that changed anything."""
        self._began()
        job = self._seen(who, job_id)
        if job.state in FINAL or job.cancelling:
            return replace(job), False
        if job.state == "running":
            job.cancelling, job.cancel_deadline = True, self.now + self.terms.cancel_grace
        else:
            self._end(job, "cancelled", "cancelled_by_user")
        return replace(job), True

    def requeue(self, who: Caller, job_id: int, queue: str | None = None) -> ModelJob:
        """Back to run now, as new but for its history."""
        self._began()
        job = self._seen(who, job_id)
        if job.state in ("running", "succeeded"):
            raise Refused("conflict")
        for key, target in ((job.dedupe_key, None), (None, job.target)):
            other = self._live(job.workspace, job.kind, key, target)
            if other is not None and other.id != job.id:
                raise Refused("conflict")
        self._back(job, self.now)
        job.attempts = job.lost = job.deferrals = job.misfits = 0
        job.cancelling = job.joining = False
        job.reason = job.agent = job.expires_at = job.question = None
        job.queue = queue or job.queue
        return replace(job)

    def edit(self, who: Caller, job_id: int, priority: int) -> ModelJob:
        """Another priority, and with it another place."""
        self._began()
        job = self._seen(who, job_id)
        if job.priority != priority:
            if job.state in FINAL:
                raise Refused("conflict")
            job.priority = priority
        return replace(job)

    def requeue_all(self, who: Caller, states: Iterable[str], queue: str | None = None) -> tuple[int, int, int]:
        """How many match, were put back, and were passed over. Writes nothing where none matches."""
        matched = [
            job.id for job in self.jobs.values() if job.state in states and who.workspace in (None, job.workspace)
        ]
        skipped = 0
        for job_id in matched:
            try:
                self.requeue(who, job_id, queue)
            except Refused:
                skipped += 1
        return len(matched), len(matched) - skipped, skipped

    def answer(self, who: Caller, job_id: int, text: str) -> ModelJob:
        """The open question is answered, and the job runnable."""
        self._began()
        job = self._seen(who, job_id)
        if job.state != "queued" or job.question is None:
            raise Refused("conflict")
        asked, _ = self.questions[job.id].pop()
        self.questions[job.id].append((asked, text))
        job.question, job.run_at = None, self.now
        return replace(job)

    def adopt(self, who: Caller, lease: LeaseOf) -> ModelJob:
        """The late result of an old attempt is the job's."""
        self._began()
        job = self._seen(who, lease.job)
        attempt = self.attempts.get(lease)
        if attempt is None or not attempt.late:
            raise Refused("not_found")
        if job.state == "succeeded":
            raise Refused("conflict")
        if self.terms.kinds[job.kind].picky and not attempt.fits:
            raise Refused("result_invalid")
        if job.state == "running":
            self.attempts[LeaseOf(job.id, job.epoch)].outcome = "superseded"
        attempt.outcome = "adopted"
        self._end(job, "succeeded", None)
        job.agent = attempt.agent
        return replace(job)

    def pause(self, queue: str, paused: bool) -> None:
        """A paused queue hands nothing out."""
        self._began()
        (self.paused.add if paused else self.paused.discard)(queue)

    # What time does.

    def sweep(self) -> None:
        """Duties of a second. Idempotency keys of a day ago are forgotten for good, also if the clock is then set back."""
        self._began()
        self._sweep()
        self.enqueued_once = {once: known for once, known in self.enqueued_once.items() if self.now - known[3] < DAY}
        self.leased_once = {once: known for once, known in self.leased_once.items() if self.now - known[2] < DAY}

    def _sweep(self) -> None:
        for job in sorted(self.running(), key=lambda job: job.lease_expires or 0):
            if (job.lease_expires or 0) <= self.now:
                self._lose(job)
        for job in self.running():
            if job.cancel_deadline is not None and job.cancel_deadline <= self.now:
                self.attempts[LeaseOf(job.id, job.epoch)].outcome = "overruled"
                self._end(job, "cancelled", "cancel_grace")
        for job in self._queued():
            if job.expires_at is not None and job.expires_at <= self.now:
                self._end(job, "cancelled", "expired")

    def _lose(self, job: ModelJob) -> None:
        self.attempts[LeaseOf(job.id, job.epoch)].outcome = "lost"
        job.lost += 1
        if job.cancelling:
            self._end(job, "cancelled", "cancelled_by_user")
        elif self.terms.kinds[job.kind].on_lost == "fail" or job.attempts >= job.max_attempts:
            self._end(job, "failed", "lease_lost")
        else:
            self._back(job, self.now + (0 if job.lost == 1 else self.backoff(job)))

    # What they share.

    def running(self) -> list[ModelJob]:
        """Jobs somebody holds, or held until a moment ago."""
        return [job for job in self.jobs.values() if job.state == "running"]

    def _queued(self) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state == "queued"]

    def _seen(self, who: Caller, job_id: int) -> ModelJob:
        job = self.jobs.get(job_id)
        if job is None or who.workspace not in (None, job.workspace):
            raise Refused("not_found")
        return job

    def _back(self, job: ModelJob, run_at: int) -> None:
        """Into the queue, out of its holder's hands; `agent` still says who had it last."""
        job.state, job.run_at = "queued", run_at
        job.holder = job.lease_expires = job.lease_ms = job.cancel_deadline = None

    def _end(self, job: ModelJob, state: str, reason: str | None) -> None:
        self._back(job, job.run_at)
        job.state, job.reason = state, reason
        job.cancelling, job.question, job.joining = False, None, False
        parent = self.jobs.get(job.parent) if job.parent is not None else None
        if parent is not None and parent.joining:
            self._join(parent)

    def _join(self, parent: ModelJob) -> None:
        """Runnable as soon as no child lives."""
        if not any(job.parent == parent.id and job.state in LIVE for job in self.jobs.values()):
            parent.joining, parent.run_at = False, self.now

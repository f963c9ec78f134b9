"""The service everyone calls: HTTP, MCP, the command line and the runner. Every answer is durable before it is given."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from oaken_jobs import auth, jsontext, redaction
from oaken_jobs.activity import Follower
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.dispatch import Dispatcher
from oaken_jobs.errors import (
    Forbidden,
    InvalidRequest,
    LeaseLost,
    NotFound,
    OakenError,
    PayloadInvalid,
    ResultInvalid,
)
from oaken_jobs.kinds import Kind, Rules
from oaken_jobs.model import (
    MAX_PRIORITY,
    PRIORITIES,
    Activity,
    AgentRow,
    Attempt,
    Effect,
    Enqueued,
    Job,
    Json,
    Leased,
    LeaseRef,
    NewJob,
    Page,
    Principal,
    ProgressRow,
    Queue,
    SetLabels,
    Usage,
)
from oaken_jobs.moves import Finish
from oaken_jobs.requests import MAX_ID, MAX_LEASE_SECONDS, MAX_SECONDS, NewJobRequest
from oaken_jobs.store.base import (
    Beat,
    Beaten,
    Cancel,
    Cancelled,
    Document,
    Enqueue,
    JobFilter,
    KeepLabels,
    Requeue,
    SeeAgents,
    SeenAgent,
    SetPaused,
    Store,
    Want,
)

_LEASE_ID = re.compile(r"(\d{1,16})-(\d{1,9})-([0-9a-f]{24})", re.ASCII)
MESSAGE_LIMIT = 256


@dataclass(slots=True)
class _Seen:
    """What an agent did since it was last written down."""

    name: str
    at: int
    leased: int = 0
    succeeded: int = 0
    failed: int = 0


class Jobs:
    """Jobs as seen by a caller. Every method takes the caller first and checks what it may do."""

    def __init__(self, store: Store, commit: Committer, dispatch: Dispatcher, follower: Follower, clock: Clock) -> None:
        self._store = store
        self._commit = commit
        self._dispatch = dispatch
        self._follower = follower
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._leased_kinds: set[str] = set()
        self._kinds_read_at = float("-inf")

    @property
    def rules(self) -> Rules:
        return self._store.rules

    def now(self) -> int:
        """Milliseconds, by the clock that judges leases."""
        return self._clock.now()

    # Adding jobs.

    async def enqueue(self, who: Principal, request: NewJobRequest) -> Enqueued:
        """Adds a job, or returns the live one with the same dedupe key or target."""
        enqueued: Enqueued = await self._commit.submit(self._enqueue_op(who, request))
        if enqueued.job.kind in self._leased_kinds:
            return enqueued
        return await self._warned(enqueued)

    async def enqueue_many(
        self, who: Principal, requests: Sequence[NewJobRequest | OakenError]
    ) -> list[Enqueued | OakenError]:
        """As `enqueue` for each, in order; a refusal takes the place of its answer and leaves the others alone."""
        if len(requests) > self.rules.max_batch:
            raise InvalidRequest(
                f"{len(requests)} jobs in one call; at most {self.rules.max_batch} ([jobs] max_batch). Send them in parts."
            )
        prepared: list[Enqueue | OakenError] = []
        for request in requests:
            try:
                prepared.append(request if isinstance(request, OakenError) else self._enqueue_op(who, request))
            except OakenError as refusal:
                prepared.append(refusal)
        replies = iter(await self._commit.call_all([p for p in prepared if isinstance(p, Enqueue)]))
        answers: list[Enqueued | OakenError] = []
        for one in prepared:
            answer = next(replies) if isinstance(one, Enqueue) else one
            if isinstance(answer, Enqueued):
                if answer.job.kind not in self._leased_kinds:
                    answer = await self._warned(answer)
            elif not isinstance(answer, OakenError):
                raise answer
            answers.append(answer)
        return answers

    def _enqueue_op(self, who: Principal, request: NewJobRequest) -> Enqueue:
        auth.require(who, "enqueue")
        kind = self.rules.kinds.get(request.kind)
        if kind is None and self.rules.unknown_kinds == "reject":
            raise InvalidRequest(
                f"kind {request.kind!r} is not known here. Known are {', '.join(sorted(self.rules.kinds)) or 'none'}; "
                'others are taken where [jobs] unknown_kinds is "accept".'
            )
        payload = jsontext.dump(
            request.payload, max_bytes=self.rules.max_payload_bytes, setting="[jobs] max_payload_bytes"
        )
        schema = kind.payload_schema if kind else None
        if schema is not None and (problems := schema.problems(request.payload)):
            told = "; ".join(f"{p['path']} breaks {p['rule']}: {p['message']}" for p in problems)
            raise PayloadInvalid(f"The payload does not fit the schema of {request.kind}: {told}.", errors=problems)
        free = who.runner or not who.roles.isdisjoint(("user", "admin"))
        if not free and request.parent_id is None:
            raise Forbidden(
                f"{who.name} is only an agent and may enqueue nothing but children of a job it holds: give parent_id, "
                "or use a token that also has the role user."
            )
        priority = request.priority
        if priority is None:
            priority = PRIORITIES["user"] if who.actor.kind == "user" else PRIORITIES["ingest"]
        new = NewJob(
            kind=request.kind,
            payload=payload,
            subject=request.subject,
            target=request.target,
            dedupe_key=request.dedupe_key,
            priority=min(priority, MAX_PRIORITY),
            run_at=request.run_at,
            delay_ms=round(request.delay_seconds * 1000) if request.delay_seconds is not None else 0,
            max_attempts=request.max_attempts,
            parent_id=request.parent_id,
            title=request.title,
            tags=tuple(request.tags) if request.tags else (),
            budget_usd=request.budget_usd,
        )
        return Enqueue(new, who.actor, schema.hash if schema else None, None if free else who.holder)

    async def _warned(self, enqueued: Enqueued) -> Enqueued:
        kind = enqueued.job.kind
        if kind in self.rules.kinds or kind in self._leased_kinds:
            return enqueued
        if self._clock.monotonic() - self._kinds_read_at > 1:
            self._kinds_read_at = self._clock.monotonic()
            self._leased_kinds |= await self._store.leased_kinds()
        if kind in self._leased_kinds:
            return enqueued
        warning = f"No agent has ever leased a job of kind {kind!r}. The job waits until one does; check the spelling."
        return enqueued._replace(warning=warning)

    # Leasing.

    async def lease(
        self,
        who: Principal,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        max: int = 1,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
    ) -> list[Leased]:
        """Up to `max` jobs for this caller, waiting up to `wait_seconds` for the first. Cancel the call to give up."""
        auth.require(who, "lease")
        not_kinds: tuple[str, ...] = ()
        if not who.runner:
            not_kinds = self.rules.internal
            barred = sorted(set(kinds).intersection(not_kinds)) if kinds else None
            if barred:
                raise Forbidden(
                    f"Jobs of kind {', '.join(barred)} are run by Oaken's own runners alone; lease other kinds."
                )
        want = Want(
            holder=who.holder,
            agent=who.agent,
            actor=who.actor,
            max=max,
            lease_ms=round(lease_seconds * 1000) if lease_seconds is not None else None,
            queues=tuple(sorted(set(queues))) if queues is not None else None,
            kinds=tuple(sorted(set(kinds))) if kinds is not None else None,
            not_kinds=not_kinds if kinds is None else (),
        )
        if wait_seconds > 0:
            self._note(who)  # a request that waits shows that its agent is there
        leases = await self._dispatch.lease(want, wait_seconds)
        self._note(who).leased += len(leases)
        for lease in leases:
            self._leased_kinds.add(lease.job.kind)
        return leases

    async def heartbeat(
        self,
        who: Principal,
        lease_id: str,
        *,
        lease_seconds: float | None = None,
        percent: float | None = None,
        message: str | None = None,
        progress: bool = False,
    ) -> Beaten:
        """Keeps the lease for its length, or `lease_seconds`, from now; with `progress` also says how far the work is."""
        op = self.heartbeat_op(
            who, lease_id, lease_seconds=lease_seconds, percent=percent, message=message, progress=progress
        )
        beaten: Beaten = await self._commit.submit(op)
        self._note(who, beaten.job.agent)
        return beaten

    def heartbeat_op(
        self,
        who: Principal,
        lease_id: str,
        *,
        lease_seconds: float | None = None,
        percent: float | None = None,
        message: str | None = None,
        progress: bool = False,
    ) -> Beat:
        """`heartbeat` as an operation for `finish_many`."""
        auth.require(who, "lease")
        if lease_seconds is not None and not 0 < lease_seconds <= MAX_LEASE_SECONDS:
            raise InvalidRequest(
                f"lease_seconds {lease_seconds!r} must be more than 0 and at most {MAX_LEASE_SECONDS}."
            )
        if percent is not None and not 0 <= percent <= 100:
            raise InvalidRequest(f"percent {percent!r} must be from 0 to 100.")
        return Beat(
            _ref(lease_id),
            who.holder,
            who.actor,
            round(lease_seconds * 1000) if lease_seconds is not None else None,
            progress,
            None if percent is None else round(percent),
            None if message is None else redaction.clean(redaction.error_text(message), MESSAGE_LIMIT),
            auth.may(who, "read"),
        )

    def complete_op(
        self,
        who: Principal,
        lease_id: str,
        result: Json | None = None,
        usage: Usage | None = None,
        *,
        strict: bool = False,
        effects: tuple[Effect, ...] = (),
    ) -> Finish:
        """The work is done. `strict` fails the job at once where the result does not fit its kind."""
        value = result if result is not None else {}
        text = jsontext.dump(
            value,
            what="result",
            max_bytes=self.rules.max_result_bytes,
            setting="[jobs] max_result_bytes",
            error=ResultInvalid,
        )
        auth.require(who, "lease")
        return Finish(
            _ref(lease_id),
            who.holder,
            who.actor,
            "complete",
            value,
            text,
            usage,
            strict=strict,
            effects=effects,
            may_read=auth.may(who, "read"),
        )

    def fail_op(
        self,
        who: Principal,
        lease_id: str,
        error: str,
        *,
        permanent: bool = False,
        retry_after: float | None = None,
        usage: Usage | None = None,
    ) -> Finish:
        """The attempt failed; secrets in `error` are redacted before it is kept."""
        delay = _delay_ms(retry_after)
        text = redaction.error_text(error) or "failed without saying why"
        return self._finish(who, lease_id, "fail", error=text, permanent=permanent, delay_ms=delay, usage=usage)

    def defer_op(self, who: Principal, lease_id: str, seconds: float) -> Finish:
        """Not now; the attempt does not count."""
        return self._finish(who, lease_id, "defer", delay_ms=_delay_ms(seconds))

    def release_op(self, who: Principal, lease_id: str) -> Finish:
        """Gives the job back unharmed, in its original place."""
        return self._finish(who, lease_id, "release")

    def cancelled_op(self, who: Principal, lease_id: str) -> Finish:
        """The job was asked to stop and has stopped."""
        return self._finish(who, lease_id, "cancelled")

    def _finish(self, who: Principal, lease_id: str, verb: str, **fields: Any) -> Finish:
        auth.require(who, "lease")
        return Finish(_ref(lease_id), who.holder, who.actor, verb, may_read=auth.may(who, "read"), **fields)

    async def finish(self, who: Principal, op: Finish) -> Job:
        """Ends a lease. Raises `LeaseLost`, `ResultInvalid`, or `Conflict` for a repeat that says something else."""
        job: Job = await self._commit.submit(op)
        self._count(who, job)
        return job

    async def finish_many(self, who: Principal, ops: Sequence[Finish | Beat]) -> list[Job | Beaten | OakenError]:
        """Many at once, each answered at its place."""
        replies = await self._commit.call_all(ops)
        for reply in replies:
            if isinstance(reply, Job):
                self._count(who, reply)
            elif isinstance(reply, Beaten):
                self._note(who, reply.job.agent)
            elif isinstance(reply, BaseException) and not isinstance(reply, OakenError):
                raise reply
        return replies

    async def complete(
        self, who: Principal, lease_id: str, result: Json | None = None, usage: Usage | None = None
    ) -> Job:
        """`complete_op`, carried out."""
        job: Job = await self._commit.submit(self.complete_op(who, lease_id, result, usage))
        self._count(who, job)
        return job

    async def fail(
        self, who: Principal, lease_id: str, error: str, *, permanent: bool = False, retry_after: float | None = None
    ) -> Job:
        """`fail_op`, carried out."""
        return await self.finish(who, self.fail_op(who, lease_id, error, permanent=permanent, retry_after=retry_after))

    async def defer(self, who: Principal, lease_id: str, seconds: float) -> Job:
        """`defer_op`, carried out."""
        return await self.finish(who, self.defer_op(who, lease_id, seconds))

    async def release(self, who: Principal, lease_id: str) -> Job:
        """`release_op`, carried out."""
        return await self.finish(who, self.release_op(who, lease_id))

    async def cancelled(self, who: Principal, lease_id: str) -> Job:
        """`cancelled_op`, carried out."""
        return await self.finish(who, self.cancelled_op(who, lease_id))

    # Changing jobs.

    async def cancel(self, who: Principal, job_id: int) -> Cancelled:
        """Cancels a queued job, asks a running one to stop; a final one stays as it is (`changed` is false)."""
        auth.require(who, "manage")
        return await self._commit.call(Cancel(job_id, who.actor))

    async def requeue(self, who: Principal, job_id: int, queue: str | None = None) -> Job:
        """Puts a failed, cancelled or queued job back to run now, in its queue or the one named."""
        auth.require(who, "manage")
        if queue is not None and queue not in self.rules.queues:
            raise InvalidRequest(
                f"queue {queue!r} is not configured. Configured are {', '.join(sorted(self.rules.queues))}; "
                "add others as [queues.NAME] in config.toml."
            )
        return await self._commit.call(Requeue(job_id, who.actor, queue))

    async def set_labels(self, who: Principal, subject: str, human: dict[str, str]) -> dict[str, dict[str, str]]:
        """Sets people's labels of a subject; they win over the machine's. Moves no job."""
        auth.require(who, "manage")
        await self._commit.call(KeepLabels(SetLabels(subject, "human", human), who.actor))
        return await self._store.labels(subject)

    # Reading.

    async def get(self, who: Principal, job_id: int) -> Job:
        """One job. `NotFound` also where an agent asks for one that it has nothing to do with."""
        return (await self._readable(who, [job_id]))[0]

    async def bodies(self, who: Principal, jobs: Sequence[Job]) -> tuple[dict[int, str], dict[int, str]]:
        """Payloads and results, as JSON text by job id, of jobs that were read before."""
        ids = [job.id for job in jobs]
        return await self._store.payloads(ids), await self._store.results(ids)

    async def result(self, who: Principal, job_id: int) -> str:
        """The result's JSON text. `NotFound` while there is none."""
        job = await self.get(who, job_id)
        text = (await self._store.results([job_id])).get(job_id)
        if text is None:
            raise NotFound(f"Job {job_id} has no result; it is {job.state}.", job_id=job_id, state=job.state)
        return text

    async def list(self, who: Principal, where: JobFilter, *, cursor: str | None = None, limit: int = 50) -> Page:
        """A page of jobs, newest first. An agent sees those that it enqueued, holds or held."""
        if not auth.may(who, "read"):
            auth.require(who, "lease")
            where = replace(where, concerns=who.holder)
        mark = _mark(where)
        before = _read_cursor(cursor, mark) if cursor is not None else None
        jobs = await self._store.list_jobs(where, before, limit + 1)
        more = len(jobs) > limit
        jobs = jobs[:limit]
        return Page(jobs, _cursor(jobs[-1].id, mark) if more else None)

    async def attempts(self, who: Principal, job_id: int) -> list[Attempt]:
        await self.get(who, job_id)
        return await self._store.attempts(job_id)

    async def progress(self, who: Principal, job_id: int) -> list[ProgressRow]:
        """The newest 200, oldest first."""
        await self.get(who, job_id)
        return await self._store.progress(job_id)

    async def activity(self, who: Principal, job_id: int) -> list[Activity]:
        await self.get(who, job_id)
        return await self._store.activity_of(job_id)

    async def children(self, who: Principal, job_id: int, limit: int = 500) -> list[Job]:
        """Newest first."""
        await self.get(who, job_id)
        return await self._store.list_jobs(JobFilter(parent_id=job_id), None, limit)

    async def wait(self, who: Principal, ids: Sequence[int], seconds: float) -> tuple[list[Job], bool]:
        """The jobs when all are final, or as they are after `seconds`; and whether all are final."""
        ids = list(dict.fromkeys(ids))
        wanted = set(ids)
        changed = asyncio.Event()

        def heard(rows: list[Activity]) -> None:
            if any(row.job_id in wanted for row in rows):
                changed.set()

        deadline = asyncio.Event()
        timer = self._clock.call_later(seconds, lambda: (deadline.set(), changed.set())[0])
        try:
            await self._follower.catch_up()
            with self._follower.listen(heard):
                await self._follower.ready()
                while True:
                    changed.clear()
                    jobs = await self._readable(who, ids)
                    final = all(job.final for job in jobs)
                    if final or deadline.is_set() or seconds <= 0:
                        return jobs, final
                    await changed.wait()
        finally:
            timer.cancel()

    async def _readable(self, who: Principal, ids: Sequence[int]) -> list[Job]:
        found = {job.id: job for job in await self._store.jobs(ids)}
        free = auth.may(who, "read")
        if not free:
            auth.require(who, "lease")
        for job_id in ids:
            if job_id not in found or (not free and not await self._store.concerns(job_id, who.holder)):
                raise NotFound(f"There is no job {job_id}, or not for {who.name}.", job_id=job_id)
        return [found[job_id] for job_id in ids]

    async def held(self, who: Principal) -> list[Job]:
        """Jobs this caller holds now, all its instances together."""
        return await self._store.held(who.holder)

    # Queues, agents, kinds, subjects.

    async def queues(self, who: Principal, *, everything: bool = False) -> list[Queue]:
        """Configured queues and those that still have jobs; hidden ones only where `everything` is asked for."""
        self._may_look(who)
        counts: dict[str, dict[str, int]] = {}
        for row in await self._store.counts():
            counts.setdefault(row.queue, {})[row.state] = row.jobs
        paused = await self._store.paused()
        rows: list[Queue] = []
        for name in [*self.rules.queues, *sorted(counts.keys() - self.rules.queues.keys())]:
            rule = self.rules.queues.get(name)
            if rule is not None and rule.hidden and not everything:
                continue
            rows.append(
                Queue(
                    name,
                    rule.kind if rule else None,
                    rule.workers if rule else 0,
                    rule.by_label if rule else False,
                    rule.hidden if rule else False,
                    rule is not None,
                    name in paused,
                    counts.get(name, {}),
                )
            )
        return rows

    async def set_paused(self, who: Principal, name: str, paused: bool) -> Queue:
        """Pauses or resumes a queue. Running jobs finish. `NotFound` for one that is neither configured nor in use."""
        auth.require(who, "manage")
        before = {queue.name: queue for queue in await self.queues(who, everything=True)}
        if name not in before:
            raise NotFound(f"There is no queue {name!r}. There are {', '.join(before)}.")
        await self._commit.call(SetPaused(name, paused, who.actor))
        return replace(before[name], paused=paused)

    async def agents(self, who: Principal) -> list[AgentRow]:
        """Agents, last seen first."""
        self._may_look(who)
        await self.flush()
        return await self._store.agents()

    def kinds(self, who: Principal) -> list[Kind]:
        """Kinds that are configured or built in."""
        self._may_look(who)
        return [self.rules.kinds[name] for name in sorted(self.rules.kinds)]

    async def labels(self, who: Principal, subject: str) -> dict[str, dict[str, str]]:
        """Labels of a subject by layer."""
        auth.require(who, "read")
        return await self._store.labels(subject)

    async def documents(self, who: Principal, ids: Sequence[str]) -> list[Document]:
        """Stored documents with where they came from."""
        auth.require(who, "read")
        return await self._store.documents(ids)

    async def vectors(self, who: Principal) -> list[tuple[str, str, list[float]]]:
        """(document, model, vector) of all stored vectors."""
        auth.require(who, "read")
        return await self._store.vectors()

    def _may_look(self, who: Principal) -> None:
        if not auth.may(who, "read"):
            auth.require(who, "lease")

    # What agents did.

    def _note(self, who: Principal, agent: str | None = None) -> _Seen:
        """The agent was there: the instance that leased the job, which a call on its lease does not name."""
        name = agent or who.agent
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = _Seen(who.name, self._clock.now())
        seen.at = self._clock.now()
        return seen

    def _count(self, who: Principal, job: Job) -> None:
        seen = self._note(who, job.agent)
        if job.state == "succeeded":
            seen.succeeded += 1
        elif job.last_error is not None:
            seen.failed += 1

    async def flush(self) -> None:
        """Writes down what agents did since the last time."""
        seen, self._seen = self._seen, {}
        if seen:
            rows = [SeenAgent(a, s.name, s.at, s.leased, s.succeeded, s.failed) for a, s in seen.items()]
            await self._commit.call(SeeAgents(rows))


def _delay_ms(seconds: float | None) -> int:
    """Milliseconds to wait, never longer than can be asked for."""
    if seconds is None or seconds != seconds:
        return 0
    return round(min(max(seconds, 0.0), MAX_SECONDS) * 1000)


def _ref(lease_id: str) -> LeaseRef:
    match = _LEASE_ID.fullmatch(lease_id)
    if match is None:
        shown = redaction.clean(lease_id[:40])
        raise LeaseLost(f"Lease lost: {shown!r} is no lease id. Use the lease_id that a lease gave you, whole.")
    return LeaseRef(int(match[1]), int(match[2]), match[3])


def lease_id_job(lease_id: str) -> int:
    """The job that a lease id names. Raises `LeaseLost` where it is none."""
    return _ref(lease_id).job_id


def _mark(where: JobFilter) -> str:
    """What binds a cursor to its filters."""
    return hashlib.blake2b(repr(where).encode(), digest_size=6).hexdigest()


def _cursor(job_id: int, mark: str) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([job_id, mark])).decode().rstrip("=")


def _read_cursor(cursor: str, mark: str) -> int:
    try:
        job_id, found = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        ok = isinstance(job_id, int) and 0 < job_id <= MAX_ID and found == mark
    except (ValueError, TypeError, binascii.Error):
        ok, job_id = False, 0
    if not ok:
        raise InvalidRequest("cursor: it belongs to other filters or is not one of ours. Start again without a cursor.")
    return job_id

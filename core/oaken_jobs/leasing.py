"""Leases: taking jobs, keeping them, and ending them in one of the ways there are."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from oaken_jobs import auth, jsontext, redaction
from oaken_jobs.activity import Follower
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.dispatch import Dispatcher
from oaken_jobs.errors import Forbidden, InvalidRequest, LeaseLost, OakenError, ResultInvalid, Unavailable
from oaken_jobs.model import AgentRow, Effect, Job, Json, Leased, LeaseRef, Principal, Usage
from oaken_jobs.moves import Finish
from oaken_jobs.reading import Reader
from oaken_jobs.requests import MAX_LEASE_SECONDS, MAX_QUESTION, MAX_SECONDS, TraceRow
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import Beat, Beaten, Once, Resume, SeeAgents, SeenAgent, Want
from oaken_jobs.tracing import End, Trace

_LEASE_ID = re.compile(r"(\d{1,16})-(\d{1,9})-([0-9a-f]{24})", re.ASCII)
MESSAGE_LIMIT = 256


@dataclass(slots=True)
class _Seen:
    """What an agent did since it was last written down."""

    name: str
    workspace: str | None
    at: int
    leased: int = 0
    succeeded: int = 0
    failed: int = 0


class Traced(NamedTuple):
    """The answer to rows for the trace: they count as a heartbeat."""

    job: Job
    expires_at: int
    recorded: int


class Say(NamedTuple):
    """Rows for the trace, as `trace_op` makes it."""

    beat: Beat
    rows: list[Json]


class Leasing(Reader):
    """What workers do with jobs. With a `trace`, all that they are told and answer is in it before they hear of it."""

    def __init__(
        self,
        store: Store,
        commit: Committer,
        dispatch: Dispatcher,
        follower: Follower,
        clock: Clock,
        trace: Trace | None = None,
    ) -> None:
        super().__init__(store, follower, clock)
        self._trace = trace
        self._commit = commit
        self._dispatch = dispatch
        self._seen: dict[str, _Seen] = {}
        self._leased_kinds: set[str] = set()

    async def lease(
        self,
        who: Principal,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        max: int = 1,
        lease_seconds: float | None = None,
        usual_seconds: float | None = None,
        wait_seconds: float = 0,
        idempotency_key: str | None = None,
    ) -> list[Leased]:
        """Up to `max` jobs for this caller, waiting up to `wait_seconds` for the first. Cancel the call to give up. Without
        `lease_seconds` a lease lasts as long as its kind says, else `usual_seconds`.

        With an idempotency key what was leased stays leased although the caller goes away, and a repeat of the request gets those
        leases again that still live, and nothing new.
        """
        auth.require(who, "lease")
        queues = auth.allowed(who.limits.queues, queues, "queues")
        kinds = auth.allowed(who.limits.kinds, kinds, "kinds")
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
            usual_seconds=usual_seconds,
            queues=queues,
            kinds=kinds,
            not_kinds=not_kinds if kinds is None else (),
            within=who.workspace,
            by_token=who.by_token,
        )
        if idempotency_key is not None:
            asked = (want.agent, want.max, want.lease_ms, want.queues, want.kinds)
            want.once = once(who, idempotency_key, "lease", *asked)
        if wait_seconds > 0:
            self._note(who)  # a request that waits shows that its agent is there
        leases = await self._dispatch.lease(want, wait_seconds)
        try:
            await self._record_leases(who, leases)
        except asyncio.CancelledError:
            self._dispatch.give_back(want, leases)
            raise
        self._note(who).leased += sum(not lease.replayed for lease in leases)
        for lease in leases:
            self._leased_kinds.add(lease.job.kind)
        return leases

    async def limited(self, who: Principal) -> str | None:
        """Why this caller gets no jobs for now, where that is for the limits of its token; None where it is not."""
        _, _, max_leases, max_per_hour = who.limits
        if max_leases is None and max_per_hour is None:
            return None
        live, last_hour = await self._store.leases_of(who.holder, self.now())
        if max_leases is not None and live >= max_leases:
            return f"max_leases: this token holds {live} jobs, and may hold {max_leases}; finish one, then lease again"
        if max_per_hour is not None and last_hour >= max_per_hour:
            return f"max_per_hour: this token has leased {last_hour} jobs within the hour, and may lease {max_per_hour}; try again later"
        return None

    async def resume(self, who: Principal, *, lease_seconds: float | None = None) -> list[Leased]:
        """This very agent's own living leases again, each under a new id that makes the old one worthless; for one that has lost its
        memory. The attempts go on. Raises `InvalidRequest` without an instance: two processes of one name are two agents."""
        auth.require(who, "lease")
        if who.instance is None:
            raise InvalidRequest(
                f"resume needs an instance: {who.name} may be several processes, and would take each other's leases. Lease and "
                f"resume as {who.name}/INSTANCE, always the same one."
            )
        lease_ms = round(lease_seconds * 1000) if lease_seconds is not None else None
        leases: list[Leased] = await self._commit.call(Resume(who.holder, who.agent, who.actor, lease_ms))
        await self._record_leases(who, leases)
        self._note(who)
        return leases

    async def heartbeat(
        self,
        who: Principal,
        lease_id: str,
        *,
        lease_seconds: float | None = None,
        percent: float | None = None,
        message: str | None = None,
        seq: int | None = None,
        progress: bool = False,
    ) -> Beaten:
        """Keeps the lease for its length, or `lease_seconds`, from now; with `progress` also says how far the work is. A report whose
        `seq` is not above the last one's was told before, and only keeps the lease."""
        op = self.heartbeat_op(
            who, lease_id, lease_seconds=lease_seconds, percent=percent, message=message, seq=seq, progress=progress
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
        seq: int | None = None,
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
            seq,
            auth.may(who, "read"),
            who.workspace,
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
            within=who.workspace,
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
        said = error if self._trace is not None else None
        return self._finish(
            who, lease_id, "fail", error=text, said=said, permanent=permanent, delay_ms=delay, usage=usage
        )

    def defer_op(self, who: Principal, lease_id: str, seconds: float) -> Finish:
        """Not now; the attempt does not count."""
        return self._finish(who, lease_id, "defer", delay_ms=_delay_ms(seconds))

    def release_op(self, who: Principal, lease_id: str, *, after_children: bool = False) -> Finish:
        """Gives the job back unharmed, in its original place; with `after_children` not before all its children are final, and its next
        lease lists them with their results."""
        return self._finish(who, lease_id, "release", after_children=after_children)

    def ask_op(self, who: Principal, lease_id: str, text: str, *, timeout_seconds: float | None = None) -> Finish:
        """Asks whoever enqueued the job. The job waits for the answer, at most `timeout_seconds` (else `[jobs] ask_timeout`), and
        its next lease carries both; the attempt is not counted."""
        text = redaction.clean(text)
        if not text.strip() or len(text) > MAX_QUESTION:
            raise InvalidRequest(f"A question has 1 to {MAX_QUESTION} characters; this one has {len(text.strip())}.")
        wait = _delay_ms(timeout_seconds if timeout_seconds is not None else self.rules.ask_timeout)
        return self._finish(who, lease_id, "ask", question=text, delay_ms=wait)

    def cancelled_op(self, who: Principal, lease_id: str) -> Finish:
        """The job was asked to stop and has stopped."""
        return self._finish(who, lease_id, "cancelled")

    def _finish(self, who: Principal, lease_id: str, verb: str, **fields: Any) -> Finish:
        auth.require(who, "lease")
        return Finish(
            _ref(lease_id), who.holder, who.actor, verb, may_read=auth.may(who, "read"), within=who.workspace, **fields
        )

    async def finish(self, who: Principal, op: Finish) -> Job:
        """Ends a lease. Raises `LeaseLost`, `ResultInvalid`, or `Conflict` for a repeat that says something else."""
        try:
            job: Job = await self._commit.submit(op)
        except OakenError as refusal:
            await self._record_ends(who, [(op, refusal)])
            raise
        self._count(who, job)
        await self._record_ends(who, [(op, job)])
        return job

    async def finish_many(
        self, who: Principal, ops: Sequence[Finish | Beat | Say]
    ) -> list[Job | Beaten | Traced | OakenError]:
        """Many at once, each answered at its place."""
        replies = await self._commit.call_all([op.beat if isinstance(op, Say) else op for op in ops])
        for reply in replies:
            if isinstance(reply, Job):
                self._count(who, reply)
            elif isinstance(reply, Beaten):
                self._note(who, reply.job.agent)
            elif isinstance(reply, BaseException) and not isinstance(reply, OakenError):
                raise reply
        said = [
            (op, reply)
            for op, reply in zip(ops, replies, strict=True)
            if isinstance(op, Say) and isinstance(reply, Beaten)
        ]
        if self._trace is not None and said:
            # Before the ends: what a holder says under a lease comes before its end.
            await asyncio.gather(*(self._trace.said(who, reply.job, op.rows, self.rules) for op, reply in said))
        await self._record_ends(who, zip(ops, replies, strict=True))
        return [
            Traced(*reply, len(op.rows)) if isinstance(op, Say) and isinstance(reply, Beaten) else reply
            for op, reply in zip(ops, replies, strict=True)
        ]

    async def complete(
        self, who: Principal, lease_id: str, result: Json | None = None, usage: Usage | None = None
    ) -> Job:
        """`complete_op`, carried out."""
        return await self.finish(who, self.complete_op(who, lease_id, result, usage))

    async def fail(
        self, who: Principal, lease_id: str, error: str, *, permanent: bool = False, retry_after: float | None = None
    ) -> Job:
        """`fail_op`, carried out."""
        return await self.finish(who, self.fail_op(who, lease_id, error, permanent=permanent, retry_after=retry_after))

    async def defer(self, who: Principal, lease_id: str, seconds: float) -> Job:
        """`defer_op`, carried out."""
        return await self.finish(who, self.defer_op(who, lease_id, seconds))

    async def release(self, who: Principal, lease_id: str, *, after_children: bool = False) -> Job:
        """`release_op`, carried out."""
        return await self.finish(who, self.release_op(who, lease_id, after_children=after_children))

    async def ask(self, who: Principal, lease_id: str, text: str, *, timeout_seconds: float | None = None) -> Job:
        """`ask_op`, carried out."""
        return await self.finish(who, self.ask_op(who, lease_id, text, timeout_seconds=timeout_seconds))

    async def cancelled(self, who: Principal, lease_id: str) -> Job:
        """`cancelled_op`, carried out."""
        return await self.finish(who, self.cancelled_op(who, lease_id))

    # The trace.

    async def trace(self, who: Principal, lease_id: str, rows: Sequence[TraceRow]) -> Traced:
        """`trace_op`, carried out. Raises `LeaseLost`."""
        [reply] = await self.finish_many(who, [self.trace_op(who, lease_id, rows)])
        if isinstance(reply, OakenError):
            raise reply
        assert isinstance(reply, Traced)
        return reply

    def trace_op(self, who: Principal, lease_id: str, rows: Sequence[TraceRow]) -> Say:
        """Adds rows of the holder's to the trace, where there is one; counts as a heartbeat. Raises `TooLarge` for rows over
        `[jobs] max_result_bytes` together, `InvalidRequest` for what is no JSON."""
        beat = self.heartbeat_op(who, lease_id)
        said: list[Json] = []
        if self._trace is not None:
            said = [row.model_dump(exclude_none=True) for row in rows]
            jsontext.dump(
                {"rows": said},
                what="trace",
                max_bytes=self.rules.max_result_bytes,
                setting="[jobs] max_result_bytes",
                error=InvalidRequest,
            )
        return Say(beat, said)

    async def _record_leases(self, who: Principal, leases: Sequence[Leased]) -> None:
        new = [] if self._trace is None else [lease for lease in leases if not lease.replayed]
        if self._trace is not None and new:
            await self._trace.leased(who, new, self.rules)

    async def _record_ends(self, who: Principal, said: Iterable[tuple[Finish | Beat | Say, Any]]) -> None:
        """Whatever became of it; a refused answer is one, too."""
        if self._trace is None:
            return
        ends = [(op, reply) for op, reply in said if isinstance(op, Finish)]
        jobs = {reply.id: reply for _, reply in ends if isinstance(reply, Job)}
        refused = {
            op.ref.job_id for op, reply in ends if isinstance(reply, OakenError) and not isinstance(reply, Unavailable)
        }
        try:
            found = await self._store.jobs(sorted(refused.difference(jobs))) if refused else []
        except OakenError:
            found = []
        jobs.update((job.id, job) for job in found)
        if ends:
            await self._trace.finished(
                who,
                [
                    End(op, reply, None) if isinstance(reply, Job) else End(op, jobs.get(op.ref.job_id), reply.code)
                    for op, reply in ends
                ],
                self.rules,
            )

    # What agents did.

    async def agents(self, who: Principal) -> list[AgentRow]:
        await self.flush()
        return await super().agents(who)

    def _note(self, who: Principal, agent: str | None = None) -> _Seen:
        """The agent was there: the instance that leased the job, which a call on its lease does not name."""
        name = agent or who.agent
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = _Seen(who.name, who.workspace, self._clock.now())
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
            rows = [SeenAgent(a, s.name, s.at, s.leased, s.succeeded, s.failed, s.workspace) for a, s in seen.items()]
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


def once(who: Principal, key: str, *request: Any) -> Once:
    """An idempotency key of the caller's, bound to the request it came with."""
    digest = hashlib.blake2b(orjson.dumps(request, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
    return Once(who.holder, key, digest)

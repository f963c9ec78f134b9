"""The service everyone calls: HTTP, MCP, the command line and the runner. Every answer is durable before it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import orjson

from oaken_jobs import auth, payloads, redaction
from oaken_jobs.activity import Follower
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.dispatch import Dispatcher
from oaken_jobs.errors import Forbidden, InvalidRequest, NotFound, OakenError
from oaken_jobs.leasing import Leasing, once
from oaken_jobs.lifecycle import sources
from oaken_jobs.model import MAX_PRIORITY, PRIORITIES, STATES, Enqueued, Job, NewJob, Principal, Queue, SetLabels
from oaken_jobs.reading import cursor_of, mark_of, read_cursor
from oaken_jobs.requests import MAX_TEXT, NewJobRequest
from oaken_jobs.store.base import JobFilter, Store
from oaken_jobs.store.operations import (
    Adopt,
    Answer,
    Cancel,
    Cancelled,
    Drain,
    Edit,
    Enqueue,
    Erase,
    KeepLabels,
    Requeue,
    SetPaused,
)
from oaken_jobs.tracing import Trace

BULK_CHUNK = 100
"""Jobs changed in one transaction by a call on all that match: a few milliseconds, so that others get their turn."""
BULK_CALL = 5000
"""Jobs that one such call looks at; then it answers with a cursor to go on from."""
KINDS_SECONDS = 1.0
"""How old it may be which kinds were ever leased, where that decides on a warning."""


_PRIVATE: tuple[str, ...] = ("title", "tags", "subject", "question", "last_error", "message", "agent", "usage")
"""Columns of a job that an agent which has nothing to do with it does not learn."""


T = TypeVar("T")


class _Early(NamedTuple):
    """A reply to an enqueue, and what was made of it before it was durable, if that could be `done`."""

    enqueued: Enqueued
    done: bool
    shown: Any


@lru_cache(maxsize=64)
def _never_leased(kind: str) -> str:
    return f"No agent has ever leased a job of kind {kind!r}. The job waits until one does; check the spelling."


def _as_it_is(enqueued: Enqueued) -> Enqueued:
    return enqueued


class Bulk(NamedTuple):
    """What a call on all jobs that match a filter did. `matched` counts from where it began; `remaining` is what it did not get to."""

    matched: int
    done: int
    skipped: int
    """Refused, or changed meanwhile."""
    remaining: int
    cursor: str | None
    """To go on from; the jobs are frozen: none that is added later is touched."""
    up_to: int
    """The highest id there was when they were."""


class Jobs(Leasing):
    """Jobs as seen by a caller. Every method takes the caller first and checks what it may do."""

    def __init__(
        self,
        store: Store,
        commit: Committer,
        dispatch: Dispatcher,
        follower: Follower,
        clock: Clock,
        trace: Trace | None = None,
    ) -> None:
        super().__init__(store, commit, dispatch, follower, clock, trace)
        self._kinds_read_at = float("-inf")

    # Adding jobs.

    async def enqueue(self, who: Principal, request: NewJobRequest, *, traceparent: str | None = None) -> Enqueued:
        """Adds a job, or returns the live one with the same dedupe key or target. `traceparent`, as read, is kept with a new one."""
        op = self._enqueue_op(who, request, traceparent)
        enqueued: Enqueued = await self._commit.submit(op)
        return await self._told(who, op, enqueued)

    async def enqueue_shown(
        self, who: Principal, request: NewJobRequest, show: Callable[[Enqueued], T], *, traceparent: str | None = None
    ) -> T:
        """What `show` makes of what `enqueue` answers; it is put together while the disk works, and given when all is durable."""
        op = self._enqueue_op(who, request, traceparent)
        return await self._late(who, op, await self._commit.submit(op, partial(self._early, show)), show)

    def _early(self, show: Callable[[Enqueued], T], enqueued: Enqueued) -> _Early:
        """What can be shown of a new job before it is durable."""
        told = self._told_at_once(enqueued)
        return _Early(enqueued, told is not None, show(told) if told is not None else None)

    async def _late(self, who: Principal, op: Enqueue, early: _Early, show: Callable[[Enqueued], T]) -> T:
        return early.shown if early.done else show(await self._told(who, op, early.enqueued))

    async def enqueue_many(
        self, who: Principal, requests: Sequence[NewJobRequest | OakenError], *, traceparent: str | None = None
    ) -> list[Enqueued | OakenError]:
        """As `enqueue` for each, in order; a refusal takes the place of its answer and leaves the others alone."""
        return await self.enqueue_many_shown(who, requests, _as_it_is, traceparent=traceparent)

    async def enqueue_many_shown(
        self,
        who: Principal,
        requests: Sequence[NewJobRequest | OakenError],
        show: Callable[[Enqueued], T],
        *,
        traceparent: str | None = None,
    ) -> list[T | OakenError]:
        """As `enqueue_shown` for each."""
        if len(requests) > self.rules.max_batch:
            raise InvalidRequest(
                f"{len(requests)} jobs in one call; at most {self.rules.max_batch} ([jobs] max_batch). Send them in parts."
            )
        prepared: list[Enqueue | OakenError] = []
        for request in requests:
            try:
                prepared.append(
                    request if isinstance(request, OakenError) else self._enqueue_op(who, request, traceparent)
                )
            except OakenError as refusal:
                prepared.append(refusal)
        ops = [one for one in prepared if isinstance(one, Enqueue)]
        replies = iter(await self._commit.call_all(ops, partial(self._early, show)))
        answers: list[T | OakenError] = []
        for one in prepared:
            if isinstance(one, OakenError):
                answers.append(one)
                continue
            reply: Any = next(replies)
            if isinstance(reply, _Early):
                answers.append(reply.shown if reply.done else await self._late(who, one, reply, show))
            elif isinstance(reply, OakenError):
                answers.append(reply)
            else:
                raise reply
        return answers

    def _enqueue_op(self, who: Principal, request: NewJobRequest, traceparent: str | None) -> Enqueue:
        auth.require(who, "enqueue")
        payload, schema_hash = payloads.checked(self.rules, request.kind, request.payload)
        free = who.runner or not who.roles.isdisjoint(("user", "admin"))
        if not free and request.parent_id is None:
            raise Forbidden(
                f"{who.name} is only an agent and may enqueue nothing but children of a job it holds: give parent_id, "
                "or use a token that also has the role user."
            )
        workspace = request.workspace
        if who.workspace is not None and workspace is not None:
            workspace = auth.workspace_of(who, workspace)
        priority = request.priority
        if priority is None:
            priority = PRIORITIES["user"] if who.actor.kind == "user" else PRIORITIES["ingest"]
        new = NewJob(  # by place, which takes a third of the time
            request.kind,
            payload,
            request.subject,
            request.target,
            request.dedupe_key,
            min(priority, MAX_PRIORITY),
            request.run_at,
            round(request.delay_seconds * 1000) if request.delay_seconds is not None else 0,
            request.max_attempts,
            request.parent_id,
            request.title,
            tuple(request.tags) if request.tags else (),
            request.budget_usd,
            request.serial_key,
            request.on_duplicate,
            request.expires_at,
            max(1, round(request.ttl_seconds * 1000)) if request.ttl_seconds is not None else None,
            workspace,
        )
        op = Enqueue(new, who.actor, schema_hash, None if free else who.holder, within=who.workspace)
        op.traceparent = traceparent
        if request.idempotency_key is not None:
            op.once = once(who, request.idempotency_key, "enqueue", *new)
        return op

    async def _told(self, who: Principal, op: Enqueue, enqueued: Enqueued) -> Enqueued:
        """The answer as its caller may have it, with what it should know."""
        if not enqueued.created:
            return await self._told_of_other(who, op, enqueued)
        told = self._told_at_once(enqueued)
        if told is None:
            self._kinds_read_at = self._clock.monotonic()
            self._leased_kinds |= await self._store.leased_kinds()
            told = self._told_at_once(enqueued)
        return told or enqueued

    def _told_at_once(self, enqueued: Enqueued) -> Enqueued | None:
        """The same where nothing need be looked up for it."""
        kind = enqueued.job.kind
        if not enqueued.created:
            return None
        if kind in self._leased_kinds or kind in self.rules.kinds:
            return enqueued
        if self._clock.monotonic() - self._kinds_read_at > KINDS_SECONDS:
            return None
        return Enqueued(enqueued.job, True, _never_leased(kind), enqueued.replayed)

    async def _told_of_other(self, who: Principal, op: Enqueue, enqueued: Enqueued) -> Enqueued:
        """A job that was there: somebody else's, perhaps."""
        job = enqueued.job
        if op.held_by is not None and not await self._store.concerns(job.id, who.holder):
            # An agent may learn that the work is under way, and nothing else of it.
            enqueued = enqueued._replace(job=job.having(dict.fromkeys(_PRIVATE)))
        if op.new.parent_id is not None and job.parent_id != op.new.parent_id:
            warning = (
                f"Job {job.id} was there already and is no child of job {op.new.parent_id}: a release with after_children does not "
                "wait for it."
            )
            enqueued = enqueued._replace(warning=warning)
        return enqueued

    # Changing jobs.

    async def cancel(self, who: Principal, job_id: int) -> Cancelled:
        """Cancels a queued job, asks a running one to stop; a final one stays as it is (`changed` is false)."""
        auth.require(who, "manage")
        return await self._commit.call(Cancel(job_id, who.actor, who.workspace))

    async def requeue(self, who: Principal, job_id: int, queue: str | None = None, *, retriage: bool = False) -> Job:
        """Puts a failed, cancelled or queued job back to run now, in its queue or the one named. With `retriage` the machine's labels of
        its subject are cleared, so that triage and routing decide again."""
        auth.require(who, "manage")
        if queue is not None:
            self.rules.require_queue(queue)
        return await self._commit.call(Requeue(job_id, who.actor, queue, retriage, who.workspace))

    async def requeue_all(
        self,
        who: Principal,
        where: JobFilter,
        *,
        queue: str | None = None,
        retriage: bool = False,
        dry_run: bool = False,
        cursor: str | None = None,
    ) -> Bulk:
        """`requeue` for all that match; some thousands a call, the rest by its cursor. `dry_run` only counts."""
        auth.require(who, "manage")
        if queue is not None:
            self.rules.require_queue(queue)
        mark = ("requeue", queue, retriage)

        def requeue(job_id: int) -> Requeue:
            return Requeue(job_id, who.actor, queue, retriage, who.workspace)

        return await self._bulk(who, where, mark, sources("requeue"), requeue, dry_run, cursor)

    async def cancel_all(
        self, who: Principal, where: JobFilter, *, dry_run: bool = False, cursor: str | None = None
    ) -> Bulk:
        """`cancel` for all that match; as `requeue_all`."""
        auth.require(who, "manage")

        def cancel(job_id: int) -> Cancel:
            return Cancel(job_id, who.actor, who.workspace)

        return await self._bulk(who, where, ("cancel",), sources("cancel"), cancel, dry_run, cursor)

    async def _bulk(
        self,
        who: Principal,
        where: JobFilter,
        mark: tuple[object, ...],
        states: frozenset[str],
        make: Callable[[int], Requeue | Cancel],
        dry_run: bool,
        cursor: str | None,
    ) -> Bulk:
        if where == JobFilter(workspace=where.workspace):
            raise InvalidRequest(
                'filter: it matches every job there is; say at least one thing, such as {"state": "failed"}.'
            )
        wanted = states.intersection(where.states) if where.states else states
        if not wanted:
            possible = ", ".join(state for state in STATES if state in states)
            raise InvalidRequest(f"filter.state: only {possible} jobs can be changed so.")
        where = self._visible(who, replace(where, states=tuple(sorted(wanted))))
        bound = mark_of(where, *mark)
        after, up_to = read_cursor(cursor, bound, 2) if cursor is not None else (0, await self._store.last_id())
        matched = await self._store.count(where, after, up_to)
        done = skipped = 0
        while not dry_run and done + skipped < BULK_CALL:
            ids = await self._store.matching(where, after, up_to, BULK_CHUNK)
            if not ids:
                return Bulk(matched, done, skipped, 0, None, up_to)
            for reply in await self._commit.call_all([make(job_id) for job_id in ids]):
                if isinstance(reply, BaseException) and not isinstance(reply, OakenError):
                    raise reply
                refused = isinstance(reply, OakenError) or (isinstance(reply, Cancelled) and not reply.changed)
                skipped += refused
                done += not refused
            after = ids[-1]
        remaining = max(matched - done - skipped, 0)
        return Bulk(matched, done, skipped, remaining, cursor_of(bound, after, up_to) if remaining else None, up_to)

    async def answer(self, who: Principal, job_id: int, text: str, *, epoch: int | None = None) -> Job:
        """Answers a job's open question; it is then runnable. For people, and for the agent that enqueued it. With `epoch` only the
        question that the lease of that epoch asked.

        Raises `Conflict` where no question is open, or another.
        """
        auth.require(who, "enqueue")
        own = not auth.may(who, "manage")
        if own:
            await self.get(who, job_id)  # says what it says of any job that is not this agent's
        text = redaction.clean(text)
        if not text.strip() or len(text) > MAX_TEXT:
            raise InvalidRequest(f"An answer has 1 to {MAX_TEXT} characters; this one has {len(text.strip())}.")
        return await self._commit.call(Answer(job_id, text, who.actor, own, who.workspace, epoch))

    async def adopt(self, who: Principal, job_id: int, epoch: int) -> Job:
        """Takes the late result of the attempt of that epoch as the job's, whoever has the job now. Raises `Conflict` where it has
        succeeded, `NotFound` where that attempt left none."""
        auth.require(who, "manage")
        return await self._commit.call(Adopt(job_id, epoch, who.actor, who.workspace))

    async def edit(
        self,
        who: Principal,
        job_id: int,
        *,
        priority: int | None = None,
        title: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> Job:
        """Changes how a job is treated and shown; None leaves a thing as it is, an empty title takes it away. Raises `Conflict` for the
        priority of one that has ended."""
        auth.require(who, "manage")
        changes: dict[str, Any] = {}
        if priority is not None:
            changes["priority"] = priority
        if title is not None:
            changes["title"] = title or None
        if tags is not None:
            changes["tags"] = orjson.dumps(list(tags)).decode() if tags else None
        return await self._commit.call(Edit(job_id, changes, who.actor, who.workspace))

    async def erase(self, who: Principal, job_id: int) -> Job:
        """Takes away a job that has ended, with payload, result, attempts and all; the ids and states of its activity stay. Raises
        `Conflict` for one that has not ended, or has children that have not."""
        auth.require(who, "manage")
        return await self._commit.call(Erase(job_id, who.actor, who.workspace))

    # Subjects, queues, agents.

    async def set_labels(
        self, who: Principal, subject: str, human: dict[str, str], workspace: str | None = None
    ) -> dict[str, dict[str, str]]:
        """Sets people's labels of a subject; they win over the machine's. Moves no job."""
        auth.require(who, "manage")
        workspace = auth.workspace_of(who, workspace)
        await self._commit.call(KeepLabels(SetLabels(subject, "human", human), who.actor, workspace))
        return await self._store.labels(workspace, subject)

    async def set_paused(self, who: Principal, name: str, paused: bool) -> Queue:
        """Pauses or resumes a queue. Running jobs finish. `NotFound` for one that is neither configured nor in use."""
        auth.require(who, "manage")
        auth.require_unbound(who, "pause or resume a queue")
        before = {queue.name: queue for queue in await self.queues(who, everything=True)}
        if name not in before:
            raise NotFound(f"There is no queue {name!r}. There are {', '.join(before)}.")
        await self._commit.call(SetPaused(name, paused, who.actor))
        return replace(before[name], paused=paused)

    async def drain(self, who: Principal, agent: str, draining: bool = True) -> bool:
        """Lets an agent (`name` with all its instances, or `name/instance`) get nothing new, or again. Whether that changed anything.
        `NotFound` for one that was never seen."""
        auth.require(who, "manage")
        if not any(agent in (row.agent, row.name) for row in await self.agents(who)):
            raise NotFound(
                f"There is no agent {agent!r}; none of this name has ever asked for work. See the list of agents."
            )
        return await self._commit.call(Drain(agent, draining, who.actor))

"""Reading: what a caller may see of jobs, queues, agents, kinds and subjects."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import orjson

from oaken_jobs import auth
from oaken_jobs.activity import Follower
from oaken_jobs.backlog import Backlog, backlog
from oaken_jobs.clock import Clock
from oaken_jobs.errors import InvalidRequest, NotFound
from oaken_jobs.events import event
from oaken_jobs.events.event import Event
from oaken_jobs.kinds import Kind, Rules
from oaken_jobs.model import (
    STATES,
    Activity,
    AgentRow,
    Attempt,
    Job,
    Page,
    Principal,
    ProgressRow,
    Question,
    Queue,
)
from oaken_jobs.redaction import clean
from oaken_jobs.requests import MAX_ID
from oaken_jobs.store.base import ActivityFilter, Document, Finishes, JobFilter, Store
from oaken_jobs.waits import Wait, waits

T = TypeVar("T")

ACTIVE = 20
RECENT = 12
QUESTIONS = 50


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand: for everyone, or for what one actor enqueued."""

    now: int
    counts: dict[str, int]
    """Jobs by state."""
    active: list[Job]
    """Running ones, then queued ones, newest first; at most `ACTIVE`."""
    recent: list[Job]
    """Final ones, the last that ended first; at most `RECENT`."""
    questions: list[Question]
    """Open ones, the longest waiting first; at most `QUESTIONS`."""


class Events(NamedTuple):
    """A page of events. `cursor` is where to go on; `resync` says that some may be missing between the cursor asked for and these,
    since what is old is forgotten: read anew what you follow."""

    events: list[Event]
    cursor: str
    resync: bool


class Reader:
    """What callers may read. Every method takes the caller first and checks what it may see."""

    def __init__(self, store: Store, follower: Follower, clock: Clock) -> None:
        self._store = store
        self._follower = follower
        self._clock = clock

    @property
    def rules(self) -> Rules:
        return self._store.rules

    def now(self) -> int:
        """Milliseconds, by the clock that judges leases."""
        return self._clock.now()

    # Jobs.

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

    async def late_result(self, who: Principal, job_id: int, epoch: int) -> str:
        """The JSON text of a result that came after its attempt had lost the lease. `NotFound` where there is none."""
        await self.get(who, job_id)
        text = await self._store.late_result(job_id, epoch)
        if text is None:
            raise NotFound(
                f"Attempt {epoch} of job {job_id} left no late result. Its attempts say which did (late_result)."
            )
        return text

    async def list(self, who: Principal, where: JobFilter, *, cursor: str | None = None, limit: int = 50) -> Page:
        """A page of jobs, newest first. An agent sees those that it enqueued, holds or held."""
        where = self._visible(who, where)
        mark = mark_of(where)
        before = read_cursor(cursor, mark, 1)[0] if cursor is not None else None
        if before == 0:
            raise InvalidRequest("cursor: it is not one of ours. Start again without a cursor.")
        jobs = await self._store.list_jobs(where, before, limit + 1)
        more = len(jobs) > limit
        jobs = jobs[:limit]
        return Page(jobs, cursor_of(mark, jobs[-1].id) if more else None)

    def cursor(self, who: Principal, where: JobFilter, last: Job) -> str:
        """From where a list goes on after this job."""
        return cursor_of(mark_of(self._visible(who, where)), last.id)

    def _visible(self, who: Principal, where: JobFilter) -> JobFilter:
        """The filter narrowed to what the caller may see. An agent sees jobs that it enqueued, holds or held."""
        if not auth.may(who, "read"):
            auth.require(who, "lease")
            where = replace(where, concerns=who.holder)
        if who.workspace is not None or where.workspace is not None:
            where = replace(where, workspace=auth.workspace_of(who, where.workspace))
        return where

    async def waits(self, jobs: Sequence[Job]) -> dict[int, list[Wait]]:
        """By id: why each of these jobs, which were read before, is not running."""
        now = self.now()
        around = await self._store.surroundings(jobs, now) if any(job.state == "queued" for job in jobs) else None
        return {job.id: waits(job, self.rules, around, now) for job in jobs}

    async def stuck(self, who: Principal) -> Backlog:
        """What waits and why, over all queued jobs that the caller may see, and the one of each queue that could run longest."""
        now = self.now()
        lanes = await self._store.backlog(self._visible(who, JobFilter()), now)
        samples = {job.id: job for job in await self._store.jobs([lane.sample for lane in lanes])}
        reasons = await self.waits([*samples.values()])
        return backlog([(lane, samples[lane.sample], reasons[lane.sample]) for lane in lanes if lane.sample in samples])

    async def finishes(self, who: Principal, since: int) -> list[Finishes]:
        """How many jobs have ended since a moment (ms), by minute and state."""
        auth.require(who, "read")
        return await self._store.finishes(since, who.workspace)

    async def snapshot(self, who: Principal, actor: str | None = None) -> Snapshot:
        """Counts, what is active, what ended last, and what is asked."""
        where = self._visible(who, JobFilter(actor=actor))
        counts = await self._store.states(where)
        active = await self._store.list_jobs(replace(where, states=("running",)), None, ACTIVE)
        if len(active) < ACTIVE:
            active += await self._store.list_jobs(replace(where, states=("queued",)), None, ACTIVE - len(active))
        recent = await self._store.ended(where, RECENT)
        questions = await self._store.open_questions(where, QUESTIONS)
        return Snapshot(self.now(), {state: counts.get(state, 0) for state in STATES}, active, recent, questions)

    async def ended(self, who: Principal, where: JobFilter, limit: int) -> list[Job]:
        """Final jobs that the caller may see, the last that ended first."""
        return await self._store.ended(self._visible(who, where), limit)

    async def open_questions(self, who: Principal, limit: int = QUESTIONS) -> list[Question]:
        """What is asked and not answered, the longest waiting first."""
        return await self._store.open_questions(self._visible(who, JobFilter()), limit)

    async def questions(self, who: Principal, job_id: int) -> list[Question]:
        """What a job has asked, the newest 200, oldest first."""
        await self.get(who, job_id)
        return await self._store.questions(job_id)

    async def attempts(self, who: Principal, job_id: int) -> list[Attempt]:
        await self.get(who, job_id)
        return await self._store.attempts(job_id)

    async def progress(self, who: Principal, job_id: int) -> list[ProgressRow]:
        """The newest 200, oldest first."""
        await self.get(who, job_id)
        return await self._store.progress(job_id)

    async def activity(self, who: Principal, job_id: int, *, reports: bool = True) -> list[Event]:
        """What has happened to a job, the oldest first: the latest 1000, of which those of progress only with `reports`."""
        await self.get(who, job_id)
        return [event.of(row) for row in await self._store.activity_of(job_id, reports=reports)]

    async def events(
        self,
        who: Principal,
        *,
        after: str | None = None,
        kinds: Sequence[str] = (),
        job_id: int | None = None,
        limit: int = 100,
        seconds: float = 0,
    ) -> Events:
        """Public events after a cursor (None: from now on), oldest first, waiting up to `seconds` for the first.

        A caller that is bound to a workspace gets its own. Raises `InvalidRequest` for a cursor or a kind that is none.
        """
        auth.require(who, "read")
        event.check_kinds(kinds)
        where = ActivityFilter(events=tuple(kinds), job_id=job_id, workspace=who.workspace)
        head = await self._store.activity_head()
        cursor = head if after is None else _event_cursor(after)
        if cursor > head:  # another database than the one it is of
            return Events([], str(head), True)
        resync = cursor < await self._store.activity_forgotten()

        async def look() -> Events:
            # Read first: what is committed while the rows are read lies behind this mark and is found next time.
            end = await self._store.activity_head()
            rows = await self._store.activity(cursor, limit, where)
            last = rows[-1].id if len(rows) == limit else max(end, rows[-1].id if rows else 0)
            return Events([event.of(row) for row in rows], str(last), resync)

        def wanted(rows: list[Activity]) -> bool:
            return any(not where.events or row.event in where.events for row in rows)

        return await self._until(seconds, wanted, look, lambda found: bool(found.events or resync))

    async def latest_events(
        self, who: Principal, *, kinds: Sequence[str] = (), job_id: int | None = None, limit: int = 100
    ) -> Events:
        """The last public events, newest first: those of a job, or of these kinds among the last few thousand. `cursor` is where to go on
        from them."""
        auth.require(who, "read")
        event.check_kinds(kinds)
        where = ActivityFilter(events=tuple(kinds), job_id=job_id, workspace=who.workspace)
        head = await self._store.activity_head()  # first: what comes meanwhile may come twice, and is not left out
        rows = await self._store.latest_activity(limit, where)
        return Events([event.of(row) for row in rows], str(max(head, rows[0].id if rows else 0)), False)

    async def children(self, who: Principal, job_id: int, limit: int = 500) -> list[Job]:
        """Newest first."""
        await self.get(who, job_id)
        return await self._store.list_jobs(JobFilter(parent_id=job_id), None, limit)

    async def wait(self, who: Principal, ids: Sequence[int], seconds: float) -> tuple[list[Job], bool]:
        """The jobs when all are final, or as they are after `seconds`; and whether all are final."""
        ids = list(dict.fromkeys(ids))
        wanted = set(ids)

        async def look() -> tuple[list[Job], bool]:
            jobs = await self._readable(who, ids)
            return jobs, all(job.final for job in jobs)

        return await self._until(
            seconds, lambda rows: any(row.job_id in wanted for row in rows), look, lambda found: found[1]
        )

    async def _until(
        self,
        seconds: float,
        concerns: Callable[[list[Activity]], bool],
        look: Callable[[], Awaitable[T]],
        enough: Callable[[T], bool],
    ) -> T:
        """What `look` finds when it is enough, or after `seconds`. It looks again when rows come that concern it."""
        changed = asyncio.Event()

        def heard(rows: list[Activity]) -> None:
            if concerns(rows):
                changed.set()

        deadline = asyncio.Event()
        timer = self._clock.call_later(seconds, lambda: (deadline.set(), changed.set())[0])
        try:
            await self._follower.catch_up()
            with self._follower.listen(heard):
                await self._follower.ready()
                while True:
                    changed.clear()
                    found = await look()
                    if enough(found) or deadline.is_set() or seconds <= 0:
                        return found
                    await changed.wait()
        finally:
            timer.cancel()

    async def _readable(self, who: Principal, ids: Sequence[int]) -> list[Job]:
        found = {job.id: job for job in await self._store.jobs(ids)}
        free = auth.may(who, "read")
        if not free:
            auth.require(who, "lease")
        for job_id in ids:
            job = found.get(job_id)
            hidden = job is None or (who.workspace is not None and job.workspace != who.workspace)
            if hidden or (not free and not await self._store.concerns(job_id, who.holder)):
                raise NotFound(f"There is no job {job_id}, or none that {who.name} may see.", job_id=job_id)
        return [found[job_id] for job_id in ids]

    async def held(self, who: Principal) -> list[Job]:
        """Jobs this caller holds now, all its instances together."""
        return await self._store.held(who.holder)

    # Queues, agents, kinds, subjects.

    async def queues(self, who: Principal, *, everything: bool = False) -> list[Queue]:
        """Configured queues and those that still have jobs; hidden ones only where `everything` is asked for."""
        self._may_look(who)
        counts: dict[str, dict[str, int]] = {}
        for row in await self._store.counts(who.workspace):
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

    async def paused(self, who: Principal) -> set[str]:
        """Queues that hand out nothing."""
        self._may_look(who)
        return await self._store.paused()

    async def agents(self, who: Principal) -> list[AgentRow]:
        """Agents, last seen first; a caller that is bound to a workspace sees those bound to it."""
        self._may_look(who)
        return await self._store.agents(who.workspace)

    def kinds(self, who: Principal) -> list[Kind]:
        """Kinds that are configured or built in."""
        self._may_look(who)
        return [self.rules.kinds[name] for name in sorted(self.rules.kinds)]

    async def other_kinds(self, who: Principal) -> list[str]:
        """Kinds that are neither, but agents have leased jobs of. Who is bound to a workspace learns of none: they may be of others."""
        self._may_look(who)
        if who.workspace is not None:
            return []
        return sorted(await self._store.leased_kinds() - self.rules.kinds.keys())

    async def labels(self, who: Principal, subject: str, workspace: str | None = None) -> dict[str, dict[str, str]]:
        """Labels of a subject by layer."""
        auth.require(who, "read")
        return await self._store.labels(auth.workspace_of(who, workspace), subject)

    async def documents(self, who: Principal, ids: Sequence[str], workspace: str | None = None) -> list[Document]:
        """Stored documents with where they came from."""
        auth.require(who, "read")
        return await self._store.documents(auth.workspace_of(who, workspace), ids)

    async def vectors(self, who: Principal, workspace: str | None = None) -> list[tuple[str, str, list[float]]]:
        """(document, model, vector) of all stored vectors."""
        auth.require(who, "read")
        return await self._store.vectors(auth.workspace_of(who, workspace))

    def _may_look(self, who: Principal) -> None:
        if not auth.may(who, "read"):
            auth.require(who, "lease")


def _event_cursor(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 16:
        raise InvalidRequest(
            f"after {clean(text, 40)!r} is no cursor of ours; use the id of an event, or leave it out."
        )
    return int(text)


def mark_of(*parts: object) -> str:
    """What binds a cursor to the filters, or the request, it came from."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def cursor_of(mark: str, *ids: int) -> str:
    """A place to go on from, opaque to its caller."""
    return base64.urlsafe_b64encode(orjson.dumps([*ids, mark])).decode().rstrip("=")


def read_cursor(cursor: str, mark: str, count: int) -> list[int]:
    """The `count` ids of a cursor. Raises `InvalidRequest` for one of other filters."""
    try:
        *ids, found = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        ok = found == mark and len(ids) == count and all(type(i) is int and 0 <= i <= MAX_ID for i in ids)
    except (ValueError, TypeError, binascii.Error):
        ok, ids = False, []
    if not ok:
        raise InvalidRequest("cursor: it belongs to other filters or is not one of ours. Start again without a cursor.")
    return ids

"""What went wrong in other job stores, asked of this one. The docstrings say what had happened there."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from oaken_jobs.activity import Follower
from oaken_jobs.core import Core
from oaken_jobs.errors import Conflict, LeaseLost, OakenError, Unavailable
from oaken_jobs.handlers import Handlers, JobContext
from oaken_jobs.local import LocalTransport
from oaken_jobs.model import Actor, Enqueued, Job, Leased, NewJob, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.runner import runner_principal
from oaken_jobs.store.base import JobFilter
from oaken_jobs.store.operations import Enqueue
from oaken_jobs.store.postgres import PostgresStore
from oaken_jobs.store.sqlite import driver
from oaken_jobs.worker import Worker
from tests.contract.statements import watch
from tests.contract.world import AGENT, ME, OTHER, TWIN, World, until
from tests.service import eventually


class HeldUp:
    """Stops each commit of a core until `go_on` is set; then it happens, or fails where `breaks` is set."""

    def __init__(self, core: Core) -> None:
        self.asked, self.reached, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self.breaks = False
        store: Any = core.store
        if isinstance(store, PostgresStore):
            watch(core, self._meet)
        else:
            group = store._write_group
            store._write_group = lambda database, *rest: group(_Watched(database, self), *rest)

    async def _meet(self, connection: Any, statement: str, call: Callable[[], Any]) -> Any:
        self.asked.set()
        if statement == "commit":
            self.reached.set()
            assert await asyncio.to_thread(self.go_on.wait, 10)
            if self.breaks:
                raise OSError("disk I/O error")
        return await call()


class _Watched:
    def __init__(self, database: Any, held: HeldUp) -> None:
        self._database = database
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def execute(self, sql: str, *parameters: Any) -> Any:
        self._held.asked.set()
        if sql == "commit":
            self._held.reached.set()
            assert self._held.go_on.wait(10)
            if self._held.breaks:
                raise driver.OperationalError("disk I/O error")
        return self._database.execute(sql, *parameters)


# Caps and keys that something waits for.


@pytest.mark.parametrize("verb", ["complete", "fail", "defer", "release", "heartbeat"])
async def test_a_stalled_worker_that_comes_back_frees_no_cap(world: World, verb: str) -> None:
    """A worker that had stalled gave its place back a second time when it came to; a limit of one ran eleven jobs."""
    await world.restart(kind_limits={"capped": 1})
    for _ in range(11):
        await world.add("capped")
    stalled = await world.take(lease_seconds=10)
    world.clock.advance(11)
    running = await world.take(OTHER)
    calls: dict[str, Callable[[], Any]] = {
        "complete": lambda: world.jobs.complete(AGENT, stalled.lease_id),
        "fail": lambda: world.jobs.fail(AGENT, stalled.lease_id, "stalled"),
        "defer": lambda: world.jobs.defer(AGENT, stalled.lease_id, 0),
        "release": lambda: world.jobs.release(AGENT, stalled.lease_id),
        "heartbeat": lambda: world.jobs.heartbeat(AGENT, stalled.lease_id),
    }
    for _ in range(11):
        with pytest.raises(LeaseLost):
            await calls[verb]()
        await world.tick()
        await world.none(TWIN)
    await world.jobs.complete(OTHER, running.lease_id)
    assert len(await world.jobs.lease(OTHER, max=11)) == 1


ENDS: dict[str, Callable[[World, Leased], Any]] = {
    "complete": lambda w, lease: w.jobs.complete(OTHER, lease.lease_id),
    "fail": lambda w, lease: w.jobs.fail(OTHER, lease.lease_id, "no", permanent=True),
    "retry": lambda w, lease: w.jobs.fail(OTHER, lease.lease_id, "not yet", retry_after=1000),
    "defer": lambda w, lease: w.jobs.defer(OTHER, lease.lease_id, 1000),
    "cancelled": lambda w, lease: w.jobs.cancelled(OTHER, lease.lease_id),
    "loss": lambda w, lease: w.tick(10),
}


async def _one_after_another(world: World, kind: str, how: str, **fields: Any) -> None:
    """Ends one job while the next is added, over and over, with somebody waiting: each time one is handed out."""
    world.core.follower.foreign = lambda: None  # it would wake those that this process itself forgot
    await world.add(kind, **fields)
    lease = await world.take(OTHER, lease_seconds=10)
    for turn in range(6):
        calls = [lambda lease=lease: ENDS[how](world, lease), lambda: world.add(kind, **fields)]
        if turn % 3 == 0:
            await calls.pop()()  # already there, and the end alone frees it
        elif turn % 3 == 1:
            calls.reverse()
        waiting = asyncio.ensure_future(world.jobs.lease(OTHER, wait_seconds=600, lease_seconds=10))
        await until(lambda: any(waiter.asked for waiter in world.core.dispatch._waiters))
        if how == "cancelled":
            await world.jobs.cancel(ME, lease.job.id)
        await asyncio.gather(*(call() for call in calls))
        (lease,) = await asyncio.wait_for(waiting, 5)
        await world.none(TWIN)  # and never two


@pytest.mark.parametrize("how", ENDS)
async def test_a_job_added_while_one_of_its_full_kind_ends_is_not_stranded(world: World, how: str) -> None:
    """A finish and an enqueue at the same time: each saw the other as it was before, and nobody woke the new job."""
    kind = "fragile" if how == "loss" else "work"
    await world.restart(kind_limits={kind: 1})
    await _one_after_another(world, kind, how)


@pytest.mark.parametrize("how", ENDS)
async def test_a_job_added_while_one_of_its_serial_key_ends_is_not_stranded(world: World, how: str) -> None:
    """The same, of keys."""
    await _one_after_another(world, "fragile" if how == "loss" else "work", how, serial_key="s")


async def test_a_stalled_worker_that_comes_back_frees_no_serial_key(world: World) -> None:
    """As with caps: whoever lost its lease has nothing to give back."""
    for _ in range(4):
        await world.add(serial_key="s")
    stalled = await world.take(lease_seconds=10)
    world.clock.advance(11)
    running = await world.take(OTHER)
    for _ in range(4):
        with pytest.raises(LeaseLost):
            await world.jobs.release(AGENT, stalled.lease_id)
        await world.none(TWIN)
    await world.jobs.complete(OTHER, running.lease_id)
    assert len(await world.jobs.lease(OTHER, max=4)) == 1


@pytest.mark.parametrize("field", ["dedupe_key", "target"])
@pytest.mark.parametrize("how", ["fail", "defer", "release", "lost"])
async def test_what_comes_back_never_meets_a_newer_job_of_its_key(world: World, how: str, field: str) -> None:
    """A retry or a reclaim broke on the unique key of a job that had been added meanwhile, and was lost."""
    job = await world.add(**{field: "k"})
    lease = await world.take(lease_seconds=10)
    if how == "lost":
        world.clock.advance(11)
    calls: dict[str, Callable[[], Any]] = {
        "fail": lambda: world.jobs.fail(AGENT, lease.lease_id, "again"),
        "defer": lambda: world.jobs.defer(AGENT, lease.lease_id, 1),
        "release": lambda: world.jobs.release(AGENT, lease.lease_id),
        "lost": lambda: world.core.maintenance.tick(),
    }
    told = await asyncio.gather(
        *(world.enqueue(**{field: "k"}) for _ in range(2)), calls[how](), world.enqueue(**{field: "k"})
    )
    enqueued = [t for t in told if isinstance(t, Enqueued)]
    assert {(e.created, e.job.id) for e in enqueued} == {(False, job.id)}
    assert (await world.job(job.id)).state == "queued"
    world.clock.advance(10)
    assert (await world.take(OTHER)).job.id == job.id
    await world.none(TWIN)


async def test_of_two_ended_jobs_of_one_key_only_one_comes_back(world: World) -> None:
    """Both were put back, and the second broke the batch."""
    jobs: list[Job] = []
    for _ in range(2):
        jobs.append(await world.add(dedupe_key="k"))
        await world.jobs.fail(AGENT, (await world.take()).lease_id, "no", permanent=True)
    told = await asyncio.gather(*(world.jobs.requeue(ME, job.id) for job in jobs), return_exceptions=True)
    assert [type(t) for t in told] == [Job, Conflict]
    assert [(await world.job(job.id)).state for job in jobs] == ["queued", "failed"]
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    assert (await world.jobs.requeue(ME, jobs[1].id)).state == "queued"


@pytest.mark.parametrize("fate", ["commits", "rolls back"])
async def test_who_asks_for_work_that_another_process_is_adding_waits_for_the_outcome(
    world: World, other: Core, fate: str
) -> None:
    """The second caller was told that the job was there; then the first one's transaction was undone, and there was none."""
    held = HeldUp(other)
    held.breaks = fate == "rolls back"
    mine = HeldUp(world.core)
    mine.go_on.set()
    first = asyncio.ensure_future(other.jobs.enqueue(ME, NewJobRequest(kind="work", dedupe_key="k")))
    await asyncio.to_thread(held.reached.wait, 10)
    second = asyncio.ensure_future(world.enqueue(dedupe_key="k"))
    await asyncio.to_thread(mine.asked.wait, 10)
    done, _ = await asyncio.wait({second}, timeout=0.1)
    assert not done, "it was answered before there was an outcome"
    held.go_on.set()
    told = (await asyncio.gather(first, return_exceptions=True))[0]
    after = await second
    if fate == "commits":
        assert isinstance(told, Enqueued)
        assert (after.created, after.job.id) == (False, told.job.id)
    else:
        assert isinstance(told, Unavailable)
        assert after.created
    assert len((await world.jobs.list(ME, JobFilter())).jobs) == 1


async def test_who_asks_for_work_in_the_group_of_one_that_breaks_gets_a_job(world: World, caplog: Any) -> None:
    """The same inside one transaction: the first of two broke, and the second had been folded into it."""
    broken: Any = object()
    good = NewJob(kind="work", payload="{}", dedupe_key="k")
    with caplog.at_level(logging.CRITICAL, "oaken.commit"):
        told = await world.core.commit.call_all(
            [Enqueue(good._replace(payload=broken), ME.actor), Enqueue(good, ME.actor), Enqueue(good, ME.actor)]
        )
    assert isinstance(told[0], Unavailable)
    assert [reply.created for reply in told[1:]] == [True, False]
    assert (await world.take()).job.id == told[1].job.id


async def test_a_group_that_could_not_be_committed_is_answered_to_nobody_as_done(world: World) -> None:
    """A lease, a finish and an enqueue of a transaction that failed at its very end had been answered."""
    await world.add()
    lease = await world.take()
    await world.add()
    held = HeldUp(world.core)
    held.breaks = True
    held.go_on.set()
    told = await asyncio.gather(
        world.jobs.complete(AGENT, lease.lease_id),
        world.enqueue(dedupe_key="k"),
        world.jobs.lease(OTHER),
        return_exceptions=True,
    )
    assert {type(t) for t in told} == {Unavailable}
    held.breaks = False
    assert (await world.job(lease.job.id)).state == "running"
    assert len((await world.jobs.list(ME, JobFilter())).jobs) == 2
    assert len(await world.jobs.lease(OTHER)) == 1
    assert (await world.jobs.complete(AGENT, lease.lease_id)).state == "succeeded"


@pytest.mark.engine("sqlite")  # elsewhere they need not wait for each other
async def test_what_reads_and_then_writes_waits_its_turn(world: World, other: Core) -> None:
    """A transaction that began by reading was refused as busy, at once, when it came to write beside another process."""
    for _ in range(4):
        await world.add()
    leases = await world.jobs.lease(AGENT, max=3)
    held, mine = HeldUp(other), HeldUp(world.core)
    mine.go_on.set()
    theirs = asyncio.ensure_future(other.jobs.enqueue(ME, NewJobRequest(kind="work")))
    await asyncio.to_thread(held.reached.wait, 10)
    calls: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(call)
        for call in (
            world.jobs.complete(AGENT, leases[0].lease_id),
            world.jobs.heartbeat(AGENT, leases[1].lease_id),
            world.jobs.cancel(ME, leases[2].job.id),
            world.enqueue(),
            world.jobs.lease(OTHER),
        )
    ]
    await asyncio.to_thread(mine.asked.wait, 10)
    done, _ = await asyncio.wait(calls, timeout=0.1)
    assert not done
    held.go_on.set()
    await asyncio.gather(theirs, *calls)
    assert len(calls[-1].result()) == 1


# Losses, and who is to be spared.


async def test_a_job_of_47_minutes_is_never_taken_from_a_worker_that_beats(world: World) -> None:
    """What had run for six minutes was taken for dead; the job took 47."""
    await world.add()
    lease = await world.take(lease_seconds=60)
    passed = 0
    while passed < 47 * 60:
        for _ in range(4):
            world.clock.advance(5)
            await world.core.maintenance.tick()
        await world.none(OTHER)
        passed += 20
        await world.jobs.heartbeat(AGENT, lease.lease_id)
    done = await world.jobs.complete(AGENT, lease.lease_id)
    assert (done.state, done.attempts, done.lost) == ("succeeded", 1, 0)


async def test_each_expiry_counts_one_attempt_and_a_beat_moves_the_next(world: World) -> None:
    """Two expiries counted as one attempt; and the time until the next one ran from the claim, whatever was beaten."""
    job = await world.add()
    for expiries in (1, 2):
        lease = await world.take(lease_seconds=30)
        world.clock.advance(25)
        await world.jobs.heartbeat(AGENT, lease.lease_id)
        world.clock.advance(29)
        await world.tick()
        assert (await world.job(job.id)).state == "running"
        world.clock.advance(1)
        await world.tick()
        found = await world.job(job.id)
        assert (found.state, found.attempts, found.lost) == ("queued", expiries, expiries)
        world.clock.advance(60)
    assert (await world.take()).job.attempts == 3
    assert [a.attempt for a in await world.attempts(job.id)] == [1, 2, 3]


async def test_the_sweep_takes_back_kinds_that_nobody_knows_any_more(world: World) -> None:
    """Jobs of kinds that the sweeping process did not know were thrown away."""
    job = await world.add("left-the-code", max_attempts=2)
    await world.take(lease_seconds=100)
    await world.restart(kinds={}, unknown_kinds="reject")
    for state in ("queued", "failed"):
        await world.tick(110)
        found = await world.job(job.id)
        assert (found.state, found.kind) == (state, "left-the-code")
        if state == "queued":
            await world.take(lease_seconds=100)
    assert found.reason == "lease_lost"
    assert (await world.jobs.requeue(ME, job.id)).state == "queued"


async def _many(world: World, count: int, **fields: Any) -> list[int]:
    requests = [NewJobRequest.model_validate({"kind": "work", **fields})] * 1000
    added: list[int] = []
    while len(added) < count:
        added += [answer.job.id for answer in await world.jobs.enqueue_many(ME, requests)]
    return added


async def test_ten_thousand_rows_ahead_change_nothing_for_the_sweep(world: World) -> None:
    """A batch full of rows that were not to be swept starved the sweep of those behind them."""
    await _many(world, 11_000)
    for seconds in (3600, 10):  # those of an hour are ahead in every other order: they came first
        for _ in range(10 if seconds == 3600 else 1):
            assert len(await world.jobs.lease(AGENT, max=1000, lease_seconds=seconds)) == 1000
    job = await world.add()
    await world.take(lease_seconds=11)
    world.clock.advance(12)
    await world.core.maintenance.tick()
    assert (await world.job(job.id)).state == "queued"
    counts = {c.state: c.jobs for c in await world.core.store.counts()}
    assert counts == {"running": 10_000, "queued": 1001}


async def test_ten_thousand_rows_ahead_change_nothing_for_the_claim(world: World) -> None:
    """Rows that could not be handed out filled what the claim looked at."""
    await _many(world, 10_000, kind="capped", priority=900)
    await _many(world, 1000, priority=900, delay_seconds=1000)
    wanted = await world.add(priority=10)
    leases = await world.jobs.lease(AGENT, max=10)
    assert [lease.job.kind for lease in leases] == ["capped", "capped", "work"]
    assert leases[-1].job.id == wanted.id


async def test_a_job_that_kills_its_workers_ends_and_holds_nobody_up(world: World) -> None:
    """What was taken back went straight to the same broken worker again, over and over."""
    poison = await world.add(priority=1000, max_attempts=4)
    waits: list[float] = []
    for turn in range(4):
        assert (await world.take(lease_seconds=10)).job.id == poison.id
        world.clock.advance(10)
        await world.tick()
        found = await world.job(poison.id)
        if found.state == "queued":
            waits.append((found.run_at - world.clock.now()) / 1000)
        if turn:  # the first loss is back at once; from then on others come first
            other = await world.add()
            lease = await world.take(OTHER)
            assert lease.job.id == other.id
            await world.jobs.complete(OTHER, lease.lease_id)
        world.clock.advance(waits[-1])
    assert waits == [0, 10, 20]
    assert (found.state, found.reason, found.attempts, found.lost) == ("failed", "lease_lost", 4, 4)
    await world.none()


async def test_the_wait_after_the_ten_thousandth_attempt_is_the_longest_there_is(world: World) -> None:
    """Twice as long each time was more than a number could hold at attempt 310."""
    job = await world.add(max_attempts=10_000)
    world.alter(f"update jobs set attempts = 9998 where id = {job.id}")
    after = await world.jobs.fail(AGENT, (await world.take()).lease_id, "again")
    assert (after.state, after.attempts) == ("queued", 9999)
    assert after.run_at == world.clock.now() + round(world.jobs.rules.backoff_max * 1000)
    world.clock.advance(world.jobs.rules.backoff_max)
    after = await world.jobs.fail(AGENT, (await world.take()).lease_id, "again")
    assert (after.state, after.reason, after.attempts) == ("failed", "out_of_attempts", 10_000)


# Who holds a job.


async def test_of_two_agents_that_saw_the_same_job_in_a_list_one_gets_it(world: World) -> None:
    """Listing and then claiming: both had seen it free, and both did the work."""
    job = await world.add()
    reader = Principal(Actor("agent", "reader", "http"), frozenset({"agent", "viewer"}))
    second = Principal(Actor("agent", "second", "http"), frozenset({"agent", "viewer"}))
    where = JobFilter(states=("queued",))
    seen = await asyncio.gather(world.jobs.list(reader, where), world.jobs.list(second, where))
    assert [[j.id for j in page.jobs] for page in seen] == [[job.id], [job.id]]
    leases = await asyncio.gather(world.jobs.lease(reader), world.jobs.lease(second))
    assert sorted(len(found) for found in leases) == [0, 1]


@pytest.mark.parametrize("how", ["release", "defer", "fail", "lost", "requeue"])
async def test_what_is_back_in_the_queue_belongs_to_nobody(world: World, how: str) -> None:
    """The job was given back, but the name of its old owner stood on it and kept others from taking it."""
    await world.add()
    lease = await world.take(lease_seconds=10)
    if how == "release":
        await world.jobs.release(AGENT, lease.lease_id)
    elif how == "defer":
        await world.jobs.defer(AGENT, lease.lease_id, 0)
    elif how == "lost":
        await world.tick(10)
    else:
        await world.jobs.fail(AGENT, lease.lease_id, "no", permanent=how == "requeue")
    if how == "requeue":
        await world.jobs.requeue(ME, lease.job.id)
    found = await world.job(lease.job.id)
    assert (found.state, found.holder, found.nonce, found.lease_expires, found.lease_ms) == ("queued",) + (None,) * 4
    assert await world.jobs.held(AGENT) == []
    world.clock.advance(5 if how == "fail" else 0)
    assert (await world.take(OTHER)).job.holder == "other"


@pytest.mark.parametrize("verb", ["complete", "fail", "heartbeat"])
async def test_a_worker_cannot_overwrite_its_replacement_of_the_same_name_and_instance(world: World, verb: str) -> None:
    """The replacement had the name of the one it replaced, and so did the lease."""
    await world.add()
    old = await world.take(lease_seconds=10)
    await world.tick(10)
    new = await world.take()
    assert (old.job.agent, old.job.holder) == (new.job.agent, new.job.holder)
    calls: dict[str, Callable[[], Any]] = {
        "complete": lambda: world.jobs.complete(AGENT, old.lease_id, {"by": "old"}),
        "fail": lambda: world.jobs.fail(AGENT, old.lease_id, "old", permanent=True),
        "heartbeat": lambda: world.jobs.heartbeat(AGENT, old.lease_id, percent=1, progress=True),
    }
    with pytest.raises(LeaseLost):
        await calls[verb]()
    assert await world.job(new.job.id) == new.job
    assert (await world.jobs.complete(AGENT, new.lease_id, {"by": "new"})).state == "succeeded"
    assert await world.jobs.result(ME, new.job.id) == '{"by":"new"}'


# Cancelling.


class Working:
    """A worker whose handler goes on until it is cancelled or let go."""

    def __init__(self, world: World, transport: LocalTransport, slots: int = 1) -> None:
        self.began: list[int] = []
        self.cancelled: list[int] = []
        self.go_on = asyncio.Event()
        handlers = Handlers()

        @handlers.handler("work", concurrency=slots)
        async def work(job: JobContext) -> None:
            self.began.append(job.id)
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.append(job.id)
                raise

        self.worker = Worker(transport, handlers, clock=world.clock, grace=0)

    async def __aenter__(self) -> Working:
        await self.worker.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.worker.stop()


class Deaf(LocalTransport):
    """Hears of cancellations by its heartbeats alone, as workers on other machines do."""

    def on_cancel(self, callback: Callable[[int], None]) -> None:
        pass


async def test_a_cancel_from_another_process_reaches_the_handler_without_any_signal(
    world: World, other: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there were no notifications the cancel was dropped."""
    monkeypatch.setattr(Follower, "own_commit", lambda self, ops: None)
    world.core.commit.committed = lambda ops: None

    async def ended() -> bool:
        return (await world.job(job.id)).state == "cancelled"

    async with Working(world, LocalTransport(world.jobs, world.core.follower, runner_principal())) as working:
        job = await world.add()
        await until(lambda: bool(working.began))
        await other.jobs.cancel(ME, job.id)
        await until(lambda: bool(working.cancelled))  # the clock stands still: no heartbeat can have told
        await eventually(ended)


async def test_a_worker_learns_of_a_cancel_within_a_third_of_its_lease(world: World, other: Core) -> None:
    """It was ten minutes."""

    async def ended() -> bool:
        return (await world.job(job.id)).state == "cancelled"

    async with Working(world, Deaf(world.jobs, world.core.follower, AGENT)) as working:
        job = await world.add()
        await until(lambda: bool(working.began))
        world.clock.advance(1)
        await other.jobs.cancel(ME, job.id)
        world.clock.advance(world.jobs.rules.lease_seconds / 3)
        await until(lambda: bool(working.cancelled))
        await eventually(ended)


async def test_the_worker_of_a_cancelled_job_is_told_and_comes_too_late(world: World) -> None:
    """A worker went on long after its job was cancelled, and its result stood."""
    await world.add()
    lease = await world.take(lease_seconds=10)
    await world.jobs.cancel(ME, lease.job.id)
    assert (await world.jobs.heartbeat(AGENT, lease.lease_id)).job.cancelling
    await world.tick(10)
    ended = await world.job(lease.job.id)
    assert (ended.state, ended.reason) == ("cancelled", "cancelled_by_user")
    for call in (
        lambda: world.jobs.complete(AGENT, lease.lease_id, {"late": True}),
        lambda: world.jobs.cancelled(AGENT, lease.lease_id),
        lambda: world.jobs.heartbeat(AGENT, lease.lease_id),
    ):
        with pytest.raises(LeaseLost):
            await call()
    assert await world.job(lease.job.id) == ended
    await world.none(OTHER)


# Slow and stalled databases, sleeping machines.


@pytest.mark.engine("sqlite")  # where one who writes keeps all others from it
async def test_a_database_that_somebody_holds_is_told_in_time_and_no_loop_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One call to the database stalled, and the loop that had made it never came round again."""
    monkeypatch.setattr(driver, "BUSY_SECONDS", 0.05)
    await world.restart()
    lost = await world.add()
    await world.take(lease_seconds=1)
    await world.add("spare")
    await world.core.maintenance.start()
    holder = driver.sqlite3.connect(world.folder / "core.db", isolation_level=None)  # type: ignore[attr-defined]
    holder.execute("begin immediate")
    with pytest.raises(Unavailable, match="lock"):
        await world.add()
    with pytest.raises(Unavailable, match=r"lock|failed"):
        await world.jobs.lease(OTHER, kinds=["spare"], wait_seconds=60)
    assert (await world.job(lost.id)).state == "running", "reading goes on"
    with caplog.at_level(logging.WARNING, "oaken.maintenance"):
        world.clock.advance(1)
        await until(lambda: "maintenance will try again" in caplog.text)
    holder.execute("rollback")
    holder.close()

    async def back() -> bool:
        world.clock.advance(1)
        return (await world.job(lost.id)).state == "queued"

    await eventually(back)
    assert (await world.take(OTHER, kinds=["work"])).job.id == lost.id


async def test_five_hundred_beating_workers_cost_one_transaction_a_round(world: World) -> None:
    """Heartbeats fought each other for locks on rows, and the slower they were the more of them there were."""
    await _many(world, 1000)
    leases = await world.jobs.lease(AGENT, max=500, lease_seconds=30)
    write, sizes = world.core.store.write, []

    async def counted(ops: Any, *more: Any) -> Any:
        sizes.append(len(ops))
        return await write(ops, *more)

    world.core.store.write = counted  # type: ignore[method-assign]
    for _ in range(9):
        world.clock.advance(10)
        sizes.clear()
        beaten = await asyncio.gather(*(world.jobs.heartbeat(AGENT, lease.lease_id) for lease in leases))
        assert sum(sizes) == 500
        assert len(sizes) <= 2
        assert {b.expires_at for b in beaten} == {world.clock.now() + 30_000}
        await world.tick()
    found = await world.core.store.jobs([lease.job.id for lease in leases])
    assert {(job.state, job.lost) for job in found} == {("running", 0)}


async def test_what_callers_gave_up_on_a_slow_database_is_not_done_afterwards(world: World) -> None:
    """Each time-out added another repeat to what the database had to do, which made it slower."""
    await _many(world, 1000)
    leases = await world.jobs.lease(AGENT, max=500)
    write, go_on, done = world.core.store.write, asyncio.Event(), []

    async def slow(ops: Any, *more: Any) -> Any:
        await go_on.wait()
        done.extend(ops)
        return await write(ops, *more)

    world.core.store.write = slow  # type: ignore[method-assign]
    calls: list[asyncio.Future[Any]] = []
    for _ in range(10):
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        calls = [asyncio.ensure_future(world.jobs.heartbeat(AGENT, lease.lease_id)) for lease in leases]
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*calls)
    assert len(done) <= 2 * 500  # those under way when the first callers gave up, and the last ones


async def test_a_machine_asleep_for_an_hour_costs_no_healthy_worker_an_attempt(world: World) -> None:
    """After waking every lease had run out, and fifty jobs began again beside themselves."""
    ids = [(await world.add()).id for _ in range(50)]
    async with AsyncExitStack() as stack:
        ways = [LocalTransport(world.jobs, world.core.follower, _agent(n)) for n in range(50)]
        workers = [await stack.enter_async_context(Working(world, way)) for way in ways]
        await world.core.maintenance.start()
        await until(lambda: sum(len(w.began) for w in workers) == 50)
        world.clock.advance(3)
        await asyncio.sleep(0)
        world.clock.jump(3600)
        await world.none(OTHER)  # somebody asks before any duty is done
        for _ in range(3 * 60):
            world.clock.advance(1)
            for _ in range(5):
                await asyncio.sleep(0)  # heartbeats and duties of this second begin
            await until(lambda: not world.core.commit._running and not world.core.commit._under_way)
        found = await world.core.store.jobs(ids)
        assert {(job.state, job.attempts, job.lost) for job in found} == {("running", 1, 0)}
        for working in workers:
            working.go_on.set()
        done, final = await world.jobs.wait(ME, ids, 60)
        assert final
        assert {(job.state, job.attempts, job.lost) for job in done} == {("succeeded", 1, 0)}
        assert all(len(working.began) == 1 for working in workers)


def _agent(n: int) -> Principal:
    return Principal(Actor("agent", f"agent-{n}", "http"), frozenset({"agent"}), "i")


# Text of others.

SECRET = "sk-ant-api03-" + "a" * 40
TEXTS: dict[str, str] = {
    "secret first": f"401 for {SECRET}: ",
    "control characters": "\x00\x1b[31m\x07\r\n\x9b",
    "half characters": "\ud800 \udc00\ud83d",
    "assignments": f'password="{SECRET}" ',
    "private keys": "-----BEGIN PRIVATE KEY-----",
    "signs of several characters": "👩\u200d👩\u200d👧 e\u0301",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_ten_megabytes_of_error_are_stored_clean_and_as_quickly_as_little(world: World, text: str) -> None:
    """An error that held a whole answer stopped the server while it was cleaned, or could not be stored at all."""

    async def seconds(size: int) -> float:
        job = await world.add(max_attempts=1)
        lease = await world.take()
        error = text * (size // len(text))
        began = time.perf_counter()
        after = await world.jobs.fail(AGENT, lease.lease_id, error)
        passed = time.perf_counter() - began
        assert after.state == "failed"
        (attempt,) = await world.attempts(job.id)
        for kept in (after.last_error, (await world.job(job.id)).last_error, attempt.error):
            assert kept == after.last_error
            assert 0 < len(kept) <= 500
            kept.encode()  # no half of a character
            assert SECRET[13:30] not in kept
            assert not any(ord(c) < 32 and c not in "\n\t" for c in kept)
            assert not any(0x7F <= ord(c) <= 0x9F for c in kept)
        return passed

    small = min([await seconds(20_000) for _ in range(3)])
    large = min([await seconds(10_000_000) for _ in range(2)])
    assert large < 20 * max(small, 0.005), "five hundred times the text"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_progress_messages_are_stored_clean_too(world: World, text: str) -> None:
    """What a worker says on its way was kept as it came."""
    await world.add()
    lease = await world.take()
    await world.jobs.heartbeat(AGENT, lease.lease_id, message=text * 1000, progress=True)
    (row,) = await world.jobs.progress(ME, lease.job.id)
    for kept in (row.message, (await world.job(lease.job.id)).message):
        assert 0 < len(kept) <= 256
        kept.encode()
        assert SECRET[13:30] not in kept
        assert not any(ord(c) < 32 and c not in "\n\t" for c in kept)


async def test_an_error_of_nothing_but_spaces_and_controls_is_still_an_error(world: World) -> None:
    """A job failed without a word."""
    for said in ("", "\x00", "   "):
        await world.add(max_attempts=1)
        lease = await world.take()
        try:
            after = await world.jobs.fail(AGENT, lease.lease_id, said)
        except OakenError as refused:
            pytest.fail(f"{said!r} was refused: {refused}")
        assert after.state == "failed"
        assert after.last_error is not None

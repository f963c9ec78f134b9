"""Several processes on one PostgreSQL: what one does the others hear of, in order and with no gap, whoever commits late; and whose clock is
wrong changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from oaken_jobs import clock as clocks
from oaken_jobs import dispatch
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.operations import Sweep
from oaken_jobs.store.postgres import schema, signals
from oaken_jobs.store.postgres.dialect import own
from oaken_jobs.store.postgres.queries import TAKE_HEAD
from tests import postgres
from tests.contract.statements import watch
from tests.contract.world import AGENT, ME, OTHER, RULES, VIEWER, World, until

pytestmark = pytest.mark.engine("postgres")
SWARM = 10


class Late:
    """A core whose next commits wait until `go` is set."""

    def __init__(self, core: Core) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        watch(core, self._meet)

    async def _meet(self, connection: Any, statement: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if statement == "commit":
            self.reached.set()
            await self.go.wait()
        return await call()


async def test_nobody_reads_past_what_is_still_to_be_committed(world: World, other: Core) -> None:
    start = (await world.jobs.events(VIEWER)).cursor
    late = Late(other)
    first = asyncio.ensure_future(other.jobs.enqueue(ME, NewJobRequest(kind="late")))
    await late.reached.wait()
    await world.add("early")
    page = await world.jobs.events(VIEWER, after=start)
    late.go.set()
    await first
    assert page.events == [], "a row with a lower number was still to come"
    again = await world.jobs.events(VIEWER, after=page.cursor)
    assert [event.job_kind for event in again.events] == ["late", "early"]  # type: ignore[union-attr]


async def test_what_is_open_elsewhere_delays_nobody(world: World, postgres_url: str) -> None:
    assert world.database.url is not None
    start = (await world.jobs.events(VIEWER)).cursor
    async with postgres.fresh(postgres_url) as elsewhere:
        for url in (elsewhere, world.database.url):
            with psycopg.connect(url) as database:
                database.execute("select pg_current_xact_id()")  # it writes, as far as the cluster can tell
                job = await world.add()
                page = await world.jobs.events(VIEWER, after=start)
                assert [event.job_id for event in page.events] == [job.id]  # type: ignore[union-attr]
                start = page.cursor


async def test_of_two_changes_of_one_job_the_later_one_comes_later_however_long_the_first_began_before(
    world: World, other: Core
) -> None:
    """A group that had taken its first lock before another began, and changed a job after it, told of that first."""
    assert world.database.url is not None
    first, second = await world.add("first"), await world.add("second")
    connection: Any = await asyncpg.connect(world.database.url)
    await connection.execute("begin")
    await connection.execute("select 1 from jobs where id = $1 for update", first.id)
    both = asyncio.ensure_future(asyncio.gather(world.jobs.cancel(ME, first.id), world.jobs.cancel(ME, second.id)))
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    await until(lambda: world.raw.execute(waiting).fetchone() != (0,))
    await other.jobs.edit(ME, second.id, priority=7)
    await connection.execute("rollback")
    await connection.close()
    await both
    told = world.raw.execute(f"select verb from activity where job_id = {second.id} order by id").fetchall()
    assert told == [("enqueue",), ("edit",), ("cancel",)]


async def test_what_another_process_has_changed_is_read_again(world: World, other: Core) -> None:
    """A process remembers the jobs that it wrote, by the versions of their rows."""
    job = await world.add(payload={"n": 1}, dedupe_key="one")
    await other.jobs.edit(ME, job.id, priority=7)
    replaced = NewJobRequest(kind="work", payload={"n": 2}, dedupe_key="one", on_duplicate="replace")
    await other.jobs.enqueue(ME, replaced)
    lease = await world.take()
    assert (lease.job.priority, lease.job.coalesced, lease.payload) == (7, 1, '{"n":2}')
    await other.jobs.cancel(ME, job.id)
    assert (await world.jobs.heartbeat(AGENT, lease.lease_id)).job.cancelling


@pytest.mark.parametrize("listen", [True, False])
async def test_who_waits_is_served_with_what_another_process_adds_with_and_without_listen(
    emptied_url: str, tmp_path: Path, listen: bool
) -> None:
    database = DatabaseSettings(url=emptied_url, listen=listen)
    waits, adds = (Core.on_folder(tmp_path / name, RULES, "serve", database=database) for name in ("waits", "adds"))
    await waits.open()
    await adds.open()
    waiting = asyncio.ensure_future(waits.jobs.lease(AGENT, wait_seconds=60))
    await until(lambda: bool(waits.dispatch._waiters) and not waits.commit._under_way)
    enqueued = await adds.jobs.enqueue(ME, NewJobRequest(kind="work"))
    (lease,) = await asyncio.wait_for(waiting, 4)  # before the pass that finds what no signal told of
    assert lease.job.id == enqueued.job.id
    await adds.close()
    await waits.close()


@pytest.mark.parametrize("wrong", [300, -300])
async def test_a_process_whose_clock_is_five_minutes_wrong_changes_nothing(
    emptied_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    right = clocks.time.time_ns
    monkeypatch.setattr("oaken_jobs.clock.time.time_ns", lambda: right() + wrong * 1_000_000_000)
    core = Core.on_folder(tmp_path, RULES, "serve", database=DatabaseSettings(url=emptied_url))
    await core.open()
    now = right() // 1_000_000
    assert abs(core.clock.now() - now) < 2000, "it says the database's time"
    job = (await core.jobs.enqueue(ME, NewJobRequest(kind="work", ttl_seconds=100))).job
    assert abs(job.created_at - now) < 5000
    (lease,) = await core.jobs.lease(AGENT, lease_seconds=60)
    assert abs((lease.job.lease_expires or 0) - now - 60_000) < 5000
    assert await core.commit.call(Sweep()) == 0, "nothing is over"
    assert (await core.jobs.complete(AGENT, lease.lease_id)).state == "succeeded"
    await core.close()


async def test_a_slow_transaction_does_not_put_the_time_back(
    emptied_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came meanwhile is due by then."""
    right, passed = clocks.time.time_ns, 0
    monkeypatch.setattr("oaken_jobs.clock.time.time_ns", lambda: right() + passed * 1_000_000_000)
    core = Core.on_folder(tmp_path, RULES, "serve", database=DatabaseSettings(url=emptied_url))
    await core.open()

    async def slow(_: Any, statement: str, call: Any) -> Any:
        nonlocal passed
        if statement == "commit":
            passed = 60
        return await call()

    watch(core, slow)
    before = core.clock.now()
    await core.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert core.clock.now() - before >= 60_000
    await core.close()


async def test_ten_processes_that_start_at_once_make_the_tables_once(database_url: str, tmp_path: Path) -> None:
    database = DatabaseSettings(url=database_url)
    cores = [Core.on_folder(tmp_path / str(n), RULES, "serve", database=database) for n in range(SWARM)]
    await asyncio.gather(*(core.open() for core in cores))
    ids = [(await core.jobs.enqueue(ME, NewJobRequest(kind="work"))).job.id for core in cores]
    assert len(set(ids)) == SWARM
    connection: Any = await asyncpg.connect(database_url)
    assert [row[0] for row in await connection.fetch("select version from oaken_schema")] == [schema.latest()]
    await connection.close()
    for core in cores:
        await core.close()


async def test_a_job_that_somebody_is_at_for_a_moment_is_waited_for_by_who_waits_for_nothing(world: World) -> None:
    """It is there, so nobody goes away empty-handed."""
    job = await world.add()
    asked = 0

    async def count(_: Any, statement: str, call: Any) -> Any:
        nonlocal asked
        asked += statement == own(TAKE_HEAD)
        return await call()

    watch(world.core, count)
    assert world.database.url is not None
    with psycopg.connect(world.database.url) as somebody:
        somebody.execute("select from jobs where id = %s for update", (job.id,))
        lease = asyncio.ensure_future(world.jobs.lease(AGENT))
        await until(lambda: asked > 1 or lease.done())
    assert [one.job.id for one in await lease] == [job.id]


async def test_who_waits_for_a_job_that_somebody_is_at_is_not_sent_away_by_a_commit_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that makes nothing runnable asks nothing for those who wait, and so answers nothing."""
    monkeypatch.setattr(dispatch, "AGAIN_SECONDS", 3600.0)
    await world.add("other")
    running = await world.take(OTHER)
    job = await world.add()
    assert world.database.url is not None
    with psycopg.connect(world.database.url) as somebody:
        somebody.execute("select from jobs where id = %s for update", (job.id,))
        lease = asyncio.ensure_future(world.jobs.lease(AGENT))
        dispatcher: Any = world.core.dispatch
        await until(lambda: any(waiter.held_up_at is not None for waiter in dispatcher._waiters))
        await world.jobs.heartbeat(OTHER, running.lease_id)
        assert not lease.done()
    dispatcher.wake()
    assert [one.job.id for one in await lease] == [job.id]


@pytest.mark.parametrize("kind", ["work", "else"])
async def test_a_job_that_comes_while_the_one_that_was_seen_goes_is_had_by_who_waits_for_nothing(
    world: World, other: Core, kind: str
) -> None:
    """At each moment there is one job for one who asks, though never the same: in the lane that was found, before the place where its
    search begins, or in a lane of its own."""
    first = await world.add()
    came: list[int] = []

    async def exchange(_: Any, statement: str, call: Any) -> Any:
        if statement == own(TAKE_HEAD) and not came:
            came.append((await other.jobs.enqueue(ME, NewJobRequest(kind=kind))).job.id)
            world.raw.execute(f"update jobs set run_at = run_at + 3600000 where id = {came[0]}")
            assert [one.job.id for one in await other.jobs.lease(OTHER)] == [first.id]
            world.raw.execute(f"update jobs set run_at = {first.run_at - 5} where id = {came[0]}")
        return await call()

    watch(world.core, exchange)
    assert [one.job.id for one in await world.jobs.lease(AGENT)] == came


async def test_of_many_commits_in_a_moment_others_are_told_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = world.core.store
    told: list[str] = []
    tell = store._signals._tell

    async def noted(statement: str) -> None:
        told.append(statement)
        await tell(statement)

    monkeypatch.setattr(store._signals, "_tell", noted)
    monkeypatch.setattr(signals, "SEND_SECONDS", 3600.0)
    await until(lambda: store._signals._sending is None or store._signals._sending.done())
    for _ in range(5):
        await world.add()
        await until(lambda: bool(told))
    assert told == [signals.SEND]

"""PostgreSQL while somebody holds a snapshot open: rows that were jobs stay in the indexes, and a claim does not go over them each time.
What it knows of before keeps no job from anybody who would go with nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import psycopg
import pytest

from oaken_jobs.core import Core
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.operations import Sweep
from oaken_jobs.store.postgres import walks
from oaken_jobs.store.postgres.dialect import own
from oaken_jobs.store.postgres.queries import TAKE_HEAD
from oaken_jobs.store.postgres.walks import FORGET_MS, LONG_MS, MARGIN_MS, REST, Walks
from oaken_jobs.store.sql.lane import Filter, Lane
from tests.contract.statements import watch
from tests.contract.world import AGENT, ME, OTHER, World, until

NOW = 1_800_000_000_000
ANY = Filter(None, None, (), None)
SOME = Filter(None, ("work",), (), None)


def lane(kind: str = "work", since: int = NOW) -> Lane:
    return Lane("default", "default", kind, 50, since)


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_nothing_is_kept_of_a_short_walk() -> None:
    known = Walks(Time())
    known.keep_lanes(ANY, [lane()], LONG_MS / 2, NOW)
    known.keep_nothing_due(LONG_MS / 2, NOW)
    known.keep_next_expiry(NOW, LONG_MS / 2)
    assert (known.lanes(ANY), known.nothing_due(NOW), known.next_expiry(NOW - 1)) == (None, 0, None)


def test_what_a_long_walk_found_is_kept_for_many_times_as_long_as_it_took() -> None:
    known = Walks(time := Time())
    known.keep_lanes(ANY, [lane()], 20, NOW)
    time.seconds = 20 * REST / 1000 - 0.001
    assert known.lanes(ANY) == [lane(since=NOW - MARGIN_MS)], "something may be committed late"
    time.seconds += 0.002
    assert known.lanes(ANY) is None


def test_all_walks_together_take_their_share_of_the_time() -> None:
    known = Walks(time := Time())
    known.keep_lanes(ANY, [lane()], 20, NOW)
    known.keep_lanes(SOME, [lane()], 20, NOW)
    time.seconds = 20 * REST / 1000 + 0.001
    assert known.lanes(ANY) is None
    assert known.lanes(SOME) is not None


def test_a_lane_is_never_begun_behind_its_first_job() -> None:
    known = Walks(Time())
    known.keep_lanes(ANY, [lane("late", NOW + 5), lane("early", NOW - 2 * MARGIN_MS)], 20, NOW)
    assert {one.kind: one.since for one in known.lanes(ANY) or ()} == {
        "late": NOW - MARGIN_MS,
        "early": NOW - 2 * MARGIN_MS,
    }


def test_a_lane_in_which_nothing_was_found_is_remembered_for_a_while() -> None:
    known = Walks(Time())
    known.keep_lanes(ANY, [lane("gone"), lane()], 20, NOW)
    known.keep_lanes(ANY, [lane()], 20, NOW + FORGET_MS - 1)
    assert {one.kind for one in known.lanes(ANY) or ()} == {"gone", "work"}
    known.keep_lanes(ANY, [lane()], 20, NOW + FORGET_MS)
    assert {one.kind for one in known.lanes(ANY) or ()} == {"work"}


def test_of_leases_the_first_that_ends_is_known_also_where_it_was_given_later() -> None:
    known = Walks(Time())
    known.keep_next_expiry(None, 20)
    assert known.next_expiry(NOW) == (None,)
    known.leased(NOW + 9)
    known.leased(NOW + 20)
    assert known.next_expiry(NOW) == (NOW + 9,)
    assert known.next_expiry(NOW + 9) is None, "it is over: time to look"


def test_a_clock_that_goes_back_hides_nothing_that_ends() -> None:
    known = Walks(Time())
    known.keep_nothing_due(20, NOW)
    assert known.nothing_due(NOW) == NOW - MARGIN_MS
    assert known.nothing_due(NOW - MARGIN_MS) == 0


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "MOST", 3)
    known = Walks(Time())
    for n in range(10):
        known.keep_lanes(Filter(None, (f"k{n}",), (), None), [lane()], 20, NOW)
    assert sum(known.lanes(Filter(None, (f"k{n}",), (), None)) is not None for n in range(10)) == 3


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every walk counts as a long one, and what it found is kept for good."""
    monkeypatch.setattr(walks, "LONG_MS", 0.0)
    monkeypatch.setattr(walks, "REST", 1e12)


class Walked:
    """How often lanes were looked for."""

    def __init__(self, world: World) -> None:
        self.times = 0
        watch(world.core, self._count)

    async def _count(self, _: Any, statement: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.times += "with recursive lane" in statement
        return await call()


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_lanes_that_are_known_are_looked_for_again_only_where_somebody_would_go_with_nothing(
    world: World,
) -> None:
    walked = Walked(world)
    await world.add()
    await world.take()
    before = walked.times
    for _ in range(5):
        await world.add()
        assert len(await world.jobs.lease(AGENT, max=2)) == 1
    assert walked.times == before
    await world.none()
    assert walked.times == before + 1


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("where", [{"kind": "new"}, {"priority": 900}, {"workspace": "elsewhere"}])
async def test_a_job_where_there_was_none_is_handed_out_although_lanes_are_known(
    world: World, other: Core, where: dict[str, Any]
) -> None:
    await world.add()
    await world.take()
    await other.jobs.enqueue(ME, NewJobRequest.model_validate({"kind": "work", **where}))
    await world.take()


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_requests_in_one_claim_that_want_different_things_all_get_what_there_is(world: World) -> None:
    await world.add("a")
    await world.add("b")
    assert len(await world.jobs.lease(AGENT, max=2)) == 2  # both lanes are known to who takes anything
    for kind in ("a", "b", "c", "c"):
        await world.add(kind)
    got = await asyncio.gather(
        world.jobs.lease(AGENT, max=3), world.jobs.lease(OTHER, kinds=("c",)), world.jobs.lease(OTHER, max=3)
    )
    assert sum(map(len, got)) == 4


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_jobs_of_a_full_kind_hold_nobody_although_lanes_are_known(world: World) -> None:
    """They are due, and there is nothing to be had."""
    await world.restart(kind_limits={"capped": 1})
    for _ in range(2):
        await world.add("capped")
    await world.take()
    assert await asyncio.wait_for(world.jobs.lease(AGENT), 10) == []


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_a_job_from_before_the_place_where_a_walk_ended_is_handed_out(world: World) -> None:
    for _ in range(2):
        await world.add(serial_key="one")
    first = await world.take()
    world.clock.advance(MARGIN_MS / 1000 * 3)
    await world.add("work")
    await world.take()  # the lane is known from here on
    await world.jobs.complete(AGENT, first.lease_id)
    await world.take()


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_a_more_urgent_job_that_this_process_adds_is_not_passed_over_although_lanes_are_known(
    world: World,
) -> None:
    for _ in range(3):
        await world.add(priority=50)
    await world.take()
    urgent = await world.add(priority=900)
    assert (await world.take()).job.id == urgent.id
    await world.take()
    world.clock.advance(60)
    late = await world.add(priority=900, delay_seconds=5)
    await world.add(priority=50)
    await world.take()
    world.clock.advance(10)
    await world.add(priority=50)
    assert (await world.take()).job.id == late.id


@pytest.mark.parametrize(
    ("filter", "takes"),
    [
        (ANY, True),
        (Filter(("default",), None, (), None), True),
        (Filter(("other",), None, (), None), False),
        (SOME, True),
        (Filter(None, ("other",), (), None), False),
        (Filter(None, None, ("work",), None), False),
        (Filter(None, None, (), "default"), True),
        (Filter(None, None, (), "elsewhere"), False),
    ],
)
def test_a_request_takes_what_its_filter_says(filter: Filter, takes: bool) -> None:
    assert filter.takes(("default", "default", "work", 50)) is takes


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_a_queue_that_is_paused_gives_nothing_although_its_lanes_are_known(world: World, other: Core) -> None:
    await world.add()
    await world.take()
    await world.add()
    await other.jobs.set_paused(ME, "default", True)
    await world.none()
    await other.jobs.set_paused(ME, "default", False)
    await world.take()


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_leases_that_end_are_taken_back_although_nothing_was_due_before(world: World, other: Core) -> None:
    await world.add()
    assert await world.core.commit.call(Sweep()) == 0
    await other.jobs.lease(OTHER, lease_seconds=30)
    world.clock.advance(31)
    assert await world.core.commit.call(Sweep()) == 1
    await world.take()


@pytest.mark.engine("postgres")
@pytest.mark.usefixtures("known")
async def test_who_waits_gets_the_job_of_a_lease_that_ends_before_the_one_that_was_known(world: World) -> None:
    for seconds in (600, 30):
        await world.add(max_attempts=9)
        await world.jobs.lease(OTHER, lease_seconds=seconds)
        await world.none()
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=60))
    await until(lambda: bool(world.core.dispatch._waiters) and not world.core.commit._under_way)
    for _ in range(50):  # the lease ends, and its job may run again a little later
        world.clock.advance(1)
        await asyncio.sleep(0)
    (lease,) = await asyncio.wait_for(waiting, 30)
    assert lease.job.lost == 1


@contextmanager
def held(url: str) -> Iterator[None]:
    """A snapshot that sees all rows there ever were."""
    with psycopg.connect(url) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from jobs")
        yield


@pytest.mark.engine("postgres")
async def test_behind_its_first_job_a_lane_has_no_dead_rows(world: World) -> None:
    assert world.database.url is not None
    with held(world.database.url):
        for _ in range(20):
            await world.jobs.enqueue_many(ME, [NewJobRequest(kind="work", priority=50)] * 100)
            leases = await world.jobs.lease(AGENT, max=100)
            await world.jobs.finish_many(AGENT, [world.jobs.complete_op(AGENT, one.lease_id, {}) for one in leases])
            world.clock.advance(1)
        await world.add(priority=50)
        now = world.clock.now()
        pages = [_pages(world, since, now) for since in (0, now)]
    assert pages[0] > 10 * pages[1]
    assert pages[1] <= 10


def _pages(world: World, since: int, now: int) -> int:
    head = own(TAKE_HEAD)
    world.raw.execute("set plan_cache_mode = force_generic_plan")
    world.raw.execute("deallocate all")
    world.raw.execute(f"prepare head as {head}")
    told = world.raw.execute(
        f"explain (analyze, buffers, format json) execute head ('default', 'default', 'work', 50, {since}, {now}, 10, '{{}}')"
    ).fetchone()[0]
    plan = (orjson.loads(told) if isinstance(told, str) else told)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

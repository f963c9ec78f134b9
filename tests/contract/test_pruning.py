"""What is forgotten, and what never is."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from oaken_jobs.errors import LeaseLost, NotFound
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from oaken_jobs.store.sql import prune
from tests.contract.world import AGENT, ME, World

DAY = 86_400
OF_JOBS = ("jobs", "payloads", "results", "attempts", "progress", "questions", "late_results")


async def rows(world: World, table: str) -> int:
    return world.raw.execute(f"select count(*) from {table}").fetchone()[0]


async def ended(world: World, **fields: Any) -> int:
    """A job that has everything a job can have, and ended now."""
    job = await world.add(**fields)
    lease = await world.take(lease_seconds=5)
    await world.jobs.heartbeat(AGENT, lease.lease_id, percent=5, progress=True)
    await world.tick(6)
    with pytest.raises(LeaseLost):
        await world.jobs.complete(AGENT, lease.lease_id)
    await world.jobs.ask(AGENT, (await world.take()).lease_id, "Which?")
    await world.jobs.answer(ME, job.id, "That")
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    return job.id


async def test_jobs_that_ended_long_ago_are_forgotten_with_all_that_belongs_to_them(world: World) -> None:
    await world.restart(event_ring_size=0)
    job_id = await ended(world)
    world.clock.advance(29 * DAY)
    await world.core.pruner.tick()
    assert await rows(world, "jobs") == 1
    world.clock.advance(DAY + 60)
    await world.core.pruner.tick()
    assert {table: await rows(world, table) for table in (*OF_JOBS, "activity")} == dict.fromkeys(
        (*OF_JOBS, "activity"), 0
    )
    with pytest.raises(NotFound):
        await world.job(job_id)


async def test_an_id_is_never_used_again(world: World) -> None:
    job_id = await ended(world)
    world.clock.advance(31 * DAY)
    await world.core.pruner.tick()
    assert (await world.add()).id == job_id + 1


async def test_what_has_not_ended_stays_however_old_it_is(world: World) -> None:
    waiting, running = await world.add(delay_seconds=300 * DAY), await world.add()
    await world.take(lease_seconds=DAY)
    parent = await world.add()
    await world.add(parent_id=parent.id, delay_seconds=300 * DAY)
    await world.jobs.cancel(ME, parent.id)
    world.clock.advance(200 * DAY)
    await world.core.pruner.tick()
    assert [job.id for job in (await world.jobs.list(ME, JobFilter())).jobs][-3:] == [parent.id, running.id, waiting.id]


async def test_the_newest_changes_can_always_be_played_back(world: World) -> None:
    await world.restart(event_ring_size=7)
    for _ in range(5):
        await ended(world)
    world.clock.advance(31 * DAY)
    await world.core.pruner.tick()
    head = await world.core.store.activity_head()
    kept = await world.core.store.activity(0, 1000)
    assert [row.id for row in kept] == list(range(head - 6, head + 1))


async def test_changes_of_forgotten_jobs_go_once_they_are_not_among_the_newest(world: World) -> None:
    await world.restart(event_ring_size=7)
    for _ in range(3):
        await ended(world)
    waiting = await world.add()
    world.clock.advance(31 * DAY)
    await world.core.pruner.tick()
    head = await world.core.store.activity_head()
    assert [row.id for row in await world.core.store.activity(0, 1000)] == list(range(head - 6, head + 1))
    for n in range(9):
        await world.core.jobs.set_paused(ME, "mail", n % 2 == 0)
    world.clock.advance(29 * DAY)
    await world.core.pruner.tick()
    kept = await world.core.store.activity(0, 1000)
    assert [row.id for row in kept if row.job_id is not None] == [head]
    assert kept[0].job_id == waiting.id, "what is about a job that is there stays"
    assert len(kept) == 1 + 9


async def test_of_a_job_with_thousands_of_rows_few_go_at_a_time_and_all_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.restart(event_ring_size=0)
    for _ in range(3):
        await ended(world)
    many = 7000
    fill = [
        "insert into progress (job_id, at, epoch) select 1 + n % 3, 0, 1 from c",
        "insert into attempts (job_id, epoch, attempt, agent, holder, nonce, started_at) "
        "select 1 + n % 3, 9 + n, 1, 'a', 'a', '', 0 from c",
        "insert into activity (at, event, verb, job_id, actor_kind, actor_id, actor_via) "
        "select 0, 'job_progress', 'progress', 1 + n % 3, 'agent', 'a', 'http' from c",
    ]
    for insert in fill:
        into, _, rest = insert.partition("select")
        numbers = f"with recursive c(n) as (select 1 union all select n + 1 from c where n < {many})"
        world.alter(f"{into} {numbers} select {rest}")
    counts = [await total(world)]
    real = world.core.commit.call

    async def counted(op: Any) -> Any:
        reply = await real(op)
        counts.append(await total(world))
        return reply

    monkeypatch.setattr(world.core.commit, "call", counted)
    world.clock.advance(31 * DAY)
    await _until_pruned(world)
    assert counts[0] > 3 * many
    assert counts[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(counts)) < 3000


async def total(world: World) -> int:
    return sum([await rows(world, table) for table in (*OF_JOBS, "activity")])


async def test_what_is_kept_is_not_gone_through_again_for_each_part(world: World) -> None:
    await world.restart(event_ring_size=0)
    await world.jobs.enqueue_many(ME, [_request()] * 500)
    store = world.core.store
    world.clock.advance(31 * DAY)
    now = world.clock.now()
    await world.core.jobs.set_paused(ME, "mail", True)
    assert await store.old_activity(0, now, 0, 9) == []
    assert await store.old_activity(0, now + 1, 0, 9) == [501]
    assert await store.old_activity(0, now + 1, 1, 9) == []
    assert await store.old_activity(501, now + 1, 0, 9) == []


@pytest.mark.engine("sqlite")  # which counts its steps
async def test_rows_that_are_not_old_are_not_looked_at(world: World) -> None:
    await world.restart(event_ring_size=0)
    await world.jobs.enqueue_many(ME, [_request()] * 500)
    world.clock.advance(31 * DAY)
    now = world.clock.now()
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def looked(database: Any) -> int:
        nonlocal steps
        steps = 0
        database.set_progress_handler(step, 10)
        prune.old_activity(database, 0, now - 31 * DAY * 1000, 0, 200)
        database.set_progress_handler(None, 0)
        return steps

    assert await world.core.store._find(looked) < 100  # type: ignore[attr-defined]


async def test_where_all_changes_are_forgotten_nobody_is_told_to_read_anew_for_ever(world: World) -> None:
    await world.restart(event_ring_size=0)
    page = await world.jobs.events(ME)
    await ended(world)
    world.clock.advance(31 * DAY)
    await world.core.pruner.tick()
    assert await rows(world, "activity") == 0
    page = await world.jobs.events(ME, after=page.cursor)
    assert page.resync
    page = await world.jobs.events(ME, after=page.cursor)
    assert not page.resync
    job = await world.add()
    page = await world.jobs.events(ME, after=page.cursor)
    assert ([event.job_id for event in page.events], page.resync) == ([job.id], False)


async def test_many_are_forgotten_in_small_parts(world: World) -> None:
    for _ in range(3):
        await world.jobs.enqueue_many(ME, [_request()] * 300)
    while leases := await world.jobs.lease(AGENT, max=500):
        await world.jobs.finish_many(AGENT, [world.jobs.complete_op(AGENT, one.lease_id) for one in leases])
    world.clock.advance(31 * DAY)
    await _until_pruned(world)
    assert await rows(world, "jobs") == 0


def _request() -> Any:
    return NewJobRequest(kind="work")


async def _until_pruned(world: World) -> None:
    task = asyncio.ensure_future(world.core.pruner.tick())
    while not task.done():
        await asyncio.sleep(0.001)
        world.clock.advance(0.02)
    await task


async def test_nothing_is_forgotten_by_a_clock_that_has_just_jumped_ahead(world: World) -> None:
    job = await ended(world)
    world.clock.jump(365 * DAY)
    await world.core.pruner.tick()
    world.clock.advance(3500)
    await world.core.pruner.tick()
    world.clock.jump(-365 * DAY)
    await world.core.pruner.tick()
    world.clock.advance(200)
    await world.core.pruner.tick()
    assert (await world.job(job)).id == job
    world.clock.advance(29 * DAY)
    await world.core.pruner.tick()
    assert await rows(world, "jobs") == 1
    world.clock.jump(2 * DAY)
    await world.core.pruner.tick()
    assert await rows(world, "jobs") == 1
    world.clock.advance(3600)
    await world.core.pruner.tick()
    assert await rows(world, "jobs") == 0


async def test_rows_about_no_job_are_looked_for_once_the_jobs_are_gone_and_not_with_each_few_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.restart(event_ring_size=0)
    for _ in range(5):
        jobs = await asyncio.gather(*(world.add() for _ in range(200)))
        await asyncio.gather(*(world.jobs.cancel(ME, job.id) for job in jobs))
    world.clock.advance(40 * 86_400)
    looked: list[int] = []
    original = world.core.store.old_activity

    async def counted(after: int, *rest: int) -> list[int]:
        looked.append(after)
        return await original(after, *rest)

    monkeypatch.setattr(world.core.store, "old_activity", counted)
    ticking = asyncio.ensure_future(world.core.pruner.tick())
    while not ticking.done():
        world.clock.advance(1)
        await asyncio.sleep(0)
    await ticking
    assert looked == [0]
    assert await world.core.store.activity(0, 10) == []

"""What is forgotten, and what never is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oaken_jobs.errors import LeaseLost, NotFound
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, World

DAY = 86_400
OF_JOBS = ("jobs", "payloads", "results", "attempts", "progress", "questions", "late_results")


async def rows(world: World, table: str) -> int:
    found = await world.core.store._find(lambda db: db.execute(f"select count(*) from {table}").fetchone())
    return found[0]


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

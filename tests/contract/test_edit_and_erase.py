"""Changing how a job is treated and shown, and taking away what has ended."""

from __future__ import annotations

import pytest

from oaken_jobs.errors import Conflict, Forbidden, NotFound
from oaken_jobs.model import Actor, Principal
from tests.contract.world import AGENT, ME, VIEWER, World

INSIDE = Principal(Actor("user", "inside", "http"), frozenset({"user"}), workspace="side")


async def verbs(world: World, job_id: int) -> list[str]:
    return [row.verb for row in await world.core.store.activity_of(job_id)]


async def test_a_queued_job_takes_its_place_by_its_new_priority(world: World) -> None:
    first, second = await world.add(priority=50), await world.add(priority=50)
    edited = await world.jobs.edit(ME, second.id, priority=60)
    assert edited.priority == 60
    assert (await world.take()).job.id == second.id
    assert (await world.take()).job.id == first.id
    assert await verbs(world, second.id) == ["enqueue", "edit", "claim"]


async def test_title_and_tags_can_be_changed_and_taken_away_at_any_time(world: World) -> None:
    job = await world.add(title="Old", tags=["a"])
    lease = await world.take()
    edited = await world.jobs.edit(ME, job.id, title="New", tags=["b", "c"])
    assert (edited.title, edited.tags, edited.state) == ("New", '["b","c"]', "running")
    await world.jobs.complete(AGENT, lease.lease_id)
    edited = await world.jobs.edit(ME, job.id, title="", tags=[])
    assert (edited.title, edited.tags, edited.state) == (None, None, "succeeded")


async def test_what_is_the_same_already_leaves_no_trace(world: World) -> None:
    job = await world.add(title="T", priority=50)
    assert await world.jobs.edit(ME, job.id, title="T", priority=50) == job
    assert await verbs(world, job.id) == ["enqueue"]


async def test_the_priority_of_what_has_ended_cannot_be_changed(world: World) -> None:
    job = await world.add()
    await world.jobs.cancel(ME, job.id)
    with pytest.raises(Conflict, match="is cancelled; it waits for nothing any more"):
        await world.jobs.edit(ME, job.id, priority=1)


async def test_a_job_behind_another_of_its_key_moves_to_its_new_place_and_is_not_lost(world: World) -> None:
    jobs = [await world.add(serial_key="k", priority=50) for _ in range(4)]
    held = await world.take()
    await world.none()
    await world.jobs.edit(ME, jobs[3].id, priority=90)
    await world.jobs.edit(ME, jobs[1].id, priority=10)
    order: list[int] = []
    await world.jobs.complete(AGENT, held.lease_id)
    for _ in range(3):
        lease = await world.take()
        order.append(lease.job.id)
        await world.none()
        await world.jobs.complete(AGENT, lease.lease_id)
    assert order == [jobs[3].id, jobs[2].id, jobs[1].id]


async def test_the_first_of_a_key_that_moves_leaves_its_lane_to_the_next(world: World) -> None:
    jobs = [await world.add(serial_key="k", priority=50) for _ in range(3)]
    await world.jobs.edit(ME, jobs[0].id, priority=10)
    assert [(await world.take()).job.id] == [jobs[1].id]


async def test_a_job_that_waits_for_its_children_still_does(world: World) -> None:
    parent = await world.add()
    lease = await world.take()
    child = await world.add("child", parent_id=parent.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    await world.jobs.edit(ME, parent.id, priority=900)
    assert (await world.take()).job.id == child.id
    await world.none()


async def test_what_has_ended_can_be_erased_with_all_that_belongs_to_it(world: World) -> None:
    job = await world.add(payload={"private": "text"}, subject="s", dedupe_key="d")
    lease = await world.take()
    await world.jobs.heartbeat(AGENT, lease.lease_id, percent=1, message="private", progress=True)
    await world.jobs.complete(AGENT, lease.lease_id, {"private": "text"})
    erased = await world.jobs.erase(ME, job.id)
    assert erased.id == job.id
    with pytest.raises(NotFound):
        await world.job(job.id)

    assert "private" not in repr([world.raw.execute(f"select * from {table}").fetchall() for table in world.tables])
    assert await verbs(world, job.id) == ["enqueue", "claim", "progress", "complete", "erase"]
    page = await world.jobs.events(VIEWER, after="0")
    assert (page.resync, page.events[-1].verb, page.events[-1].job_kind) == (False, "erase", None)


async def test_what_has_not_ended_or_has_living_children_cannot_be_erased(world: World) -> None:
    parent = await world.add()
    with pytest.raises(Conflict, match="is queued; only jobs that have ended"):
        await world.jobs.erase(ME, parent.id)
    child = await world.add(parent_id=parent.id)
    await world.jobs.cancel(ME, parent.id)
    with pytest.raises(Conflict, match="has children that have not ended"):
        await world.jobs.erase(ME, parent.id)
    await world.jobs.cancel(ME, child.id)
    await world.jobs.erase(ME, parent.id)
    assert (await world.job(child.id)).parent_id == parent.id


async def test_an_id_that_was_erased_is_never_given_again(world: World) -> None:
    job = await world.add()
    await world.jobs.cancel(ME, job.id)
    await world.jobs.erase(ME, job.id)
    assert (await world.add()).id == job.id + 1


async def test_what_is_left_of_an_erased_job_is_forgotten_in_time(world: World) -> None:
    await world.restart(event_ring_size=0)
    job = await world.add()
    await world.jobs.cancel(ME, job.id)
    await world.jobs.erase(ME, job.id)
    await world.core.pruner.tick()
    assert len(await verbs(world, job.id)) == 3
    world.clock.advance(31 * 86_400)
    await world.core.pruner.tick()
    assert await verbs(world, job.id) == []


@pytest.mark.parametrize("who", [AGENT, VIEWER])
async def test_only_those_who_manage_may(world: World, who: Principal) -> None:
    job = await world.add()
    for call in (world.jobs.edit(who, job.id, title="x"), world.jobs.erase(who, job.id)):
        with pytest.raises(Forbidden):
            await call


async def test_another_workspaces_job_is_not_there(world: World) -> None:
    job = await world.add()
    await world.jobs.cancel(ME, job.id)
    for call in (world.jobs.edit(INSIDE, job.id, title="x"), world.jobs.erase(INSIDE, job.id)):
        with pytest.raises(NotFound):
            await call
    assert (await world.job(job.id)).title is None

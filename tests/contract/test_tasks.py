"""Tasks as the service has them: a handle on jobs, for one caller, as long as they live and a day longer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from oaken_jobs.errors import Conflict, Forbidden, NotFound
from oaken_jobs.model import Principal
from oaken_jobs.store.sql import prune
from oaken_jobs.tasks import Task
from tests.contract.world import AGENT, ME, OTHER, RUNNER, TWIN, VIEWER, World

DAY = 86_400


async def made(world: World, who: Principal = ME, jobs: int = 1) -> Task:
    ids = [(await world.add()).id for _ in range(jobs)]
    return await world.core.tasks.add(who, ids, {"created": True})


async def kept(world: World) -> int:
    return world.raw.execute("select count(*) from tasks").fetchone()[0]


async def test_a_task_outlives_a_restart_and_stands_as_its_jobs_do(world: World) -> None:
    task = await made(world, jobs=2)
    world.clock.advance(5)
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    await world.restart()
    again = await world.core.tasks.get(ME, task.id)
    assert (again.job_ids, again.said, again.created_at) == ((1, 2), {"created": True}, task.created_at)
    assert again.changed_at == task.created_at + 5000
    assert [job.state for job in again.jobs] == ["succeeded", "queued"]
    assert (again.ended, again.expires_at) == (False, None)


async def test_two_tasks_of_one_job_have_ids_of_their_own(world: World) -> None:
    job = await world.add()
    ids = {(await world.core.tasks.add(ME, [job.id], {})).id for _ in range(50)}
    assert len(ids) == 50
    assert {len(task_id) for task_id in ids} == {32}


@pytest.mark.parametrize(
    "who",
    [
        VIEWER,
        OTHER,
        RUNNER,
        replace(ME, workspace="default"),
        replace(ME, actor=ME.actor._replace(kind="agent")),
    ],
)
async def test_to_others_it_is_as_unknown_as_one_that_never_was(world: World, who: Principal) -> None:
    task = await made(world)
    with pytest.raises(NotFound) as never:
        await world.core.tasks.get(ME, "A" * 32)
    for call in (world.core.tasks.get, world.core.tasks.cancel):
        with pytest.raises(NotFound) as caught:
            await call(who, task.id)
        assert caught.value.message == never.value.message
    assert (await world.job(1)).state == "queued"


async def test_it_is_the_same_actors_by_another_door_and_in_another_instance(world: World) -> None:
    mine = await made(world)
    assert (await world.core.tasks.get(replace(ME, actor=ME.actor._replace(via="mcp")), mine.id)).id == mine.id
    theirs = await made(world, AGENT)
    assert (await world.core.tasks.get(TWIN, theirs.id)).id == theirs.id


async def test_of_a_task_that_is_bound_to_a_workspace_the_unbound_namesake_knows_nothing(world: World) -> None:
    bound = replace(ME, workspace="default")
    task = await made(world, bound)
    assert (await world.core.tasks.get(bound, task.id)).id == task.id
    with pytest.raises(NotFound):
        await world.core.tasks.get(ME, task.id)


async def test_a_requeue_begins_it_anew(world: World) -> None:
    task = await made(world)
    await world.core.tasks.cancel(ME, task.id)
    assert (await world.core.tasks.get(ME, task.id)).ended
    await world.jobs.requeue(ME, 1)
    assert (await world.core.tasks.get(ME, task.id)).expires_at is None


async def test_jobs_that_are_erased_leave_it_to_the_others_and_the_last_takes_it_along(world: World) -> None:
    task = await made(world, jobs=2)
    await world.core.tasks.cancel(ME, task.id)
    await world.jobs.erase(ME, 1)
    left = await world.core.tasks.get(ME, task.id)
    assert (left.job_ids, [job.id for job in left.jobs]) == ((1, 2), [2])
    await world.jobs.erase(ME, 2)
    with pytest.raises(NotFound):
        await world.core.tasks.get(ME, task.id)


async def test_a_cancel_reaches_all_of_its_jobs_that_have_not_ended(world: World) -> None:
    task = await made(world, jobs=3)
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    await world.core.tasks.cancel(ME, task.id)
    await world.core.tasks.cancel(ME, task.id)
    assert [job.state for job in (await world.core.tasks.get(ME, task.id)).jobs] == [
        "succeeded",
        "cancelled",
        "cancelled",
    ]


async def test_an_agent_may_not_cancel_by_its_task_what_it_may_not_cancel(world: World) -> None:
    task = await made(world, AGENT)
    with pytest.raises(Forbidden, match="role user"):
        await world.core.tasks.cancel(AGENT, task.id)


async def test_an_answer_may_be_bound_to_its_question(world: World) -> None:
    job = await world.add()
    await world.jobs.ask(AGENT, (await world.take()).lease_id, "First?", timeout_seconds=5)
    first = (await world.job(job.id)).epoch
    world.clock.advance(6)
    await world.jobs.ask(AGENT, (await world.take()).lease_id, "Second?")
    with pytest.raises(Conflict, match="no longer asks"):
        await world.jobs.answer(ME, job.id, "late", epoch=first)
    await world.jobs.answer(ME, job.id, "in time", epoch=first + 1)
    assert [one.answer for one in await world.jobs.questions(ME, job.id)] == [None, "in time"]


async def test_a_task_is_forgotten_a_day_after_the_last_of_its_jobs_ended(world: World) -> None:
    task = await made(world, jobs=2)
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    for _ in range(3):
        world.clock.advance(2 * DAY)
        await world.core.pruner.tick()
        world.clock.advance(3600)
        await world.core.pruner.tick()
    assert await kept(world) == 1
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    world.clock.advance(DAY - 1)
    assert (await world.core.tasks.get(ME, task.id)).expires_at == world.clock.now() + 1000
    world.clock.advance(1)
    with pytest.raises(NotFound):
        await world.core.tasks.get(ME, task.id)
    for _ in range(2):
        world.clock.advance(DAY)
        await world.core.pruner.tick()
        world.clock.advance(3600)
        await world.core.pruner.tick()
    assert await kept(world) == 0


async def test_tasks_are_forgotten_few_at_a_time_and_all_in_the_end(world: World) -> None:
    job = await world.add()
    await asyncio.gather(*(world.core.tasks.add(ME, [job.id], {}) for _ in range(3 * prune.TASKS + 1)))
    live = await made(world)
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    world.clock.advance(3600)
    await world.core.pruner.tick()
    assert await kept(world) == 3 * prune.TASKS + 2
    world.clock.advance(DAY)
    op = world.core.pruner._op()
    assert [await world.core.commit.call(op) for _ in range(4)] == [op.limit, op.limit, op.limit, 0]
    assert await kept(world) == 1
    assert (await world.core.tasks.get(ME, live.id)).id == live.id


async def test_a_task_goes_with_its_jobs_where_these_are_kept_for_less_than_a_day(world: World) -> None:
    await world.restart(keep_days=0.1)
    task = await made(world)
    await world.core.tasks.cancel(ME, task.id)
    world.clock.advance(3 * 3600)
    await world.core.pruner.tick()
    world.clock.advance(3600)
    await world.core.pruner.tick()
    with pytest.raises(NotFound):
        await world.core.tasks.get(ME, task.id)

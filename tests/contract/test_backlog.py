"""What the overview counts: ends by minute, what attempts cost, and why jobs wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oaken_jobs.model import Usage
from oaken_jobs.store.base import SPENT
from tests.contract.world import AGENT, ME, World


async def test_ends_are_counted_in_their_minute_by_state_whatever_becomes_of_the_jobs(world: World) -> None:
    begun = world.clock.now()
    for _ in range(3):
        await world.add()
    await world.jobs.complete(AGENT, (await world.take()).lease_id, {})
    failed = await world.take()
    await world.jobs.fail(AGENT, failed.lease_id, "no", permanent=True)
    world.clock.advance(60)
    await world.jobs.cancel(ME, (await world.add()).id)
    await world.jobs.requeue(ME, failed.job.id)
    rows = await world.jobs.finishes(ME, begun)
    minute = begun // 60_000
    assert [(row.minute - minute, row.state, row.jobs) for row in rows] == [
        (0, "failed", 1),
        (0, "succeeded", 1),
        (1, "cancelled", 1),
    ]
    assert [row.state for row in await world.jobs.finishes(ME, begun + 60_000)] == ["cancelled"]


async def test_what_attempts_cost_is_counted_once_also_of_those_that_are_tried_again(world: World) -> None:
    begun = world.clock.now()
    await world.add()
    lease = await world.take()
    await world.jobs.finish(AGENT, world.jobs.fail_op(AGENT, lease.lease_id, "again", usage=Usage(cost_usd=0.25)))
    await world.jobs.requeue(ME, lease.job.id)
    await world.jobs.complete(AGENT, (await world.take()).lease_id, {}, Usage(cost_usd=0.5))
    spent = [row for row in await world.jobs.finishes(ME, begun) if row.state == SPENT]
    assert [(row.jobs, row.cost_usd) for row in spent] == [(2, pytest.approx(0.75))]


async def test_a_group_that_is_rolled_back_counts_nothing(world: World) -> None:
    await world.add()
    lease = await world.take()
    await world.jobs.complete(AGENT, lease.lease_id, {})
    await world.jobs.complete(AGENT, lease.lease_id, {})  # a repeat
    assert sum(row.jobs for row in await world.jobs.finishes(ME, 0)) == 1


async def test_jobs_that_wait_for_the_same_are_one_cause_and_those_for_somebody_come_first(world: World) -> None:
    for _ in range(3):
        await world.add("mystery")
    world.clock.advance(61)
    await world.add("later", delay_seconds=60.0)
    await world.add()
    asks = await world.take(kinds=["work"])
    await world.jobs.ask(AGENT, asks.lease_id, "Which?")
    await world.add("mystery")
    await world.jobs.set_paused(ME, "mail", True)
    paused = (await world.add("x")).id
    await world.jobs.requeue(ME, paused, "mail")
    found = await world.jobs.stuck(ME)
    told = [(cause.code, cause.jobs) for cause in found.causes]
    assert told == [("paused", 1), ("no_agent", 4), ("answer", 1), ("delayed", 1)]
    assert found.causes[1].job.kind == "mystery"
    assert found.causes[1].since == found.causes[1].job.run_at


async def test_a_cause_of_a_single_job_is_what_that_is_told_and_of_several_what_all_of_them_wait_for(
    world: World,
) -> None:
    first = await world.add("one", delay_seconds=90.0)
    [cause] = (await world.jobs.stuck(ME)).causes
    assert cause.text == (await world.jobs.waits([first]))[first.id][0].text
    for kind in ("one", "two"):
        await world.add(kind, delay_seconds=90.0)
        [cause] = (await world.jobs.stuck(ME)).causes
        assert cause.text == "were enqueued for later"


async def test_of_each_queue_the_job_that_could_run_and_has_waited_longest_is_known(world: World) -> None:
    first = await world.add("a", priority=10)
    world.clock.advance(5)
    await world.add("b", priority=1000)
    await world.add("a", priority=1000)
    await world.add("c", delay_seconds=1.0)
    [oldest] = (await world.jobs.stuck(ME)).oldest
    assert (oldest.queue, oldest.job.id, oldest.since, oldest.jobs) == ("default", first.id, first.run_at, 3)


async def test_who_is_bound_to_a_workspace_counts_its_own_alone(world: World) -> None:
    await world.add()
    await world.jobs.complete(AGENT, (await world.take()).lease_id, {})
    await world.add()
    bound = replace(ME, workspace="elsewhere")
    assert await world.jobs.finishes(bound, 0) == []
    assert (await world.jobs.stuck(bound)).oldest == []

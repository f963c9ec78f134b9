"""Serial keys, replaced duplicates, idempotency keys: what a caller's own names for work do."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from oaken_jobs.errors import Conflict, Forbidden, IdempotencyConflict
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, OTHER, TWIN, World, until

# Serial keys.


async def test_of_one_serial_key_one_job_runs_and_the_next_is_taken_when_it_ends(world: World) -> None:
    first, second = [await world.add(serial_key="agent:ann") for _ in range(2)]
    other = await world.add(serial_key="agent:bob")
    leases = await world.jobs.lease(AGENT, max=3)
    assert [one.job.id for one in leases] == [first.id, other.id]
    await world.none(OTHER)
    await world.jobs.complete(AGENT, leases[0].lease_id)
    assert (await world.take(OTHER)).job.id == second.id


async def test_a_job_of_a_serial_key_that_waits_for_its_retry_holds_nobody_up(world: World) -> None:
    failing, second = [await world.add(serial_key="s") for _ in range(2)]
    await world.jobs.fail(AGENT, (await world.take()).lease_id, "boom")
    lease = await world.take()
    assert lease.job.id == second.id
    world.clock.advance(10)  # the retry is due, and its key busy
    await world.none()
    await world.jobs.complete(AGENT, lease.lease_id)
    assert (await world.take()).job.id == failing.id


async def test_of_those_that_are_due_priority_decides_across_queues_and_kinds(world: World) -> None:
    low = await world.add("work", serial_key="s", priority=10)
    high = await world.add("triage", serial_key="s", priority=90, payload={"text": "x"})
    lease = await world.take()
    assert lease.job.id == high.id
    await world.jobs.release(AGENT, lease.lease_id)
    # Who does not want that kind is not held up by it.
    assert (await world.take(OTHER, kinds=["work"])).job.id == low.id


async def test_a_paused_queue_and_a_full_kind_hold_up_no_others_of_the_key(world: World) -> None:
    for _ in range(2):
        await world.add("capped")
    for _ in range(2):
        await world.take()
    await world.add("capped", serial_key="s", priority=900)
    await world.add("triage", serial_key="s", priority=800, payload={"text": "x"})
    await world.jobs.set_paused(ME, "triage", True)
    work = await world.add("work", serial_key="s", priority=1)
    assert (await world.take(OTHER)).job.id == work.id


@pytest.mark.parametrize("end", ["complete", "fail", "release", "defer", "lose", "cancel", "adopt", "overrule"])
async def test_whatever_ends_a_run_frees_the_serial_key_for_a_waiting_agent(world: World, end: str) -> None:
    await world.add(serial_key="s", max_attempts=1)
    lease = await world.take(lease_seconds=600)
    second = await world.add("other", serial_key="s")
    waiting = asyncio.ensure_future(world.jobs.lease(OTHER, kinds=["other"], wait_seconds=50_000))
    await asyncio.sleep(0)
    if end == "lose":
        await world.tick(601)
    elif end == "cancel":
        await world.jobs.cancel(ME, lease.job.id)
        await world.jobs.cancelled(AGENT, lease.lease_id)
    elif end == "overrule":
        await world.jobs.cancel(ME, lease.job.id)
        await world.tick(301)
    elif end == "adopt":
        await world.tick(601)
        with pytest.raises(Exception, match="kept"):
            await world.jobs.complete(AGENT, lease.lease_id)
        await world.jobs.adopt(ME, lease.job.id, lease.job.epoch)
    else:
        arguments = {"fail": ["boom"], "defer": [5]}.get(end, [])
        await getattr(world.jobs, end)(AGENT, lease.lease_id, *arguments)
    await until(waiting.done)
    assert [one.job.id for one in waiting.result()] == [second.id]


async def test_a_job_that_cannot_be_had_keeps_no_place_of_its_kind_from_another(world: World) -> None:
    await world.add("work", serial_key="s", priority=900)
    await world.add("capped", serial_key="s")
    first, second = [await world.add("capped") for _ in range(2)]
    later = await world.add("work")
    leases = await world.jobs.lease(AGENT, max=4)
    assert [one.job.id for one in leases][1:] == [first.id, second.id, later.id]


async def test_ten_thousand_jobs_of_a_busy_key_do_not_hide_one_behind_them(world: World) -> None:
    for _ in range(10):
        await world.jobs.enqueue_many(ME, [_new(serial_key="s", priority=900, delay_seconds=1)] * 1000)
    behind = await world.add(priority=1)
    world.clock.advance(2)
    # One claim goes only so far, and then lets others have their turn.
    found = [one for _ in range(3) for one in await world.jobs.lease(AGENT, max=2)]
    assert [(one.job.serial_key, one.job.id) for one in found] == [("s", found[0].job.id), (None, behind.id)]


def _new(**fields: object) -> NewJobRequest:
    return NewJobRequest.model_validate({"kind": "work", **fields})


# Duplicates.


async def test_a_duplicate_that_replaces_gives_a_queued_job_its_payload_and_a_running_one_none(world: World) -> None:
    job = await world.add(dedupe_key="k", payload={"n": 1})
    again = await world.enqueue(dedupe_key="k", payload={"n": 2}, on_duplicate="replace")
    assert (again.created, again.job.id, again.job.coalesced) == (False, job.id, 1)
    lease = await world.take()
    assert lease.payload == '{"n":2}'
    await world.enqueue(dedupe_key="k", payload={"n": 3}, on_duplicate="replace")
    await world.jobs.release(AGENT, lease.lease_id)
    assert (await world.take()).payload == '{"n":2}'


async def test_a_duplicate_replaces_in_the_very_group_that_adds_and_leases_the_job(world: World) -> None:
    leasing = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=10))
    await asyncio.sleep(0)
    await asyncio.gather(
        world.enqueue(dedupe_key="k", payload={"n": 1}),
        world.enqueue(dedupe_key="k", payload={"n": 2}, on_duplicate="replace"),
    )
    (lease,) = await leasing
    assert (lease.payload, lease.job.coalesced) == ('{"n":2}', 1)
    assert (await world.jobs.bodies(ME, [lease.job]))[0] == {lease.job.id: '{"n":2}'}


async def test_a_replaced_payload_is_judged_by_the_schema_it_was_checked_against(world: World) -> None:
    await world.add("sum", payload={"n": 1}, dedupe_key="k")
    await world.enqueue("sum", payload={"n": 5}, dedupe_key="k", on_duplicate="replace")
    assert (await world.take()).payload == '{"n":5}'


async def test_a_payload_of_another_kind_replaces_nothing(world: World) -> None:
    await world.add("sum", payload={"n": 1}, dedupe_key="k")
    with pytest.raises(Conflict, match="kind 'sum'"):
        await world.enqueue("work", dedupe_key="k", on_duplicate="replace")
    assert (await world.take()).payload == '{"n":1}'


async def test_an_agent_replaces_no_payload_of_others(world: World) -> None:
    parent = await world.add("parent")
    await world.take()
    await world.add("work", dedupe_key="k", payload={"n": 1})
    with pytest.raises(Forbidden, match="enqueued by me"):
        await world.enqueue("work", AGENT, dedupe_key="k", on_duplicate="replace", parent_id=parent.id)


# Idempotency keys of an enqueue.


async def test_a_repeat_under_its_key_gets_the_first_answer_also_after_the_job_ended(world: World) -> None:
    first = await world.enqueue(idempotency_key="i", payload={"n": 1})
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    again = await world.enqueue(idempotency_key="i", payload={"n": 1})
    assert again.replayed
    assert (again.job, again.created) == (first.job, True)
    assert len((await world.jobs.list(ME, JobFilter())).jobs) == 1


async def test_another_request_under_the_key_is_refused_and_changes_nothing(world: World) -> None:
    await world.enqueue(idempotency_key="i", payload={"n": 1})
    with pytest.raises(IdempotencyConflict, match="'i' was used for another request"):
        await world.enqueue(idempotency_key="i", payload={"n": 2})
    assert len((await world.jobs.list(ME, JobFilter())).jobs) == 1


async def test_a_key_is_its_callers_own_and_lasts_a_day(world: World) -> None:
    await world.enqueue(idempotency_key="i")
    boss = replace(ME, actor=ME.actor._replace(id="boss"))
    assert (await world.enqueue("work", boss, idempotency_key="i")).created
    world.clock.advance(86_400)
    again = await world.enqueue(idempotency_key="i")
    assert (again.replayed, again.created, again.job.id) == (False, True, 3)


async def test_the_same_key_twice_in_one_group_adds_one_job(world: World) -> None:
    answers = await asyncio.gather(*(world.enqueue(idempotency_key="i") for _ in range(5)))
    assert {one.job.id for one in answers} == {1}
    assert [one.replayed for one in answers] == [False, True, True, True, True]


async def test_old_keys_are_forgotten_by_the_sweep(world: World) -> None:
    await world.enqueue(idempotency_key="i")
    world.clock.advance(86_401)
    await world.tick()
    assert world.raw.execute("select count(*) from idempotency").fetchone() == (0,)


# Idempotency keys of a lease.


async def test_a_lease_repeated_under_its_key_gets_the_same_leases_and_no_new_ones(world: World) -> None:
    for _ in range(3):
        await world.add()
    first = await world.jobs.lease(AGENT, max=2, idempotency_key="i")
    again = await world.jobs.lease(AGENT, max=2, idempotency_key="i")
    assert [one.lease_id for one in again] == [one.lease_id for one in first]
    assert [one.payload for one in again] == [one.payload for one in first]
    assert all(one.replayed for one in again)
    await world.jobs.complete(AGENT, first[0].lease_id)
    (left,) = await world.jobs.lease(AGENT, max=2, idempotency_key="i")
    assert left.lease_id == first[1].lease_id
    await world.tick(61)
    assert await world.jobs.lease(AGENT, max=2, idempotency_key="i", wait_seconds=60) == []


async def test_the_attempts_of_a_repeated_lease_are_counted_once(world: World) -> None:
    job = await world.add()
    for _ in range(3):
        await world.jobs.lease(AGENT, idempotency_key="i")
    assert ((await world.job(job.id)).attempts, (await world.job(job.id)).epoch) == (1, 1)


async def test_an_empty_answer_is_not_remembered(world: World) -> None:
    await world.none(idempotency_key="i")
    job = await world.add()
    assert (await world.take(idempotency_key="i")).job.id == job.id


async def test_another_lease_request_under_the_key_is_refused(world: World) -> None:
    await world.add()
    await world.take(idempotency_key="i")
    with pytest.raises(IdempotencyConflict):
        await world.jobs.lease(AGENT, max=5, idempotency_key="i")
    with pytest.raises(IdempotencyConflict):
        await world.jobs.lease(TWIN, idempotency_key="i")


async def test_what_was_leased_under_a_key_waits_for_a_caller_that_went_away(world: World) -> None:
    leasing = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=10, idempotency_key="i"))
    await asyncio.sleep(0)
    job = await world.add()
    leasing.cancel()
    await asyncio.gather(leasing, return_exceptions=True)
    found = await world.jobs.lease(AGENT, idempotency_key="i")
    # Whichever was first, the repeat has the job, and nobody else.
    assert [one.job.id for one in found] == [job.id]
    await world.none(OTHER)


async def test_a_drained_agent_gets_again_what_it_was_given_under_its_key(world: World) -> None:
    job = await world.add()
    await world.take(idempotency_key="i")
    await world.jobs.agents(ME)
    await world.jobs.drain(ME, "worker")
    assert (await world.take(idempotency_key="i")).job.id == job.id

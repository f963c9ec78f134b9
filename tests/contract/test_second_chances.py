"""What can be set right afterwards: late results, lost memories, many jobs at once, agents that must not go on, wrong labels."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from oaken_jobs import pipeline
from oaken_jobs.errors import Conflict, Forbidden, InvalidRequest, LeaseLost, NotFound, ResultInvalid
from oaken_jobs.jobs import BULK_CALL
from oaken_jobs.kinds import Kind
from oaken_jobs.local import LocalTransport
from oaken_jobs.model import Actor, Usage
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from oaken_jobs.worker import Worker
from tests.contract.world import AGENT, ME, OTHER, RUNNER, TWIN, VIEWER, World, until

# Late results.


async def _late(world: World, kind: str = "work", result: Any = None, **fields: Any) -> Any:
    """A job whose first holder came too late with its result; the lease of that holder."""
    await world.add(kind, **fields)
    lease = await world.take()
    await world.tick(61)
    op = world.jobs.complete_op(AGENT, lease.lease_id, result or {"n": 1}, Usage({"tokens": 5}, 0.5, "model-x"))
    with pytest.raises(LeaseLost, match="result is kept and may be adopted"):
        await world.jobs.finish(AGENT, op)
    return lease


async def test_a_late_result_changes_nothing_and_may_be_adopted(world: World) -> None:
    lease = await _late(world)
    job = await world.job(lease.job.id)
    assert (job.state, job.cost_usd) == ("queued", None)
    assert await world.core.store.results([job.id]) == {}
    adopted = await world.jobs.adopt(ME, job.id, 1)
    assert (adopted.state, adopted.cost_usd, adopted.produced_by, adopted.percent) == ("succeeded", 0.5, "model-x", 100)
    assert await world.core.store.results([job.id]) == {job.id: '{"n":1}'}
    (attempt,) = await world.attempts(job.id)
    assert (attempt.outcome, attempt.usage, attempt.cost_usd) == ("adopted", '{"tokens":5}', 0.5)
    assert [(a.verb, a.actor.id) for a in await world.jobs.activity(ME, job.id)][-1] == ("adopt", "me")


async def test_adoption_takes_the_job_from_whoever_has_it_now(world: World) -> None:
    lease = await _late(world)
    now = await world.take(OTHER)
    await world.jobs.adopt(ME, lease.job.id, 1)
    with pytest.raises(LeaseLost, match="is succeeded"):
        await world.jobs.complete(OTHER, now.lease_id, {"n": 2})
    assert [a.outcome for a in await world.attempts(lease.job.id)] == ["adopted", "superseded"]
    assert await world.core.store.results([lease.job.id]) == {lease.job.id: '{"n":1}'}


async def test_what_was_kept_can_be_adopted_after_the_job_failed_or_was_cancelled(world: World) -> None:
    failed = await _late(world, max_attempts=1)
    assert (await world.job(failed.job.id)).reason == "lease_lost"
    assert (await world.jobs.adopt(ME, failed.job.id, 1)).state == "succeeded"
    cancelled = await _late(world)
    await world.jobs.cancel(ME, cancelled.job.id)
    after = await world.jobs.adopt(ME, cancelled.job.id, 1)
    assert (after.state, after.reason) == ("succeeded", None)


async def test_a_succeeded_job_adopts_nothing(world: World) -> None:
    lease = await _late(world)
    await world.jobs.complete(OTHER, (await world.take(OTHER)).lease_id, {"n": 2})
    with pytest.raises(Conflict, match="has succeeded; its result stands"):
        await world.jobs.adopt(ME, lease.job.id, 1)


async def test_an_attempt_without_a_late_result_is_told(world: World) -> None:
    lease = await _late(world)
    for epoch in (2, 99):
        with pytest.raises(NotFound, match="left no late result"):
            await world.jobs.adopt(ME, lease.job.id, epoch)


async def test_a_late_result_that_does_not_fit_its_kind_is_not_adopted(world: World) -> None:
    lease = await _late(world, "sum", {"n": "one"}, payload={"n": 1})
    with pytest.raises(ResultInvalid, match="late result does not fit"):
        await world.jobs.adopt(ME, lease.job.id, 1)
    assert (await world.job(lease.job.id)).state == "queued"


async def test_an_adopted_triage_leaves_its_labels(world: World) -> None:
    result = {"labels": {"topic": "x"}}
    lease = await _late(world, "triage", result, payload={"text": "x"}, subject="note:1")
    await world.jobs.adopt(ME, lease.job.id, 1)
    assert (await world.jobs.labels(ME, "note:1"))["machine"] == {"topic": "x"}


@pytest.mark.parametrize("who", [OTHER, replace(AGENT, actor=Actor("agent", "stranger", "http"))])
async def test_nobody_leaves_a_late_result_on_anothers_attempt(world: World, who: Any) -> None:
    job = await world.add()
    lease = await world.take()
    await world.tick(61)
    with pytest.raises(LeaseLost) as refused:
        await world.jobs.complete(who, lease.lease_id, {"n": 1})
    assert "kept" not in refused.value.message
    forged = lease.lease_id[:-24] + "0" * 24
    with pytest.raises(LeaseLost):
        await world.jobs.complete(AGENT, forged, {"n": 1})
    assert [a.late for a in await world.attempts(job.id)] == [None]


async def test_the_first_late_result_of_an_attempt_stands(world: World) -> None:
    lease = await _late(world)
    with pytest.raises(LeaseLost):
        await world.jobs.complete(AGENT, lease.lease_id, {"n": 2})
    await world.jobs.adopt(ME, lease.job.id, 1)
    assert await world.core.store.results([lease.job.id]) == {lease.job.id: '{"n":1}'}


async def test_a_late_result_shows_and_can_be_adopted_before_any_sweep(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    world.clock.advance(61)
    with pytest.raises(LeaseLost, match="is kept"):
        await world.jobs.complete(AGENT, lease.lease_id, {"n": 1})
    assert [(a.outcome, a.late) for a in await world.attempts(job.id)] == [(None, 1)]
    assert (await world.jobs.adopt(ME, job.id, 1)).state == "succeeded"
    assert [(a.epoch, a.outcome, a.late) for a in await world.attempts(job.id)] == [(1, "adopted", 1)]


async def test_a_finish_that_is_no_result_leaves_nothing_behind(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    await world.tick(61)
    with pytest.raises(LeaseLost):
        await world.jobs.fail(AGENT, lease.lease_id, "boom")
    assert [a.late for a in await world.attempts(job.id)] == [None]


# Resuming.


async def test_an_agent_that_lost_its_memory_gets_its_own_leases_again(world: World) -> None:
    jobs = [await world.add(payload={"n": n}) for n in range(2)]
    old = await world.jobs.lease(AGENT, max=2)
    world.clock.advance(30)
    again = await world.jobs.resume(AGENT)
    assert [(one.job.id, one.job.epoch, one.job.attempts, one.payload) for one in again] == [
        (jobs[0].id, 2, 1, '{"n":0}'),
        (jobs[1].id, 2, 1, '{"n":1}'),
    ]
    assert again[0].job.lease_expires == world.clock.now() + 60_000
    with pytest.raises(LeaseLost, match="epoch 2, yours was 1"):
        await world.jobs.heartbeat(AGENT, old[0].lease_id)
    await world.jobs.complete(AGENT, again[0].lease_id)
    assert [(a.attempt, a.outcome) for a in await world.attempts(jobs[0].id)] == [(1, "resumed"), (1, "succeeded")]


async def test_nobody_resumes_the_leases_of_another_instance_or_name(world: World) -> None:
    await world.add()
    await world.add()
    await world.take(AGENT)
    for who in (TWIN, replace(OTHER, instance="a"), replace(AGENT, instance="A")):
        assert await world.jobs.resume(who) == []
    with pytest.raises(InvalidRequest, match="resume needs an instance"):
        await world.jobs.resume(replace(AGENT, instance=None))


async def test_a_lease_that_ran_out_is_not_resumed(world: World) -> None:
    await world.add()
    await world.take()
    world.clock.advance(60)
    assert await world.jobs.resume(AGENT) == []


async def test_resuming_twice_fences_the_first_time(world: World) -> None:
    await world.add()
    await world.take()
    (first,) = await world.jobs.resume(AGENT)
    (second,) = await world.jobs.resume(AGENT, lease_seconds=5)
    assert second.job.lease_expires == world.clock.now() + 5000
    with pytest.raises(LeaseLost):
        await world.jobs.complete(AGENT, first.lease_id)
    await world.jobs.complete(AGENT, second.lease_id)


async def test_a_resumed_job_can_still_be_cancelled_and_lost(world: World) -> None:
    job = await world.add(max_attempts=1)
    await world.take()
    await world.jobs.cancel(ME, job.id)
    (lease,) = await world.jobs.resume(AGENT)
    assert (await world.jobs.heartbeat(AGENT, lease.lease_id)).job.cancelling
    await world.tick(61)
    assert (await world.job(job.id)).state == "cancelled"


# Many jobs at once.


async def _failed(world: World, count: int, **fields: Any) -> None:
    await world.jobs.enqueue_many(ME, [NewJobRequest.model_validate({"kind": "work", **fields})] * count)
    for lease in await world.jobs.lease(AGENT, max=count):
        await world.jobs.fail(AGENT, lease.lease_id, "boom", permanent=True)


async def test_all_that_match_are_requeued_and_others_are_not(world: World) -> None:
    await _failed(world, 250)
    await _failed(world, 3, tags=["keep"])
    other = await world.add("other")
    where = JobFilter(states=("failed",), kinds=("work",))
    counted = await world.jobs.requeue_all(ME, where, dry_run=True)
    assert counted == (253, 0, 0, 253, counted.cursor, 254)
    assert await world.jobs.requeue_all(ME, JobFilter(tag="keep"), queue="mail") == (3, 3, 0, 0, None, 254)
    assert await world.jobs.requeue_all(ME, where) == (250, 250, 0, 0, None, 254)
    assert await world.core.store.states(JobFilter()) == {"queued": 254}
    assert (await world.job(other.id)).run_at == other.run_at
    assert {job.queue for job in (await world.jobs.list(ME, JobFilter(tag="keep"))).jobs} == {"mail"}


async def test_a_long_call_is_gone_on_with_and_touches_nothing_that_came_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oaken_jobs.jobs.BULK_CALL", 100)
    assert BULK_CALL > 100
    await _failed(world, 250)
    where = JobFilter(kinds=("work",))
    first = await world.jobs.requeue_all(ME, where)
    assert first[:4] == (250, 100, 0, 150)
    await _failed(world, 1)
    second = await world.jobs.requeue_all(ME, where, cursor=first.cursor)
    assert second[:4] == (150, 100, 0, 50)
    assert (await world.jobs.requeue_all(ME, where, cursor=second.cursor))[:5] == (50, 50, 0, 0, None)
    assert await world.core.store.states(JobFilter()) == {"queued": 250, "failed": 1}
    with pytest.raises(InvalidRequest, match="other filters"):
        await world.jobs.requeue_all(ME, where, queue="mail", cursor=first.cursor)


async def test_what_cannot_be_requeued_is_skipped_and_counted(world: World) -> None:
    for _ in range(2):
        await _failed(world, 1, dedupe_key="k")
    await _failed(world, 1, target="t")
    await world.add(target="t")
    assert (await world.jobs.requeue_all(ME, JobFilter(states=("failed",))))[:4] == (3, 1, 2, 0)


async def test_all_that_match_are_cancelled(world: World) -> None:
    for _ in range(3):
        await world.add()
    lease = await world.take()
    assert (await world.jobs.cancel_all(ME, JobFilter(kinds=("work",))))[:4] == (3, 3, 0, 0)
    assert (await world.jobs.cancel_all(ME, JobFilter(kinds=("work",))))[:4] == (1, 0, 1, 0)
    assert (await world.jobs.heartbeat(AGENT, lease.lease_id)).job.cancelling


async def test_a_filter_that_matches_everything_or_nothing_possible_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match="matches every job"):
        await world.jobs.cancel_all(ME, JobFilter())
    with pytest.raises(InvalidRequest, match="only queued, failed, cancelled"):
        await world.jobs.requeue_all(ME, JobFilter(states=("running", "succeeded")))
    with pytest.raises(Forbidden):
        await world.jobs.cancel_all(VIEWER, JobFilter(kinds=("work",)))


async def test_agents_lease_between_the_parts_of_a_bulk_requeue(world: World) -> None:
    await _failed(world, 1000)
    requeueing = asyncio.ensure_future(world.jobs.requeue_all(ME, JobFilter(states=("failed",))))
    await until(lambda: world.core.commit._running or bool(world.core.commit._under_way))
    leases = await world.jobs.lease(OTHER, max=5)
    assert not requeueing.done()
    while len(leases) < 5:
        leases += await world.jobs.lease(OTHER, max=5)
    assert not requeueing.done()
    assert (await requeueing).done >= 995


# Triage, again.


async def test_retriage_clears_what_the_machine_said_and_keeps_what_people_say(world: World) -> None:
    job = await world.add(subject="note:1")
    await world.jobs.set_labels(ME, "note:1", {"topic": "mine"})
    triage = await world.add("triage", payload={"text": "x"}, subject="note:1")
    lease = await world.take(kinds=["triage"])
    await world.jobs.complete(AGENT, lease.lease_id, {"labels": {"queue": "mail", "topic": "theirs"}})
    moved = await world.jobs.requeue(ME, job.id, retriage=True)
    assert (moved.queue, moved.routed_by) == ("default", "default")
    assert await world.jobs.labels(ME, "note:1") == {"human": {"topic": "mine"}, "machine": {}}
    await world.jobs.set_labels(ME, "note:1", {"queue": "mail"})
    assert (await world.jobs.requeue(ME, job.id, retriage=True)).queue == "mail"
    assert triage.id != job.id


async def test_a_retriaged_intake_makes_triage_decide_again_and_nothing_else_twice(world: World) -> None:
    intake = await world.add("intake", payload={"text": "hello"})
    await _run_inside(world)
    triage = await world.take(kinds=["triage"])
    await world.jobs.complete(AGENT, triage.lease_id, {"labels": {"topic": "one"}})
    await _again(world, "hello")  # the same text makes no second jobs
    assert len((await world.jobs.list(ME, JobFilter(kinds=("triage",)))).jobs) == 1
    second = await world.add("intake", payload={"text": "hello"})
    await world.jobs.requeue(ME, second.id, retriage=True)
    assert (await world.jobs.labels(ME, triage.job.subject))["machine"] == {}
    await _run_inside(world)
    again = await world.take(kinds=["triage"])
    assert (again.job.subject, again.job.parent_id) == (triage.job.subject, second.id)
    assert len((await world.jobs.list(ME, JobFilter(kinds=("embed",)))).jobs) == 1
    assert intake.id != second.id


async def _again(world: World, text: str) -> None:
    await world.add("intake", payload={"text": text})
    await _run_inside(world)


async def _run_inside(world: World) -> None:
    """Does what a runner does with the built-in kinds."""
    transport = LocalTransport(world.core.jobs, world.core.follower, RUNNER)
    await Worker(transport, pipeline.handlers(), slots=1, clock=world.clock).drain()


async def test_a_job_without_a_subject_has_nothing_to_triage(world: World) -> None:
    job = await world.add()
    with pytest.raises(InvalidRequest, match="has no subject"):
        await world.jobs.requeue(ME, job.id, retriage=True)


# Drained agents.


async def test_a_drained_agent_keeps_what_it_holds_and_gets_nothing_new(world: World) -> None:
    await world.add()
    await world.add()
    lease = await world.take()
    assert await world.jobs.drain(ME, "worker", True)
    await world.none()
    await world.none(TWIN)
    assert {row.draining for row in await world.jobs.agents(ME)} == {True}
    await world.jobs.complete(AGENT, lease.lease_id)
    assert await world.jobs.drain(ME, "worker", False)
    await world.take(TWIN)


async def test_one_instance_is_drained_alone_and_a_waiting_one_is_served_when_let_go(world: World) -> None:
    await world.none(AGENT)
    await world.none(TWIN)
    await world.jobs.agents(ME)
    await world.jobs.drain(ME, "worker/a", True)
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=1000))
    await asyncio.sleep(0)
    await world.add()
    await world.take(TWIN)
    job = await world.add()
    assert not waiting.done()
    await world.jobs.drain(ME, "worker/a", False)
    await until(waiting.done)
    assert [one.job.id for one in waiting.result()] == [job.id]


async def test_an_agent_that_never_was_cannot_be_drained(world: World) -> None:
    with pytest.raises(NotFound, match="no agent 'ghost'"):
        await world.jobs.drain(ME, "ghost", True)
    with pytest.raises(Forbidden):
        await world.jobs.drain(VIEWER, "worker", True)


async def test_draining_lasts_through_a_restart_and_is_told_once(world: World) -> None:
    await world.none(AGENT, wait_seconds=0)
    await world.add()
    await world.take()
    assert await world.jobs.drain(ME, "worker", True)
    assert not await world.jobs.drain(ME, "worker", True)
    await world.restart()
    await world.add()
    await world.none()


# Reports.


async def test_a_report_that_is_repeated_under_its_number_is_told_once(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    for seq, percent in ((1, 10), (2, 20), (1, 10), (2, 20), (3, 30)):
        world.clock.advance(30)
        await world.jobs.heartbeat(AGENT, lease.lease_id, percent=percent, seq=seq, progress=True)
    assert [row.percent for row in await world.jobs.progress(ME, job.id)] == [10, 20, 30]
    await world.jobs.release(AGENT, lease.lease_id)
    again = await world.take()
    await world.jobs.heartbeat(AGENT, again.lease_id, percent=5, seq=1, progress=True)
    assert (await world.job(job.id)).percent == 5


# Listed delays.


async def test_a_kind_that_lists_its_delays_waits_as_listed_and_the_last_one_on(world: World) -> None:
    await world.restart(kinds={"listed": Kind("listed", retry_delays=(1, 60), max_attempts=5)}, backoff_jitter=0.9)
    await world.add("listed")
    waits: list[float] = []
    for _ in range(4):
        job = await world.jobs.fail(AGENT, (await world.take()).lease_id, "boom")
        waits.append((job.run_at - world.clock.now()) / 1000)
        world.clock.advance(waits[-1])
    assert waits == [1, 60, 60, 60]

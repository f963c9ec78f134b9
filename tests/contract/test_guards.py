"""What breaks where a single guard of the core is taken away: found by taking them away one at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from oaken_jobs import pipeline
from oaken_jobs.errors import Conflict, Forbidden, LeaseLost
from oaken_jobs.kinds import Kind
from oaken_jobs.local import LocalTransport
from oaken_jobs.model import FREE, Job, KeepDocument, KeepVector, Leased, SetLabels, Usage
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from oaken_jobs.worker import Worker
from tests.contract import invariants
from tests.contract.world import AGENT, ME, OTHER, RUNNER, TWIN, World, until


def _sound(world: World) -> None:
    invariants.check(world.raw, world.jobs.rules.caps)


async def _late(world: World, **fields: Any) -> Leased:
    """A job that is back in the queue, whose first holder came too late with its result; the lease of that holder."""
    await world.add(**fields)
    lease = await world.take()
    await world.tick(61)
    with pytest.raises(LeaseLost, match="kept"):
        await world.jobs.complete(AGENT, lease.lease_id)
    return lease


async def _pickier(world: World) -> None:
    """From now on the kind `loose` takes numbers alone."""
    kinds = world.jobs.rules.kinds
    await world.restart(kinds={**kinds, "loose": replace(kinds["sum"], name="loose")})


async def _codes(world: World, job: Job) -> list[str]:
    row = await world.job(job.id)
    return [wait.code for wait in (await world.jobs.waits([row]))[job.id]]


# Caps.


async def test_a_cap_counts_what_one_claim_takes_at_several_priorities(world: World) -> None:
    for priority in (9, 5, 5):
        await world.add("capped", priority=priority)
    assert len(await world.jobs.lease(AGENT, max=3)) == 2
    _sound(world)


async def test_lanes_of_a_kind_that_is_nearly_full_hide_no_other(world: World) -> None:
    await world.restart(kind_limits={"capped": 1})
    first, second = [await world.add("capped") for _ in range(2)]
    await world.jobs.requeue(ME, second.id, "mail")
    other = await world.add("work")
    assert [one.job.id for one in await world.jobs.lease(AGENT, max=2)] == [first.id, other.id]


async def test_leases_that_ran_out_fill_no_cap_although_nobody_took_them_back(world: World) -> None:
    for _ in range(200):
        await world.add()
    await world.jobs.lease(AGENT, max=200, lease_seconds=5)
    for _ in range(3):
        await world.add("capped")
    await world.jobs.lease(AGENT, max=2, lease_seconds=10)
    world.clock.advance(11)
    third = (await world.jobs.get(ME, 203)).id
    assert await _codes(world, await world.job(third)) == []
    assert (await world.take(OTHER, kinds=["capped"])).job.id == third  # two hundred others were taken back first


# Serial keys.


async def test_a_newcomer_of_higher_priority_passes_those_of_its_key(world: World) -> None:
    await world.add(serial_key="s", priority=1)
    urgent = await world.add(serial_key="s", priority=9)
    assert (await world.take()).job.id == urgent.id


async def test_a_newcomer_passes_one_of_its_key_that_is_not_due(world: World) -> None:
    await world.add(serial_key="s", delay_seconds=100)
    due = await world.add(serial_key="s")
    assert (await world.take()).job.id == due.id


async def test_what_is_taken_is_not_hidden_with_those_behind_it(world: World) -> None:
    first, second = [await world.add(serial_key="s", delay_seconds=1) for _ in range(2)]
    world.clock.advance(2)
    (lease,) = await world.jobs.lease(AGENT, max=2)
    _sound(world)
    await world.jobs.complete(AGENT, lease.lease_id)
    assert (lease.job.id, (await world.take()).job.id) == (first.id, second.id)


async def test_of_several_lanes_of_a_key_the_first_of_each_is_offered_when_it_is_free(world: World) -> None:
    await world.add(serial_key="s", priority=900)
    lease = await world.take()
    firsts: list[int] = []
    for kind, priority, queue in (
        ("work", 1, "default"),
        ("work", 2, "default"),
        ("other", 1, "default"),
        ("work", 1, "mail"),
    ):
        await world.jobs.set_labels(ME, "note:1", {"queue": queue if queue == "mail" else ""})
        added = [await world.add(kind, serial_key="s", priority=priority, subject="note:1") for _ in range(2)]
        firsts.append(added[0].id)
    await world.jobs.complete(AGENT, lease.lease_id)
    _sound(world)
    queued = (await world.jobs.list(ME, JobFilter(states=("queued",)))).jobs
    assert sorted(job.id for job in queued if job.blocked == FREE) == firsts


@pytest.mark.parametrize("what", ["cancel", "expire", "move", "adopt", "ask", "unfit"])
async def test_whatever_becomes_of_the_first_of_a_key_the_next_is_offered(world: World, what: str) -> None:
    if what == "adopt":
        first = (await _late(world, kind="loose", serial_key="s", payload={"n": 1})).job
    else:
        fields: dict[str, Any] = {"ttl_seconds": 5} if what == "expire" else {}
        first = await world.add("loose", serial_key="s", payload={"n": "one"}, **fields)
    second = await world.add("loose", serial_key="s", payload={"n": 1})
    if what == "cancel":
        await world.jobs.cancel(ME, first.id)
    elif what == "expire":
        await world.tick(6)
    elif what == "move":
        await world.jobs.requeue(ME, first.id, "mail")
    elif what == "adopt":
        await world.jobs.adopt(ME, first.id, 1)
    elif what == "ask":
        await world.jobs.ask(AGENT, (await world.take()).lease_id, "Which?")
    else:
        await _pickier(world)
    assert (await world.take(OTHER, queues=["default"])).job.id == second.id
    _sound(world)


async def test_a_revoked_token_frees_the_serial_keys_of_what_it_held(world: World) -> None:
    await world.core.tokens.create(ME.actor, "worker", ["agent"])
    await world.add(serial_key="s")
    await world.take()
    second = await world.add("other", serial_key="s")
    await world.core.tokens.revoke(ME.actor, "worker")
    assert (await world.take(OTHER, kinds=["other"])).job.id == second.id


# Parents.


@pytest.mark.parametrize("end", ["adopt", "overrule", "cancelled", "unfit", "revoke", "fail"])
async def test_a_parent_is_offered_whatever_ends_its_last_child(world: World, end: str) -> None:
    await world.core.tokens.create(ME.actor, "other", ["agent"])
    parent = await world.add("parent")
    lease = await world.take()
    child = await world.add("loose", AGENT, parent_id=parent.id, payload={"n": "one"})
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    held = await world.take(OTHER) if end != "unfit" else None
    if end == "adopt":
        await world.tick(61)
        with pytest.raises(LeaseLost, match="kept"):
            await world.jobs.complete(OTHER, held.lease_id)
        await world.jobs.adopt(ME, child.id, 1)
    elif end == "unfit":
        await _pickier(world)
        await world.none(OTHER, kinds=["loose"])
    elif end == "fail":
        await world.jobs.fail(OTHER, held.lease_id, "no", permanent=True)
    else:
        await world.jobs.cancel(ME, child.id)
        if end == "overrule":
            await world.jobs.heartbeat(OTHER, held.lease_id, lease_seconds=3600)
            await world.tick(301)
        elif end == "cancelled":
            await world.jobs.cancelled(OTHER, held.lease_id)
        else:
            await world.core.tokens.revoke(ME.actor, "other")
    assert (await world.job(child.id)).final
    assert (await world.take(TWIN, kinds=["parent"])).job.id == parent.id


async def test_a_parent_that_was_held_up_comes_after_what_was_there_before(world: World) -> None:
    parent = await world.add("parent")
    lease = await world.take()
    child = await world.add("child", AGENT, parent_id=parent.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    world.clock.advance(5)
    await world.jobs.cancel(ME, child.id)
    assert (await world.job(parent.id)).run_at == world.clock.now()


async def test_a_running_child_holds_its_parent_up(world: World) -> None:
    parent = await world.add("parent")
    lease = await world.take()
    first, second = [await world.add("child", AGENT, parent_id=parent.id) for _ in range(2)]
    await world.take(OTHER, kinds=["child"])
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    await world.jobs.cancel(ME, second.id)
    await world.none(TWIN, kinds=["parent"])
    assert (await world.job(first.id)).state == "running"


async def test_a_parent_that_is_put_back_no_longer_waits_for_its_children(world: World) -> None:
    parent = await world.add("parent")
    lease = await world.take()
    await world.add("child", AGENT, parent_id=parent.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    await world.jobs.requeue(ME, parent.id)
    assert (await world.take(kinds=["parent"])).job.id == parent.id


# History.


async def _verbs(world: World, job_id: int) -> list[tuple[str, str]]:
    rows = await world.jobs.activity(ME, job_id)
    return [(row.verb, row.actor.id) for row in rows if row.kind == "job_state_changed"]


async def test_all_that_may_happen_to_a_job_is_in_its_activity(world: World) -> None:
    job = await world.add()
    await world.jobs.ask(AGENT, (await world.take()).lease_id, "Which?")
    await world.jobs.answer(ME, job.id, "This")
    await world.take()
    (lease,) = await world.jobs.resume(AGENT)
    await world.tick(61)
    with pytest.raises(LeaseLost, match="kept"):
        await world.jobs.complete(AGENT, lease.lease_id)
    await world.take(OTHER)
    await world.jobs.adopt(ME, job.id, lease.job.epoch)
    assert await _verbs(world, job.id) == [
        ("enqueue", "me"),
        ("claim", "worker"),
        ("ask", "worker"),
        ("answer", "me"),
        ("claim", "worker"),
        ("resume", "worker"),
        ("lose", "oaken"),
        ("claim", "other"),
        ("adopt", "me"),
    ]
    _sound(world)


async def test_what_time_ends_is_in_the_activity(world: World) -> None:
    expired = await world.add(ttl_seconds=5)
    await world.tick(6)
    stubborn = await world.add()
    await world.take(lease_seconds=3600)
    await world.jobs.cancel(ME, stubborn.id)
    await world.tick(301)
    assert [verb for verb, _ in await _verbs(world, expired.id)] == ["enqueue", "expire"]
    assert [verb for verb, _ in await _verbs(world, stubborn.id)] == ["enqueue", "claim", "cancel", "overrule"]
    _sound(world)


async def test_who_enqueues_again_is_in_the_activity(world: World) -> None:
    job = await world.add(dedupe_key="k")
    await world.enqueue("work", replace(ME, actor=ME.actor._replace(id="boss")), dedupe_key="k")
    await world.enqueue(dedupe_key="k", on_duplicate="replace")
    assert await _verbs(world, job.id) == [("enqueue", "me"), ("coalesce", "boss"), ("replace", "me")]


async def test_whose_token_is_revoked_and_by_whom_is_in_the_activity(world: World) -> None:
    await world.core.tokens.create(ME.actor, "worker", ["agent"])
    job = await world.add()
    await world.take()
    await world.core.tokens.revoke(ME.actor, "worker")
    rows = await world.core.store.activity(0, 100)
    told = [(row.verb, row.name, row.actor_id) for row in rows if row.event == "token_changed"]
    assert told == [("create", "worker", "me"), ("revoke", "worker", "me")]
    assert (await _verbs(world, job.id))[-1] == ("release", "me")
    _sound(world)


# States.


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_what_has_ended_cannot_be_cancelled(world: World, end: str) -> None:
    job = await world.add()
    lease = await world.take()
    await world.jobs.fail(AGENT, lease.lease_id, "no", permanent=True)
    if end == "cancelled":
        await world.jobs.requeue(ME, job.id)
        await world.jobs.cancel(ME, job.id)
    before = await world.job(job.id)
    again = await world.jobs.cancel(ME, job.id)
    assert (again.changed, again.job, await world.job(job.id)) == (False, before, before)
    assert before.state == end


async def test_a_waiting_parent_that_is_cancelled_waits_for_nothing_more(world: World) -> None:
    parent = await world.add("parent")
    lease = await world.take()
    await world.add("child", AGENT, parent_id=parent.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    await world.jobs.cancel(ME, parent.id)
    _sound(world)


async def test_a_queued_job_that_is_put_back_leaves_a_row(world: World) -> None:
    job = await world.add(delay_seconds=100)
    await world.jobs.requeue(ME, job.id)
    assert await _verbs(world, job.id) == [("enqueue", "me"), ("requeue", "me")]


async def test_draining_and_letting_go_are_in_the_activity(world: World) -> None:
    await world.none()
    for draining in (True, True, False):
        await world.jobs.drain(ME, "worker", draining)
    rows = await world.core.store.activity(0, 100)
    told = [(row.event, row.verb, row.name, row.actor_id) for row in rows]
    assert told == [("agent_changed", "drain", "worker", "me"), ("agent_changed", "undrain", "worker", "me")]


# Order.


async def test_of_many_lanes_what_became_runnable_first_is_first(world: World) -> None:
    await world.add("work", delay_seconds=10)
    first = await world.add("work")
    await world.add("other", delay_seconds=5)
    world.clock.advance(20)
    assert (await world.take()).job.id == first.id


async def test_of_many_lanes_the_first_job_is_taken_whatever_they_are_called(world: World) -> None:
    first = await world.add("work")
    world.clock.advance(1)
    await world.add("other")
    assert (await world.take()).job.id == first.id


# Keys.


async def test_a_lease_given_back_and_taken_again_is_not_that_of_the_key(world: World) -> None:
    await world.add()
    lease = await world.take(idempotency_key="i")
    await world.jobs.release(AGENT, lease.lease_id)
    await world.take()
    await world.none(idempotency_key="i")


async def test_a_lease_asked_for_twice_at_once_under_one_key_is_one(world: World) -> None:
    for _ in range(2):
        await world.add()
    first, second = await asyncio.gather(*(world.jobs.lease(AGENT, idempotency_key="i") for _ in range(2)))
    assert [one.lease_id for one in first] == [one.lease_id for one in second]
    assert len(first) == 1


# Ends.


async def test_a_job_that_is_put_back_no_longer_expires(world: World) -> None:
    job = await world.add(ttl_seconds=100)
    await world.jobs.requeue(ME, job.id)
    await world.tick(101)
    assert (await world.job(job.id)).state == "queued"


async def test_who_was_asked_to_stop_has_time_after_a_jump_of_the_clock(world: World) -> None:
    job = await world.add()
    await world.take()
    await world.jobs.cancel(ME, job.id)
    world.clock.jump(3600)
    await world.tick(19)
    assert (await world.job(job.id)).state == "running"


async def test_a_misfit_of_a_job_that_is_asked_to_stop_ends_it_cancelled(world: World) -> None:
    job = await world.add("strict")
    lease = await world.take()
    await world.jobs.cancel(ME, job.id)
    with pytest.raises(Exception, match="ended as cancelled"):
        await world.jobs.complete(AGENT, lease.lease_id, {"n": "x"})
    found = await world.job(job.id)
    assert (found.state, found.reason, found.cancel_deadline) == ("cancelled", "cancelled_by_user", None)


@pytest.mark.parametrize("end", ["cancel", "requeue"])
async def test_a_question_is_closed_with_its_job(world: World, end: str) -> None:
    job = await world.add()
    await world.jobs.ask(AGENT, (await world.take()).lease_id, "Which?")
    await getattr(world.jobs, end)(ME, job.id)
    assert (await world.job(job.id)).question is None
    with pytest.raises(Conflict, match="no open question"):
        await world.jobs.answer(ME, job.id, "This")


@pytest.mark.parametrize("field", ["dedupe_key", "target"])
async def test_a_queued_job_may_be_put_back_although_its_own_key_lives(world: World, field: str) -> None:
    job = await world.add(**{field: "k"})
    assert (await world.jobs.requeue(ME, job.id, "mail")).queue == "mail"


async def test_a_job_that_ends_at_the_claim_keeps_no_place_of_its_kind_from_another(world: World) -> None:
    await world.restart(kind_limits={"loose": 1})
    await world.add("loose", payload={"n": "one"})
    good = await world.add("loose", payload={"n": 1})
    other = await world.add("work")
    await _pickier(world)
    assert [one.job.id for one in await world.jobs.lease(AGENT, max=2)] == [good.id, other.id]


# Waking.


async def _waiting(world: World, **fields: Any) -> asyncio.Future[list[Leased]]:
    """A request that waits, and that only this process's own word can wake."""
    world.core.follower.foreign = lambda: None
    waiting = asyncio.ensure_future(world.jobs.lease(OTHER, wait_seconds=600, **fields))
    await until(lambda: any(waiter.asked for waiter in world.core.dispatch._waiters))
    return waiting


async def _served(waiting: asyncio.Future[list[Leased]]) -> int:
    (lease,) = await asyncio.wait_for(waiting, 2)
    return lease.job.id


async def test_who_waits_for_a_job_of_a_key_is_woken_by_the_end_of_another_kind(world: World) -> None:
    await world.add(serial_key="s")
    lease = await world.take()
    second = await world.add("other", serial_key="s")
    waiting = await _waiting(world, kinds=["other"])
    await world.jobs.complete(AGENT, lease.lease_id)
    assert await _served(waiting) == second.id


async def test_who_waits_for_a_parent_is_woken_by_the_end_of_its_child(world: World) -> None:
    parent = await world.add("parent")
    lease = await world.take()
    child = await world.add("child", AGENT, parent_id=parent.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    waiting = await _waiting(world, kinds=["parent"])
    await world.jobs.cancel(ME, child.id)
    assert await _served(waiting) == parent.id


async def test_who_waits_is_woken_when_a_queue_is_resumed(world: World) -> None:
    job = await world.add()
    await world.jobs.set_paused(ME, "default", True)
    waiting = await _waiting(world)
    await world.jobs.set_paused(ME, "default", False)
    assert await _served(waiting) == job.id


async def test_who_waits_is_woken_when_it_is_let_go(world: World) -> None:
    await world.none(OTHER)
    job = await world.add()
    await world.jobs.drain(ME, "other")
    waiting = await _waiting(world)
    await world.jobs.drain(ME, "other", False)
    assert await _served(waiting) == job.id


async def test_who_waits_for_a_full_kind_is_woken_by_an_end(world: World) -> None:
    for _ in range(3):
        await world.add("capped")
    lease, _ = await world.jobs.lease(AGENT, max=2)
    waiting = await _waiting(world)
    await world.jobs.complete(AGENT, lease.lease_id)
    assert await _served(waiting) == 3


# Boundaries.


async def test_a_lease_at_the_moment_it_runs_out_is_lost(world: World) -> None:
    await world.add()
    lease = await world.take(lease_seconds=10)
    world.clock.advance(10)
    assert await world.jobs.resume(AGENT) == []
    with pytest.raises(LeaseLost):
        await world.jobs.heartbeat(AGENT, lease.lease_id)
    await world.tick()
    assert (await world.job(lease.job.id)).state == "queued"


async def test_a_job_expires_at_the_moment_named(world: World) -> None:
    job = await world.add(ttl_seconds=5)
    await world.tick(5)
    assert (await world.job(job.id)).reason == "expired"


async def test_a_worker_is_overruled_at_the_moment_its_grace_ends(world: World) -> None:
    job = await world.add()
    await world.take(lease_seconds=3600)
    await world.jobs.cancel(ME, job.id)
    await world.tick(299)
    assert (await world.job(job.id)).state == "running"
    await world.tick(1)
    assert (await world.job(job.id)).reason == "cancel_grace"


# Payloads.


async def test_a_replaced_payload_is_judged_again_where_it_was_checked_against_nothing(world: World) -> None:
    kinds = world.jobs.rules.kinds
    await _pickier(world)
    job = await world.add("loose", payload={"n": 1}, dedupe_key="k")
    await world.restart(kinds=kinds)
    await world.enqueue("loose", payload={"n": "one"}, dedupe_key="k", on_duplicate="replace")
    await _pickier(world)
    await world.none()
    assert (await world.job(job.id)).reason == "payload_invalid"


# Late results and fencing.


async def test_the_lease_before_a_resumption_says_nothing_of_the_next_one(world: World) -> None:
    await world.add()
    lease = await world.take()
    (again,) = await world.jobs.resume(AGENT)
    forged = f"{again.job.id}-{again.job.epoch}-{lease.lease_id[-24:]}"
    with pytest.raises(LeaseLost):
        await world.jobs.complete(AGENT, forged)


async def test_what_would_leave_more_than_a_result_is_not_kept_when_it_comes_too_late(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    await world.tick(61)
    op = world.jobs.complete_op(AGENT, lease.lease_id, effects=(SetLabels("note:1", "machine", {"a": "b"}),))
    with pytest.raises(LeaseLost) as refused:
        await world.jobs.finish(AGENT, op)
    assert "kept" not in refused.value.message
    assert [one.late for one in await world.attempts(job.id)] == [None]


async def test_nothing_is_kept_for_a_job_that_has_succeeded(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    await world.tick(61)
    await world.jobs.complete(OTHER, (await world.take(OTHER)).lease_id)
    with pytest.raises(LeaseLost) as refused:
        await world.jobs.complete(AGENT, lease.lease_id)
    assert "kept" not in refused.value.message
    assert [one.late for one in await world.attempts(job.id)] == [None, None]


# Repeats.


@pytest.mark.parametrize(
    ("verb", "first", "second"),
    [
        ("fail", {"error": "a"}, {"error": "b"}),
        ("fail", {"error": "a"}, {"error": "a", "permanent": True}),
        ("fail", {"error": "a"}, {"error": "a", "retry_after": 9}),
        ("fail", {"error": "a"}, {"error": "a", "usage": Usage(None, 1.0)}),
        ("defer", {"seconds": 1}, {"seconds": 2}),
        ("release", {}, {"after_children": True}),
        ("ask", {"text": "Which?"}, {"text": "Why?"}),
        ("complete", {"result": {"n": 1}}, {"result": {"n": 2}}),
    ],
)
async def test_a_repeat_that_says_anything_else_is_a_conflict(
    world: World, verb: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    job = await world.add()
    lease = await world.take()
    make = getattr(world.jobs, f"{verb}_op")
    told = await world.jobs.finish(AGENT, make(AGENT, lease.lease_id, **first))
    with pytest.raises(Conflict, match="another body"):
        await world.jobs.finish(AGENT, make(AGENT, lease.lease_id, **second))
    assert await world.jobs.finish(AGENT, make(AGENT, lease.lease_id, **first)) == told
    assert (await world.job(job.id)).state == told.state


async def test_a_repeat_tells_all_of_the_first_answer_after_another_took_the_job(world: World) -> None:
    await world.add()
    lease = await world.take()
    told = await world.jobs.release(AGENT, lease.lease_id)
    world.clock.advance(5)
    await world.take(OTHER)
    again = await world.jobs.release(AGENT, lease.lease_id)
    names = ("state", "epoch", "attempts", "agent", "started_at")
    assert [getattr(again, name) for name in names] == [getattr(told, name) for name in names]


# Misfits.


async def test_corrections_are_counted_anew_after_a_resumption_and_a_requeue(world: World) -> None:
    job = await world.add("sum", payload={"n": 1})
    lease = await world.take()
    for _ in range(2):
        with pytest.raises(Exception, match="does not fit"):
            await world.jobs.complete(AGENT, lease.lease_id, {"n": "x"})
    (lease,) = await world.jobs.resume(AGENT)
    with pytest.raises(Exception, match="2 more tries"):
        await world.jobs.complete(AGENT, lease.lease_id, {"n": "x"})
    await world.jobs.fail(AGENT, lease.lease_id, "no", permanent=True)
    assert (await world.jobs.requeue(ME, job.id)).invalid_results == 0


async def test_what_a_refused_result_cost_counts(world: World) -> None:
    job = await world.add("strict")
    op = world.jobs.complete_op(AGENT, (await world.take()).lease_id, {"n": "x"}, Usage({"tokens": 3}, 0.5))
    with pytest.raises(Exception, match="ended as failed"):
        await world.jobs.finish(AGENT, op)
    assert ((await world.job(job.id)).cost_usd, (await world.job(job.id)).usage) == (0.5, '{"tokens":3}')


# Delays.


async def test_a_longer_wait_that_is_asked_for_wins_over_the_listed_one(world: World) -> None:
    await world.restart(kinds={"listed": Kind("listed", retry_delays=(1, 60))})
    await world.add("listed")
    job = await world.jobs.fail(AGENT, (await world.take()).lease_id, "boom", retry_after=9)
    assert job.run_at == world.clock.now() + 9000


# Why a job waits.


async def test_a_serial_key_that_is_busy_elsewhere_is_no_reason_to_wait(world: World) -> None:
    await world.add(serial_key="s", workspace="side")
    await world.take()
    for workspace in ("default", "side"):
        await world.add(serial_key="s", workspace=workspace)
    assert await _codes(world, await world.job(2)) == []
    assert await _codes(world, await world.job(3)) == ["serial"]
    rows = [await world.job(job_id) for job_id in (2, 3)]
    together = await world.jobs.waits(rows)
    assert [[wait.code for wait in together[row.id]] for row in rows] == [[], ["serial"]]


async def test_a_kind_that_was_taken_a_moment_before_the_job_came_is_not_called_abandoned(world: World) -> None:
    await world.add()
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    world.clock.advance(5)
    job = await world.add()
    world.clock.advance(50)
    assert await _codes(world, job) == []
    world.clock.advance(11)
    assert await _codes(world, job) == ["no_agent"]


# Workspaces.

INSIDE = replace(ME, workspace="side")
WORKER = replace(OTHER, workspace="side")


async def test_requests_that_differ_in_their_workspace_alone_are_not_served_as_one(world: World) -> None:
    for _ in range(2):
        await world.add()
    free, bound = await asyncio.gather(world.jobs.lease(AGENT), world.jobs.lease(WORKER))
    assert (len(free), bound) == (1, [])
    await world.add(workspace="side")
    bound, free = await asyncio.gather(world.jobs.lease(WORKER), world.jobs.lease(AGENT))
    assert [one.job.workspace for one in (*bound, *free)] == ["side", "default"]


async def test_each_part_of_the_snapshot_is_of_the_callers_own_workspace(world: World) -> None:
    for workspace in ("default", "side"):
        for what in ("complete", "ask", "hold"):
            lease = await _one_in(world, workspace)
            if what == "complete":
                await world.jobs.complete(AGENT, lease.lease_id)
            elif what == "ask":
                await world.jobs.ask(AGENT, lease.lease_id, f"In {workspace}?")
    snapshot = await world.jobs.snapshot(INSIDE)
    assert {job.workspace for job in (*snapshot.active, *snapshot.recent)} == {"side"}
    assert (len(snapshot.active), len(snapshot.recent)) == (2, 1)
    assert [one.text for one in snapshot.questions] == ["In side?"]
    assert snapshot.counts == {"queued": 1, "running": 1, "succeeded": 1, "failed": 0, "cancelled": 0}


async def _one_in(world: World, workspace: str) -> Leased:
    await world.add(workspace=workspace)
    return await world.take()


async def test_documents_and_vectors_are_read_in_the_callers_own_workspace_alone(world: World) -> None:
    for workspace in ("default", "side"):
        lease = await _one_in(world, workspace)
        effects = (KeepDocument("d", workspace, "text"), KeepVector("s", workspace, [0.5]))
        await world.jobs.finish(AGENT, world.jobs.complete_op(AGENT, lease.lease_id, effects=effects))
    for who, own in ((ME, "default"), (INSIDE, "side")):
        assert [one.title for one in await world.jobs.documents(who, ["d"])] == [own]
        assert [model for _, model, _ in await world.jobs.vectors(who)] == [own]
    with pytest.raises(Forbidden):
        await world.jobs.documents(INSIDE, ["d"], "default")
    with pytest.raises(Forbidden):
        await world.jobs.vectors(INSIDE, "default")


async def test_the_same_text_is_a_document_of_each_workspace(world: World) -> None:
    for workspace in ("default", "side"):
        await world.add("intake", payload={"text": "same"}, workspace=workspace)
        transport = LocalTransport(world.core.jobs, world.core.follower, RUNNER)
        await Worker(transport, pipeline.handlers(), slots=1, clock=world.clock).drain()
    jobs = (await world.jobs.list(ME, JobFilter(kinds=("embed",)))).jobs
    assert sorted(job.workspace for job in jobs) == ["default", "side"]


async def test_triaging_again_in_one_workspace_changes_nothing_of_another(world: World) -> None:
    for workspace in ("default", "side"):
        await world.add("triage", payload={"text": "x"}, subject="note:1", workspace=workspace)
        await world.jobs.complete(AGENT, (await world.take()).lease_id, {"labels": {"topic": workspace}})
    job = await world.add(subject="note:1", workspace="side")
    await world.jobs.requeue(ME, job.id, retriage=True)
    assert (await world.jobs.labels(ME, "note:1"))["machine"] == {"topic": "default"}
    assert (await world.jobs.labels(ME, "note:1", "side"))["machine"] == {}


async def test_a_label_is_set_in_the_callers_own_workspace(world: World) -> None:
    await world.jobs.set_labels(INSIDE, "note:1", {"queue": "mail"})
    assert (await world.jobs.labels(ME, "note:1"))["human"] == {}
    with pytest.raises(Forbidden):
        await world.jobs.set_labels(INSIDE, "note:1", {"queue": "mail"}, "default")


async def test_a_bound_caller_who_names_its_workspace_in_a_filter_sees_it_alone(world: World) -> None:
    for workspace in ("default", "side"):
        await world.add(workspace=workspace, tags=["t"])
    where = JobFilter(workspace="side", tag="t")
    assert [job.workspace for job in (await world.jobs.list(INSIDE, where)).jobs] == ["side"]
    assert [job.workspace for job in (await world.jobs.list(ME, JobFilter(workspace="default"))).jobs] == ["default"]
    assert (await world.jobs.requeue_all(INSIDE, JobFilter(tag="t")))[:3] == (1, 1, 0)
    assert (await world.jobs.cancel_all(INSIDE, JobFilter(tag="t")))[:3] == (1, 1, 0)


async def test_a_token_that_expired_after_its_request_was_let_in_leases_nothing(world: World) -> None:
    _, secret = await world.core.tokens.create(ME.actor, "bob", ["agent"], expires_in=5)
    who = await world.core.tokens.authenticate(secret, "http")
    await world.add()
    world.clock.advance(5)
    assert await world.jobs.lease(who) == []


# Questions and resumptions.


async def test_each_answer_stands_with_its_own_question(world: World) -> None:
    job = await world.add()
    for question, answer in (("Which?", "This"), ("When?", "Now")):
        await world.jobs.ask(AGENT, (await world.take()).lease_id, question)
        await world.jobs.answer(ME, job.id, answer)
    lease = await world.take()
    assert [(one.text, one.answer) for one in lease.answers] == [("Which?", "This"), ("When?", "Now")]


async def test_a_token_named_like_the_system_itself_resumes_nothing_of_it(world: World) -> None:
    await world.add()
    await world.take(replace(RUNNER, instance="a"))
    impostor = replace(AGENT, actor=AGENT.actor._replace(id=RUNNER.name))
    assert await world.jobs.resume(impostor) == []


async def test_a_resumed_lease_is_as_long_as_it_was(world: World) -> None:
    await world.add()
    await world.take(lease_seconds=600)
    (lease,) = await world.jobs.resume(AGENT)
    assert (lease.job.lease_ms, lease.job.lease_expires) == (600_000, world.clock.now() + 600_000)


async def test_losses_and_deferrals_are_counted_anew_after_a_requeue(world: World) -> None:
    job = await world.add()
    await world.jobs.defer(AGENT, (await world.take()).lease_id, 0)
    await world.take()
    await world.tick(61)
    again = await world.jobs.requeue(ME, job.id)
    assert (again.lost, again.deferrals, again.attempts) == (0, 0, 0)
    await world.take()
    await world.tick(61)
    assert (await world.job(job.id)).run_at <= world.clock.now()


async def test_a_long_lease_is_as_long_as_ever_after_a_jump_back(world: World) -> None:
    job = await world.add()
    await world.take(lease_seconds=600)
    world.clock.jump(-3600)
    await world.tick()
    assert (await world.job(job.id)).lease_expires == world.clock.now() + 600_000


async def test_nobody_else_repeats_a_finish(world: World) -> None:
    await world.add()
    lease = await world.take()
    await world.jobs.release(AGENT, lease.lease_id)
    with pytest.raises(LeaseLost):
        await world.jobs.release(OTHER, lease.lease_id)


async def test_a_finish_is_repeated_by_its_whole_lease_id_alone(world: World) -> None:
    await world.add()
    lease = await world.take()
    await world.jobs.release(AGENT, lease.lease_id)
    with pytest.raises(LeaseLost):
        await world.jobs.release(AGENT, lease.lease_id[:-24] + "0" * 24)


async def test_a_repeated_failure_tells_of_its_own_attempt(world: World) -> None:
    await world.add()
    lease = await world.take()
    await world.jobs.fail(AGENT, lease.lease_id, "boom")
    world.clock.advance(5)
    await world.take(OTHER)
    again = await world.jobs.fail(AGENT, lease.lease_id, "boom")
    assert (again.state, again.attempts, again.epoch, again.agent) == ("queued", 1, 1, "worker/a")


async def test_a_kind_that_somebody_works_on_for_long_is_not_called_abandoned(world: World) -> None:
    await world.add()
    await world.take(lease_seconds=3600)
    world.clock.advance(600)
    job = await world.add()
    world.clock.advance(100)
    assert await _codes(world, job) == []


async def test_a_text_that_is_to_be_triaged_again_is_so_in_its_own_workspace(world: World) -> None:
    async def taken_in(workspace: str, priority: int = 50) -> Job:
        return await world.add("intake", payload={"text": "same"}, workspace=workspace, priority=priority)

    async def run_inside() -> None:
        transport = LocalTransport(world.core.jobs, world.core.follower, RUNNER)
        await Worker(transport, pipeline.handlers(), slots=1, clock=world.clock).drain()

    for workspace in ("default", "side"):
        await taken_in(workspace)
    await run_inside()
    await world.jobs.cancel_all(ME, JobFilter(kinds=("triage",)))
    again = await taken_in("side")
    await world.jobs.requeue(ME, again.id, retriage=True)
    await taken_in("default", 900)
    await run_inside()
    jobs = (await world.jobs.list(ME, JobFilter(states=("queued",), kinds=("triage",)))).jobs
    assert [(job.workspace, job.parent_id) for job in jobs] == [("side", again.id)]


# Waiting requests.


async def test_who_waits_gets_a_job_as_soon_as_it_falls_due(world: World) -> None:
    job = await world.add(delay_seconds=1)
    waiting = await _waiting(world)
    await until(lambda: world.core.dispatch._timer is not None)
    world.clock.advance(1)
    assert await _served(waiting) == job.id


@pytest.mark.engine("sqlite")  # PostgreSQL's other group may be the one whose end the wait ends with
async def test_a_job_that_is_claimed_as_the_wait_ends_is_handed_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.ensure_future(world.jobs.lease(OTHER, wait_seconds=5))
    await until(lambda: world.core.dispatch._timer is not None)
    write = world.core.store.write

    async def slow(*asked: Any) -> Any:
        replies = await write(*asked)
        world.clock.advance(5)
        return replies

    monkeypatch.setattr(world.core.store, "write", slow)
    job = await world.add()
    assert await _served(waiting) == job.id


async def test_what_is_leased_under_a_key_for_a_caller_that_goes_away_meanwhile_is_not_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=5, idempotency_key="i"))
    await until(lambda: world.core.dispatch._timer is not None)
    write = world.core.store.write

    async def slow(*asked: Any) -> Any:
        replies = await write(*asked)
        waiting.cancel()
        await asyncio.sleep(0)
        return replies

    with monkeypatch.context() as patched:
        patched.setattr(world.core.store, "write", slow)
        await world.add()
    await asyncio.gather(waiting, return_exceptions=True)
    await world.tick()
    assert (await world.take(idempotency_key="i")).job.epoch == 1


async def test_a_caller_that_goes_away_as_it_is_answered_keeps_no_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=5))
    await until(lambda: world.core.dispatch._timer is not None)
    forget = world.core.dispatch._forget

    def forget_and_go(waiter: Any) -> None:
        waiting.cancel()
        forget(waiter)

    monkeypatch.setattr(world.core.dispatch, "_forget", forget_and_go)
    await world.add()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    monkeypatch.undo()
    await world.tick()
    lease = await world.take(OTHER)
    assert (lease.job.attempts, lease.job.epoch) == (1, 2)


async def test_who_got_nothing_because_others_got_all_that_one_claim_carries_asks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oaken_jobs.store.sql.claims.CLAIM_CHARACTERS", 1000)
    for _ in range(2):
        await world.add(payload={"t": "x" * 900})
    first, second = await asyncio.gather(world.jobs.lease(AGENT), world.jobs.lease(OTHER))
    assert (len(first), len(second)) == (1, 1)


async def test_a_request_that_comes_after_the_close_does_not_wait(world: World) -> None:
    world.core.dispatch.close()
    assert await asyncio.wait_for(world.jobs.lease(AGENT, wait_seconds=600), 2) == []


async def test_each_caller_of_a_group_is_told_of_its_own_job_also_behind_one_who_asked_for_several(
    world: World,
) -> None:
    several = [NewJobRequest.model_validate({"kind": "work"})] * 3
    many, one = await asyncio.gather(world.jobs.enqueue_many(ME, several), world.add("other"))
    assert ([answer.job.id for answer in many], one.kind, one.id) == ([1, 2, 3], "other", 4)


async def test_jobs_of_one_priority_come_in_their_order_whatever_lanes_they_are_in(world: World) -> None:
    ids: list[int] = []
    for kind in ("work", "other", "work"):
        ids.append((await world.add(kind)).id)
        world.clock.advance(1)
    assert [one.job.id for one in await world.jobs.lease(AGENT, max=3)] == ids


async def test_a_repeat_gets_no_lease_that_ran_out_although_nobody_took_it_back(world: World) -> None:
    for _ in range(200):
        await world.add()
    await world.jobs.lease(OTHER, max=200, lease_seconds=5)
    await world.add("keyed")
    await world.take(kinds=["keyed"], lease_seconds=10, idempotency_key="i")
    world.clock.advance(11)
    await world.none(kinds=["keyed"], lease_seconds=10, idempotency_key="i")

"""Jobs that wait: for their children, for an answer, until they expire; and what is said of why they wait."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from oaken_jobs import views
from oaken_jobs.errors import Conflict, Forbidden, InvalidRequest, LeaseLost, NotFound
from oaken_jobs.model import FREE, Job
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, OTHER, RULES, TWIN, VIEWER, World, until

# Children.


async def _parent(world: World, children: int = 2) -> tuple[Job, list[Job]]:
    """A parent that waits for its children."""
    parent = await world.add("parent")
    lease = await world.take()
    found = [await world.add("child", AGENT, parent_id=parent.id) for _ in range(children)]
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    return parent, found


async def test_a_parent_is_leased_again_once_its_children_are_final_and_sees_their_results(world: World) -> None:
    parent, children = await _parent(world)
    await world.none(kinds=["parent"])
    first, second = await world.jobs.lease(OTHER, kinds=["child"], max=2)
    await world.jobs.complete(OTHER, first.lease_id, {"n": 1})
    await world.none(kinds=["parent"])
    await world.jobs.fail(OTHER, second.lease_id, "broken", permanent=True)
    lease = await world.take(kinds=["parent"])
    assert (lease.job.id, lease.job.attempts, lease.job.epoch) == (parent.id, 1, 2)
    assert [(one.job.id, one.job.state, one.result) for one in lease.children] == [
        (children[0].id, "succeeded", '{"n":1}'),
        (children[1].id, "failed", None),
    ]
    shown = views.leased(lease, RULES, world.clock.now())
    assert [(one["result"], one["last_error"]) for one in shown["children"]] == [({"n": 1}, None), (None, "broken")]
    assert [a.outcome for a in await world.attempts(parent.id)] == ["released", None]


@pytest.mark.parametrize(
    "end", ["complete", "permanent", "lost", "cancel", "expire", "unfit", "cancelled while running"]
)
async def test_every_end_of_the_last_child_wakes_an_agent_that_waits_for_the_parent(world: World, end: str) -> None:
    parent = await world.add("parent")
    lease = await world.take()
    kind = "sum" if end == "unfit" else "child"
    fields: dict[str, Any] = {"payload": {"n": 1}, "max_attempts": 1, "parent_id": parent.id}
    child = await world.add(kind, AGENT, **fields, **({"ttl_seconds": 5} if end == "expire" else {}))
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    waiting = asyncio.ensure_future(world.jobs.lease(OTHER, kinds=["parent"], wait_seconds=50_000))
    await asyncio.sleep(0)
    if end == "complete":
        await world.jobs.complete(TWIN, (await world.take(TWIN)).lease_id)
    elif end == "permanent":
        await world.jobs.fail(TWIN, (await world.take(TWIN)).lease_id, "no", permanent=True)
    elif end == "lost":
        await world.take(TWIN)
        await world.tick(61)
    elif end == "cancel":
        await world.jobs.cancel(ME, child.id)
    elif end == "expire":
        await world.tick(6)
    elif end == "unfit":
        lease = await world.take(TWIN)
        for _ in range(3):
            with pytest.raises(Exception, match="does not fit"):
                await world.jobs.complete(TWIN, lease.lease_id, {"n": "x"})
    else:
        lease = await world.take(TWIN)
        await world.jobs.cancel(ME, child.id)
        await world.jobs.release(TWIN, lease.lease_id)
    await until(waiting.done)
    assert [one.job.id for one in waiting.result()] == [parent.id]


async def test_a_parent_without_living_children_is_runnable_at_once(world: World) -> None:
    parent = await world.add("parent")
    answer = await world.jobs.release(AGENT, (await world.take()).lease_id, after_children=True)
    assert (answer.blocked, answer.run_at) == (FREE, world.clock.now())
    lease = await world.take()
    assert (lease.job.id, lease.children) == (parent.id, ())


async def test_a_requeued_child_holds_its_waiting_parent_up_again(world: World) -> None:
    _, (first, second) = await _parent(world)
    await world.jobs.cancel(ME, first.id)
    await world.jobs.requeue(ME, first.id)
    await world.jobs.cancel(ME, second.id)
    await world.none(kinds=["parent"])
    await world.jobs.cancel(ME, first.id)
    await world.take(kinds=["parent"])


async def test_a_waiting_parent_is_cancelled_at_once_and_spares_its_children(world: World) -> None:
    parent, children = await _parent(world)
    job, changed = await world.jobs.cancel(ME, parent.id)
    assert (job.state, changed) == ("cancelled", True)
    assert [(await world.job(child.id)).state for child in children] == ["queued", "queued"]


async def test_a_parent_waits_on_through_a_restart(world: World) -> None:
    await _parent(world, 1)
    await world.restart()
    await world.none(kinds=["parent"])
    await world.jobs.complete(OTHER, (await world.take(OTHER)).lease_id, {"n": 1})
    assert [one.result for one in (await world.take()).children] == ['{"n":1}']


async def test_results_of_children_are_cut_off_where_they_would_be_too_long_together(world: World) -> None:
    await _parent(world, 3)
    for _ in range(3):
        await world.jobs.complete(OTHER, (await world.take(OTHER)).lease_id, {"text": "x" * 500_000})
    lease = await world.take()
    assert [(one.result is None, one.cut) for one in lease.children] == [(False, False), (False, False), (True, True)]


# Questions.


async def _asking(world: World, **fields: Any) -> Job:
    await world.add(**fields)
    return await world.jobs.ask(AGENT, (await world.take()).lease_id, "Which one?", timeout_seconds=100)


async def test_a_question_ends_the_lease_and_its_answer_comes_with_the_next(world: World) -> None:
    job = await _asking(world)
    assert (job.state, job.question, job.attempts, job.run_at) == (
        "queued",
        "Which one?",
        0,
        world.clock.now() + 100_000,
    )
    await world.none()
    assert [(q.job_id, q.text) for q in (await world.jobs.snapshot(ME)).questions] == [(job.id, "Which one?")]
    answered = await world.jobs.answer(ME, job.id, "The second.")
    assert (answered.question, answered.run_at) == (None, world.clock.now())
    lease = await world.take(OTHER)
    assert [(q.agent, q.text, q.answer, q.actor_id) for q in lease.answers] == [
        ("worker/a", "Which one?", "The second.", "me")
    ]
    assert (await world.jobs.snapshot(ME)).questions == []
    assert [a.outcome for a in await world.attempts(job.id)] == ["asked", None]
    shown = views.leased(lease, RULES, world.clock.now())["answers"][0]
    assert (shown["answer"], shown["answered_by"]) == ("The second.", {"kind": "user", "id": "me", "via": "http"})


async def test_an_answer_wakes_a_waiting_agent(world: World) -> None:
    job = await _asking(world)
    waiting = asyncio.ensure_future(world.jobs.lease(OTHER, wait_seconds=50))
    await asyncio.sleep(0)
    await world.jobs.answer(ME, job.id, "Yes")
    await until(waiting.done)
    assert [one.job.id for one in waiting.result()] == [job.id]


async def test_a_question_that_nobody_answers_in_time_is_closed_by_the_next_lease(world: World) -> None:
    job = await _asking(world)
    world.clock.advance(99)
    await world.none()
    world.clock.advance(1)
    lease = await world.take()
    assert [(q.text, q.answer) for q in lease.answers] == [("Which one?", None)]
    assert lease.job.question is None
    with pytest.raises(Conflict, match="no open question; it is running"):
        await world.jobs.answer(ME, job.id, "Too late")


async def test_a_question_is_answered_once(world: World) -> None:
    job = await _asking(world)
    await world.jobs.answer(ME, job.id, "One")
    with pytest.raises(Conflict, match="no open question"):
        await world.jobs.answer(ME, job.id, "Two")


async def test_a_job_asks_again_and_keeps_all_its_questions_through_a_requeue(world: World) -> None:
    job = await _asking(world)
    await world.jobs.answer(ME, job.id, "One")
    await world.jobs.ask(AGENT, (await world.take()).lease_id, "And now?")
    await world.jobs.requeue(ME, job.id)
    lease = await world.take()
    assert [(q.text, q.answer) for q in lease.answers] == [("Which one?", "One"), ("And now?", None)]


async def test_the_agent_that_enqueued_a_job_may_answer_it_and_others_may_not(world: World) -> None:
    parent = await world.add("parent")
    await world.take()
    child = await world.add("child", AGENT, parent_id=parent.id)
    await world.jobs.ask(OTHER, (await world.take(OTHER)).lease_id, "How?")
    with pytest.raises(Forbidden, match="asks whoever enqueued it, which is worker"):
        await world.jobs.answer(OTHER, child.id, "So")
    with pytest.raises(Forbidden):
        await world.jobs.answer(VIEWER, child.id, "So")
    await world.jobs.answer(AGENT, child.id, "So")


async def test_an_agent_learns_nothing_of_a_question_of_jobs_that_are_not_its_own(world: World) -> None:
    job = await _asking(world)
    with pytest.raises(NotFound):
        await world.jobs.answer(OTHER, job.id, "So")


async def test_a_cancelling_job_that_asks_ends_cancelled(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    await world.jobs.cancel(ME, job.id)
    after = await world.jobs.ask(AGENT, lease.lease_id, "Really?")
    assert (after.state, after.question) == ("cancelled", None)
    assert (await world.jobs.questions(ME, job.id)) == []


async def test_a_repeated_question_is_asked_once(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    first = await world.jobs.ask(AGENT, lease.lease_id, "Which?")
    assert await world.jobs.ask(AGENT, lease.lease_id, "Which?") == first
    with pytest.raises(Conflict, match="another body"):
        await world.jobs.ask(AGENT, lease.lease_id, "What?")
    assert len(await world.jobs.questions(ME, job.id)) == 1


@pytest.mark.parametrize("text", ["", " \n ", "x" * 20_001])
async def test_a_question_or_answer_without_words_or_with_too_many_is_refused(world: World, text: str) -> None:
    await world.add()
    lease = await world.take()
    with pytest.raises(InvalidRequest, match="1 to 4000 characters"):
        await world.jobs.ask(AGENT, lease.lease_id, text)
    await world.jobs.ask(AGENT, lease.lease_id, "Which?")
    with pytest.raises(InvalidRequest, match="1 to 20000 characters"):
        await world.jobs.answer(ME, lease.job.id, text)


async def test_no_word_of_a_question_or_answer_stands_in_the_activity(world: World) -> None:
    job = await _asking(world)
    await world.jobs.answer(ME, job.id, "The second.")
    rows = await world.jobs.activity(ME, job.id)
    text = orjson.dumps([views.event(row) for row in rows]).decode()
    assert "question_asked" in text
    assert not {"Which", "second"} & set(text.split('"'))


# Expiry.


async def test_a_job_that_does_not_run_in_time_is_cancelled_as_expired(world: World) -> None:
    job = await world.add(ttl_seconds=5)
    assert job.expires_at == world.clock.now() + 5000
    await world.tick(4)
    assert (await world.job(job.id)).state == "queued"
    await world.tick(1)
    after = await world.job(job.id)
    assert (after.state, after.reason, after.grade) == ("cancelled", "expired", "warn")


async def test_the_claim_hands_out_nothing_that_expired_although_nobody_swept(world: World) -> None:
    for _ in range(300):
        await world.add(ttl_seconds=5, priority=900)
    good = await world.add()
    world.clock.advance(5)
    assert (await world.take()).job.id == good.id


async def test_a_retry_wait_does_not_save_a_job_from_expiring_and_a_run_does(world: World) -> None:
    failing, running = await world.add(ttl_seconds=7), await world.add(ttl_seconds=7)
    first, second = await world.jobs.lease(AGENT, max=2, lease_seconds=100)
    await world.jobs.fail(AGENT, first.lease_id, "boom", retry_after=50)
    await world.tick(8)
    assert (await world.job(failing.id)).reason == "expired"
    assert (await world.job(running.id)).state == "running"
    await world.jobs.complete(AGENT, second.lease_id)
    assert (await world.job(running.id)).state == "succeeded"


async def test_a_job_that_would_expire_before_it_may_run_is_refused(world: World) -> None:
    for fields in ({"ttl_seconds": 5, "delay_seconds": 5}, {"expires_at": "2001-01-01T00:00:00Z"}):
        with pytest.raises(InvalidRequest, match="would expire before it may run"):
            await world.add(**fields)


# Stopping those that would not stop.


async def test_a_worker_that_neither_stops_nor_reports_is_overruled(world: World) -> None:
    job = await world.add()
    lease = await world.take(lease_seconds=1000)
    await world.jobs.cancel(ME, job.id)
    world.clock.advance(200)
    await world.jobs.heartbeat(AGENT, lease.lease_id)  # a beat is no sign of stopping
    await world.tick(100)
    after = await world.job(job.id)
    assert (after.state, after.reason, after.cancel_deadline) == ("cancelled", "cancel_grace", None)
    assert [a.outcome for a in await world.attempts(job.id)] == ["overruled"]
    with pytest.raises(LeaseLost, match="is cancelled"):
        await world.jobs.heartbeat(AGENT, lease.lease_id)


async def test_a_worker_that_reports_progress_while_it_stops_is_given_its_time(world: World) -> None:
    job = await world.add()
    lease = await world.take(lease_seconds=1000)
    await world.jobs.cancel(ME, job.id)
    for _ in range(3):
        world.clock.advance(250)
        await world.jobs.heartbeat(AGENT, lease.lease_id, message="cleaning up", progress=True)
    await world.tick(299)
    assert (await world.job(job.id)).state == "running"
    await world.tick(1)
    assert (await world.job(job.id)).reason == "cancel_grace"


async def test_a_job_past_its_grace_is_graded_so_before_it_is_swept(world: World) -> None:
    job = await world.add()
    await world.take(lease_seconds=1000)
    await world.jobs.cancel(ME, job.id)
    world.clock.advance(300)
    found = views.job_grade(await world.job(job.id), RULES, world.clock.now())
    assert found is not None
    assert (found.grade, found.why) == ("warn", "was asked to stop and does not")


# Why a job waits.


async def _waits(world: World, job: Job) -> list[tuple[str, str]]:
    row = await world.job(job.id)
    return [(wait.code, wait.text) for wait in (await world.jobs.waits([row]))[job.id]]


async def test_each_reason_to_wait_is_told(world: World) -> None:
    parent, _ = await _parent(world)
    assert await _waits(world, parent) == [("children", "2 of 2 children are not final")]
    asking = await _asking(world, priority=900)
    assert await _waits(world, asking) == [("answer", "asks a question; goes on without an answer in 2 min")]
    delayed = await world.add(delay_seconds=40)
    assert await _waits(world, delayed) == [("delayed", "runs in 40 s")]
    retried = await world.add(priority=900)
    await world.jobs.fail(AGENT, (await world.take()).lease_id, "boom")
    assert await _waits(world, retried) == [("retry", "retry in 5 s")]
    await world.add("work", serial_key="s", priority=900)
    busy = await world.take()
    serial = await world.add("work", serial_key="s")
    told = f"job {busy.job.id} of the same serial key runs (worker/a has it)"
    assert await _waits(world, serial) == [("serial", told)]
    for _ in range(2):
        await world.add("capped", priority=900)
        await world.take()
    capped = await world.add("capped")
    assert await _waits(world, capped) == [("limit", "2 of 2 capped slots are busy")]
    await world.jobs.set_paused(ME, "default", True)
    assert await _waits(world, capped) == [
        ("paused", "queue default is paused"),
        ("limit", "2 of 2 capped slots are busy"),
    ]


async def test_a_kind_that_nobody_takes_is_told(world: World) -> None:
    job = await world.add("rare")
    assert await _waits(world, job) == [("no_agent", "no agent has ever leased a job of kind rare")]
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    later = await world.add("rare")
    assert await _waits(world, later) == []
    world.clock.advance(600)
    assert await _waits(world, later) == [("no_agent", "no agent has leased a job of kind rare for 10 min")]
    first = await world.take()
    assert first.job.id == later.id
    assert await _waits(world, later) == []


async def test_an_internal_kind_waits_for_a_runner(world: World) -> None:
    job = await world.add("intake", payload={"text": "x"})
    assert await _waits(world, job) == [("no_agent", "no runner has ever leased a job of kind intake")]


async def test_the_open_questions_can_be_listed(world: World) -> None:
    job = await _asking(world)
    await world.add()
    assert [one.id for one in (await world.jobs.list(ME, JobFilter(asking=True))).jobs] == [job.id]

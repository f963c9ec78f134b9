"""Ending leases: who may, what it does to the job, and what a repeat, a loss or a misfit means."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from oaken_jobs.errors import Conflict, Forbidden, LeaseLost, NotFound, OakenError, ResultInvalid, TooLarge
from oaken_jobs.model import Job, Leased, Usage
from tests.contract.world import AGENT, ME, OTHER, RULES, RUNNER, TWIN, VIEWER, World


async def leased(world: World, kind: str = "work", **fields: Any) -> Leased:
    await world.add(kind, **fields)
    return await world.take()


def act(world: World, verb: str, lease: Leased, who: Any = AGENT) -> Any:
    calls: dict[str, Any] = {
        "complete": lambda: world.jobs.complete(who, lease.lease_id, {"n": 1}),
        "fail": lambda: world.jobs.fail(who, lease.lease_id, "boom"),
        "defer": lambda: world.jobs.defer(who, lease.lease_id, 60),
        "release": lambda: world.jobs.release(who, lease.lease_id),
        "cancelled": lambda: world.jobs.cancelled(who, lease.lease_id),
        "heartbeat": lambda: world.jobs.heartbeat(who, lease.lease_id),
        "progress": lambda: world.jobs.heartbeat(who, lease.lease_id, percent=5, progress=True),
    }
    return calls[verb]()


VERBS = ["complete", "fail", "defer", "release", "cancelled", "heartbeat", "progress"]


async def test_complete_stores_result_usage_and_grade_with_the_finish(world: World) -> None:
    lease = await leased(world, budget_usd=1)
    usage = Usage({"input_tokens": 10, "output_tokens": 2}, 0.25, "some-model")
    job = await world.jobs.complete(AGENT, lease.lease_id, {"answer": 42}, usage)
    assert (job.state, job.percent, job.produced_by, job.cost_usd) == ("succeeded", 100, "some-model", 0.25)
    assert orjson.loads(job.usage) == {"input_tokens": 10, "output_tokens": 2}
    assert (job.grade, job.grade_why) == ("note", "ungraded")
    assert job.finished_at == world.clock.now()
    assert job.holder is None
    assert job.agent == "worker/a"
    assert orjson.loads(await world.jobs.result(ME, job.id)) == {"answer": 42}
    (attempt,) = await world.attempts(job.id)
    assert (attempt.outcome, attempt.cost_usd, attempt.produced_by) == ("succeeded", 0.25, "some-model")
    assert attempt.ended_at == world.clock.now()


async def test_usage_is_summed_over_attempts_and_unknown_is_never_zero(world: World) -> None:
    lease = await leased(world)
    op = world.jobs.fail_op(AGENT, lease.lease_id, "boom", usage=Usage({"input_tokens": 1}, 0.5))
    job = await world.jobs.finish(AGENT, op)
    assert job.cost_usd == 0.5
    world.clock.advance(60)
    lease = await world.take()
    job = await world.jobs.complete(AGENT, lease.lease_id, None, Usage({"input_tokens": 2, "cached": 1.5}))
    assert job.cost_usd == 0.5
    assert orjson.loads(job.usage) == {"input_tokens": 3, "cached": 1.5}
    untouched = await world.jobs.complete(AGENT, (await leased(world)).lease_id)
    assert (untouched.usage, untouched.cost_usd) == (None, None)


async def test_a_failure_waits_twice_as_long_each_time_until_attempts_run_out(world: World) -> None:
    job = await world.add(max_attempts=3)
    for wait in (5, 10):
        lease = await world.take()
        after = await world.jobs.fail(AGENT, lease.lease_id, "boom")
        assert (after.state, after.run_at) == ("queued", world.clock.now() + wait * 1000)
        world.clock.advance(wait - 0.001)
        await world.none()
        world.clock.advance(0.001)
    after = await world.jobs.fail(AGENT, (await world.take()).lease_id, "boom again")
    assert (after.state, after.reason, after.last_error) == ("failed", "out_of_attempts", "boom again")
    assert (after.grade, after.attempts) == ("bad", 3)
    assert [a.outcome for a in await world.attempts(job.id)] == ["retry", "retry", "failed"]


async def test_an_agent_may_ask_for_a_longer_wait_but_not_a_shorter_one(world: World) -> None:
    lease = await leased(world)
    after = await world.jobs.fail(AGENT, lease.lease_id, "busy", retry_after=100)
    assert after.run_at == world.clock.now() + 100_000
    world.clock.advance(100)
    after = await world.jobs.fail(AGENT, (await world.take()).lease_id, "busy", retry_after=1)
    assert after.run_at == world.clock.now() + 10_000


async def test_a_permanent_failure_fails_at_once(world: World) -> None:
    lease = await leased(world)
    after = await world.jobs.fail(AGENT, lease.lease_id, "never", permanent=True)
    assert (after.state, after.reason, after.attempts) == ("failed", "permanent", 1)


async def test_errors_are_redacted_cleaned_and_cut(world: World) -> None:
    lease = await leased(world)
    secret = "sk-ant-api03-" + "a" * 40
    after = await world.jobs.fail(AGENT, lease.lease_id, f"\x00bad\x1b[31m {secret} \ud800 " + "x" * 10_000_000)
    assert secret not in after.last_error
    assert len(after.last_error) == 500
    assert "\x00" not in after.last_error
    after.last_error.encode()
    assert (await world.attempts(after.id))[0].error == after.last_error


async def test_a_deferral_does_not_count_as_an_attempt(world: World) -> None:
    lease = await leased(world)
    after = await world.jobs.defer(AGENT, lease.lease_id, 60)
    assert (after.state, after.attempts, after.deferrals) == ("queued", 0, 1)
    assert after.run_at == world.clock.now() + 60_000
    world.clock.advance(60)
    again = await world.take()
    assert (again.job.attempts, again.job.epoch) == (1, 2)
    assert [a.outcome for a in await world.attempts(after.id)] == ["deferred", None]


async def test_a_release_gives_the_job_back_in_its_original_place(world: World) -> None:
    first, second = await world.add(), await world.add()
    lease = await world.take()
    world.clock.advance(5)
    after = await world.jobs.release(AGENT, lease.lease_id)
    assert (after.state, after.attempts, after.run_at) == ("queued", 0, first.run_at)
    assert [x.job.id for x in await world.jobs.lease(OTHER, max=2)] == [first.id, second.id]


async def test_a_heartbeat_extends_from_now_by_the_leases_own_length_or_the_one_named(world: World) -> None:
    await world.add()
    lease = await world.take(lease_seconds=30)
    world.clock.advance(20)
    assert (await world.jobs.heartbeat(AGENT, lease.lease_id)).expires_at == world.clock.now() + 30_000
    world.clock.advance(29)
    beaten = await world.jobs.heartbeat(AGENT, lease.lease_id, lease_seconds=100)
    assert beaten.expires_at == world.clock.now() + 100_000
    world.clock.advance(99)
    assert (await world.jobs.heartbeat(AGENT, lease.lease_id)).expires_at == world.clock.now() + 100_000


async def test_a_job_of_three_leases_length_that_beats_finishes(world: World) -> None:
    await world.add()
    lease = await world.take(lease_seconds=30)
    for _ in range(9):
        await world.tick(10)
        await world.jobs.heartbeat(AGENT, lease.lease_id)
    assert (await world.jobs.complete(AGENT, lease.lease_id)).state == "succeeded"


async def test_progress_appends_to_the_trail_updates_the_job_and_counts_as_a_heartbeat(world: World) -> None:
    await world.add()
    lease = await world.take(lease_seconds=30)
    world.clock.advance(20)
    for n in range(205):
        await world.jobs.heartbeat(
            AGENT, lease.lease_id, percent=n / 3, message=f"step {n} " + "x" * 300, progress=True
        )
    job = await world.job(lease.job.id)
    assert (job.percent, len(job.message or "")) == (68, 256)
    assert job.lease_expires == world.clock.now() + 30_000
    trail = await world.jobs.progress(ME, job.id)
    assert len(trail) == 200
    assert [row.message.split()[1] for row in trail] == [str(n) for n in range(5, 205)]
    done = await world.jobs.complete(AGENT, lease.lease_id)
    assert done.percent == 100


STALE = ["expired", "swept", "retaken", "other principal", "ended", "unknown", "no id", "epoch"]


@pytest.mark.parametrize(
    ("verb", "case"),
    # Repeating the finish that ended a lease is answered again, and has tests of its own.
    [(verb, case) for verb in VERBS for case in STALE if (verb, case) != ("cancelled", "ended")],
)
async def test_a_lease_that_is_not_current_is_refused_and_changes_nothing(world: World, verb: str, case: str) -> None:
    await world.add()
    lease = await world.take(lease_seconds=10)
    who: Any = AGENT
    if case in ("expired", "swept", "retaken"):
        world.clock.advance(10)
    if case == "swept":
        await world.tick()
    if case == "retaken":
        await world.take(TWIN)
    if case == "other principal":
        who = OTHER
    if case == "ended":
        await world.jobs.cancel(ME, lease.job.id)
        await world.jobs.cancelled(AGENT, lease.lease_id)
    fake = {
        "unknown": Leased(lease.job._replace(id=999), "{}"),
        "no id": Leased(lease.job._replace(nonce="xyz"), "{}"),
        "epoch": Leased(lease.job._replace(epoch=2), "{}"),
    }.get(case, lease)
    before = await world.job(lease.job.id)
    attempts = await world.attempts(lease.job.id)
    with pytest.raises(LeaseLost if case != "ended" else (LeaseLost, Conflict)) as refused:
        await act(world, verb, fake, who)
    assert refused.value.message
    assert await world.job(lease.job.id) == before
    # A late result is kept with its attempt; nothing else of it changes.
    assert [a._replace(late=None) for a in await world.attempts(lease.job.id)] == attempts


async def test_a_guess_of_the_random_part_is_refused(world: World) -> None:
    lease = await leased(world)
    guess = Leased(lease.job._replace(nonce="0" * 24), "{}")
    with pytest.raises(LeaseLost):
        await act(world, "complete", guess)


async def test_only_those_who_may_read_the_job_are_told_who_holds_it(world: World) -> None:
    await world.add()
    lease = await world.take(lease_seconds=1)
    world.clock.advance(2)
    await world.take(OTHER)
    with pytest.raises(LeaseLost, match="other holds job 1 now"):
        await world.jobs.complete(AGENT, lease.lease_id)
    stranger = AGENT.__class__(AGENT.actor._replace(id="stranger"), AGENT.roles)
    with pytest.raises(LeaseLost) as refused:
        await world.jobs.complete(stranger, lease.lease_id)
    assert "other" not in refused.value.message
    assert "held_by" not in refused.value.details


@pytest.mark.parametrize("verb", ["complete", "fail", "defer", "release"])
async def test_repeating_a_finish_gives_the_first_answer_again(world: World, verb: str) -> None:
    lease = await leased(world)
    first = await act(world, verb, lease)
    rows = len(await world.core.store.activity(0, 100))
    world.clock.advance(3600)
    assert await act(world, verb, lease) == first
    assert len(await world.core.store.activity(0, 100)) == rows
    assert len(await world.attempts(first.id)) == 1


async def test_a_repeat_after_the_job_moved_on_tells_the_first_answer_not_the_present(world: World) -> None:
    lease = await leased(world)
    await world.jobs.fail(AGENT, lease.lease_id, "boom", permanent=True)
    await world.jobs.requeue(ME, lease.job.id)
    again = await world.jobs.fail(AGENT, lease.lease_id, "boom", permanent=True)
    assert (again.state, again.reason) == ("failed", "permanent")
    assert (await world.job(lease.job.id)).state == "queued"


async def test_another_verb_or_another_body_on_an_ended_lease_is_a_conflict(world: World) -> None:
    lease = await leased(world)
    await world.jobs.complete(AGENT, lease.lease_id, {"n": 1})
    with pytest.raises(Conflict, match="already ended by complete"):
        await world.jobs.fail(AGENT, lease.lease_id, "boom")
    with pytest.raises(Conflict, match="another body"):
        await world.jobs.complete(AGENT, lease.lease_id, {"n": 2})


async def test_two_finishes_of_one_lease_in_one_group_have_one_winner(world: World) -> None:
    lease = await leased(world)
    answers = await world.jobs.finish_many(
        AGENT,
        [
            world.jobs.complete_op(AGENT, lease.lease_id, {"n": 1}),
            world.jobs.fail_op(AGENT, lease.lease_id, "boom"),
            world.jobs.complete_op(AGENT, lease.lease_id, {"n": 2}),
            world.jobs.complete_op(AGENT, lease.lease_id, {"n": 1}),
        ],
    )
    assert [type(a).__name__ for a in answers] == ["Job", "Conflict", "Conflict", "Job"]
    assert (await world.job(lease.job.id)).state == "succeeded"


async def test_a_stale_and_a_good_completion_in_one_group_are_told_apart(world: World) -> None:
    await world.add()
    stale = await world.take(lease_seconds=1)
    world.clock.advance(2)
    good = await world.take(OTHER)
    answers = await asyncio.gather(
        world.jobs.complete(AGENT, stale.lease_id), world.jobs.complete(OTHER, good.lease_id), return_exceptions=True
    )
    assert isinstance(answers[0], LeaseLost)
    assert isinstance(answers[1], Job)


async def test_an_outside_agent_may_correct_a_result_that_does_not_fit_twice(world: World) -> None:
    lease = await leased(world, "sum", payload={"n": 1})
    for left in (2, 1):
        with pytest.raises(ResultInvalid, match="/n breaks type") as refused:
            await world.jobs.complete(AGENT, lease.lease_id, {"n": "secret"})
        assert refused.value.details["tries_left"] == left
        assert (await world.job(lease.job.id)).state == "running"
    with pytest.raises(ResultInvalid, match="ended as failed"):
        await world.jobs.complete(AGENT, lease.lease_id, {"n": "secret"})
    job = await world.job(lease.job.id)
    assert (job.state, job.reason) == ("failed", "result_invalid")
    assert "secret" not in (job.last_error or "")
    (attempt,) = await world.attempts(job.id)
    assert (attempt.outcome, "secret" in attempt.error) == ("refused", False)


async def test_a_corrected_result_is_accepted_and_graded_ok(world: World) -> None:
    lease = await leased(world, "sum", payload={"n": 1})
    with pytest.raises(ResultInvalid):
        await world.jobs.complete(AGENT, lease.lease_id, {})
    assert (await world.jobs.complete(AGENT, lease.lease_id, {"n": 2})).grade == "ok"


async def test_corrections_are_counted_for_each_attempt_anew(world: World) -> None:
    lease = await leased(world, "sum", payload={"n": 1})
    for _ in range(2):
        with pytest.raises(ResultInvalid):
            await world.jobs.complete(AGENT, lease.lease_id, {})
    await world.jobs.release(AGENT, lease.lease_id)
    lease = await world.take()
    with pytest.raises(ResultInvalid, match="2 more tries"):
        await world.jobs.complete(AGENT, lease.lease_id, {})


async def test_a_strict_kind_and_an_in_process_job_fail_at_the_first_misfit(world: World) -> None:
    lease = await leased(world, "strict")
    with pytest.raises(ResultInvalid, match="ended as failed"):
        await world.jobs.complete(AGENT, lease.lease_id, {})
    await world.add("sum", payload={"n": 1})
    lease = await world.take(RUNNER)
    with pytest.raises(ResultInvalid, match="ended as failed"):
        await world.jobs.finish(RUNNER, world.jobs.complete_op(RUNNER, lease.lease_id, {}, strict=True))
    assert (await world.job(lease.job.id)).reason == "result_invalid"


async def test_a_result_over_the_limit_is_refused_and_the_lease_stands(world: World) -> None:
    lease = await leased(world)
    with pytest.raises(TooLarge, match=r"\[jobs\] max_result_bytes"):
        await world.jobs.complete(AGENT, lease.lease_id, {"t": "x" * RULES.max_result_bytes})
    assert (await world.jobs.complete(AGENT, lease.lease_id, {})).state == "succeeded"


async def test_a_queued_job_is_cancelled_at_once_also_a_deferred_or_retried_one(world: World) -> None:
    queued = await world.add(delay_seconds=1000)
    retried = (await world.jobs.fail(AGENT, (await leased(world)).lease_id, "x")).id
    for job_id in (queued.id, retried):
        done = await world.jobs.cancel(ME, job_id)
        assert done.changed
        assert (done.job.state, done.job.reason, done.job.grade) == ("cancelled", "cancelled_by_user", "note")
        assert done.job.finished_at == world.clock.now()


@pytest.mark.parametrize("verb", ["fail", "defer", "release", "cancelled"])
async def test_a_running_job_that_was_asked_to_stop_ends_cancelled(world: World, verb: str) -> None:
    lease = await leased(world)
    asked = await world.jobs.cancel(ME, lease.job.id)
    assert (asked.job.state, asked.job.cancelling, asked.changed) == ("running", 1, True)
    assert not (await world.jobs.cancel(ME, lease.job.id)).changed
    assert (await world.jobs.heartbeat(AGENT, lease.lease_id)).job.cancelling
    after = await act(world, verb, lease)
    assert (after.state, after.reason, after.cancelling) == ("cancelled", "cancelled_by_user", 0)
    assert [a.outcome for a in await world.attempts(after.id)] == ["cancelled"]


async def test_expiry_of_a_cancelling_job_ends_it_cancelled(world: World) -> None:
    lease = await leased(world)
    await world.jobs.cancel(ME, lease.job.id)
    await world.tick(61)
    assert (await world.job(lease.job.id)).state == "cancelled"


async def test_a_complete_stands_although_the_job_was_asked_to_stop_and_the_grade_says_so(world: World) -> None:
    lease = await leased(world)
    await world.jobs.cancel(ME, lease.job.id)
    after = await world.jobs.complete(AGENT, lease.lease_id)
    assert (after.state, after.cancelling, after.grade_why) == ("succeeded", 0, "finished although asked to stop")


async def test_cancelling_a_final_job_changes_nothing_and_says_so(world: World) -> None:
    job = await world.jobs.complete(AGENT, (await leased(world)).lease_id)
    assert await world.jobs.cancel(ME, job.id) == (job, False)


async def test_cancelled_is_refused_where_nobody_asked(world: World) -> None:
    lease = await leased(world)
    with pytest.raises(Conflict, match="was not asked to stop"):
        await world.jobs.cancelled(AGENT, lease.lease_id)
    assert (await world.job(lease.job.id)).state == "running"


@pytest.mark.parametrize("call", ["cancel", "requeue", "get", "attempts", "progress", "activity", "children", "result"])
async def test_a_job_that_is_not_there_is_named(world: World, call: str) -> None:
    with pytest.raises(NotFound, match="999"):
        await getattr(world.jobs, call)(ME, 999)


@pytest.mark.parametrize("who", [VIEWER, AGENT])
async def test_viewers_and_agents_neither_cancel_nor_requeue_nor_pause(world: World, who: Any) -> None:
    job = await world.add()
    for call in (
        lambda: world.jobs.cancel(who, job.id),
        lambda: world.jobs.requeue(who, job.id),
        lambda: world.jobs.set_paused(who, "default", True),
        lambda: world.jobs.set_labels(who, "s", {"queue": "mail"}),
    ):
        with pytest.raises(Forbidden):
            await call()


async def test_requeue_puts_a_failed_job_back_as_new_but_for_its_history(world: World) -> None:
    lease = await leased(world, dedupe_key="k")
    await world.jobs.heartbeat(AGENT, lease.lease_id, percent=5, message="m", progress=True)
    op = world.jobs.fail_op(AGENT, lease.lease_id, "boom", permanent=True, usage=Usage({"tokens": 3}, 1.0))
    await world.jobs.finish(AGENT, op)
    world.clock.advance(100)
    job = await world.jobs.requeue(ME, lease.job.id)
    assert (job.state, job.attempts, job.run_at, job.epoch) == ("queued", 0, world.clock.now(), 1)
    for column in ("last_error", "reason", "percent", "message", "finished_at", "grade", "agent", "nonce", "holder"):
        assert getattr(job, column) is None, column
    assert (job.cost_usd, job.usage) == (1.0, '{"tokens":3}')
    assert await world.jobs.progress(ME, job.id) == []
    assert len(await world.attempts(job.id)) == 1
    again = await world.take(OTHER)
    assert (again.job.epoch, again.job.attempts) == (2, 1)


async def test_requeue_clears_the_result_of_what_it_runs_again(world: World) -> None:
    lease = await leased(world)
    await world.jobs.cancel(ME, lease.job.id)
    await world.jobs.cancelled(AGENT, lease.lease_id)
    await world.jobs.requeue(ME, lease.job.id)
    with pytest.raises(NotFound, match="has no result"):
        await world.jobs.result(ME, lease.job.id)


async def test_requeue_may_name_another_queue_that_is_configured(world: World) -> None:
    job = await world.add()
    moved = await world.jobs.requeue(ME, job.id, "mail")
    assert (moved.queue, moved.routed_by) == ("mail", "requeue")
    with pytest.raises(OakenError, match="'nowhere' is not configured"):
        await world.jobs.requeue(ME, job.id, "nowhere")


async def test_running_and_succeeded_jobs_cannot_be_requeued(world: World) -> None:
    lease = await leased(world)
    with pytest.raises(Conflict, match="is running"):
        await world.jobs.requeue(ME, lease.job.id)
    await world.jobs.complete(AGENT, lease.lease_id)
    with pytest.raises(Conflict, match="is succeeded"):
        await world.jobs.requeue(ME, lease.job.id)


@pytest.mark.parametrize("field", ["dedupe_key", "target"])
async def test_requeue_is_refused_while_another_job_has_the_key(world: World, field: str) -> None:
    old = await world.add(**{field: "k"})
    await world.jobs.cancel(ME, old.id)
    new = await world.add(**{field: "k"})
    with pytest.raises(Conflict, match=f"job {new.id} is live with the same {field}"):
        await world.jobs.requeue(ME, old.id)
    assert (await world.job(old.id)).state == "cancelled"


async def test_the_first_loss_is_runnable_at_once_and_later_ones_wait(world: World) -> None:
    job = await world.add(max_attempts=3)
    await world.take(lease_seconds=10)
    await world.tick(10)
    found = await world.job(job.id)
    assert (found.state, found.lost, found.attempts, found.run_at) == ("queued", 1, 1, world.clock.now())
    await world.take(lease_seconds=10)
    await world.tick(10)
    found = await world.job(job.id)
    assert (found.state, found.lost, found.run_at) == ("queued", 2, world.clock.now() + 10_000)
    await world.tick(10)
    await world.take(lease_seconds=10)
    await world.tick(10)
    found = await world.job(job.id)
    assert (found.state, found.reason, found.lost, found.attempts) == ("failed", "lease_lost", 3, 3)
    assert [a.outcome for a in await world.attempts(job.id)] == ["lost"] * 3


async def test_losses_are_judged_by_what_the_claim_wrote_not_by_what_the_sweeper_knows(world: World) -> None:
    job = await world.add("fragile")
    await world.take(lease_seconds=100)
    await world.restart(kinds={})
    await world.tick(101)
    assert (await world.job(job.id)).reason == "lease_lost"


async def test_the_sweep_takes_back_everything_however_many_are_ahead(world: World) -> None:
    from oaken_jobs.requests import NewJobRequest

    for _ in range(2):
        await world.jobs.enqueue_many(ME, [NewJobRequest(kind="work")] * 1000)
    assert len(await world.jobs.lease(AGENT, max=1000, lease_seconds=10)) == 1000
    assert len(await world.jobs.lease(AGENT, max=1000, lease_seconds=20)) == 1000
    await world.tick(25)
    counts = {c.state: c.jobs for c in await world.core.store.counts()}
    assert counts == {"queued": 2000}


@pytest.mark.parametrize("jump", [-3600, 3600, 86_400])
async def test_a_jump_of_the_clock_costs_no_healthy_worker_its_lease(world: World, jump: float) -> None:
    for _ in range(50):
        await world.add()
    leases = await world.jobs.lease(AGENT, max=50)
    world.clock.jump(jump)
    await world.none(OTHER)  # before any duty is done: a claim takes back expired leases too
    await world.tick(15)
    for lease in leases:
        await world.jobs.heartbeat(AGENT, lease.lease_id)
    jobs = await world.core.store.jobs([lease.job.id for lease in leases])
    assert {(j.state, j.attempts, j.lost) for j in jobs} == {("running", 1, 0)}


async def test_a_dead_worker_is_found_after_a_jump_back_as_soon_as_without_one(world: World) -> None:
    job = await world.add()
    await world.take()
    world.clock.jump(-3600)
    await world.tick(61)
    assert (await world.job(job.id)).state == "queued"


async def test_a_process_that_stood_still_gives_leases_a_grace_before_it_sweeps(world: World) -> None:
    await world.add()
    lease = await world.take()
    await world.core.maintenance.start()
    world.clock.advance(600)
    await world.none(OTHER)  # before any duty is done: a claim takes back expired leases too
    assert (await world.jobs.complete(AGENT, lease.lease_id)).state == "succeeded"


async def test_after_a_restart_running_jobs_get_a_grace_and_queued_ones_are_still_there(world: World) -> None:
    running, queued = await world.add(), await world.add(delay_seconds=5)
    lease = await world.take(lease_seconds=10)
    await world.core.close()
    world.clock.advance(600)
    await world.restart()
    await world.core.maintenance.start()
    await world.tick(19)
    assert (await world.job(queued.id)).state == "queued"
    assert (await world.jobs.complete(AGENT, lease.lease_id)).id == running.id


async def test_agents_show_what_they_did(world: World) -> None:
    done, failed = await leased(world), await leased(world)
    await world.jobs.complete(AGENT, done.lease_id)
    await world.jobs.fail(AGENT, failed.lease_id, "x")
    (row,) = await world.jobs.agents(ME)
    assert (row.agent, row.leased, row.succeeded, row.failed, row.holds) == ("worker/a", 2, 1, 1, ())


@pytest.mark.parametrize("seconds", [1e12, float("inf"), -1.0, float("nan")])
@pytest.mark.parametrize("verb", ["fail", "defer"])
async def test_a_wait_out_of_all_bounds_is_brought_within_them(world: World, verb: str, seconds: float) -> None:
    lease = await leased(world)
    if verb == "fail":
        job = await world.jobs.fail(AGENT, lease.lease_id, "x", retry_after=seconds)
    else:
        job = await world.jobs.defer(AGENT, lease.lease_id, seconds)
    assert world.clock.now() <= job.run_at <= world.clock.now() + 366 * 86_400_000


@pytest.mark.parametrize("percent", [-1, 101, 1e300, float("inf"), float("nan")])
async def test_progress_out_of_bounds_is_refused(world: World, percent: float) -> None:
    lease = await leased(world)
    with pytest.raises(OakenError, match="percent"):
        await world.jobs.heartbeat(AGENT, lease.lease_id, percent=percent, progress=True)
    assert (await world.jobs.complete(AGENT, lease.lease_id)).state == "succeeded"


async def test_a_refused_result_is_refused_again_when_it_is_repeated(world: World) -> None:
    lease = await leased(world, "strict")
    for _ in range(2):
        with pytest.raises(ResultInvalid):
            await world.jobs.complete(AGENT, lease.lease_id, {"n": "secret"})
    assert (await world.job(lease.job.id)).state == "failed"


async def test_a_repeated_answer_is_the_first_one_also_after_a_requeue_and_another_attempt(world: World) -> None:
    lease = await leased(world)
    first = await world.jobs.fail(AGENT, lease.lease_id, "boom", permanent=True)
    world.clock.advance(5)
    await world.jobs.requeue(ME, first.id)
    await world.take(OTHER)
    again = await world.jobs.fail(AGENT, lease.lease_id, "boom", permanent=True)
    for column in ("state", "reason", "attempts", "epoch", "agent", "started_at", "finished_at", "last_error", "grade"):
        assert getattr(again, column) == getattr(first, column), column


async def test_the_grade_of_a_cancelled_job_counts_what_its_last_attempt_cost(world: World) -> None:
    lease = await leased(world, budget_usd=1)
    await world.jobs.cancel(ME, lease.job.id)
    op = world.jobs.fail_op(AGENT, lease.lease_id, "stopped", usage=Usage(None, 5.0))
    job = await world.jobs.finish(AGENT, op)
    assert (job.state, job.cost_usd, job.grade) == ("cancelled", 5.0, "warn")


async def test_an_agent_with_a_persons_token_learns_no_more_about_a_lease_than_about_the_job(world: World) -> None:
    lease = await leased(world)
    nosy = AGENT.__class__(AGENT.actor._replace(kind="user", id="nosy"), frozenset({"agent"}))
    with pytest.raises(LeaseLost) as refused:
        await world.jobs.heartbeat(nosy, f"{lease.job.id}-1-{'0' * 24}")
    assert "worker" not in refused.value.message


async def test_what_an_agent_does_counts_for_the_instance_that_leased_although_its_calls_do_not_name_it(
    world: World,
) -> None:
    lease = await leased(world)
    nameless = AGENT.__class__(AGENT.actor, AGENT.roles)
    await world.jobs.heartbeat(nameless, lease.lease_id)
    await world.jobs.complete(nameless, lease.lease_id)
    assert [(row.agent, row.leased, row.succeeded) for row in await world.jobs.agents(ME)] == [("worker/a", 1, 1)]


@pytest.mark.engine("sqlite")  # of PostgreSQL's servers one stands in for another
async def test_a_server_gives_leases_a_grace_at_its_start_although_a_runner_lives(world: World) -> None:
    runner = world.another("runner")
    await runner.open()
    await runner.maintenance.start()
    await world.add()
    lease = await world.take(lease_seconds=4)
    world.clock.advance(3.5)
    await world.core.maintenance.start()
    world.clock.advance(5)
    assert (await world.jobs.complete(AGENT, lease.lease_id)).state == "succeeded"
    await runner.close()

"""Handing jobs out: order, caps, pauses, waiting, and who may hold what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oaken_jobs.errors import Forbidden
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, OTHER, RUNNER, TWIN, VIEWER, World, until


async def test_higher_priority_first_then_what_became_runnable_first_then_the_lower_id(world: World) -> None:
    late = await world.add(delay_seconds=1)
    low = await world.add(priority=10)
    first = await world.add()
    second = await world.add()
    high = await world.add(priority=500)
    world.clock.advance(2)
    leases = await world.jobs.lease(AGENT, max=10)
    assert [lease.job.id for lease in leases] == [high.id, first.id, second.id, late.id, low.id]


async def test_order_holds_across_queues_and_kinds(world: World) -> None:
    jobs = [
        await world.add(kind, payload={"text": "x"}, priority=p) for kind, p in (("a", 10), ("embed", 20), ("b", 30))
    ]
    leases = await world.jobs.lease(AGENT, max=3)
    assert [lease.job.id for lease in leases] == [j.id for j in reversed(jobs)]


async def test_a_lease_carries_everything_needed_to_do_the_work(world: World) -> None:
    job = await world.add("embed", payload={"text": "x"}, subject="s")
    lease = await world.take(lease_seconds=30)
    assert lease.payload == '{"text":"x"}'
    assert lease.instructions is not None
    assert lease.job.state == "running"
    assert (lease.job.attempts, lease.job.epoch) == (1, 1)
    assert lease.job.agent == "worker/a"
    assert lease.job.lease_expires == world.clock.now() + 30_000
    assert lease.job.started_at == world.clock.now()
    assert await world.job(job.id) == lease.job


async def test_only_queues_and_kinds_asked_for_are_given(world: World) -> None:
    await world.add("a")
    mail = await world.add("b", subject="s")
    await world.jobs.requeue(ME, mail.id, "mail")
    await world.none(kinds=["c"])
    await world.none(queues=["triage"])
    await world.none(queues=["mail"], kinds=["a"])
    assert (await world.take(queues=["mail"])).job.id == mail.id


async def test_outside_agents_never_get_what_runners_alone_may_run(world: World) -> None:
    await world.add("intake", payload={"text": "x"})
    await world.none()
    with pytest.raises(Forbidden, match=r"intake.*runners alone"):
        await world.jobs.lease(AGENT, kinds=["intake"])
    assert (await world.take(RUNNER)).job.kind == "intake"


async def test_leasing_needs_the_role_agent(world: World) -> None:
    with pytest.raises(Forbidden, match="role agent or admin"):
        await world.jobs.lease(VIEWER)


async def test_a_paused_queue_hands_out_nothing_until_resumed_even_after_a_restart(world: World) -> None:
    job = await world.add()
    assert (await world.jobs.set_paused(ME, "default", True)).paused
    await world.none()
    await world.restart()
    await world.none()
    await world.jobs.requeue(ME, job.id)
    await world.none()
    await world.jobs.set_paused(ME, "default", False)
    assert (await world.take()).job.id == job.id


async def test_a_paused_queue_hands_out_neither_retried_nor_reclaimed_jobs_but_running_ones_finish(
    world: World,
) -> None:
    retried, lost, done = [await world.add() for _ in range(3)]
    leases = {lease.job.id: lease for lease in await world.jobs.lease(AGENT, max=3, lease_seconds=5)}
    await world.jobs.set_paused(ME, "default", True)
    await world.jobs.fail(AGENT, leases[retried.id].lease_id, "boom")
    assert (await world.jobs.complete(AGENT, leases[done.id].lease_id)).state == "succeeded"
    world.clock.advance(3600)
    await world.tick()
    await world.none()
    assert (await world.job(lost.id)).state == "queued"


async def test_pausing_twice_changes_nothing_and_each_change_is_an_activity(world: World) -> None:
    for paused in (True, True, False):
        await world.jobs.set_paused(ME, "mail", paused)
    rows = await world.core.store.activity(0, 10)
    assert [(r.event, r.verb, r.name) for r in rows] == [
        ("queue_state_changed", "pause", "mail"),
        ("queue_state_changed", "resume", "mail"),
    ]


async def test_a_cap_is_never_exceeded_and_others_pass_by(world: World) -> None:
    capped = [await world.add("capped", priority=500) for _ in range(5)]
    other = await world.add("free")
    leases = await world.jobs.lease(AGENT, max=10)
    assert [lease.job.id for lease in leases] == [capped[0].id, capped[1].id, other.id]
    await world.none()
    await world.jobs.complete(AGENT, leases[0].lease_id)
    assert [lease.job.id for lease in await world.jobs.lease(AGENT, max=10)] == [capped[2].id]


async def test_an_expired_lease_does_not_fill_a_cap(world: World) -> None:
    for _ in range(3):
        await world.add("capped")
    await world.jobs.lease(AGENT, max=2, lease_seconds=10)
    await world.none(OTHER)
    world.clock.advance(11)
    assert len(await world.jobs.lease(OTHER, max=5)) == 2


async def test_configured_limits_win_over_the_kinds_own(world: World) -> None:
    await world.restart(kind_limits={"capped": 1, "free": 1})
    for kind in ("capped", "capped", "free", "free"):
        await world.add(kind)
    assert len(await world.jobs.lease(AGENT, max=10)) == 2


async def test_a_waiting_request_is_answered_by_an_enqueue(world: World) -> None:
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=30))
    await until(lambda: bool(world.core.dispatch._waiters))
    job = await world.add()
    assert [lease.job.id for lease in await waiting] == [job.id]


async def test_a_waiting_request_ends_empty_at_its_deadline(world: World) -> None:
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=30))
    await until(lambda: bool(world.core.dispatch._waiters))
    world.clock.advance(30)
    assert await waiting == []


WAKERS: list[tuple[str, Any]] = [
    ("release", lambda w, lease: w.jobs.release(OTHER, lease.lease_id)),
    ("fail", lambda w, lease: w.jobs.fail(OTHER, lease.lease_id, "x")),
    ("defer", lambda w, lease: w.jobs.defer(OTHER, lease.lease_id, 3)),
    ("expiry", lambda w, lease: asyncio.sleep(0)),
]


@pytest.mark.parametrize(("what", "act"), WAKERS, ids=[name for name, _ in WAKERS])
async def test_a_waiting_request_gets_what_comes_back(world: World, what: str, act: Any) -> None:
    await world.add()
    lease = await world.take(OTHER, lease_seconds=4)
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=3600))
    await until(lambda: bool(world.core.dispatch._waiters))
    await act(world, lease)
    for _ in range(20):
        if waiting.done():
            break
        world.clock.advance(1)
        await world.core.commit.call_all([])
        await asyncio.sleep(0.005)
    assert [lease.job.id for lease in await asyncio.wait_for(waiting, 5)] == [lease.job.id]


async def test_resuming_a_queue_and_freeing_a_cap_wake_who_waits(world: World) -> None:
    await world.jobs.set_paused(ME, "default", True)
    jobs = [await world.add("capped") for _ in range(3)]
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, max=2, wait_seconds=60))
    await until(lambda: bool(world.core.dispatch._waiters))
    await world.jobs.set_paused(ME, "default", False)
    leases = await asyncio.wait_for(waiting, 5)
    assert [lease.job.id for lease in leases] == [j.id for j in jobs[:2]]
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=60))
    await until(lambda: bool(world.core.dispatch._waiters))
    await world.jobs.complete(AGENT, leases[0].lease_id)
    assert [lease.job.id for lease in await asyncio.wait_for(waiting, 5)] == [jobs[2].id]


async def test_the_longest_waiting_request_is_served_first_and_one_job_wakes_one(world: World) -> None:
    waiting: list[asyncio.Future[Any]] = []
    for n in range(5):
        who = Principal(Actor("agent", f"agent-{n}", "http"), frozenset({"agent"}))
        # Every second one asks for its kind by name: different filters, one line.
        kinds = ["work"] if n % 2 else None
        waiting.append(asyncio.ensure_future(world.jobs.lease(who, kinds=kinds, wait_seconds=60)))
        await until(lambda n=n: len(world.core.dispatch._waiters) == n + 1)
    for n in range(5):
        job = await world.add()
        (lease,) = await asyncio.wait_for(waiting[n], 5)
        assert (lease.job.id, lease.job.agent) == (job.id, f"agent-{n}")
        assert sum(w.done() for w in waiting) == n + 1


@pytest.mark.parametrize("kinds", [None, ["work"]])
async def test_a_newcomer_does_not_overtake_who_waited_longer_for_what_another_process_added(
    world: World, kinds: list[str] | None
) -> None:
    world.core.follower.foreign = lambda: None  # this process has not noticed yet
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=60))
    await until(lambda: bool(world.core.dispatch._waiters))
    await world.add("other")
    await waiting
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=60))
    await until(lambda: any(w.asked for w in world.core.dispatch._waiters))
    other = world.another("cli")
    await other.open()
    await other.jobs.enqueue(ME, NewJobRequest(kind="work"))
    await other.close()
    assert await world.jobs.lease(OTHER, kinds=kinds) == []
    assert [lease.job.kind for lease in await asyncio.wait_for(waiting, 5)] == ["work"]


async def test_a_caller_that_has_gone_keeps_no_job(world: World) -> None:
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=60))
    await until(lambda: bool(world.core.dispatch._waiters))
    write, under_way, go_on = world.core.store.write, asyncio.Event(), asyncio.Event()

    async def held_up(*asked: Any) -> Any:
        under_way.set()
        await go_on.wait()
        return await write(*asked)

    world.core.store.write = held_up  # type: ignore[method-assign]
    adding = asyncio.ensure_future(world.add())
    await under_way.wait()
    waiting.cancel()  # the group that adds the job and claims it for this caller is on its way
    go_on.set()
    job = await adding
    await asyncio.gather(waiting, return_exceptions=True)

    async def back() -> bool:
        return (await world.job(job.id)).state == "queued"

    deadline = asyncio.get_running_loop().time() + 5
    while not await back():
        assert asyncio.get_running_loop().time() < deadline
    found = await world.job(job.id)
    assert found.attempts == 0
    assert (await world.take(OTHER)).job.id == job.id


async def test_waiting_requests_are_answered_empty_at_shutdown(world: World) -> None:
    waiting = [asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=60)) for _ in range(3)]
    await until(lambda: len(world.core.dispatch._waiters) == 3)
    await world.core.close()
    assert await asyncio.gather(*waiting) == [[], [], []]


async def test_two_processes_of_one_name_are_two_agents(world: World) -> None:
    await world.add()
    await world.add()
    mine, twins = await world.take(AGENT), await world.take(TWIN)
    assert (mine.job.agent, twins.job.agent) == ("worker/a", "worker/b")
    agents = {row.agent: row for row in await world.jobs.agents(ME)}
    assert agents["worker/a"].holds == (mine.job.id,)
    assert agents["worker/b"].holds == (twins.job.id,)


async def test_fifty_requests_for_one_job_give_it_to_one(world: World) -> None:
    await world.add()
    answers = await asyncio.gather(*(world.jobs.lease(AGENT) for _ in range(50)))
    assert sum(len(a) for a in answers) == 1


async def test_a_payload_that_no_longer_fits_its_kind_fails_at_the_claim_and_the_next_is_handed_out(
    world: World,
) -> None:
    bad = await world.add("loose", payload={"n": "one"})
    good = await world.add("loose", payload={"n": 1})
    kinds = world.jobs.rules.kinds
    from dataclasses import replace

    await world.restart(kinds={**kinds, "loose": replace(kinds["sum"], name="loose")})
    leases = await world.jobs.lease(AGENT, max=2)
    assert [lease.job.id for lease in leases] == [good.id]
    failed = await world.job(bad.id)
    assert (failed.state, failed.reason, failed.grade) == ("failed", "payload_invalid", "bad")
    assert "/n breaks type" in (failed.last_error or "")
    assert "one" not in (failed.last_error or "").replace("/n", "")


async def test_a_job_of_a_queue_that_left_the_configuration_can_still_be_leased(world: World) -> None:
    job = await world.add("triage", payload={"text": "x"})
    queues = {name: rule for name, rule in world.jobs.rules.queues.items() if name != "triage"}
    await world.restart(queues=queues)
    shown = {q.name: q for q in await world.jobs.queues(ME)}
    assert (shown["triage"].configured, shown["triage"].counts) == (False, {"queued": 1})
    assert (await world.take()).job.id == job.id


async def test_hidden_queues_are_listed_only_when_asked_for(world: World) -> None:
    assert {q.name for q in await world.jobs.queues(ME)} == {"default", "triage", "mail", "closed"}
    assert {"store", "embed"} <= {q.name for q in await world.jobs.queues(ME, everything=True)}


async def test_agents_see_what_they_enqueued_hold_or_held(world: World) -> None:
    mine, free = await world.add(), await world.add()
    lease = await world.take()
    child = await world.add("child", who=AGENT, parent_id=mine.id)
    assert {j.id for j in (await world.jobs.list(AGENT, JobFilter())).jobs} == {mine.id, child.id}
    await world.jobs.release(AGENT, lease.lease_id)
    assert (await world.jobs.get(AGENT, mine.id)).id == mine.id
    from oaken_jobs.errors import NotFound

    with pytest.raises(NotFound):
        await world.jobs.get(AGENT, free.id)

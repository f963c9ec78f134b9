"""Corners in which something went wrong once: what is cached, who may hear what, and what a group does to its own jobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from oaken_jobs.errors import LeaseLost
from oaken_jobs.kinds import Kind
from oaken_jobs.model import FREE, NewJob, SpawnJob
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, OTHER, World

INSIDE = replace(ME, workspace="side")


@pytest.mark.parametrize("size", [1, 2000, 5000, 100_000])
async def test_a_replaced_payload_of_any_length_is_the_one_that_is_handed_out(world: World, size: int) -> None:
    await world.add(dedupe_key="k", payload={"text": "old"})
    await world.enqueue(dedupe_key="k", payload={"text": "x" * size}, on_duplicate="replace")
    assert (await world.take()).payload == f'{{"text":"{"x" * size}"}}'


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release", "ask"])
async def test_a_call_on_a_lease_tells_a_bound_caller_nothing_of_other_workspaces(world: World, verb: str) -> None:
    await world.add()
    await world.take()
    arguments = {"fail": ["x"], "ask": ["x"]}.get(verb, [])
    said: list[str] = []
    for job_id in (1, 99):
        with pytest.raises(LeaseLost) as refused:
            await getattr(world.jobs, verb)(INSIDE, f"{job_id}-1-{'0' * 24}", *arguments)
        assert refused.value.details == {}
        said.append(refused.value.message)
    assert said[0] == said[1]
    with pytest.raises(LeaseLost) as refused:
        await world.jobs.heartbeat(OTHER, f"99-1-{'0' * 24}")
    assert refused.value.message == said[0]


async def test_a_parent_waits_on_for_what_its_last_child_leaves_behind(world: World) -> None:
    spawning = Kind("spawning", on_success=lambda job, result: [SpawnJob(NewJob("further", "{}"))])
    await world.restart(kinds={"spawning": spawning})
    parent = await world.add("parent")
    lease = await world.take()
    await world.add("spawning", AGENT, parent_id=parent.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    further = await world.take()
    assert (further.job.kind, further.job.parent_id) == ("further", parent.id)
    await world.none()
    await world.jobs.complete(AGENT, further.lease_id)
    assert len((await world.take()).children) == 2


async def test_who_asks_for_a_job_in_the_group_that_sets_it_free_is_told_so(world: World) -> None:
    await world.add("parent", dedupe_key="k")
    lease = await world.take()
    world.clock.advance(5)
    again, released = await asyncio.gather(
        world.enqueue("parent", dedupe_key="k"),
        world.jobs.release(AGENT, lease.lease_id, after_children=True),
    )
    assert (again.job.run_at, again.job.blocked) == (world.clock.now(), FREE)
    assert (released.run_at, released.blocked) == (world.clock.now(), FREE)


async def test_a_child_that_was_there_already_is_told_apart(world: World) -> None:
    await world.add("child", dedupe_key="k")
    parent = await world.add("parent")
    await world.take(kinds=["parent"])
    answer = await world.enqueue("child", AGENT, dedupe_key="k", parent_id=parent.id)
    assert not answer.created
    assert "does not wait for it" in (answer.warning or "")


async def test_an_agent_learns_by_a_key_that_work_is_under_way_and_no_more(world: World) -> None:
    secret = {"title": "secret title", "subject": "secret:subject", "tags": ["secret"], "dedupe_key": "k"}
    await world.add("child", **secret)
    parent = await world.add("parent")
    await world.take(OTHER, kinds=["parent"])
    answer = await world.enqueue("child", OTHER, dedupe_key="k", parent_id=parent.id)
    assert (answer.job.id, answer.job.state) == (1, "queued")
    assert "secret" not in str(answer.job)
    assert "secret" in str((await world.enqueue("child", dedupe_key="k")).job)


async def test_the_cursor_of_a_dry_run_is_where_the_call_itself_begins(world: World) -> None:
    for _ in range(3):
        await world.add()
    where = JobFilter(kinds=("work",))
    counted = await world.jobs.cancel_all(ME, where, dry_run=True)
    await world.add()
    done = await world.jobs.cancel_all(ME, where, cursor=counted.cursor)
    assert (done.matched, done.done, done.remaining) == (3, 3, 0)


async def test_a_clock_that_goes_back_makes_no_grace_longer(world: World) -> None:
    job = await world.add()
    await world.take(lease_seconds=86_400)
    await world.jobs.cancel(ME, job.id)
    world.clock.jump(-3600)
    await world.tick(301)
    assert (await world.job(job.id)).reason == "cancel_grace"


async def test_only_the_first_late_result_is_said_to_be_kept(world: World) -> None:
    await world.add()
    lease = await world.take()
    await world.tick(61)
    for n, kept in ((1, True), (2, False)):
        with pytest.raises(LeaseLost) as refused:
            await world.jobs.complete(AGENT, lease.lease_id, {"n": n})
        assert ("is kept" in refused.value.message) == kept


async def test_an_adopted_job_shows_whose_result_it_has_and_no_old_error(world: World) -> None:
    job = await world.add()
    lease = await world.take(AGENT)
    await world.tick(61)
    with pytest.raises(LeaseLost):
        await world.jobs.complete(AGENT, lease.lease_id, {"n": 1})
    await world.take(OTHER)
    adopted = await world.jobs.adopt(ME, job.id, 1)
    assert (adopted.agent, adopted.last_error) == ("worker/a", None)


async def test_a_job_behind_a_queued_one_of_its_key_says_so(world: World) -> None:
    await world.add(serial_key="s")
    second = await world.add(serial_key="s")
    (wait,) = (await world.jobs.waits([await world.job(second.id)]))[second.id]
    assert (wait.code, wait.text) == ("serial", "another job of the same serial key goes before it")


async def test_a_revoked_token_bars_nobody_who_came_without_one(world: World) -> None:
    await world.core.tokens.create(ME.actor, "worker", ["agent"])
    await world.core.tokens.revoke(ME.actor, "worker")
    await world.add()
    await world.none(replace(AGENT, by_token=True))
    await world.take(AGENT)


async def test_a_lease_says_how_many_children_it_does_not_list(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oaken_jobs.store.sql.claims.CHILDREN_SHOWN", 3)
    parent = await world.add("parent")
    lease = await world.take()
    for _ in range(5):
        child = await world.add("child", parent_id=parent.id)
        await world.jobs.cancel(ME, child.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    lease = await world.take()
    assert (len(lease.children), lease.children_more) == (3, 2)


async def test_a_lease_carries_the_latest_questions_of_a_job_that_asked_often(world: World) -> None:
    job = await world.add()
    for n in range(25):
        await world.jobs.ask(AGENT, (await world.take()).lease_id, f"Question {n}?")
        await world.jobs.answer(ME, job.id, f"Answer {n}")
    answers = (await world.take()).answers
    assert [one.text for one in answers] == [f"Question {n}?" for n in range(5, 25)]


async def test_leases_that_are_too_much_for_one_answer_are_resumed_in_parts(world: World) -> None:
    for _ in range(20):
        await world.add(payload={"text": "x" * 1_000_000})
    taken = 0
    while leases := await world.jobs.lease(AGENT, max=20):
        taken += len(leases)
    resumed = await world.jobs.resume(AGENT)
    assert taken == 20
    assert 10 < len(resumed) < 20


async def test_many_busy_keys_in_front_are_dealt_with_in_one_call(world: World) -> None:
    for part in range(4):
        await asyncio.gather(*(world.add(serial_key=f"s{part}-{n}", priority=900, delay_seconds=1) for n in range(250)))
        await asyncio.gather(*(world.add(serial_key=f"s{part}-{n}", priority=950) for n in range(250)))
    while len(await world.jobs.lease(AGENT, max=500, lease_seconds=600)):
        pass
    behind = await world.add(priority=1)
    world.clock.advance(2)
    assert (await world.take(OTHER)).job.id == behind.id

"""Workspaces: one consumer serves them all; who is bound to one sees and touches nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oaken_jobs import auth
from oaken_jobs.errors import Forbidden, InvalidRequest, NotFound
from oaken_jobs.model import Principal
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, OTHER, World

INSIDE = replace(ME, workspace="side")
WORKER = replace(OTHER, workspace="side")
ADMIN = replace(ME, roles=frozenset({"admin"}), workspace="side")


async def test_a_job_belongs_to_the_default_workspace_the_one_named_or_the_callers_own(world: World) -> None:
    assert (await world.add()).workspace == "default"
    assert (await world.add(workspace="side")).workspace == "side"
    assert (await world.add("work", INSIDE)).workspace == "side"
    assert (await world.add("work", INSIDE, workspace="side")).workspace == "side"
    with pytest.raises(Forbidden, match="bound to the workspace side"):
        await world.add("work", INSIDE, workspace="default")


async def test_one_agent_serves_all_workspaces_by_priority_whoever_asked(world: World) -> None:
    low = await world.add(priority=1)
    high = await world.add(priority=9, workspace="zeta")
    middle = await world.add(priority=5, workspace="alpha")
    assert [one.job.id for one in await world.jobs.lease(AGENT, max=3)] == [high.id, middle.id, low.id]


async def test_a_bound_agent_leases_from_its_own_workspace_alone(world: World) -> None:
    await world.add(priority=900)
    own = await world.add(workspace="side")
    assert [one.job.id for one in await world.jobs.lease(WORKER, max=3)] == [own.id]


async def test_keys_are_each_workspaces_own(world: World) -> None:
    fields = {"dedupe_key": "k", "target": "t", "serial_key": "s"}
    first, second = await world.add(**fields), await world.add(workspace="side", **fields)
    assert first.id != second.id
    assert len(await world.jobs.lease(AGENT, max=2)) == 2


async def test_a_child_is_where_its_parent_is(world: World) -> None:
    parent = await world.add(workspace="side")
    assert (await world.add(parent_id=parent.id)).workspace == "side"
    with pytest.raises(InvalidRequest, match="a child belongs to its parent's"):
        await world.add(parent_id=parent.id, workspace="default")
    other = await world.add()
    with pytest.raises(NotFound, match=f"parent_id {other.id}"):
        await world.add("work", INSIDE, parent_id=other.id)


async def test_another_workspaces_job_is_not_there(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    await world.jobs.ask(AGENT, lease.lease_id, "Which?")
    jobs = world.jobs
    calls: list[Any] = [
        jobs.get(INSIDE, job.id),
        jobs.wait(INSIDE, [job.id], 0),
        jobs.result(INSIDE, job.id),
        jobs.attempts(INSIDE, job.id),
        jobs.progress(INSIDE, job.id),
        jobs.activity(INSIDE, job.id),
        jobs.children(INSIDE, job.id),
        jobs.questions(INSIDE, job.id),
        jobs.cancel(INSIDE, job.id),
        jobs.requeue(INSIDE, job.id),
        jobs.answer(INSIDE, job.id, "This"),
        jobs.adopt(INSIDE, job.id, 1),
    ]
    for call in calls:
        with pytest.raises(NotFound, match=f"no job {job.id}"):
            await call
    assert (await world.job(job.id)).question == "Which?"


async def test_lists_counts_and_the_snapshot_show_a_bound_caller_its_own_workspace(world: World) -> None:
    for workspace in ("default", "default", "side"):
        await world.add(workspace=workspace, subject="note:1")
    own = await world.jobs.list(INSIDE, JobFilter())
    assert [job.workspace for job in own.jobs] == ["side"]
    assert [job.id for job in (await world.jobs.list(ME, JobFilter(workspace="side"))).jobs] == [own.jobs[0].id]
    assert [(q.name, q.counts) for q in await world.jobs.queues(INSIDE) if q.counts] == [("default", {"queued": 1})]
    snapshot = await world.jobs.snapshot(INSIDE)
    assert (snapshot.counts["queued"], [job.id for job in snapshot.active]) == (1, [own.jobs[0].id])
    with pytest.raises(Forbidden):
        await world.jobs.list(INSIDE, JobFilter(workspace="default"))
    done = await world.jobs.cancel_all(INSIDE, JobFilter(subject="note:1"))
    assert (done.matched, done.done) == (1, 1)


async def test_labels_route_in_their_own_workspace_alone(world: World) -> None:
    await world.jobs.set_labels(ME, "note:1", {"queue": "mail"}, "side")
    assert (await world.add(subject="note:1")).queue == "default"
    assert (await world.add(subject="note:1", workspace="side")).queue == "mail"
    assert (await world.jobs.labels(ME, "note:1"))["human"] == {}
    assert (await world.jobs.labels(INSIDE, "note:1"))["human"] == {"queue": "mail"}
    with pytest.raises(Forbidden):
        await world.jobs.labels(INSIDE, "note:1", "default")


async def test_what_a_finish_leaves_behind_stays_in_its_workspace(world: World) -> None:
    await world.add("triage", payload={"text": "x"}, subject="note:1", workspace="side")
    await world.jobs.complete(AGENT, (await world.take()).lease_id, {"labels": {"topic": "x"}})
    assert (await world.jobs.labels(ME, "note:1"))["machine"] == {}
    assert (await world.jobs.labels(ME, "note:1", "side"))["machine"] == {"topic": "x"}


async def test_agents_are_shown_to_a_bound_caller_where_they_are_bound_alike(world: World) -> None:
    await world.add()
    await world.add(workspace="side")
    await world.take(AGENT)
    await world.take(WORKER)
    assert [row.agent for row in await world.jobs.agents(INSIDE)] == ["other"]
    assert {row.agent for row in await world.jobs.agents(ME)} == {"worker/a", "other"}
    with pytest.raises(NotFound):
        await world.jobs.drain(INSIDE, "worker", True)


async def test_what_concerns_all_workspaces_needs_an_unbound_caller(world: World) -> None:
    with pytest.raises(Forbidden, match="bound to the workspace side and may not pause"):
        await world.jobs.set_paused(INSIDE, "default", True)
    with pytest.raises(
        Forbidden, match="bound to the workspace side and may not manage tokens or read logs, audit and trace"
    ):
        auth.require(ADMIN, "administer")


async def test_a_token_carries_its_workspace(world: World) -> None:
    tokens = world.core.tokens
    row, secret = await tokens.create(ME.actor, "inside", ["user"], workspace="side")
    assert row.workspace == "side"
    who: Principal = await tokens.authenticate(secret, "http")
    assert who.workspace == "side"
    await world.restart()
    assert (await world.core.tokens.authenticate(secret, "http")).workspace == "side"


async def test_each_row_of_a_jobs_activity_names_its_workspace(world: World) -> None:
    job = await world.add(workspace="side")
    assert {row.workspace for row in await world.jobs.activity(ME, job.id)} == {"side"}

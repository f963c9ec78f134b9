"""Many claimers on one PostgreSQL at the same moment: caps and serial keys are kept, nobody gets a job twice, and nobody goes empty away
while there is work. `OAKEN_ROUNDS` says how often each is tried."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from oaken_jobs.core import Core
from oaken_jobs.model import Leased
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.sessions import MOST
from tests.contract import invariants
from tests.contract.world import AGENT, ME, World

pytestmark = pytest.mark.engine("postgres")

CLAIMERS = 8
ROUNDS = int(os.environ.get("OAKEN_ROUNDS", "15"))


@pytest.fixture
async def cores(world: World) -> AsyncIterator[list[Core]]:
    """Processes, as far as the database can tell."""
    await world.restart(kind_limits={"capped": 1})
    made = [world.another("cli") for _ in range(CLAIMERS - 1)]
    for core in made:
        await core.open()
    yield [world.core, *made]
    for core in made:
        await core.close()


async def _all_at_once(cores: list[Core]) -> list[Leased]:
    found = await asyncio.gather(*(core.jobs.lease(AGENT) for core in cores))
    return [lease for leases in found for lease in leases]


async def _done(world: World, leases: list[Leased]) -> None:
    await asyncio.gather(*(world.jobs.complete(AGENT, lease.lease_id) for lease in leases))


async def test_of_a_kind_with_a_limit_of_one_one_runs(world: World, cores: list[Core]) -> None:
    for _ in range(CLAIMERS):
        await world.add("capped")
    for _ in range(ROUNDS):
        leases = await _all_at_once(cores)
        assert len(leases) == 1
        await _done(world, leases)
        await world.add("capped")
    invariants.check(world.raw, {"capped": 1})


async def test_of_a_serial_key_one_runs(world: World, cores: list[Core]) -> None:
    for _ in range(CLAIMERS):
        await world.add(serial_key="one")
    for _ in range(ROUNDS):
        leases = await _all_at_once(cores)
        assert len(leases) == 1
        await _done(world, leases)
        await world.add(serial_key="one")
    invariants.check(world.raw)


async def test_each_claimer_gets_a_job_of_its_own_where_there_are_as_many(world: World, cores: list[Core]) -> None:
    for _ in range(ROUNDS):
        await asyncio.gather(*(core.jobs.enqueue(ME, NewJobRequest(kind="work")) for core in cores))
        leases = await _all_at_once(cores)
        assert len({lease.job.id for lease in leases}) == CLAIMERS, "nobody goes empty away while there is work"
        await _done(world, leases)


async def test_who_adds_a_job_before_taking_one_always_gets_one_whatever_others_take(
    world: World, cores: list[Core]
) -> None:
    """There are never fewer jobs than claimers, but they come and go in lanes that a claim has not seen."""

    async def claimer(core: Core, mine: int) -> None:
        for n in range(ROUNDS):
            await core.jobs.enqueue(ME, NewJobRequest(kind=f"work-{(mine * n) % 5}", priority=n % 3))
            (lease,) = await core.jobs.lease(AGENT)
            await core.jobs.complete(AGENT, lease.lease_id)

    for _ in range(3):  # of each process
        await asyncio.gather(*(claimer(core, mine) for mine, core in enumerate(cores) for _ in range(3)))
    invariants.check(world.raw)


async def test_what_is_enqueued_twice_at_once_is_one_job(world: World, cores: list[Core]) -> None:
    for n in range(ROUNDS):
        request = NewJobRequest(kind="work", dedupe_key=f"key {n}")
        told = await asyncio.gather(*(core.jobs.enqueue(ME, request) for core in cores))
        assert len({one.job.id for one in told}) == 1
        assert sum(one.created for one in told) == 1
    invariants.check(world.raw)


async def test_a_parent_is_free_when_its_last_children_end_at_once(world: World, cores: list[Core]) -> None:
    for _ in range(ROUNDS):
        await world.add("parent")
        parent = await world.take(kinds=["parent"])
        for _ in range(CLAIMERS):
            await world.add("child", parent_id=parent.job.id)
        await world.jobs.release(AGENT, parent.lease_id, after_children=True)
        found = [(core, await core.jobs.lease(AGENT, kinds=["child"])) for core in cores]
        await asyncio.gather(*(core.jobs.complete(AGENT, leases[0].lease_id) for core, leases in found))
        again = await world.take(kinds=["parent"])
        assert again.job.id == parent.job.id
        await world.jobs.complete(AGENT, again.lease_id)
    invariants.check(world.raw)


async def test_a_token_has_no_more_sessions_than_it_may_where_several_are_opened_at_once(
    world: World, cores: list[Core]
) -> None:
    _, token = await world.core.tokens.create(ME.actor, "ann", ["user"])
    for _ in range(MOST - 1):
        await world.core.sessions.open(token)
    for _ in range(ROUNDS):
        await asyncio.gather(*(core.sessions.open(token) for core in cores))
        assert len(await world.core.store.sessions()) == MOST

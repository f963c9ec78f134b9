"""A store that hangs: nobody waits for it for ever, and what it does in the end is not lost on anybody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oaken_jobs import commit
from oaken_jobs.errors import Unavailable
from tests.contract.world import AGENT, ME, OTHER, World, until


@pytest.fixture
def hanging(world: World, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Transactions begin once this is set; callers are told after a twentieth of a second."""
    monkeypatch.setattr(commit, "STALL_SECONDS", 0.05)
    go = asyncio.Event()
    write = world.core.store.write

    async def slow(*asked: Any) -> list[Any]:
        await go.wait()
        return await write(*asked)

    monkeypatch.setattr(world.core.store, "write", slow)
    return go


async def test_callers_of_a_store_that_hangs_hear_of_it_and_are_served_when_it_is_back(
    world: World, hanging: asyncio.Event
) -> None:
    firsts = []
    for _ in range(world.core.store.writers):
        firsts.append(asyncio.ensure_future(world.add()))
        await asyncio.sleep(0)
        await until(lambda: not world.core.commit._waiting)  # it is on its way to the store
    behind = asyncio.ensure_future(world.add())
    for first in firsts:
        with pytest.raises(Unavailable, match="outcome of this call is unknown"):
            await first
    with pytest.raises(Unavailable, match="nothing was done"):
        await behind
    hanging.set()
    # The first ones were done after all, the one behind them was not.
    await world.add()
    await until(lambda: world.raw.execute("select count(*) from jobs").fetchone()[0] == len(firsts) + 1)


async def test_a_job_leased_while_nobody_waited_any_more_goes_back(world: World, hanging: asyncio.Event) -> None:
    hanging.set()
    job = await world.add()
    hanging.clear()
    with pytest.raises(Unavailable):
        await world.jobs.lease(AGENT)
    hanging.set()
    await until(lambda: not world.core.commit._running)
    assert [one.job.id for one in await world.jobs.lease(OTHER, wait_seconds=10)] == [job.id]
    assert [(a.holder, a.outcome) for a in await world.attempts(job.id)] == [("worker", "released"), ("other", None)]
    assert (await world.jobs.get(ME, job.id)).attempts == 1

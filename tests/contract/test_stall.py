"""A store that hangs: nobody waits for it for ever, and what it does in the end is not lost on anybody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oaken_jobs import commit
from oaken_jobs.errors import Unavailable
from tests.contract.world import AGENT, ME, OTHER, World, until


class Hanging:
    """A store whose transactions do not begin while it hangs. Only then are callers told early: a store that is merely slow, as on a
    busy machine, is not what these tests are about."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self._monkeypatch = monkeypatch
        self._serving = asyncio.Event()
        self._serving.set()
        self._patience = commit.STALL_SECONDS
        self._write = world.core.store.write
        monkeypatch.setattr(world.core.store, "write", self._slow)

    def hang(self) -> None:
        self._serving.clear()
        self._monkeypatch.setattr(commit, "STALL_SECONDS", 0.3)

    async def serve(self) -> None:
        """Lets all that waits happen, and returns then."""
        self._monkeypatch.setattr(commit, "STALL_SECONDS", self._patience)
        self._serving.set()
        await until(lambda: not self._world.core.commit._running)

    async def _slow(self, *asked: Any) -> list[Any]:
        await self._serving.wait()
        return await self._write(*asked)


@pytest.fixture
def store(world: World, monkeypatch: pytest.MonkeyPatch) -> Hanging:
    return Hanging(world, monkeypatch)


async def test_callers_of_a_store_that_hangs_hear_of_it_and_are_served_when_it_is_back(
    world: World, store: Hanging
) -> None:
    store.hang()
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
    await store.serve()
    # The first ones were done after all, the one behind them was not.
    await world.add()
    await until(lambda: world.raw.execute("select count(*) from jobs").fetchone()[0] == len(firsts) + 1)


async def test_a_job_leased_while_nobody_waited_any_more_goes_back(world: World, store: Hanging) -> None:
    job = await world.add()
    store.hang()
    with pytest.raises(Unavailable):
        await world.jobs.lease(AGENT)
    await store.serve()
    assert [one.job.id for one in await world.jobs.lease(OTHER, wait_seconds=10)] == [job.id]
    assert [(a.holder, a.outcome) for a in await world.attempts(job.id)] == [("worker", "released"), ("other", None)]
    assert (await world.jobs.get(ME, job.id)).attempts == 1

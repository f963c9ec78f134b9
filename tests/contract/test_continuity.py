"""What is taken for a jump of the clock, or for a process that stood still, and what is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oaken_jobs.store.operations import Sweep
from oaken_jobs.store.sql.transaction import Transaction
from tests.contract.world import AGENT, World


async def test_a_transaction_that_takes_long_is_no_jump_of_the_clock(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    apply = Transaction.apply

    def slow(self: Transaction, ops: Any) -> Any:
        replies = apply(self, ops)
        world.clock._mono += 10  # no timer is to ring inside a transaction
        return replies

    await world.add()
    monkeypatch.setattr(Transaction, "apply", slow)
    lease = await world.take(lease_seconds=15)
    await world.tick()
    assert (await world.job(lease.job.id)).state == "running"
    await world.tick()
    assert (await world.job(lease.job.id)).state == "queued", "nobody had beaten for it"
    assert "grace" not in caplog.text
    assert await world.jobs.lease(AGENT)


@pytest.mark.engine("postgres")
async def test_of_groups_side_by_side_none_takes_a_lease_before_the_grace_is_there(world: World) -> None:
    """Whichever of them notices the jump."""
    job = await world.add()
    await world.take()
    for _ in range(10):
        world.clock.jump(3600)
        await asyncio.gather(*(world.core.store.write([Sweep()]) for _ in range(4)))
        assert ((found := await world.job(job.id)).state, found.lost) == ("running", 0)

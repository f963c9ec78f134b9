"""The one lifecycle: starting, stopping, both at once, and what goes wrong inside."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.errors import Unavailable
from oaken_jobs.loop import Loop


class Ticks:
    """Counts ticks; one of them can be held in its middle."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def tick(self) -> None:
        self.begun += 1
        await self.go.wait()
        self.ended += 1
        if self.error is not None:
            raise self.error


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_loop_ticks_each_time_its_pause_is_over_and_not_before() -> None:
    clock, ticks = FakeClock(), Ticks()
    loop = Loop("test", ticks.tick, clock, 5)
    await loop.start()
    await settle()
    assert (loop.state, ticks.ended) == ("running", 0)
    for n in range(1, 4):
        clock.advance(5)
        await settle()
        assert ticks.ended == n
    await loop.stop()
    clock.advance(50)
    await settle()
    assert (loop.state, ticks.ended) == ("stopped", 3)


async def test_starting_and_stopping_twice_or_at_once_is_once() -> None:
    clock, ticks = FakeClock(), Ticks()
    loop = Loop("test", ticks.tick, clock, 5)
    await loop.stop()
    await asyncio.gather(loop.start(), loop.start())
    await settle()
    clock.advance(5)
    await settle()
    assert ticks.ended == 1
    await asyncio.gather(loop.stop(), loop.stop(), loop.stop())
    await loop.stop()
    assert loop.state == "stopped"


async def test_a_stop_waits_for_the_tick_in_flight_and_a_start_for_the_stop() -> None:
    clock, ticks = FakeClock(), Ticks()
    ticks.go.clear()
    loop = Loop("test", ticks.tick, clock, 5)
    await loop.start()
    await settle()
    clock.advance(5)
    await settle()
    stopping = asyncio.ensure_future(loop.stop())
    starting = asyncio.ensure_future(loop.start())
    await settle()
    assert (loop.state, stopping.done(), ticks.begun, ticks.ended) == ("stopping", False, 1, 0)
    ticks.go.set()
    await stopping
    assert ticks.ended == 1
    await starting
    assert loop.state == "running"
    await loop.stop()


@pytest.mark.parametrize("error", [Unavailable("the disk is gone"), ValueError("a bug")])
async def test_an_error_is_logged_and_the_next_round_comes(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    clock, ticks = FakeClock(), Ticks()
    ticks.error = error
    loop = Loop("test", ticks.tick, clock, 5)
    await loop.start()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await settle()
            clock.advance(5)
        await settle()
    await loop.stop()
    assert ticks.ended == 2
    assert "test" in caplog.text

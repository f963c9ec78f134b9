"""The one lifecycle: starting, stopping, both at once, and what goes wrong inside."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.errors import Unavailable
from oaken_jobs.loop import Lifecycle, Loop


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


class Thing(Lifecycle):
    """Begins and ends when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def _begin(self) -> None:
        self.order.append("begins")
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.order.append("begun")

    async def _end(self) -> None:
        self.order.append("ends")
        await asyncio.sleep(0)
        self.order.append("ended")


async def test_all_who_start_wait_for_the_same_start_and_one_that_goes_away_does_not_end_it() -> None:
    thing = Thing()
    first, second = asyncio.ensure_future(thing.start()), asyncio.ensure_future(thing.start())
    await settle()
    first.cancel()
    await settle()
    assert (thing.running, second.done()) == (True, False)
    thing.go.set()
    await second
    assert thing.order == ["begins", "begun"]
    await thing.stop()


async def test_a_stop_during_a_start_ends_what_the_start_has_begun() -> None:
    thing = Thing()
    starting = asyncio.ensure_future(thing.start())
    await settle()
    stopping = asyncio.ensure_future(thing.stop())
    await settle()
    assert (thing.stopping, thing.order) == (True, ["begins"])
    thing.go.set()
    await asyncio.gather(starting, stopping)
    assert (thing.state, thing.order) == ("stopped", ["begins", "begun", "ends", "ended"])


async def test_a_start_that_fails_tells_everyone_leaves_it_stopped_and_can_be_tried_again() -> None:
    thing = Thing()
    thing.error = Unavailable("the disk is gone")
    thing.go.set()
    told = await asyncio.gather(thing.start(), thing.start(), return_exceptions=True)
    assert [type(error) for error in told] == [Unavailable, Unavailable]
    assert thing.state == "stopped"
    await thing.stop()
    thing.error = None
    await thing.start()
    assert thing.running
    await thing.stop()
    assert thing.order == ["begins", "begins", "begun", "ends", "ended"]


async def test_a_caller_of_stop_that_goes_away_does_not_end_the_stop() -> None:
    thing = Thing()
    thing.go.set()
    await thing.start()
    stopping = asyncio.ensure_future(thing.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await settle()
    assert (thing.state, thing.order[-1]) == ("stopped", "ended")

"""Figures that take long are counted once for all who look, and nobody waits for them."""

from __future__ import annotations

import asyncio
import time

import pytest

from oaken_jobs.clock import SystemClock
from oaken_jobs.errors import Forbidden
from oaken_swarm.cockpit.figures import SHARE, Figures


class Count:
    """A count that takes so many seconds."""

    def __init__(self, seconds: float = 0) -> None:
        self.seconds = seconds
        self.times = 0

    async def __call__(self) -> int:
        self.times += 1
        await asyncio.sleep(self.seconds)
        return self.times


async def test_what_is_counted_at_once_is_new_each_time() -> None:
    figures, count = Figures(SystemClock()), Count()
    for number in range(1, 4):
        found = await figures.get("a", count)
        assert found is not None
        assert found.value == number
        await asyncio.sleep(0.01)  # more than twenty times what it took


async def test_nobody_waits_for_a_long_count_and_it_is_made_once_for_all() -> None:
    figures, count = Figures(SystemClock()), Count(0.1)
    began = time.monotonic()
    assert await asyncio.gather(*(figures.get("a", count) for _ in range(20))) == [None] * 20
    assert time.monotonic() - began < 0.09
    await asyncio.sleep(0.15)
    found = [await figures.get("a", count) for _ in range(20)]
    assert {one.value for one in found if one} == {1}
    assert found[0] is not None
    assert found[0].age >= 20
    assert count.times == 1  # not again before twenty times as long has passed
    assert SHARE * count.seconds > 1


async def test_two_long_counts_do_not_run_at_one_time() -> None:
    figures, at_once = Figures(SystemClock()), [0, 0]

    async def count() -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0.02)
        at_once[0] -= 1

    await asyncio.gather(*(figures.get(name, count) for name in "abc"))
    await asyncio.sleep(0.15)
    assert at_once == [0, 1]


async def test_a_refusal_reaches_who_asked_and_the_next_one_counts_anew() -> None:
    figures = Figures(SystemClock())

    async def refuse() -> int:
        raise Forbidden("not for you")

    with pytest.raises(Forbidden):
        await figures.get("a", refuse)
    found = await figures.get("a", Count())
    assert found is not None
    assert found.value == 1

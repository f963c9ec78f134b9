"""Time. The core never asks the machine; it asks its `Clock`, so that tests move time by hand and nothing sleeps."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will be called once, unless cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for how long something took, and timers on the monotonic one."""

    def now(self) -> int:
        """Milliseconds since 1970-01-01 UTC. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. Never jumps; may stand still while the machine sleeps."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Calls back on the running loop after `seconds`."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after `seconds`."""
        ...


class SystemClock:
    """The machine's clock and the running loop's timers."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


WAITED_MS = 1000
"""An answer that seems to have waited longer has not: the machine's clock was moved, or the database's."""


class DatabaseClock(SystemClock):
    """The time of a database that several machines share, as far as it is known: the machine's own, put right at every transaction. So a
    machine whose clock is wrong shows and says the same as the others. What is judged is judged by the database itself."""

    def __init__(self) -> None:
        self._behind: int | None = None
        """Milliseconds that the machine is behind, once that is known."""

    def now(self) -> int:
        return super().now() + (self._behind or 0)

    def set(self, now: int) -> None:
        """It was `now` (ms) at the database when that answered. The answer may have waited since, so one that says less than others of
        late is hardly believed: it takes a millisecond off."""
        behind = now - super().now()
        known = behind if self._behind is None else self._behind
        self._behind = known - 1 if 0 < known - behind < WAITED_MS else behind


class _FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A clock that stands still until `advance` moves it. For tests; callbacks run inside `advance`, in order of time.

    `advance` moves wall and monotonic time together; `jump` moves the wall alone, as a user setting the clock or a
    machine waking from sleep does. Neither waits for the tasks that a timer woke: await their effect.
    """

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self._start = start_ms
        self._mono = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _FakeTimer]] = []

    def now(self) -> int:
        return self._start + round(self._mono * 1000)

    def monotonic(self) -> float:
        return self._mono

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = _FakeTimer(callback)
        heapq.heappush(self._timers, (self._mono + max(0.0, seconds), next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        done = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Moves time forward, firing what falls due on the way."""
        end = self._mono + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._mono = due
            if timer.callback is not None:
                timer.callback()
        self._mono = end

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, forward or back; fires nothing."""
        self._start += round(seconds * 1000)

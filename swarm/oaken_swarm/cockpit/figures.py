"""Figures that many look at and that may take long to count: each counted once for all, and not again before it is worth it.

Nobody waits for long: who asks gets the last count with its age where a new one is not there at once. With few jobs, every count is new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from oaken_jobs.clock import Clock
from oaken_jobs.held import described

log = logging.getLogger("oaken.cockpit")

T = TypeVar("T")

PATIENCE_SECONDS = 0.01
SHARE = 20
"""A count is good for so many times as long as it took."""
LONGEST_SECONDS = 60.0
MOST = 500
"""Counts that are kept: those asked for last."""


class Figure(NamedTuple, Generic[T]):
    """A count, and how old it is in milliseconds."""

    value: T
    age: int


@dataclass(slots=True)
class _Kept:
    value: Any = None
    at: float | None = None
    """When it was counted; None before the first time."""
    good_for: float = 0.0
    task: asyncio.Task[None] | None = None


class Figures:
    """Of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Semaphore()
        """One count at a time: what else is read is not to wait behind several."""
        self._kept: dict[Hashable, _Kept] = {}

    async def get(self, key: Hashable, count: Callable[[], Coroutine[Any, Any, T]]) -> Figure[T] | None:
        """The figure of this key; None where it is being counted for the first time and that takes long. Raises what `count` raises while
        somebody waits for it."""
        kept = self._kept.pop(key, None) or _Kept()
        self._kept[key] = kept
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        if kept.at is None or self._clock.monotonic() - kept.at >= kept.good_for:
            if kept.task is None:
                kept.task = asyncio.get_running_loop().create_task(self._count(kept, count), name="figures")
                kept.task.add_done_callback(_told)
            task = kept.task
            await asyncio.wait((task,), timeout=PATIENCE_SECONDS)
            if task.done() and kept.at is None:
                task.result()
        if kept.at is None:
            return None
        return Figure(cast("T", kept.value), round((self._clock.monotonic() - kept.at) * 1000))

    async def _count(self, kept: _Kept, count: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            async with self._turn:
                began = self._clock.monotonic()
                kept.value = await count()
                kept.at = self._clock.monotonic()
                kept.good_for = min(SHARE * (kept.at - began), LONGEST_SECONDS)
        finally:
            kept.task = None


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a figure of the cockpit could not be counted: %s", described(error))

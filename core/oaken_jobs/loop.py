"""The one lifecycle of everything that goes on by itself, and the loop that most of it is."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Literal

from oaken_jobs.clock import Clock
from oaken_jobs.errors import OakenError

log = logging.getLogger("oaken.loop")

State = Literal["stopped", "running", "stopping"]


def cut_short() -> bool:
    """Whether somebody has cancelled the task that runs; otherwise a `CancelledError` is the doing of what it calls."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Lifecycle(ABC):
    """`stopped -> running -> stopping -> stopped`, as often as wanted.

    `start` and `stop` are idempotent, also at once: everybody waits for the same start and the same stop, and a caller that goes
    away ends neither. A subclass says what `_begin` and `_end` do; `_end` returns when nothing goes on any more.
    """

    def __init__(self) -> None:
        self.state: State = "stopped"
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether new work may begin."""
        return self.state == "running"

    @property
    def stopping(self) -> bool:
        """Whether long work should come to its end."""
        return self.state == "stopping"

    async def start(self) -> None:
        """Begins; while a stop is under way, after it. Raises what the beginning raises, and is stopped then."""
        while self._stopping is not None:
            await asyncio.wait((self._stopping,))
        if self.state == "stopped":
            self.state = "running"
            self._starting = asyncio.get_running_loop().create_task(self._start())
        if self._starting is not None:
            await asyncio.shield(self._starting)

    async def stop(self) -> None:
        """Ends, after a start that is under way. Returns when nothing goes on any more."""
        if self.state != "stopped":
            await asyncio.shield(self.begin_stop())

    def begin_stop(self) -> asyncio.Task[None]:
        """`stop`, not waited for. The state is `stopping` at once."""
        if self._stopping is None:
            self.state = "stopping"
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        return self._stopping

    async def _start(self) -> None:
        try:
            await self._begin()
        except BaseException:
            if self._stopping is None:
                self.state = "stopped"
            raise

    async def _stop(self) -> None:
        try:
            if self._starting is not None:
                await asyncio.wait((self._starting,))
                if self._starting.cancelled() or self._starting.exception() is not None:
                    return  # it never began
            await self._end()
        finally:
            self._starting = self._stopping = None
            self.state = "stopped"

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def _end(self) -> None: ...


class Loop(Lifecycle):
    """Calls `tick` again and again, `seconds` apart by the clock, the first time after one pause. An error is logged, and the next
    round comes all the same. A stop waits for the tick in flight."""

    def __init__(self, name: str, tick: Callable[[], Awaitable[None]], clock: Clock, seconds: float) -> None:
        super().__init__()
        self.name = name
        self._tick = tick
        self._clock = clock
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    async def _begin(self) -> None:
        self._leave.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    async def _end(self) -> None:
        self._leave.set()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while not self._leave.is_set():
            pause = asyncio.ensure_future(self._clock.sleep(self._seconds))
            leave = asyncio.ensure_future(self._leave.wait())
            await asyncio.wait((pause, leave), return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()
            leave.cancel()
            if not self._leave.is_set():
                await self._once()

    async def _once(self) -> None:
        try:
            await self._tick()
        except OakenError as error:
            log.warning("%s will try again: %s", self.name, error)
        except (Exception, asyncio.CancelledError):
            if cut_short():
                raise
            log.exception("%s failed; it will try again", self.name)

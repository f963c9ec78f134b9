"""The one lifecycle of everything that goes on by itself: `stopped -> running -> stopping -> stopped`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from oaken_jobs.clock import Clock
from oaken_jobs.errors import OakenError

log = logging.getLogger("oaken.loop")

State = Literal["stopped", "running", "stopping"]


class Loop:
    """Calls `tick` again and again, `seconds` apart by the clock. An error is logged, and the next round comes all the same.

    `start` and `stop` are idempotent, also at once; `stop` waits for the tick in flight, and every caller for the same stop.
    """

    def __init__(self, name: str, tick: Callable[[], Awaitable[None]], clock: Clock, seconds: float) -> None:
        self.name = name
        self.state: State = "stopped"
        self._tick = tick
        self._clock = clock
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether a long tick should come to its end."""
        return self.state == "stopping"

    async def start(self) -> None:
        """Begins; the first tick comes after one pause. Nothing happens if it runs already; while it stops, waits for the stop."""
        while self.state == "stopping" and self._task is not None:
            await asyncio.wait((self._task,))
        if self.state == "stopped":
            self.state = "running"
            self._leave.clear()
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """Ends after the tick in flight."""
        if self._task is None or self.state == "stopped":
            return
        self.state = "stopping"
        self._leave.set()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while not self._leave.is_set():
                pause = asyncio.ensure_future(self._clock.sleep(self._seconds))
                leave = asyncio.ensure_future(self._leave.wait())
                await asyncio.wait((pause, leave), return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                leave.cancel()
                if not self._leave.is_set():
                    await self._once()
        finally:
            self.state = "stopped"

    async def _once(self) -> None:
        try:
            await self._tick()
        except OakenError as error:
            log.warning("%s will try again: %s", self.name, error)
        except Exception:
            log.exception("%s failed; it will try again", self.name)

"""Looks again and again whether a plugin is well, and writes down how it is."""

from __future__ import annotations

import asyncio
from typing import Any

from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.held import described
from oaken_jobs.loop import Loop
from oaken_jobs.plugin import Health, Plugin
from oaken_jobs.redaction import error_text
from oaken_jobs.store.operations import SetHealth

TICK_SECONDS = 1.0
"""How long after the start the first look is, and how exact the time between two."""
CHECK_SECONDS = 10.0
"""How long a check may take; after that the plugin is not well."""


class HealthLoop:
    """One plugin's. `tick` looks if it is time to, for tests and for the loop. `start` and `stop` are idempotent."""

    def __init__(self, plugin: Plugin, health: Health, commit: Committer, clock: Clock) -> None:
        self.plugin = plugin.name
        self._actor = plugin.actor
        self._health = health
        self._commit = commit
        self._clock = clock
        self._due = clock.monotonic()
        self._stopping = False
        self._check: asyncio.Task[Any] | None = None
        """The latest check; it goes on where one ignores its cancellation."""
        self._loop = Loop(f"health of {plugin.name}", self.tick, clock, TICK_SECONDS)

    async def start(self) -> None:
        self._stopping = False
        await self._loop.start()

    async def stop(self) -> None:
        """Ends, with the check in flight."""
        self._stopping = True
        if self._check is not None:
            self._check.cancel()
        await self._loop.stop()
        if self._check is not None:
            await asyncio.wait((self._check,))

    async def tick(self) -> None:
        """One look, if it is time."""
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + self._health.every_seconds
        reason = await self._look()
        if not self._stopping:
            told = None if reason is None else error_text(" ".join(reason.split()) or "it gives no reason")
            await self._commit.call(SetHealth(self.plugin, reason is None, told, self._actor))

    async def _look(self) -> str | None:
        """What is wrong; None for nothing."""
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._asked())
        pause = asyncio.ensure_future(self._clock.sleep(CHECK_SECONDS))
        await asyncio.wait((self._check, pause), return_when=asyncio.FIRST_COMPLETED)
        pause.cancel()
        if not self._check.done():
            self._check.cancel()
            return f"did not answer within {CHECK_SECONDS:g} s"
        return "its check was cancelled" if self._check.cancelled() else self._check.result()

    async def _asked(self) -> str | None:
        try:
            said: object = await self._health.check()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever a check raises is its own, and ends nobody else
            return described(error)
        return None if said is None else str(said)

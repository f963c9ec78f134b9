"""Enqueues what schedules say, when it is due. Every process does it; a slot is a key, so each is fired once however many do."""

from __future__ import annotations

import logging

from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.loop import Loop
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import Fire

log = logging.getLogger("oaken.scheduler")

TICK_SECONDS = 1.0
LOOK_SECONDS = 60.0
"""Between two looks for schedules that a wrong clock has moved too far."""
BATCH = 500
"""Schedules fired in one transaction."""


class Scheduler(Loop):
    """`tick` fires all that is due, for tests and for the loop; a cheap look says whether anything is.

    A clock that was ahead once, for a moment, has moved the schedules that it fired far away; where such are found they get their next
    slot from now.
    """

    def __init__(self, store: Store, commit: Committer, clock: Clock) -> None:
        super().__init__("scheduler", self.tick, clock, TICK_SECONDS)
        self._store = store
        self._commit = commit
        self._look_at = clock.monotonic()

    async def tick(self) -> None:
        """One round: everything that is due now."""
        due = await self._store.next_schedule()
        if not await self._ahead() and (due is None or due > self._clock.now()):
            return
        spread = round(self._store.rules.catch_up_spread * 1000)
        while await self._commit.call(Fire(spread, BATCH)) == BATCH:
            pass

    async def _ahead(self) -> bool:
        if self._clock.monotonic() < self._look_at:
            return False
        self._look_at = self._clock.monotonic() + LOOK_SECONDS
        found = await self._store.schedules_ahead(self._clock.now())
        if found:
            log.warning("the clock was ahead for a time; schedules that ran then get their next run from now")
        return found

"""Enqueues what schedules say, when it is due. Every process does it; a slot is a key, so each is fired once however many do."""

from __future__ import annotations

from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.loop import Loop
from oaken_jobs.store.base import Fire, Store

TICK_SECONDS = 1.0
BATCH = 500
"""Schedules fired in one transaction."""


class Scheduler(Loop):
    """`tick` fires all that is due, for tests and for the loop; a cheap look says whether anything is."""

    def __init__(self, store: Store, commit: Committer, clock: Clock) -> None:
        super().__init__("scheduler", self.tick, clock, TICK_SECONDS)
        self._store = store
        self._commit = commit

    async def tick(self) -> None:
        """One round: everything that is due now."""
        due = await self._store.next_schedule()
        if due is None or due > self._clock.now():
            return
        spread = round(self._store.rules.catch_up_spread * 1000)
        while await self._commit.call(Fire(spread, BATCH)) == BATCH:
            pass

"""Forgets what is older than it is kept: small transactions, pauses between, a loop of its own. No claim and no schedule waits."""

from __future__ import annotations

from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.config import LogSettings
from oaken_jobs.loop import Loop
from oaken_jobs.store.base import Prune, Store

TICK_SECONDS = 60.0
BATCH = 200
"""Rows of each sort forgotten in one transaction: a few milliseconds."""
PAUSE_SECONDS = 0.02
"""Between two transactions."""
DAY_MS = 86_400_000


class Pruner(Loop):
    """`tick` forgets all that is due, for tests and for the loop."""

    def __init__(self, store: Store, commit: Committer, clock: Clock, log: LogSettings) -> None:
        super().__init__("pruner", self.tick, clock, TICK_SECONDS)
        self._store = store
        self._commit = commit
        self._log = log

    async def tick(self) -> None:
        """One round: everything that is too old now, or until the loop is told to stop."""
        rules = self._store.rules
        now = self._clock.now()
        before, log_before = now - round(rules.keep_days * DAY_MS), now - round(self._log.keep_days * DAY_MS)
        while not self.stopping:
            if await self._commit.call(Prune(before, log_before, rules.event_ring_size, BATCH)) < BATCH:
                return
            await self._clock.sleep(PAUSE_SECONDS)

"""Forgets what is older than it is kept: small transactions, pauses between, a loop of its own. No claim and no schedule waits."""

from __future__ import annotations

import logging

from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.errors import Unavailable
from oaken_jobs.loop import Loop
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import Prune
from oaken_jobs.tracing import Trace

log = logging.getLogger("oaken.pruning")

TICK_SECONDS = 60.0
BATCH = 200
"""Rows of each sort forgotten in one transaction: a few milliseconds."""
PAUSE_SECONDS = 0.02
"""Between two transactions."""
TRACE_SECONDS = 3600.0
"""Between two looks at the trace: to forget a part of it is to copy the rest."""
DAY_MS = 86_400_000
JUMP_MS = 3_600_000
"""A wall clock that went forward by so much more than time passed may be wrong."""
BELIEF_SECONDS = 3600.0
"""How long such a clock must have stood before anything is forgotten by it."""


class Pruner(Loop):
    """`tick` forgets all that is due, for tests and for the loop.

    What is forgotten does not come back, so a clock that has jumped ahead is believed only after an hour.
    """

    def __init__(self, store: Store, commit: Committer, clock: Clock, trace: Trace | None = None) -> None:
        super().__init__("pruner", self.tick, clock, TICK_SECONDS)
        self._store = store
        self._commit = commit
        self._trace = trace
        self._forgot_at = float("-inf")
        self._offset = self._wall_offset()
        self._believed_at = float("-inf")

    async def tick(self) -> None:
        """One round: everything that is too old now, or until the loop is told to stop."""
        if not self._believed():
            return
        await self._forget_trace()
        await self._forget_jobs()
        await self._forget_activity()

    async def _forget_jobs(self) -> None:
        """Jobs with what belongs to them, log lines and audit rows."""
        while not self.stopping and await self._commit.call(self._op()) >= BATCH:
            await self._clock.sleep(PAUSE_SECONDS)

    async def _forget_activity(self) -> None:
        """What is about no job that is there. After the jobs: until they are gone, all rows of theirs would be passed over each time.
        Looked for outside the transaction, since there may be many rows to pass over all the same."""
        after = 0
        while not self.stopping:
            op = self._op()
            op.activity = await self._store.old_activity(after, op.before, op.replayable, BATCH)
            if op.activity:
                await self._commit.call(op)
            if len(op.activity) < BATCH:
                return
            after = op.activity[-1]
            await self._clock.sleep(PAUSE_SECONDS)

    def _op(self) -> Prune:
        rules, now = self._store.rules, self._clock.now()
        return Prune(
            before=now - round(rules.keep_days * DAY_MS),
            log_before=now - round(rules.log_keep_days * DAY_MS),
            audit_before=now - round(rules.audit_keep_days * DAY_MS),
            replayable=rules.event_ring_size,
            activity=[],
            limit=BATCH,
        )

    def _believed(self) -> bool:
        """Whether the wall clock has gone as time did for long enough."""
        before, self._offset = self._offset, self._wall_offset()
        if self._offset - before > JUMP_MS:
            self._believed_at = self._clock.monotonic() + BELIEF_SECONDS
            log.warning(
                "the clock jumped ahead by %.1f h; nothing is forgotten for an hour", (self._offset - before) / 3.6e6
            )
        return self._clock.monotonic() >= self._believed_at

    def _wall_offset(self) -> float:
        """Wall time less monotonic time, in milliseconds: constant but for jumps."""
        return self._clock.now() - self._clock.monotonic() * 1000

    async def _forget_trace(self) -> None:
        if self._trace is None or self._clock.monotonic() - self._forgot_at < TRACE_SECONDS:
            return
        self._forgot_at = self._clock.monotonic()
        try:
            await self._trace.forget()
        except Unavailable as error:
            log.warning("old rows of the trace could not be forgotten: %s", error.message)

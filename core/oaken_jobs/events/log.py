"""The event log: a file with every public event, one JSON object a line, written once however many processes share the data folder."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import Any

import orjson

from oaken_jobs import views
from oaken_jobs.clock import Clock
from oaken_jobs.events import event
from oaken_jobs.journal import Journal
from oaken_jobs.loop import Loop
from oaken_jobs.model import Activity
from oaken_jobs.store.base import Store

log = logging.getLogger("oaken.events")

TICK_SECONDS = 0.5
PAGE = 1000
COMPLAIN_SECONDS = 60.0
"""Between two lines about a file that cannot be written."""


class EventLog(Loop):
    """Every long-lived process writes, whoever has the lock. The file is its own cursor: what comes next is what follows its last
    line, so that a line is written once although its writer was killed. A new file begins with the newest `replayable` events.

    `tick` writes all there is, for tests and for the loop; the last one comes at the stop.
    """

    def __init__(self, store: Store, clock: Clock, journal: Journal, replayable: int) -> None:
        super().__init__("event log", self.tick, clock, TICK_SECONDS)
        self._store = store
        self._journal = journal
        self._replayable = replayable
        self._written = -1
        """The newest event that is known to be in the file."""
        self._silent_until = 0.0

    async def tick(self) -> None:
        """One round; nothing where there is no news, or another process is at it."""
        if await self._store.activity_head() == self._written:
            return
        try:
            with self._journal.try_lock() as ours:
                if ours:
                    await self._write()
        except OSError as error:
            self._complain(error)

    async def _write(self) -> None:
        head = await self._store.activity_head()
        cursor = await asyncio.to_thread(self._last)
        if cursor is None or cursor > head:  # a new file, or one of another database
            cursor = await self._store.activity_behind(self._replayable)
        while True:
            rows = await self._store.activity(cursor, PAGE)
            if rows:
                lines = b"".join([line(row) for row in rows])
                await asyncio.to_thread(self._journal.append, lines)
                cursor = rows[-1].id
            if len(rows) < PAGE:
                self._written = max(cursor, head)
                return

    def _last(self) -> int | None:
        """The id in the newest line that has one; a file that others have written to does not hold it up."""
        for line in self._journal.backwards():
            try:
                return int(orjson.loads(line)["id"])
            except (ValueError, TypeError, KeyError):
                continue
        return None

    def _complain(self, error: OSError) -> None:
        if self._clock.monotonic() >= self._silent_until:
            self._silent_until = self._clock.monotonic() + COMPLAIN_SECONDS
            log.warning(
                "%s cannot be written (%s); events are added once it can", self._journal.path, error.strerror or error
            )

    async def _end(self) -> None:
        await super()._end()
        await self._once()


def line(row: Activity) -> bytes:
    """The line of an event."""
    if row.event != "job_state_changed" or row.job_id is None:
        return orjson.dumps(views.event(event.of(row)), option=orjson.OPT_APPEND_NEWLINE)
    before, behind = _but_for_its_job(row[2:4] + row[5:])
    at = views.iso(row.at) or ""
    return b'{"id":"%d","ts":"%b",%b%d%b' % (row.id, at.encode(), before, row.job_id, behind)


_SOME_JOB = 1
_BEGIN = len(b'{"id":"0","ts":"1970-01-01T00:00:00.000Z",')


@lru_cache(1024)
def _but_for_its_job(alike: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """What stands in the line of such a row before and behind the id of its job, without its own id and time. Most rows of one moment
    differ in these alone; each written by itself took three times as long, a twentieth of all that a busy server did."""
    some = Activity._make((0, 0, *alike[:2], _SOME_JOB, *alike[2:]))
    text = orjson.dumps(views.event(event.of(some)), option=orjson.OPT_APPEND_NEWLINE)
    before, mark, behind = text[_BEGIN:].partition(b'"job_id":%d' % _SOME_JOB)
    return before + mark[:-1], behind

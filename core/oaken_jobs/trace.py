"""The private record of what models and agents were told and what they answered, kept in an `Archive`.

Rows of callers that come at the same time are written together. A call returns when its rows are written. A disk that refuses, or hangs,
fails nobody's call: its rows are dropped and counted, and the next ones are tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, TypeVar

import orjson

from oaken_jobs import spans
from oaken_jobs.archive import Archive, Kept
from oaken_jobs.clock import Clock
from oaken_jobs.errors import Unavailable
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Job, Json, Leased, Principal
from oaken_jobs.tracing import End, TracePage

log = logging.getLogger("oaken.trace")

T = TypeVar("T")

WAIT_SECONDS = 2.0
"""How long a caller waits for its rows; while the disk hangs beyond that, none waits."""
WAITING_BYTES = 64 << 20
"""Of rows that wait to be written; more are dropped."""
TELL_SECONDS = 60.0
DAY_MS = 86_400_000


class _Waiting(NamedTuple):
    rows: list[Kept]
    written: asyncio.Future[None]


class Recorder:
    """A `Trace` in an archive, which it closes. One a process; `stop` it when nobody calls any more."""

    def __init__(self, archive: Archive, clock: Clock, *, recording: bool, keep_days: float) -> None:
        self.recording = recording
        self.told: Callable[[Json], None] = lambda row: None
        self._archive = archive
        self._clock = clock
        self._keep_ms = round(keep_days * DAY_MS)
        self._waiting: list[_Waiting] = []
        self._in_flight = 0
        """Rows that are being written."""
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._hangs = False
        self._lost = 0
        self._told_at = float("-inf")

    async def leased(self, who: Principal, leases: Sequence[Leased], rules: Rules) -> None:
        now = self._clock.now()
        await self._write(now, leases, lambda lease: spans.leased(who, lease, rules, now))

    async def finished(self, who: Principal, ends: Sequence[End], rules: Rules) -> None:
        now = self._clock.now()
        await self._write(now, ends, lambda end: spans.finished(who, end, rules, now))

    async def said(self, who: Principal, job: Job, rows: Sequence[Json], rules: Rules) -> None:
        now = self._clock.now()
        await self._write(now, rows, lambda row: spans.said(who, job, row, rules, now))

    async def read(self, *, job_id: int | None, agent: str | None, before: str | None, limit: int) -> TracePage:
        return await self._archive.read(job_id=job_id, agent=agent, before=before, limit=limit)

    def follow(self) -> AsyncGenerator[list[Json]]:
        return self._archive.follow(self._clock)

    async def forget(self) -> None:
        await self._archive.forget(self._clock.now() - self._keep_ms)

    async def stop(self) -> None:
        if self._task is not None:
            _, pending = await asyncio.wait((self._task,), timeout=WAIT_SECONDS)
            for task in pending:
                task.cancel()
        self._lost += self._in_flight + sum(len(one.rows) for one in self._waiting)
        if self._lost:
            self._tell("the process stops")
        await self._archive.close()

    async def _write(self, now: int, told: Sequence[T], row_of: Callable[[T], Json]) -> None:
        try:
            rows = [row_of(one) for one in told]
            kept = [Kept(row["id"], now, row["job_id"], row["agent"], orjson.dumps(row)) for row in rows]
        except (TypeError, ValueError) as error:  # text that is no Unicode, from inside this process
            self._lose(len(told), type(error).__name__)
            return
        size = _size(kept)
        if self._bytes and self._bytes + size > WAITING_BYTES:
            self._lose(len(told), "the disk is too slow")
            return
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(kept, written))
        self._bytes += size
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain(), name="trace")
        if not self._hangs:
            await asyncio.wait((written,), timeout=WAIT_SECONDS)
            self._hangs = not written.done()
        for row in rows:
            self.told(row)

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            rows = [row for one in batch for row in one.rows]
            self._in_flight = len(rows)
            try:
                await self._archive.add(rows)
            except Exception as error:  # whatever it is, nobody's call fails for it
                self._lose(self._in_flight, error.message if isinstance(error, Unavailable) else type(error).__name__)
            self._in_flight = 0
            self._hangs = False
            self._bytes -= _size(rows)
            for one in batch:
                one.written.set_result(None)
        self._task = None

    def _lose(self, rows: int, why: str) -> None:
        self._lost += rows
        if self._clock.monotonic() - self._told_at >= TELL_SECONDS:
            self._tell(why)

    def _tell(self, why: str) -> None:
        self._told_at = self._clock.monotonic()
        log.warning("%d rows of the trace could not be written to %s: %s", self._lost, self._archive.place, why)
        self._lost = 0


def _size(rows: Sequence[Kept]) -> int:
    return sum(len(row.text) for row in rows)

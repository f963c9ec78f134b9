"""The private record of what models and agents were told and what they answered, in a journal of the owner's alone.

Rows of callers that come at the same time are written together. A call returns when its rows are written. A disk that refuses, or hangs,
fails nobody's call: its rows are dropped and counted, and the next ones are tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson

from oaken_jobs import spans
from oaken_jobs.clock import Clock
from oaken_jobs.errors import Unavailable
from oaken_jobs.journal import Follow, Journal
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Job, Json, Leased, Principal
from oaken_jobs.tracing import End, TracePage, matches

log = logging.getLogger("oaken.trace")

T = TypeVar("T")

WAIT_SECONDS = 2.0
"""How long a caller waits for its rows; while the disk hangs beyond that, none waits."""
WAITING_BYTES = 64 << 20
"""Of rows that wait to be written; more are dropped."""
TELL_SECONDS = 60.0
PAGE_BYTES = 16 << 20
DAY_MS = 86_400_000
FOLLOW_SECONDS = 0.5
"""Between two looks for new rows."""
FOLLOW_ROWS = 100


class _Waiting(NamedTuple):
    lines: bytes
    rows: int
    written: asyncio.Future[None]


class Recorder:
    """A `Trace` in a journal. One a process; `stop` it when nobody calls any more."""

    def __init__(self, journal: Journal, clock: Clock, *, recording: bool, keep_days: float) -> None:
        self.recording = recording
        self.told: Callable[[Json], None] = lambda row: None
        self._journal = journal
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
        # A thread of its own: the loop's others may all be at work for handlers.
        self._thread = ThreadPoolExecutor(1, "oaken-trace")

    async def leased(self, who: Principal, leases: Sequence[Leased], rules: Rules) -> None:
        now = self._clock.now()
        await self._write(leases, lambda lease: spans.leased(who, lease, rules, now))

    async def finished(self, who: Principal, ends: Sequence[End], rules: Rules) -> None:
        now = self._clock.now()
        await self._write(ends, lambda end: spans.finished(who, end, rules, now))

    async def said(self, who: Principal, job: Job, rows: Sequence[Json], rules: Rules) -> None:
        now = self._clock.now()
        await self._write(rows, lambda row: spans.said(who, job, row, rules, now))

    async def read(self, *, job_id: int | None, agent: str | None, before: str | None, limit: int) -> TracePage:
        try:
            return await asyncio.to_thread(self._page, job_id, agent, before, limit)
        except OSError as error:
            raise Unavailable(f"The trace cannot be read ({error.strerror}).") from None

    async def follow(self) -> AsyncGenerator[list[Json]]:
        try:
            following = await asyncio.to_thread(Follow, self._journal)
            try:
                while True:
                    if lines := await asyncio.to_thread(following.read, FOLLOW_ROWS):
                        yield [row for line in lines if (row := _row(line)) is not None]
                    else:
                        await self._clock.sleep(FOLLOW_SECONDS)
            finally:
                following.close()
        except OSError as error:
            raise Unavailable(f"The trace cannot be read ({error.strerror}).") from None

    async def forget(self) -> None:
        await self._in_thread(lambda: self._journal.forget(self._clock.now() - self._keep_ms))

    async def stop(self) -> None:
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=WAIT_SECONDS)
        self._lost += self._in_flight + sum(one.rows for one in self._waiting)
        if self._lost:
            self._tell("the process stops")
        self._thread.shutdown(wait=False)

    async def _write(self, told: Sequence[T], row_of: Callable[[T], Json]) -> None:
        try:
            rows = [row_of(one) for one in told]
            lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        except (TypeError, ValueError) as error:  # text that is no Unicode, from inside this process
            self._lose(len(told), type(error).__name__)
            return
        if self._bytes and self._bytes + len(lines) > WAITING_BYTES:
            self._lose(len(told), "the disk is too slow")
            return
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(lines, len(told), written))
        self._bytes += len(lines)
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
            lines = b"".join(one.lines for one in batch)
            self._in_flight = sum(one.rows for one in batch)
            try:
                await self._in_thread(partial(self._append, lines))
            except Exception as error:  # whatever it is, nobody's call fails for it
                self._lose(self._in_flight, getattr(error, "strerror", None) or type(error).__name__)
            self._in_flight = 0
            self._hangs = False
            self._bytes -= len(lines)
            for one in batch:
                one.written.set_result(None)
        self._task = None

    def _append(self, lines: bytes) -> None:
        with self._journal.lock():
            self._journal.append(lines)

    async def _in_thread(self, act: Callable[[], Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, act)

    def _lose(self, rows: int, why: str) -> None:
        self._lost += rows
        if self._clock.monotonic() - self._told_at >= TELL_SECONDS:
            self._tell(why)

    def _tell(self, why: str) -> None:
        self._told_at = self._clock.monotonic()
        log.warning("%d rows of the trace could not be written to %s: %s", self._lost, self._journal.path, why)
        self._lost = 0

    def _page(self, job_id: int | None, agent: str | None, before: str | None, limit: int) -> TracePage:
        rows: list[Json] = []
        size = 0
        for line, row in self._found(job_id, agent, before):
            if len(rows) == limit or (rows and size + len(line) > PAGE_BYTES):
                return TracePage(rows, rows[-1]["id"])
            rows.append(row)
            size += len(line)
        return TracePage(rows, None)

    def _found(self, job_id: int | None, agent: str | None, before: str | None) -> Iterator[tuple[bytes, Json]]:
        lines = self._journal.backwards()
        if before is not None:
            start = f'{{"id":"{before}",'.encode()
            any(line.startswith(start) for line in lines)
        hint = b"" if job_id is None else f'"job_id":{job_id},'.encode()  # tells most others without reading them
        for line in lines:
            if hint not in line:
                continue
            row = _row(line)
            if row is not None and matches(row, job_id, agent):
                yield line, row


def _row(line: bytes) -> Json | None:
    """None for a line that is not ours."""
    try:
        row: Json = orjson.loads(line)
        return row if isinstance(row["job_id"], int) and isinstance(row["agent"], str) else None
    except (ValueError, TypeError, KeyError):
        return None

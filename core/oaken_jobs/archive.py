"""Where the trace is kept: in a journal of the owner's alone, or, where jobs are on PostgreSQL, in a table with rights of its own
(`store/postgres/archive.py`). What is in it, and who waits for it, is `trace`'s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import orjson

from oaken_jobs.clock import Clock
from oaken_jobs.errors import Unavailable
from oaken_jobs.journal import Follow, Journal
from oaken_jobs.model import Json
from oaken_jobs.tracing import TracePage, matches

PAGE_BYTES = 16 << 20
"""Of the rows of a page; one row is shown whatever it has."""
FOLLOW_SECONDS = 0.5
"""Between two looks for new rows."""
FOLLOW_ROWS = 100


class Kept(NamedTuple):
    """A row of the trace as it is kept, and what it is found by."""

    id: str
    at: int
    job_id: int
    agent: str
    text: bytes
    """JSON."""


class Archive(Protocol):
    """Keeps rows in their order, those that were added together next to each other."""

    place: str
    """For people: a file or a database."""

    async def add(self, rows: Sequence[Kept]) -> None:
        """Returns when they are kept. Raises `Unavailable`, which says why they are not, without a word of them."""
        ...

    async def read(self, *, job_id: int | None, agent: str | None, before: str | None, limit: int) -> TracePage:
        """As `Trace.read`."""
        ...

    def follow(self, clock: Clock) -> AsyncGenerator[list[Json]]:
        """As `Trace.follow`."""
        ...

    async def forget(self, before: int) -> None:
        """Drops what is older than a moment (ms). Raises `Unavailable`."""
        ...

    async def close(self) -> None:
        """Waits for nothing that is still being added."""
        ...


class JournalArchive:
    """A trace in a file. As large as the journal lets it become."""

    def __init__(self, journal: Journal) -> None:
        self.place = str(journal.path)
        self._journal = journal
        # A thread of its own: the loop's others may all be at work for handlers.
        self._thread = ThreadPoolExecutor(1, "oaken-trace")

    async def add(self, rows: Sequence[Kept]) -> None:
        try:
            await self._in_thread(self._append, b"".join(row.text + b"\n" for row in rows))
        except OSError as error:
            raise Unavailable(_why(error)) from None

    def _append(self, lines: bytes) -> None:
        with self._journal.lock():
            self._journal.append(lines)

    async def read(self, *, job_id: int | None, agent: str | None, before: str | None, limit: int) -> TracePage:
        try:
            return await asyncio.to_thread(self._page, job_id, agent, before, limit)
        except OSError as error:
            raise Unavailable(f"The trace cannot be read ({_why(error)}).") from None

    async def follow(self, clock: Clock) -> AsyncGenerator[list[Json]]:
        try:
            following = await asyncio.to_thread(Follow, self._journal)
            try:
                while True:
                    if lines := await asyncio.to_thread(following.read, FOLLOW_ROWS):
                        yield [row for line in lines if (row := row_of(line)) is not None]
                    else:
                        await clock.sleep(FOLLOW_SECONDS)
            finally:
                following.close()
        except OSError as error:
            raise Unavailable(f"The trace cannot be read ({_why(error)}).") from None

    async def forget(self, before: int) -> None:
        try:
            await self._in_thread(self._journal.forget, before)
        except OSError as error:
            raise Unavailable(_why(error)) from None

    async def close(self) -> None:
        self._thread.shutdown(wait=False)

    async def _in_thread(self, act: Any, *args: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, act, *args)

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
            row = row_of(line)
            if row is not None and matches(row, job_id, agent):
                yield line, row


def row_of(text: bytes | str) -> Json | None:
    """What was kept; None for a text that is not ours."""
    try:
        row: Json = orjson.loads(text)
        whole = isinstance(row["job_id"], int) and all(isinstance(row[name], str) for name in ("id", "ts", "agent"))
        return row if whole else None
    except (ValueError, TypeError, KeyError):
        return None


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__

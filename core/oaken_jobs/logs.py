"""Log lines: kept in the database, or in a file where one is set, so that an admin can ask later; secrets redacted."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Final

import orjson

from oaken_jobs import auth, redaction, views
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.errors import Conflict
from oaken_jobs.events.bus import Bus
from oaken_jobs.events.event import LogLine
from oaken_jobs.journal import Journal
from oaken_jobs.loop import Loop
from oaken_jobs.model import LogRow, Principal
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import KeepLog

TICK_SECONDS = 0.5
MOST_WAITING = 2_000
"""Lines that wait to be written; more are dropped, and counted."""
MOST_A_MINUTE = 3_000
"""Lines that are kept of a minute; more are dropped, and counted."""
TRIES = 60
"""How often the same lines are tried; half a minute at least. Then they are dropped, and counted, for those behind them."""
LOGGER_LIMIT = 200
MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 6_000
LEVELS: Final = ("debug", "info", "warning", "error")


class LogKeeper(Loop):
    """Keeps what this process logs from its start to its stop. `tick` writes what waits, for tests and for the loop.

    In the table of the database, or as lines of JSON in `journal` where there is one.
    """

    def __init__(self, commit: Committer, clock: Clock, bus: Bus, role: str, journal: Journal | None) -> None:
        super().__init__("log keeper", self.tick, clock, TICK_SECONDS)
        self._commit = commit
        self._bus = bus
        self._journal = journal
        self._process = f"{role} {os.getpid()}"
        self._handler = _Handler(clock)
        self._failures = 0

    async def tick(self) -> None:
        """One round."""
        await self._write(self._handler.taken())

    async def _write(self, lines: Sequence[LogLine]) -> None:
        if not lines:
            return
        try:
            await self._keep(lines)
        except Exception:  # said nowhere: the log is what does not work
            self._failures += 1
            if self._failures % TRIES:
                self._handler.give_back(lines)
            else:
                self._handler.drop(len(lines))
            return
        self._failures = 0
        for line in lines:
            self._bus.tell(line)

    async def _keep(self, lines: Sequence[LogLine]) -> None:
        if self._journal is None:
            rows = [LogRow(0, line.at, line.level, line.logger, line.message, self._process) for line in lines]
            await self._commit.call(KeepLog(rows))
        else:
            await asyncio.to_thread(self._append, self._journal, lines)

    def _append(self, journal: Journal, lines: Sequence[LogLine]) -> None:
        rows = (LogRow(0, line.at, line.level, line.logger, line.message, self._process) for line in lines)
        data = b"".join(orjson.dumps(views.log_line(row)) + b"\n" for row in rows)
        with journal.lock():
            journal.append(data)

    def listen(self) -> None:
        """Catches what is logged from here on, to be kept once the start is through."""
        logging.getLogger().addHandler(self._handler)

    async def stop(self) -> None:
        if self.state == "stopped":
            logging.getLogger().removeHandler(self._handler)  # it listened to a start that failed
        await super().stop()

    async def _begin(self) -> None:
        self.listen()
        await super()._begin()

    async def _end(self) -> None:
        logging.getLogger().removeHandler(self._handler)
        await super()._end()
        await self._write(self._handler.taken(all_told=True))


class _Handler(logging.Handler):
    """What was logged and waits to be written, from any thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lines: deque[LogLine] = deque()
        self._dropped = 0
        self._minute = clock.monotonic()
        self._of_minute = 0
        self._access = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            name = redaction.clean(record.name, LOGGER_LIMIT)
            line = LogLine(self._clock.now(), _level(record.levelno), name, _message(record))
        except Exception:
            self.handleError(record)
            return
        with self._access:
            if self._room() and len(self._lines) < MOST_WAITING:
                self._of_minute += 1
                self._lines.append(line)
            else:
                self._dropped += 1

    def taken(self, *, all_told: bool = False) -> list[LogLine]:
        """All that waits; it does not wait any more. How many were lost is told when there is room again, or with `all_told`."""
        with self._access:
            lines, dropped = list(self._lines), self._dropped
            self._lines.clear()
            told = dropped > 0 and (self._room() or all_told)
            if told:
                self._dropped = 0
        if told:
            lines.append(
                LogLine(self._clock.now(), "warning", "oaken.log", f"{dropped} lines before this one were lost")
            )
        return lines

    def give_back(self, lines: Sequence[LogLine]) -> None:
        """They wait again, as far as there is room."""
        with self._access:
            room = MOST_WAITING - len(self._lines)
            self._lines.extendleft(reversed(lines[:room]))
            self._dropped += max(0, len(lines) - room)

    def drop(self, count: int) -> None:
        """So many that were taken are lost."""
        with self._access:
            self._dropped += count

    def _room(self) -> bool:
        """Whether this minute may have one more line."""
        if self._clock.monotonic() - self._minute >= 60:
            self._minute, self._of_minute = self._clock.monotonic(), 0
        return self._of_minute < MOST_A_MINUTE


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def _message(record: logging.LogRecord) -> str:
    text = redaction.beginning(record.getMessage(), MESSAGE_LIMIT)
    if record.exc_info and record.exc_info[1] is not None:
        told = "".join(traceback.format_exception(record.exc_info[1]))
        text += "\n" + redaction.end(told, TRACEBACK_LIMIT).rstrip()
    return text


class Logs:
    """Reading what was kept, for admins."""

    def __init__(self, store: Store, file: str | None) -> None:
        """`file` is where the lines go if it is not the database."""
        self._store = store
        self._file = file

    async def list(
        self,
        who: Principal,
        *,
        level: str = "debug",
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> Sequence[LogRow]:
        """Lines of this level or above: the newest first, older than the line `before`; or with `after` what came after that line, the
        oldest first. Raises `Conflict` where lines go to a file."""
        auth.require(who, "administer")
        if self._file is not None:
            raise Conflict(f"Log lines go to the file {self._file} ([log] file), not to the database. Read that file.")
        levels = LEVELS[LEVELS.index(level) :]
        return await self._store.log_lines(levels, before, after, limit)

"""The SQLite library itself, and a connection that runs whole functions on its thread.

`pysqlite3` bundles a current SQLite. The standard library's is taken where there is no such wheel; versions 3.7.0 to 3.51.2 can
corrupt a WAL database when several connections write and checkpoint, so `unsafe_version` is asked at start and by `oaken doctor`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import aiosqlite
import orjson

from oaken_jobs.model import Job
from oaken_jobs.store.sql.claim import DUE, NEXT_EXPIRY
from oaken_jobs.store.sql.database import Row, adding
from oaken_jobs.store.sql.lane import Filter
from oaken_jobs.store.sql.unit import JOBS_BY_ID, PAYLOADS_BY_ID
from oaken_jobs.store.sqlite.dialect import own
from oaken_jobs.store.sqlite.queries import QUERIES
from oaken_jobs.store.sqlite.rows import insert, update

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        import pysqlite3 as sqlite3
    except ImportError:
        import sqlite3

P = ParamSpec("P")
T = TypeVar("T")

Error = sqlite3.Error
OperationalError = sqlite3.OperationalError

SAFE_FROM = (3, 51, 3)
BUSY_SECONDS = 30

# It would log statements with their parameters, which hold payloads.
logging.getLogger("aiosqlite").setLevel(logging.WARNING)


def version() -> str:
    """Of the SQLite in use."""
    return sqlite3.sqlite_version


def unsafe_version() -> str | None:
    """A sentence about the danger where the SQLite in use has it, else None."""
    if tuple(int(part) for part in version().split(".")) >= SAFE_FROM:
        return None
    return (
        f"SQLite {version()} can corrupt a database that several connections write to. "
        f"Install the package pysqlite3 (a wheel with SQLite {'.'.join(map(str, SAFE_FROM))} or newer), or a newer Python."
    )


class Database(sqlite3.Connection):
    """A connection of the library's that speaks the dialect of both engines; see `oaken_jobs.store.sql.database`."""

    queries = QUERIES
    concurrent = False

    def all(self, statement: str, *values: Any) -> Sequence[Row]:
        return self.execute(own(statement), values).fetchall()

    def one(self, statement: str, *values: Any) -> Row | None:
        found = self.execute(own(statement), values).fetchall()
        return found[0] if found else None

    def run(self, statement: str, *values: Any) -> int:
        return self.execute(own(statement), values).rowcount

    def listed(self, statement: str, *values: Any) -> Sequence[Row]:
        return orjson.loads(self.execute(statement, values).fetchall()[0][0])

    def many(self, columns: tuple[str, ...], statement: str, *values: Any) -> Sequence[Row]:
        return self.listed(own(_in_one(columns, statement)), *values)

    def reserve(self, ids: Sequence[int], new: int) -> Iterable[Job]:
        return self.jobs(ids, wait=True)

    def jobs(self, ids: Sequence[int], *, wait: bool) -> Iterable[Job]:
        return [Job._make(row) for row in self.all(JOBS_BY_ID, self.array(ids))]

    def head(self, *values: Any) -> Sequence[Row]:
        return self.listed(QUERIES.head, *values)

    def lanes(self, filter: Filter, now: int | None, *, look: bool) -> tuple[Sequence[Row], bool]:
        query = QUERIES.lanes if filter.within is None else QUERIES.lanes_within
        return self.listed(query, *filter.values(self.array)), True

    def due(self, now: int, limit: int) -> Sequence[Row]:
        return self.all(DUE, now, limit, 0)

    def next_expiry(self, now: int) -> int | None:
        return self.all(NEXT_EXPIRY)[0][0]

    def payloads(self, ids: Sequence[int]) -> dict[int, str]:
        return dict(self.execute(own(PAYLOADS_BY_ID), (self.array(ids),)).fetchall())

    def known(self, job_id: int) -> Job | None:
        return None

    def array(self, values: Iterable[Any]) -> Any:
        return orjson.dumps(list(values)).decode()

    def columns(self, rows: Iterable[Row], width: int) -> tuple[Any, ...]:
        return (orjson.dumps([tuple(row) for row in rows]).decode(),)

    def insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        insert(self, f"insert into {table}", columns, rows)

    def replace(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        insert(self, f"insert or replace into {table}", columns, rows)

    def count(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        insert(self, f"insert into {table}", columns, rows, adding(table, key, columns))

    def update(self, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        update(self, table, keys, columns, rows)

    def new_job_ids(self, count: int) -> Sequence[int]:
        row = self.one(QUERIES.last_job)
        first = (row[0] if row else 0) + 1
        return range(first, first + count)

    def add_activity(self, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        insert(self, "insert into activity", columns, rows)

    def lock(self, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        """One transaction runs at a time."""


@lru_cache(maxsize=64)
def _in_one(columns: tuple[str, ...], statement: str) -> str:
    return f"select json_group_array(json_array({', '.join(columns)})) from ({statement})"


class Connection(aiosqlite.Connection):
    """A connection on a thread of its own; `run` is one hop there and back, however many statements the function makes."""

    async def run(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function(database, ...)` on the connection's thread."""
        result: Any = await self._execute(function, self._conn, *args, **kwargs)  # pyright: ignore
        return result

    async def ended(self) -> None:
        """Returns when the thread of a connection that could not be opened has ended: it has a last word to the loop."""
        await asyncio.to_thread(self._thread.join)  # pyright: ignore[reportPrivateUsage]


def data_version(database: Database) -> int:
    """A number that is another one after every commit of other connections."""
    return int(database.execute("pragma data_version").fetchone()[0])


async def connect(path: Path, *, readonly: bool = False) -> Connection:
    """A connection to an existing file, set up for many processes and no loss at a power cut."""

    def open_here() -> Database:
        mode = "ro" if readonly else "rw"
        database = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=BUSY_SECONDS,
            cached_statements=512,
            factory=Database,
        )
        try:
            for pragma in (
                "synchronous = full",
                "temp_store = memory",
                "cache_size = -32768",
                "journal_size_limit = 67108864",
            ):
                database.execute(f"pragma {pragma}").fetchall()
            if not readonly:
                _use_wal(database)
        except BaseException:
            database.close()
            raise
        return database

    connection = Connection(open_here, 64)
    try:
        await connection
    except BaseException:
        await connection.ended()
        raise
    return connection


def _use_wal(database: Database) -> None:
    """Switches a new database to WAL; the busy timeout does not cover that, so several that start at once take turns here."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            database.execute("pragma journal_mode = wal").fetchall()
            return
        except OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def create_file(path: Path) -> None:
    """Makes an empty file that only its owner may read, with its folder, unless it is there.

    SQLite gives its log the mode of the database. An existing file is never opened here: closing any descriptor of it would
    drop the locks that SQLite holds in this process.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        pass


def copy(database: Database, target: Path) -> str | None:
    """Copies the database as it is at this moment, others writing meanwhile or not; what is wrong with the copy, None for nothing."""
    into = sqlite3.connect(target, isolation_level=None)
    try:
        database.backup(into)
        into.execute("delete from processes")  # none of those has the copy open
        into.execute("pragma journal_mode = delete").fetchall()  # one file, without a log beside it
        found = into.execute("pragma quick_check").fetchall()[0][0]
        return None if found == "ok" else str(found)
    finally:
        into.close()

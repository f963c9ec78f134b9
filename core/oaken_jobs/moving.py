"""Moves all that a data folder keeps, its trace too, into an empty PostgreSQL database, ids and all. The folder stays as it is.

It is read as it was at one moment, twice: to know what it is (its figures name the copy, so that one that ended half-way is only ever gone
on with from the same source), and to be copied. In the end the copy is summed up by the database it is in, and must have the same figures.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from oaken_jobs.archive import Kept, row_of
from oaken_jobs.clock import Clock
from oaken_jobs.errors import ConfigError, Conflict, NotFound, Unavailable
from oaken_jobs.files import DATABASE
from oaken_jobs.journal import Journal
from oaken_jobs.maintenance import living
from oaken_jobs.store.postgres import schema as there
from oaken_jobs.store.postgres.archive import PostgresArchive
from oaken_jobs.store.postgres.copying import Copy, Figures, Table, digest, require_unicode, tables
from oaken_jobs.store.postgres.server import Connection as Target
from oaken_jobs.store.postgres.server import Server, lost, words
from oaken_jobs.store.sql import reads
from oaken_jobs.store.sql.database import Row
from oaken_jobs.store.sql.records import LIVING_MS
from oaken_jobs.store.sqlite import schema as here
from oaken_jobs.store.sqlite.driver import Connection, Database, Error, connect, data_version

STAYS = frozenset({"marks", "processes"})
"""Tables that are not copied: the copy has marks of its own, and none of the processes has it open."""
ROWS = 2_000
CHARACTERS = 8 << 20
"""What is copied at a time, whichever is reached first."""
TRACE = Table(
    "trace",
    ("id", "at", "job_id", "agent", "bytes", "body"),
    ("text", "bigint", "bigint", "text", "bigint", "text"),
    ("n",),
)
INSTEAD = "\N{SYMBOL FOR NULL}"
"""For the character NUL, which PostgreSQL's texts cannot hold. (In JSON it is escaped, and stays.)"""

Tell = Callable[[str, int, int], None]
"""Called with what is being done, and how many rows of how many are through."""


class Moved(NamedTuple):
    """What was copied and found to be the same."""

    figures: dict[str, Figures]
    """By table."""
    replaced: list[str]
    """Where NUL became `INSTEAD`: table, key and column."""


async def move(folder: Path, trace: Journal, server: Server, clock: Clock, tell: Tell) -> Moved:
    """Copies, checks, and makes the database ready for servers. `trace` is the folder's, `clock` this machine's. What was copied stays when
    it ends half-way; called again, it goes on.

    Raises `NotFound` for a folder without a database; `ConfigError` where either side is of another schema, or cannot be used; `Conflict`
    where living processes have the folder open, where it changes meanwhile, where the target has rows of another origin, and where the copy
    is not what was copied; `Unavailable`.
    """
    path = folder / DATABASE
    if not path.exists():
        raise NotFound(f"There is no {path} to move. Name the data folder with --from.")
    try:
        source = await Source.open(path, clock)
    except Error as error:
        raise Unavailable(f"{path} cannot be read: {error}. Check that it is a database of Oaken's.") from None
    try:
        async with _connected(server) as target:
            return await _move(source, trace, target, server, tell)
    except Error as error:
        raise Unavailable(f"{path} cannot be read: {error}. See `oaken doctor`.") from None
    finally:
        await source.close()


async def _move(source: Source, trace: Journal, target: Target, server: Server, tell: Tell) -> Moved:
    name = server.name
    await require_unicode(target, name)
    await there.migrate(target, name)
    found = [table for table in await tables(target) if table.name not in STAYS and await source.has(table)]
    figures = await source.figures(found, tell)
    copy = Copy(target, name, _origin(figures))
    places = await copy.begin(found)
    for table in found:
        place, rows = places[table.name], figures[table.name].rows
        async for batch in source.rows(table, place):
            tell(f"copying {table.name}", place, rows)
            await copy.add(table, place, batch)
            place += len(batch)
    await source.require_unchanged(found, figures)
    figures[TRACE.name] = await _add_trace(trace, server, tell)
    for table in (*found, TRACE):
        tell(f"checking {table.name}", 0, figures[table.name].rows)
        copied = await copy.figures(table)
        if copied != figures[table.name]:
            raise Conflict(
                f"{table.name} in {name} has {copied.rows} rows (sum {copied.sum:x}), the source {figures[table.name].rows} "
                f"(sum {figures[table.name].sum:x}). Somebody wrote there meanwhile; drop that database, and start on an empty one."
            )
    await copy.end(found, await source.last_ids(), await source.marks())
    return Moved(figures, source.replaced)


async def _add_trace(trace: Journal, server: Server, tell: Tell) -> Figures:
    """Adds what is not there yet, in the order in which it was written."""
    archive = PostgresArchive(server, most_bytes=sys.maxsize, look_bytes=sys.maxsize)
    seen: set[str] = set()
    total = 0
    try:
        for batch in _batches(_kept(trace.lines(), seen)):
            await archive.add(batch)
            total += sum(digest((*row[:4], len(row.text), row.text.decode())) for row in batch)
            tell(f"copying {TRACE.name}", len(seen), len(seen))
    except OSError as error:
        raise Unavailable(f"{trace.path} cannot be read: {error.strerror}.") from None
    finally:
        await archive.close()
    return Figures(len(seen), total)


def _kept(lines: Iterable[bytes], seen: set[str]) -> Iterator[Kept]:
    """The rows of the trace that lines hold, each once."""
    for line in lines:
        row = row_of(line)
        if row is not None and row["id"] not in seen:
            seen.add(row["id"])
            yield Kept(row["id"], _ms(row["ts"]), row["job_id"], row["agent"], line)


def _ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _batches(rows: Iterable[Kept]) -> Iterator[list[Kept]]:
    batch: list[Kept] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row.text)
        if len(batch) >= ROWS or size >= CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@asynccontextmanager
async def _connected(server: Server) -> AsyncGenerator[Target]:
    """A connection whose errors are told kindly."""
    try:
        connection = await server.connect()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise server.refusal(error) from None
    try:
        yield connection
    except lost as error:
        raise Unavailable(
            f"{server.name} does not answer any more: {words(error)}. What was copied stays; the same command goes on from there."
        ) from None
    except asyncpg.PostgresError as error:
        raise server.refusal(error) from None
    finally:
        await server.hang_up(connection)


class Source:
    """The database of a data folder as it was when it was opened."""

    def __init__(self, connection: Connection, path: Path, clock: Clock) -> None:
        self.replaced: list[str] = []
        self._connection = connection
        self._path = path
        self._clock = clock
        self._version = 0

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> Source:
        """Raises `ConfigError` for one of another schema, `Conflict` where somebody has it open, SQLite's errors."""
        source = cls(await connect(path, readonly=True), path, clock)
        try:
            await source._begin()
        except BaseException:
            await source.close()
            raise
        return source

    async def close(self) -> None:
        await self._connection.close()

    async def _begin(self) -> None:
        at = await self._connection.run(here.current)
        if at != here.latest():
            raise ConfigError(
                f"{self._path} has schema {at}, and this program moves schema {here.latest()}. "
                + (
                    "`oaken doctor` on that folder, without OAKEN_DATABASE_URL, brings it up to date."
                    if at < here.latest()
                    else "Use the newer program that wrote it."
                )
            )
        await self._require_alone()
        self._version = await self._connection.run(data_version)
        await self._connection.run(lambda db: db.execute("begin"))

    async def _require_alone(self) -> None:
        since = self._clock.now() - LIVING_MS
        running = [row for row in await self._connection.run(reads.processes) if row.seen_at > since and living(row)]
        if running:
            who = ", ".join(f"{row.role} (process {row.pid} on {row.host})" for row in running)
            raise Conflict(f"{self._path} is at work: {who}. Stop that first, and start it on PostgreSQL afterwards.")

    async def has(self, table: Table) -> bool:
        statement = "select 1 from sqlite_master where type = 'table' and name = ?1"
        return await self._connection.run(lambda db: db.one(statement, table.name)) is not None

    async def rows(self, table: Table, place: int) -> AsyncGenerator[list[Row]]:
        """All behind the first `place` rows, in the order of their keys, some at a time."""
        columns, key = (", ".join(f'"{column}"' for column in names) for names in (table.columns, table.key))
        statement = f'select {columns} from "{table.name}" order by {key} limit -1 offset {place}'
        cursor = await self._connection.run(lambda db: db.execute(statement))
        while batch := await self._connection.run(_some, cursor):
            yield [self._storable(table, row) for row in batch]

    def _storable(self, table: Table, row: Row) -> Row:
        if not any(isinstance(value, str) and "\0" in value for value in row):
            return row
        key = ", ".join(str(row[table.columns.index(column)]) for column in table.key).replace("\0", INSTEAD)
        for column, value in zip(table.columns, row, strict=True):
            if (
                isinstance(value, str)
                and "\0" in value
                and (told := f"{table.name} {key}: {column}") not in self.replaced
            ):
                self.replaced.append(told)
        return tuple(value.replace("\0", INSTEAD) if isinstance(value, str) else value for value in row)

    async def figures(self, tables: list[Table], tell: Tell) -> dict[str, Figures]:
        """Of each table, as it is to be afterwards."""
        found: dict[str, Figures] = {}
        for table in tables:
            counted = f'select count(*) from "{table.name}"'
            expected = (await self._connection.run(Database.all, counted))[0][0]
            rows = total = 0
            async for batch in self.rows(table, 0):
                tell(f"reading {table.name}", rows, expected)
                rows += len(batch)
                total += sum(map(digest, batch))
            found[table.name] = Figures(rows, total)
        return found

    async def require_unchanged(self, tables: list[Table], figures: Mapping[str, Figures]) -> None:
        """Raises `Conflict` where somebody has written to it since, or is about to. It is read as it is now from here on."""
        await self._connection.run(lambda db: db.execute("commit"))
        await self._require_alone()
        if await self._connection.run(data_version) == self._version:
            return
        if await self.figures(tables, lambda what, done, rows: None) != figures:
            raise Conflict(
                f"{self._path} was written to while it was copied. Stop whoever does so, drop the database that holds the half-done copy, "
                "and start on an empty one."
            )

    async def last_ids(self) -> dict[str, int]:
        """The highest id that was ever given out, by table."""
        return dict(await self._connection.run(Database.all, "select name, seq from sqlite_sequence"))

    async def marks(self) -> list[Row]:
        return list(await self._connection.run(Database.all, "select name, value from marks"))


def _some(database: Database, cursor: Any) -> list[Row]:
    rows: list[Row] = []
    characters = 0
    while len(rows) < ROWS and characters < CHARACTERS and (row := cursor.fetchone()) is not None:
        rows.append(row)
        characters += sum(len(value) for value in row if isinstance(value, str))
    return rows


def _origin(figures: Mapping[str, Figures]) -> int:
    """A number for a source with such figures."""
    return int.from_bytes(hashlib.sha256(repr(sorted(figures.items())).encode()).digest()[:7])

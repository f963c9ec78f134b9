"""An empty PostgreSQL database that takes in the rows of another store: as they are, table by table, in transactions that each say how far
they have come, so that a copy which ended half-way goes on where it was.

Until all is there, has been checked and counted on from, the database says of itself that it is half-done, and no store opens it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from oaken_jobs.errors import ConfigError, Conflict
from oaken_jobs.store.postgres.server import Connection
from oaken_jobs.store.sql.database import Row

HALF_DONE = "moving"
"""The mark of a database that is not complete; its value tells copies of different origin apart."""
_UNIT, _NOTHING = "\x1f", "\x1e"
_TABLES = """
select c.relname, array(
    select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
  array(
    select format_type(a.atttypid, null) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    order by a.attnum),
  array(
    select a.attname::text from pg_index i cross join unnest(i.indkey::int[]) with ordinality k(n, place)
    join pg_attribute a on a.attrelid = c.oid and a.attnum = k.n where i.indrelid = c.oid and i.indisprimary order by k.place)
from pg_class c where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace order by c.relname"""
_STEP = "update marks set value = value + $2 where name = $1 and value = $3"
_SEQUENCES = {"jobs": "job_ids", "activity": "activity_ids"}
"""What numbers the rows of tables that do not do it themselves."""
BATCH_SECONDS = 120.0
"""For a transaction of a few thousand rows."""
CHECK_SECONDS = 3600.0
"""For the sum over a table, which reads all of it."""


class Table(NamedTuple):
    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]


class Figures(NamedTuple):
    """What a table has: two tables of the same rows, in whatever order, have the same."""

    rows: int
    sum: int
    """Of a part of each row's hash."""


def digest(row: Row) -> int:
    """The part of a row's hash that `Figures.sum` adds up; `_DIGEST` is the same in the database's words."""
    said = _UNIT.join(
        _NOTHING if v is None else struct.pack(">d", v).hex() if isinstance(v, float) else str(v) for v in row
    )
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:7])


def _digest(table: Table) -> str:
    def said(column: str, kind: str) -> str:
        text = f"encode(float8send(\"{column}\"), 'hex')" if kind == "double precision" else f'"{column}"::text'
        return f"coalesce({text}, chr({ord(_NOTHING)}))"

    parts = f" || chr({ord(_UNIT)}) || ".join(map(said, table.columns, table.types))
    return f"('x' || encode(substr(sha256(convert_to({parts}, 'UTF8')), 1, 7), 'hex'))::bit(56)::bigint"


class Copy:
    """A database that is being filled, over one connection. `origin` is a number of 63 bits for what is copied."""

    def __init__(self, connection: Connection, name: str, origin: int) -> None:
        self._connection = connection
        self._name = name
        self._origin = origin

    async def begin(self, tables: Sequence[Table]) -> dict[str, int]:
        """How many rows of each table are there already. Raises `Conflict` unless the database is empty, or a half-done copy of this
        very origin."""
        if not await is_half_done(self._connection):
            await self._require_empty()
            await self._mark(tables)
        rows = await self._connection.fetch("select name, value from marks", timeout=BATCH_SECONDS)
        marks: dict[str, int] = {row[0]: row[1] for row in rows}
        if marks[HALF_DONE] != self._origin:
            raise Conflict(
                f"{self._name} has a half-done copy of another store, or of this one as it was before. Drop that database and "
                "create an empty one."
            )
        return {table.name: marks[_place(table)] for table in tables}

    async def _require_empty(self) -> None:
        for table in await tables(self._connection):
            if await self._connection.fetchval(f'select exists (select 1 from "{table.name}")', timeout=BATCH_SECONDS):
                raise Conflict(
                    f"{self._name} is not empty: there are rows in {table.name}. Name an empty database (createdb makes one), which "
                    "no server has been started on."
                )

    async def _mark(self, tables: Sequence[Table]) -> None:
        """Says that it is half-done, unless somebody else has said so meanwhile."""
        names = [HALF_DONE, *map(_place, tables)]
        values = [self._origin, *(0 for _ in tables)]
        marked = "insert into marks select * from unnest($1::text[], $2::bigint[]) on conflict do nothing"
        await self._connection.execute(marked, names, values, timeout=BATCH_SECONDS)

    async def add(self, table: Table, place: int, rows: Sequence[Row]) -> None:
        """Adds the rows that come after the first `place` ones. Raises `Conflict` where somebody else is at it."""
        async with self._transaction():
            step = await self._connection.execute(_STEP, _place(table), len(rows), place, timeout=BATCH_SECONDS)
            if step != "UPDATE 1":
                raise Conflict(
                    f"Somebody else copies into {self._name} at the same time. Let one of you end, and look again."
                )
            await self._connection.copy_records_to_table(
                table.name, records=rows, columns=table.columns, timeout=BATCH_SECONDS
            )

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[None]:
        await self._connection.execute("begin", timeout=BATCH_SECONDS)
        try:
            yield
        except BaseException:
            if not self._connection.is_closed():
                await self._connection.execute("rollback", timeout=BATCH_SECONDS)
            raise
        await self._connection.execute("commit", timeout=BATCH_SECONDS)

    async def figures(self, table: Table) -> Figures:
        """Of what is there now."""
        statement = f'select count(*), coalesce(sum({_digest(table)}), 0)::text from "{table.name}"'
        rows, total = await self._connection.fetchrow(statement, timeout=CHECK_SECONDS)
        return Figures(rows, int(total))

    async def end(self, tables: Sequence[Table], last: Mapping[str, int], marks: Sequence[Row]) -> None:
        """The database is complete. `last` is the highest id that was ever given out by table, `marks` what the other store noted."""
        await self._connection.execute("analyze", timeout=CHECK_SECONDS)
        async with self._transaction():
            for name, at in last.items():
                own = await self._connection.fetchval("select pg_get_serial_sequence($1, 'id')", name)
                sequence = _SEQUENCES.get(name, own)
                await self._connection.execute("select setval($1, greatest($2::bigint, 1), $2 > 0)", sequence, at)
            names = [HALF_DONE, *map(_place, tables)]
            await self._connection.execute("delete from marks where name = any($1::text[])", names)
            if marks:
                noted = map(list, zip(*marks, strict=True))
                await self._connection.execute(
                    "insert into marks select * from unnest($1::text[], $2::bigint[])", *noted
                )


async def tables(connection: Connection) -> list[Table]:
    """All tables that hold what a store keeps, by name."""
    rows = await connection.fetch(_TABLES)
    return [Table(name, tuple(columns), tuple(types), tuple(key)) for name, columns, types, key in rows if key]


async def require_unicode(connection: Connection, name: str) -> None:
    """Raises `ConfigError` for a database that cannot keep all characters."""
    encoding = await connection.fetchval("show server_encoding")
    if encoding != "UTF8":
        raise ConfigError(
            f"{name} keeps text as {encoding}, which cannot hold all that there is. Create it with UTF8 "
            "(createdb --encoding=UTF8 --template=template0)."
        )


async def is_half_done(connection: Connection) -> bool:
    return await connection.fetchval("select exists (select 1 from marks where name = $1)", HALF_DONE)


async def require_whole(connection: Connection, name: str) -> None:
    """Raises `ConfigError` for a half-done copy."""
    if await is_half_done(connection):
        raise ConfigError(
            f"{name} is a half-done copy of another store. Let `oaken migrate-store` end, or start it again: it goes on where it was."
        )


def _place(table: Table) -> str:
    return f"{HALF_DONE}.{table.name}"

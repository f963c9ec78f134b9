"""PostgreSQL's side of `Database`: a connection inside a function that `bridge.run` runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from oaken_jobs.store.postgres.bridge import wait
from oaken_jobs.store.postgres.dialect import own
from oaken_jobs.store.postgres.queries import FIRST_OF_TRANSACTION, LOCK, NOW, QUERIES, ROWS_A_TRANSACTION
from oaken_jobs.store.postgres.server import Connection
from oaken_jobs.store.sql.database import Row

Types = Mapping[tuple[str, str], str]
"""By table and column: how a list of its values is called."""

LOCKS = 2048
"""Names are locked by their hash. The database has room for some thousands of locks at a time, shared by all who use it."""
_LOCKS_OF_OURS = 0x6F616B << 32


class Session:
    """A connection for one function: a transaction, or some reading."""

    queries = QUERIES
    concurrent = True

    def __init__(self, connection: Connection, types: Types, seconds: float) -> None:
        """No statement takes longer than `seconds`; then `TimeoutError` is raised, and the connection is of no more use."""
        self._connection = connection
        self._types = types
        self._seconds = seconds
        self._locked: set[int] = set()
        self._said = 0
        """Rows of activity that this transaction has written."""

    def all(self, statement: str, *values: Any) -> Sequence[Row]:
        return wait(self._connection.fetch(own(statement), *values, timeout=self._seconds))

    listed = all

    def one(self, statement: str, *values: Any) -> Row | None:
        return wait(self._connection.fetchrow(own(statement), *values, timeout=self._seconds))

    def run(self, statement: str, *values: Any) -> int:
        done = wait(self._connection.execute(own(statement), *values, timeout=self._seconds))
        return int(done.rpartition(" ")[2])

    def array(self, values: Iterable[Any]) -> Any:
        return list(values)

    def columns(self, rows: Iterable[Row], width: int) -> tuple[Any, ...]:
        return tuple(zip(*rows, strict=True)) or ((),) * width

    def insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        self._put(table, columns, rows, "")

    def replace(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        # In the order of their keys, so that two transactions that write the same ones do not wait for each other.
        ordered = sorted(rows, key=lambda row: row[: len(key)])
        self._put(table, columns, ordered, _instead(key, columns))

    def _put(self, table: str, columns: tuple[str, ...], rows: Sequence[Row], end: str) -> None:
        values = list(zip(*rows, strict=True))
        types = tuple(self._types[table, column] for column in columns)
        wait(self._connection.execute(_insert(table, columns, types, end), *values, timeout=self._seconds))

    def update(self, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        values = list(zip(*rows, strict=True))
        types = tuple(self._types[table, column] for column in (*keys, *columns))
        wait(self._connection.execute(_update(table, keys, columns, types), *values, timeout=self._seconds))

    def new_job_ids(self, count: int) -> Sequence[int]:
        return (
            [row[0] for row in self.all("select nextval('job_ids') from generate_series(1, ?1)", count)]
            if count
            else []
        )

    def add_activity(self, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        first, self._said = self._said, self._said + len(rows)
        if self._said > 1 << ROWS_A_TRANSACTION:
            raise AssertionError(f"a transaction of {self._said} rows of activity is too large")
        types = tuple(self._types["activity", column] for column in columns)
        values = list(zip(*rows, strict=True))
        numbers = list(range(first, self._said))
        wait(self._connection.execute(_insert_activity(columns, types), numbers, *values, timeout=self._seconds))

    def lock(self, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        alone = {_number(name) for name in names} - self._locked
        together = {_number(name) for name in shared} - self._locked - alone
        if not alone and not together:
            return
        keys = sorted(alone | together)
        self.all(LOCK, keys, [key in together for key in keys])
        self._locked |= alone

    def forget_locks(self) -> None:
        """What was locked since a savepoint has been let go of."""
        self._locked.clear()

    def now(self) -> int:
        """The database's time in milliseconds, at this moment."""
        return self.all(NOW)[0][0]


def _number(name: str) -> int:
    return _LOCKS_OF_OURS + crc32(name.encode()) % LOCKS


def _lists(types: Sequence[str], first: int = 1) -> str:
    return ", ".join(f"${number}::{name}" for number, name in enumerate(types, first))


@lru_cache(maxsize=512)
def _insert(table: str, columns: tuple[str, ...], types: tuple[str, ...], end: str) -> str:
    return f"insert into {table} ({', '.join(columns)}) select * from unnest({_lists(types)}){end}"


@lru_cache(maxsize=64)
def _instead(key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    return f" on conflict ({', '.join(key)}) do update set {sets}"


@lru_cache(maxsize=8)
def _insert_activity(columns: tuple[str, ...], types: tuple[str, ...]) -> str:
    names = ", ".join(columns)
    return (
        f"insert into activity (id, {names}) select {FIRST_OF_TRANSACTION} + n, {names} "
        f"from unnest($1::bigint[], {_lists(types, 2)}) r(n, {names})"
    )


@lru_cache(maxsize=512)
def _update(table: str, keys: tuple[str, ...], columns: tuple[str, ...], types: tuple[str, ...]) -> str:
    names = [f"k{i}" for i in range(len(keys))] + [f"c{i}" for i in range(len(columns))]
    sets = ", ".join(f"{column} = v.c{i}" for i, column in enumerate(columns))
    found = " and ".join(f"{table}.{key} = v.k{i}" for i, key in enumerate(keys))
    return f"update {table} set {sets} from unnest({_lists(types)}) v({', '.join(names)}) where {found}"

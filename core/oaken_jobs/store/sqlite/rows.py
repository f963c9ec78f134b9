"""Writing many rows with few statements.

SQLite's driver lets go of the interpreter's lock at every step of a statement and takes it back afterwards. Where another thread is
busy, each taking back can wait a switch interval (5 ms): a row a statement then costs over a millisecond, measured. So rows go in
by the hundred, each statement one step; and what is read in bulk comes back as one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from oaken_jobs.store.sqlite.driver import Database

Row = Sequence[Any]

_SIZES = (*range(256, 64, -32), *range(64, 16, -8), *range(16, 0, -1))
"""Rows in one statement: fine enough that a group takes two or three, few enough that the statements stay prepared."""


def insert(database: Database, into: str, width: int, rows: Sequence[Row]) -> None:
    """`into` is the statement up to `values`, which takes `width` columns."""
    for chunk in _chunks(rows):
        database.execute(_insert(into, width, len(chunk)), list(chain.from_iterable(chunk)))


def update(
    database: Database, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]
) -> None:
    """Sets `columns` of the rows found by `keys`; each row of `rows` has the keys first."""
    for chunk in _chunks(rows):
        database.execute(_update(table, keys, columns, len(chunk)), list(chain.from_iterable(chunk)))


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    at = 0
    while at < len(rows):
        size = next(size for size in _SIZES if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size


def _values(width: int, count: int) -> str:
    one = f"({', '.join('?' * width)})"
    return ", ".join([one] * count)


@lru_cache(maxsize=512)
def _insert(into: str, width: int, count: int) -> str:
    return f"{into} values {_values(width, count)}"


@lru_cache(maxsize=512)
def _update(table: str, keys: tuple[str, ...], columns: tuple[str, ...], count: int) -> str:
    named = ", ".join([f"k{i}" for i in range(len(keys))] + [f"c{i}" for i in range(len(columns))])
    sets = ", ".join(f"{column} = v.c{i}" for i, column in enumerate(columns))
    found = " and ".join(f"{table}.{key} = v.k{i}" for i, key in enumerate(keys))
    return (
        f"with v ({named}) as (values {_values(len(keys) + len(columns), count)}) "
        f"update {table} set {sets} from v where {found}"
    )

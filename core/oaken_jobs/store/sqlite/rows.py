"""Writing many rows with few statements, and no parameter that is null.

SQLite's driver lets go of the interpreter's lock at every step of a statement and takes it back afterwards. Where another thread is
busy, each taking back can wait a switch interval (5 ms): a row a statement then costs over a millisecond, measured. So rows go in
by the hundred, each statement one step; and what is read in bulk comes back as one row.

The driver also asks for an adapter for each None it binds, which costs 0.9 microseconds, measured, against 0.03 for a number: more than all
the rest of a row. So columns that are null are left out of an insert and stand as `null` in an update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, compress, groupby
from typing import TYPE_CHECKING

from oaken_jobs.store.sql.database import Row

if TYPE_CHECKING:
    from oaken_jobs.store.sqlite.driver import Database

Nulls = tuple[bool, ...]

_SIZES = (*range(256, 64, -32), *range(64, 16, -8), *range(16, 0, -1))
"""Rows in one statement: fine enough that a group takes two or three, few enough that the statements stay prepared."""


def insert(database: Database, into: str, columns: tuple[str, ...], rows: Sequence[Row], end: str = "") -> None:
    """Adds rows in their order. `into` is the statement up to the list of columns, `end` what comes behind the values; columns that are
    null get their default.

    Each row has a value somewhere.
    """
    for nulls, run in _runs(rows):
        given = [not null for null in nulls]
        for chunk in _chunks(run):
            bound = list(compress(chain.from_iterable(chunk), given * len(chunk)))
            database.execute(_insert(into, columns, nulls, len(chunk)) + end, bound)


def update(
    database: Database, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]
) -> None:
    """Sets `columns` of the rows found by `keys`; each row of `rows` has the keys first. Each is found once at most."""
    shapes: dict[Nulls, list[Row]] = defaultdict(list)
    for row in rows:
        shapes[_nulls(row)].append(row)
    for nulls, alike in shapes.items():
        for chunk in _chunks(alike):
            bound = [value for row in chunk for value in row if value is not None]
            database.execute(_update(table, keys, columns, nulls, len(chunk)), bound)


def _runs(rows: Sequence[Row]) -> Iterator[tuple[Nulls, Sequence[Row]]]:
    """Rows that stand together and have their nulls in the same columns."""
    counts = [column.count(None) for column in zip(*rows, strict=True)]
    if all(
        count in (0, len(rows)) for count in counts
    ):  # as most groups: not each value has to be looked at for itself
        yield tuple([count > 0 for count in counts]), rows
        return
    for nulls, run in groupby(rows, _nulls):
        yield nulls, list(run)


def _nulls(row: Row) -> Nulls:
    return tuple([value is None for value in row])


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    at = 0
    while at < len(rows):
        size = next(size for size in _SIZES if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size


def _values(width: int, count: int) -> str:
    one = f"({', '.join('?' * width)})"
    return ", ".join([one] * count)


@lru_cache(maxsize=1024)
def _insert(into: str, columns: tuple[str, ...], nulls: Nulls, count: int) -> str:
    given = [column for column, null in zip(columns, nulls, strict=True) if not null]
    return f"{into} ({', '.join(given)}) values {_values(len(given), count)}"


@lru_cache(maxsize=1024)
def _update(table: str, keys: tuple[str, ...], columns: tuple[str, ...], nulls: Nulls, count: int) -> str:
    names = [f"k{i}" for i in range(len(keys))]
    sets: list[str] = []
    for i, (column, null) in enumerate(zip(columns, nulls[len(keys) :], strict=True)):
        if null:
            sets.append(f"{column} = null")
        else:
            names.append(f"c{i}")
            sets.append(f"{column} = v.c{i}")
    found = " and ".join(f"{table}.{key} = v.k{i}" for i, key in enumerate(keys))
    return (
        f"with v ({', '.join(names)}) as (values {_values(len(names), count)}) "
        f"update {table} set {', '.join(sets)} from v where {found}"
    )

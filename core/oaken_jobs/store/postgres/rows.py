"""Writing many rows with one statement.

Values go in column by column. One that is the same in all rows goes in once, as a value, and null not at all; only the others are arrays.
Most columns of a group are alike, and asyncpg looks at each element of an array by itself: of a profile of whole cycles that was a fifth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from oaken_jobs.store.sql.database import Row

Types = Mapping[tuple[str, str], str]
"""By table and column: its type."""
How = Literal["null", "one", "many"]

FEW = 8
"""Fewer rows than these are not looked through for what they have in common: each combination is a statement of its own to prepare."""


class Prepared(NamedTuple):
    """A statement and its values."""

    statement: str
    values: list[Any]


def insert(
    types: Types, table: str, columns: tuple[str, ...], rows: Sequence[Row], *, ids: str | None = None, end: str = ""
) -> Prepared:
    """Adds rows in their order. `ids` is an expression for the column `id`, worked out row by row behind a CTE `published`."""
    shape, values = _columns(rows, len(columns), keys=0)
    names = tuple(types[table, column] for column in columns)
    return Prepared(_insert(table, columns, names, shape, ids, end), values)


def update(types: Types, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> Prepared:
    """Sets columns of the rows found by `keys`, which each row has first."""
    shape, values = _columns(rows, len(keys) + len(columns), keys=len(keys))
    names = tuple(types[table, column] for column in (*keys, *columns))
    return Prepared(_update(table, keys, columns, names, shape), values)


def _columns(rows: Sequence[Row], width: int, *, keys: int) -> tuple[tuple[How, ...], list[Any]]:
    """How each column goes in, and the values that do; keys always as arrays."""
    shape: list[How] = []
    values: list[Any] = []
    look = len(rows) >= FEW
    for place, column in enumerate(zip(*rows, strict=True)):
        first = column[0]
        if place >= keys and look and column[-1] == first and column.count(first) == len(column):
            shape.append("null" if first is None else "one")
            if first is not None:
                values.append(first)
        else:
            shape.append("many")
            values.append(column)
    return tuple(shape), values


def _source(types: tuple[str, ...], shape: tuple[How, ...]) -> tuple[list[str], str]:
    """The expression of each column, and what the arrays are unnested to."""
    expressions: list[str] = []
    arrays: list[str] = []
    names: list[str] = []
    number = 0
    for place, (kind, how) in enumerate(zip(types, shape, strict=True)):
        number += how != "null"
        if how == "null":
            expressions.append(f"null::{kind}")
        elif how == "one":
            expressions.append(f"${number}::{kind}")
        else:
            expressions.append(f"v.c{place}")
            arrays.append(f"${number}::{kind}[]")
            names.append(f"c{place}")
    return expressions, f"unnest({', '.join(arrays)}) v({', '.join(names)})"


@lru_cache(maxsize=1024)
def _insert(
    table: str, columns: tuple[str, ...], types: tuple[str, ...], shape: tuple[How, ...], ids: str | None, end: str
) -> str:
    expressions, source = _source(types, shape)
    given = [(column, text) for column, text, how in zip(columns, expressions, shape, strict=True) if how != "null"]
    into = ", ".join(column for column, _ in given)
    said = ", ".join(text for _, text in given)
    if ids is None:
        return f"insert into {table} ({into}) select {said} from {source}{end}"
    return f"insert into {table} (id, {into}) select {ids}, {said} from published cross join {source}{end}"


@lru_cache(maxsize=1024)
def _update(
    table: str, keys: tuple[str, ...], columns: tuple[str, ...], types: tuple[str, ...], shape: tuple[How, ...]
) -> str:
    expressions, source = _source(types, shape)
    sets = ", ".join(f"{column} = {text}" for column, text in zip(columns, expressions[len(keys) :], strict=True))
    found = " and ".join(f"{table}.{key} = {text}" for key, text in zip(keys, expressions, strict=False))
    return f"update {table} set {sets} from {source} where {found}"

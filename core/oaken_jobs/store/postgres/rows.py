"""Writing many rows with one statement.

Values go in column by column. One that is the same in all rows goes in once, as a value, and null not at all; only the others are arrays.
Most columns of a group are alike, and asyncpg looks at each element of an array by itself: of a profile of whole cycles that was a fifth.
So most of the others, whole numbers and texts, go in as the text of an array.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    names = tuple(types[table, column] for column in columns)
    shape, values = _columns(rows, names, keys=0)
    return Prepared(_insert(table, columns, names, shape, ids, end), values)


def update(types: Types, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> Prepared:
    """Sets columns of the rows found by `keys`, which each row has first."""
    names = tuple(types[table, column] for column in (*keys, *columns))
    shape, values = _columns(rows, names, keys=len(keys))
    return Prepared(_update(table, keys, columns, names, shape), values)


def together(parts: Sequence[Prepared], *, before: str = "", end: str = "") -> Prepared:
    """Several in one statement, none of which sees what the others write. `before` is a CTE that the last of them reads; with `end`, a
    query, that is what the statement gives."""
    statements: list[str] = []
    values: list[Any] = []
    for part in parts:
        statements.append(_numbered_from(part.statement, len(values)))
        values += part.values
    *first, last = statements
    with_ = [f"w{place} as ({statement})" for place, statement in enumerate(first)]
    with_ += [before] if before else []
    with_ += [f"w as ({last})"] if end else []
    return Prepared(f"{'with ' if with_ else ''}{', '.join(with_)} {end or last}", values)


@lru_cache(maxsize=4096)
def _numbered_from(statement: str, first: int) -> str:
    """The statement with parameters that follow so many others."""
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + first}", statement) if first else statement


_PARAMETER = re.compile(r"\$(\d+)")


def _columns(rows: Sequence[Row], types: tuple[str, ...], *, keys: int) -> tuple[tuple[How, ...], list[Any]]:
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
            write = _AS_TEXT.get(types[place])
            values.append(column if write is None else write(column))
    return tuple(shape), values


def _numbers(numbers: Iterable[int | None]) -> str:
    """Whole numbers as the text of an array.

    >>> _numbers([1, None, 3])
    '{1,null,3}'
    """
    return "{" + ",".join(["null" if number is None else f"{number:d}" for number in numbers]) + "}"


def _texts(texts: Iterable[str | None]) -> str:
    r"""Texts as the text of an array.

    >>> print(_texts(["null", None, 'a, "b"', "\\"]))
    {"null",null,"a, \"b\"","\\"}
    """
    escaped = [None if text is None else text.replace("\\", "\\\\").replace('"', '\\"') for text in texts]
    return "{" + ",".join(["null" if text is None else f'"{text}"' for text in escaped]) + "}"


_AS_TEXT: dict[str, Callable[[Iterable[Any]], str]] = {"bigint": _numbers, "text": _texts}
"""By type: how an array of it is written."""


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
            arrays.append(f"${number}::text::{kind}[]" if kind in _AS_TEXT else f"${number}::{kind}[]")
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

"""Many rows in one statement of PostgreSQL: whatever is null or alike and however many there are, what is written is what was given."""

from __future__ import annotations

import random
from typing import Any

import asyncpg
import pytest

from oaken_jobs.store.postgres import rows

TYPES = {("t", "id"): "bigint", ("t", "a"): "text", ("t", "b"): "bigint", ("t", "c"): "double precision"}
COLUMNS = ("id", "a", "b", "c")
TEXTS = ("", " ", "null", "NULL", "{1,2}", '"', "\\", '\\"', "a,b", "'", "\n\t", "é\u2028𝄞", '{"a":"\\u0000"}', "$1")
"""That mean something to who reads an array."""


def _some(rng: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Rows of which each column is null, alike, or anything."""
    hows = [rng.choice(["null", "alike", "any"]) for _ in range(3)]
    values = [("x", 5, 0.5), ("y", -1, 2.25), (None, None, None), *((text, 7, 1.0) for text in TEXTS)]

    def value(place: int) -> Any:
        if hows[place] == "null":
            return None
        return values[0][place] if hows[place] == "alike" else rng.choice(values)[place]

    return [(n, *(value(place) for place in range(3))) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, rows.FEW - 1, rows.FEW, 300])
async def test_rows_are_written_and_changed_with_their_nulls(emptied_url: str, count: int) -> None:
    connection: Any = await asyncpg.connect(emptied_url)
    await connection.execute("create temp table t (id bigint primary key, a text, b bigint, c double precision)")
    for seed in range(20):
        rng = random.Random(seed)
        given = _some(rng, count)
        await connection.execute(*_flat(rows.insert(TYPES, "t", COLUMNS, given)))
        assert [tuple(row) for row in await connection.fetch("select * from t order by id")] == given
        changed = _some(rng, count)
        await connection.execute(*_flat(rows.update(TYPES, "t", ("id",), COLUMNS[1:], changed[::-1])))
        assert [tuple(row) for row in await connection.fetch("select * from t order by id")] == changed
        await connection.execute("delete from t")
    await connection.close()


def _flat(prepared: rows.Prepared) -> tuple[Any, ...]:
    return (prepared.statement, *prepared.values)


def test_what_is_alike_goes_in_once_and_null_not_at_all() -> None:
    given = [(n, "x", None, 0.5) for n in range(50)]
    statement, values = rows.insert(TYPES, "t", COLUMNS, given)
    assert values == [f"{{{','.join(str(n) for n in range(50))}}}", "x", 0.5]
    assert (
        statement
        == "insert into t (id, a, c) select v.c0, $2::text, $3::double precision from unnest($1::text::bigint[]) v(c0)"
    )


async def test_several_writes_go_in_one_statement_each_with_its_own_values(emptied_url: str) -> None:
    connection: Any = await asyncpg.connect(emptied_url)
    await connection.execute("create temp table t (id bigint primary key, a text, b bigint, c double precision)")
    first = [(1, "x", 1, 0.5), (2, "y", 2, 1.5)]
    await connection.execute(*_flat(rows.insert(TYPES, "t", COLUMNS, first)))
    parts = [
        rows.update(TYPES, "t", ("id",), ("a",), [(1, "changed")]),
        rows.insert(TYPES, "t", COLUMNS, [(3, None, 3, 2.5)]),
        rows.update(TYPES, "t", ("id",), ("b", "c"), [(2, 7, None)]),
    ]
    told = rows.together(parts, before="five as materialized (select 5 as n)", end="select n from five")
    assert (await connection.fetch(*_flat(told)))[0][0] == 5
    expected = [(1, "changed", 1, 0.5), (2, "y", 7, None), (3, None, 3, 2.5)]
    assert [tuple(row) for row in await connection.fetch("select * from t order by id")] == expected
    await connection.close()

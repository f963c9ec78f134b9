"""Statements that both engines understand, in the words of each."""

from __future__ import annotations

import pytest

from oaken_jobs.store.postgres import dialect as postgres
from oaken_jobs.store.sqlite import dialect as sqlite


@pytest.mark.parametrize(
    ("said", "on_sqlite", "on_postgres"),
    [
        ("a = ?1 or b = ?1 and c = ?12", "a = ?1 or b = ?1 and c = ?12", "a = $1 or b = $1 and c = $12"),
        ("id in ids(?2)", "id in (select value from json_each(?2))", "id = any($2::bigint[])"),
        ("not k in texts(?1)", "not k in (select value from json_each(?1))", "not k = any($1::text[])"),
        ("set a = greatest(a, least(b, ?1))", "set a = max(a, min(b, ?1))", "set a = greatest(a, least(b, $1))"),
        ("a ilike ?1 escape '\\'", "a like ?1 escape '\\'", "a ilike $1 escape '\\'"),
        ("select 1 order by id for update", "select 1 order by id", "select 1 order by id for update"),
        (
            "(select 1 limit ?1 for update skip locked)",
            "(select 1 limit ?1)",
            "(select 1 limit $1 for update skip locked)",
        ),
        ("update jobs set a = 1", "update jobs set a = 1", "update jobs set a = 1"),
    ],
)
def test_each_engine_has_its_words(said: str, on_sqlite: str, on_postgres: str) -> None:
    assert (sqlite.own(said), postgres.own(said)) == (on_sqlite, on_postgres)

"""Many rows in few statements: whatever is null and however many there are, what is written is what was given, in its order."""

from __future__ import annotations

import sqlite3
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oaken_jobs.store.sqlite import rows

VALUE = st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=3))
COLUMNS = ("a", "b", "c")


class Spy:
    """A database that refuses to bind a null."""

    def __init__(self) -> None:
        self.real = sqlite3.connect(":memory:")
        self.statements = 0
        self.real.execute("create table t (id integer primary key autoincrement, a, b, c)")

    def execute(self, sql: str, bound: Any = ()) -> Any:
        assert None not in bound
        self.statements += 1
        return self.real.execute(sql, bound)

    def all(self) -> list[tuple[Any, ...]]:
        return self.real.execute("select a, b, c from t order by id").fetchall()


@given(st.lists(st.tuples(st.integers(-5, 5), VALUE, VALUE), max_size=40))
def test_rows_are_inserted_in_their_order_with_their_nulls(given_rows: list[tuple[Any, ...]]) -> None:
    spy = Spy()
    rows.insert(spy, "insert into t", COLUMNS, given_rows)  # type: ignore[arg-type]
    assert spy.all() == given_rows
    spy.real.close()


@given(st.lists(st.tuples(VALUE, VALUE, VALUE), min_size=1, max_size=40))
def test_rows_are_updated_with_their_nulls(given_rows: list[tuple[Any, ...]]) -> None:
    spy = Spy()
    rows.insert(spy, "insert into t", COLUMNS, [(n, "x", n) for n in range(len(given_rows))])  # type: ignore[arg-type]
    keyed = [(n + 1, *row) for n, row in enumerate(given_rows)]
    rows.update(spy, "t", ("id",), COLUMNS, keyed[::-1])  # type: ignore[arg-type]
    assert spy.all() == given_rows
    spy.real.close()


def test_a_group_of_any_size_takes_few_statements() -> None:
    for count in range(1, 600):
        spy = Spy()
        rows.insert(spy, "insert into t", COLUMNS, [(n, None, n) for n in range(count)])  # type: ignore[arg-type]
        assert spy.statements <= 2 + count // 256 + 2
        assert len(spy.all()) == count
        spy.real.close()

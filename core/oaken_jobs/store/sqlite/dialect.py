"""How SQLite says what is written for both engines; see `oaken_jobs.store.sql.database`."""

from __future__ import annotations

import re
from functools import lru_cache

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(?:ids|texts)\((\?\d+)\)"), r"(select value from json_each(\1))"),
    (re.compile(r"\bgreatest\("), "max("),
    (re.compile(r"\bleast\("), "min("),
    (re.compile(r"\bilike\b"), "like"),
    (re.compile(r"\s+for update(?: of \w+)?(?: skip locked)?\b"), ""),
)


@lru_cache(maxsize=2048)
def own(statement: str) -> str:
    """The statement in SQLite's words."""
    for found, word in _WORDS:
        statement = found.sub(word, statement)
    return statement

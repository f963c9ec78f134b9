"""How PostgreSQL says what is written for both engines; see `oaken_jobs.store.sql.database`."""

from __future__ import annotations

import re
from functools import lru_cache

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bin ids\((\?\d+)\)"), r"= any(\1::bigint[])"),
    (re.compile(r"\bin texts\((\?\d+)\)"), r"= any(\1::text[])"),
    (re.compile(r"\?(\d+)"), r"$\1"),
)


@lru_cache(maxsize=2048)
def own(statement: str) -> str:
    """The statement in PostgreSQL's words."""
    for found, word in _WORDS:
        statement = found.sub(word, statement)
    return statement

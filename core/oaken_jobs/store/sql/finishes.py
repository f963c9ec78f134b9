"""How many jobs end in each minute, counted in the transactions that end them."""

from __future__ import annotations

import secrets
from itertools import count

from oaken_jobs.store.base import SPENT, Finishes
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.unit import Unit

MINUTE_MS = 60_000
_MINE = secrets.token_hex(4)
"""Whose rows this process counts in, where others write at the same time: none waits for another's count."""
_SIDES = 8
_turns = count()
"""Transactions of this process that are under way side by side count in different rows of it, too."""
_KEY = ("minute", "workspace", "state", "process")
_COLUMNS = (*_KEY, "jobs", "cost_usd")


def add(unit: Unit) -> None:
    """Adds what the unit has ended, as the last thing of its transaction: whoever waits for a row of it waits for the commit alone."""
    found = {key: (jobs, 0.0) for key, jobs in unit.finished.items()}
    found |= {(workspace, SPENT): spent for workspace, spent in unit.spent.items()}
    process = f"{_MINE}{next(_turns) % _SIDES}" if unit.db.concurrent else ""
    if found:
        minute = unit.now // MINUTE_MS
        rows = [(minute, workspace, state, process, *counted) for (workspace, state), counted in found.items()]
        unit.db.count("finishes", _KEY, _COLUMNS, rows)
    unit.finished.clear()
    unit.spent.clear()


def forget(unit: Unit, before: int) -> None:
    """Drops the counts of minutes before a moment (ms)."""
    unit.db.run("delete from finishes where minute < ?1", before // MINUTE_MS)


def finishes(db: Database, since: int, workspace: str | None) -> list[Finishes]:
    rows = db.all(
        "select minute, state, sum(jobs), sum(cost_usd) from finishes where minute >= ?1 and (cast(?2 as text) is null or workspace = ?2) "
        "group by minute, state order by minute, state",
        since // MINUTE_MS,
        workspace,
    )
    return [Finishes(minute, state, int(jobs), float(cost)) for minute, state, jobs, cost in rows]

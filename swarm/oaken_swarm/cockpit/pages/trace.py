"""What models and agents were told and answered: for admins, who leave a row in the audit each time. So do those who are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oaken_jobs.model import Json
from oaken_jobs.requests import Request
from oaken_swarm.call import Answer
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.template import pretty
from oaken_swarm.query import QueryId
from oaken_swarm.routes.private import Agent, Cursor

ROWS = 25
FACTS = ("verb", "plugin", "operation", "provider", "model", "tool", "error_type", "usage", "cost_usd")
SHOWN = 20_000
"""Characters of a text that are shown at once; the rest is in the interface."""


class TracePage(Request):
    """Rows of one job, of one agent."""

    job_id: QueryId | None = None
    agent: Agent | None = None
    cursor: Cursor | None = None


async def trace(view: View, asked: TracePage) -> Answer:
    page = await view.core.traces.list(
        view.who, job_id=asked.job_id, agent=asked.agent, cursor=asked.cursor, limit=ROWS
    )
    return view.render(
        "trace.html",
        title="Trace",
        agent=asked.agent,
        cursor=asked.cursor,
        job_id=asked.job_id,
        next_cursor=page.next_cursor,
        attempts=_attempts(page.rows),
    )


def _attempts(rows: Sequence[Json]) -> list[dict[str, Any]]:
    """Rows by the attempt they are of, the latest first: what it was told beside what it answered, and between them what was added."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows:
        shown = _shown(row)
        key = (shown["job_id"], shown["epoch"])
        one = found.setdefault(key, {**shown, "lease": None, "finish": None, "added": []})
        if shown["event"] == "agent":
            one["added"].insert(0, shown)
        elif one.get(shown["event"], shown) is None:  # of several finishes, refused ones for instance, the last
            one[shown["event"]] = shown
    return list(found.values())


def _shown(row: Json) -> dict[str, Any]:
    return {
        **{name: row.get(name) for name in ("ts", "event", "job_id", "epoch", "attempt", "agent", "kind")},
        **{name: row.get(name) for name in FACTS},
        "input": _text(row.get("input")),
        "output": _text(row.get("output")),
    }


def _text(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else pretty(value)
    return {"text": text[:SHOWN], "size": len(text), "cut": len(text) > SHOWN}


PAGES = (Page("GET", "/trace", trace, TracePage),)

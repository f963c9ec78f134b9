"""What models and agents were told and answered: for admins, who leave a row in the audit each time. So do those who are refused."""

from __future__ import annotations

from typing import Any

from oaken_jobs.model import Json
from oaken_jobs.requests import Request
from oaken_swarm.call import Answer
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.template import pretty
from oaken_swarm.query import QueryId
from oaken_swarm.routes.private import Agent, Cursor

ROWS = 25
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
        rows=[_shown(row) for row in page.rows],
    )


def _shown(row: Json) -> dict[str, Any]:
    return {
        **{
            name: row.get(name)
            for name in ("id", "ts", "event", "verb", "job_id", "attempt", "agent", "kind", "plugin")
        },
        **{
            name: row.get(name)
            for name in ("operation", "provider", "model", "tool", "usage", "cost_usd", "error_type")
        },
        "input": _text(row.get("input")),
        "output": _text(row.get("output")),
    }


def _text(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else pretty(value)
    return {"text": text[:SHOWN], "size": len(text), "cut": len(text) > SHOWN}


PAGES = (Page("GET", "/trace", trace, TracePage),)

"""What comes by the clock: when next, and now if wanted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from oaken_jobs import cron, views
from oaken_jobs.model import Schedule
from oaken_jobs.requests import Request, ScheduleName, Workspace, read
from oaken_swarm.call import Answer
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.saying import Said

NEXT = 3
"""Runs that are told in advance."""


class _Schedule(Request):
    name: ScheduleName


class RunForm(Request):
    """Of which workspace."""

    workspace: Workspace | None = None


async def schedules(view: View, asked: Said) -> Answer:
    rows = await view.core.schedules.list(view.who)
    shown = [{**views.schedule(row), "runs": _runs(row)} for row in rows]
    return view.render("schedules.html", title="Schedules", schedules=shown, said=asked.said)


def _runs(row: Schedule) -> list[dict[str, Any]]:
    """When it runs next, in UTC and as the clocks of its zone show it."""
    at = row.next_run
    found: list[dict[str, Any]] = []
    for _ in range(NEXT):
        there = datetime.fromtimestamp(at / 1000, UTC).astimezone(cron.zone(row.timezone)) if row.timezone else None
        found.append({"at": views.iso(at), "there": f"{there:%Y-%m-%d %H:%M}" if there else None})
        at = cron.next_after(row, at)
    return found


async def run(view: View, asked: RunForm) -> Answer:
    name = read(_Schedule, {"name": view.params["name"]}).name
    job = await view.core.schedules.run(view.who, name, asked.workspace)
    return view.go(f"/activity/{job.id}")


PAGES = (
    Page("GET", "/schedules", schedules, Said, needs="read"),
    Page("POST", "/schedules/{name}/run", run, RunForm, needs="manage"),
)

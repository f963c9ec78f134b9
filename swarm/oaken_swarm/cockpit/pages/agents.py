"""Who works: when last seen, what they hold, how well they do."""

from __future__ import annotations

from oaken_jobs import views
from oaken_jobs.requests import AgentName, EmptyRequest, Request, read
from oaken_swarm.call import Answer
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.saying import Said

MOST = 500
"""Agents that are shown: those seen last."""


class _Agent(Request):
    agent: AgentName


async def agents(view: View, asked: Said) -> Answer:
    rows = await view.core.jobs.agents(view.who)
    shown = [views.agent(row) for row in rows[:MOST]]
    names = {row.name for row in rows if row.agent != row.name}
    return view.render(
        "agents.html", title="Agents", agents=shown, several=names, more=max(0, len(rows) - MOST), said=asked.said
    )


async def drain(view: View, asked: EmptyRequest) -> Answer:
    await view.core.jobs.drain(view.who, _name(view))
    return view.go("/agents", "drained")


async def undrain(view: View, asked: EmptyRequest) -> Answer:
    await view.core.jobs.drain(view.who, _name(view), False)
    return view.go("/agents", "undrained")


def _name(view: View) -> str:
    return read(_Agent, {"agent": view.params["name"]}).agent


PAGES = (
    Page("GET", "/agents", agents, Said),
    Page("POST", "/agents/{name}/drain", drain, needs="manage"),
    Page("POST", "/agents/{name}/undrain", undrain, needs="manage"),
)

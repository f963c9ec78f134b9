"""Whether work flows, what is stuck and why."""

from __future__ import annotations

from typing import Any

from oaken_jobs import views
from oaken_jobs.model import STATES
from oaken_jobs.store.base import JobFilter
from oaken_swarm.call import Answer, Stream
from oaken_swarm.cockpit import chart
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.saying import Said
from oaken_swarm.cockpit.verdict import verdict
from oaken_swarm.routes.jobs import shown_read

LATEST = 8
QUESTIONS = 5
AT_WORK = 8
DAY_MS = 86_400_000


async def overview(view: View, asked: Said) -> Answer | Stream:
    return await view.render_soon("overview.html", "Overview", _found(view, asked))


async def _found(view: View, asked: Said) -> dict[str, Any]:
    jobs, who, figures = view.core.jobs, view.who, view.figures
    now = jobs.now()
    # An agent that may not read all sees other figures than anybody else.
    whose = (who.workspace, None if view.may("read") else who.name)
    queues = await figures.get(("queues", whose), lambda: jobs.queues(who, everything=True))
    backlog = await figures.get(("backlog", whose), lambda: jobs.stuck(who))
    today = now - now % DAY_MS
    since = min(today, now - chart.MINUTES * chart.MINUTE)
    finishes = await figures.get(("finishes", whose), lambda: jobs.finishes(who, since)) if view.may("read") else None
    ill = await figures.get(("ill", whose), lambda: jobs.ended(who, JobFilter(grades=("bad", "warn")), LATEST))
    questions = await jobs.open_questions(who, QUESTIONS + 1)
    agents = [agent for agent in await jobs.agents(who) if agent.holds]
    counts = {state: sum(queue.counts.get(state, 0) for queue in queues.value) for state in STATES} if queues else None
    first = counts is not None and not any(counts.values())
    told = verdict(counts, backlog.value.causes, finishes.value, now) if counts and backlog and finishes else None
    return {
        "agents": [views.agent(row) for row in agents[:AT_WORK]],
        "more_agents": max(0, len(agents) - AT_WORK),
        "age": max(one.age for one in (queues, backlog, finishes) if one) if queues or backlog or finishes else 0,
        "backlog": backlog.value if backlog else None,
        "chart": chart.drawn(finishes.value, now) if finishes else None,
        "cost": sum(row.cost_usd for row in finishes.value if row.minute >= today // chart.MINUTE)
        if finishes
        else None,
        "counts": counts,
        "first": first,
        "ill": await shown_read(view.call, ill.value) if ill else None,
        "iso": views.iso,
        "questions": [views.question(row) for row in questions[:QUESTIONS]],
        "more_questions": len(questions) > QUESTIONS,
        "queues": [views.queue(row) for row in queues.value if any(row.counts.values()) or row.paused]
        if queues
        else None,
        "said": asked.said,
        "url": view.call.base,
        "verdict": told,
    }


PAGES = (Page("GET", "/", overview, Said),)

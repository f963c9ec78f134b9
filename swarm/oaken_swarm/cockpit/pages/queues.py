"""The queues: how deep, how old, paused or not."""

from __future__ import annotations

from typing import Any

from oaken_jobs import views
from oaken_jobs.requests import EmptyRequest, QueueName, Request, read
from oaken_swarm.call import Answer, Stream
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.saying import Said


class _Queue(Request):
    name: QueueName


async def queues(view: View, asked: Said) -> Answer | Stream:
    return await view.render_soon("queues.html", "Queues", _found(view, asked))


async def _found(view: View, asked: Said) -> dict[str, Any]:
    jobs, who = view.core.jobs, view.who
    whose = (who.workspace, None if view.may("read") else who.name)
    rows = await view.figures.get(("queues", whose), lambda: jobs.queues(who, everything=True))
    backlog = await view.figures.get(("backlog", whose), lambda: jobs.stuck(who))
    paused = await jobs.paused(who)  # of that no old figure is shown
    return {
        "age": rows.age if rows else 0,
        "iso": views.iso,
        "oldest": {one.queue: one for one in backlog.value.oldest} if backlog else {},
        "queues": [{**views.queue(row), "paused": row.name in paused} for row in rows.value] if rows else None,
        "said": asked.said,
    }


async def pause(view: View, asked: EmptyRequest) -> Answer:
    await view.core.jobs.set_paused(view.who, _name(view), True)
    return view.go("/queues", "paused")


async def resume(view: View, asked: EmptyRequest) -> Answer:
    await view.core.jobs.set_paused(view.who, _name(view), False)
    return view.go("/queues", "resumed")


def _name(view: View) -> str:
    return read(_Queue, {"name": view.params["name"]}).name


PAGES = (
    Page("GET", "/queues", queues, Said),
    Page("POST", "/queues/{name}/pause", pause, needs="manage"),
    Page("POST", "/queues/{name}/resume", resume, needs="manage"),
)

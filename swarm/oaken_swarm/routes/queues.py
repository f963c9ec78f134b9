"""Queues: what there is, and pausing them."""

from __future__ import annotations

import re

from oaken_jobs import views
from oaken_jobs.config import QUEUE_NAME
from oaken_jobs.errors import NotFound
from oaken_jobs.redaction import clean
from oaken_jobs.requests import EmptyRequest, Request
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route
from oaken_swarm.query import Flag

_NAME = re.compile(QUEUE_NAME)


class QueuesQuery(Request):
    """`all` shows the hidden ones, too."""

    all: Flag = False


async def queues(call: Call, asked: QueuesQuery) -> Answer:
    rows = await call.core.jobs.queues(call.who, everything=asked.all)
    return answer({"queues": [views.queue(row) for row in rows]})


async def pause(call: Call, asked: EmptyRequest) -> Answer:
    return await _set_paused(call, True)


async def resume(call: Call, asked: EmptyRequest) -> Answer:
    return await _set_paused(call, False)


async def _set_paused(call: Call, paused: bool) -> Answer:
    name = call.params["name"]
    if not _NAME.fullmatch(name):
        raise NotFound(f"There is no queue {clean(name, 60)!r}; see GET /v1/queues?all=1.")
    return answer({"queue": views.queue(await call.core.jobs.set_paused(call.who, name, paused))})


ROUTES = (
    Route("GET", "/v1/queues", queues, QueuesQuery, says="List queues", gives="Queues"),
    Route(
        "POST",
        "/v1/queues/{name}/pause",
        pause,
        needs="manage",
        repeats="itself",
        says="Stop a queue handing out jobs",
        gives="OneQueue",
    ),
    Route(
        "POST",
        "/v1/queues/{name}/resume",
        resume,
        needs="manage",
        repeats="itself",
        says="Let a queue hand out jobs again",
        gives="OneQueue",
    ),
)

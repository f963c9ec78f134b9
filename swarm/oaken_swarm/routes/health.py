"""Whether the process lives and can do its work, open to all; and figures, for any token that is bound to no workspace."""

from __future__ import annotations

import asyncio

from oaken_jobs import auth
from oaken_jobs.errors import NotFound, Unavailable, stopping
from oaken_jobs.requests import EmptyRequest
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route

PATIENCE_SECONDS = 2.0


async def healthz(call: Call, asked: EmptyRequest) -> Answer:
    return answer({"status": "ok"})


async def readyz(call: Call, asked: EmptyRequest) -> Answer:
    if call.waits.stopped:
        raise stopping()
    # Waited for without cancelling: a read that hangs would hold up its own cancellation.
    question = asyncio.ensure_future(call.core.store.activity_head())
    done, _ = await asyncio.wait((question,), timeout=PATIENCE_SECONDS)
    if not done:
        raise Unavailable("The store does not answer now. Try again in a few seconds.")
    question.result()
    return answer({"status": "ok"})


async def metrics(call: Call, asked: EmptyRequest) -> Answer:
    auth.require_unbound(call.who, "read the figures of this server")
    if call.metrics is None:
        raise NotFound("There are no metrics of a command; ask a server.")
    return Answer(await call.metrics.text(), media_type=b"text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    Route("GET", "/metrics", metrics, says="Figures for Prometheus"),
    Route("GET", "/healthz", healthz, open=True, says="Whether the process lives", gives="Health"),
    Route("GET", "/readyz", readyz, open=True, says="Whether the store answers", gives="Health"),
)

"""Many calls on leases in one: committed together, each answered at its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, cast

from pydantic import Field

from oaken_jobs import views
from oaken_jobs.errors import InvalidRequest, OakenError
from oaken_jobs.leasing import Say, Traced
from oaken_jobs.model import Job, Json
from oaken_jobs.moves import Finish
from oaken_jobs.requests import (
    AskRequest,
    CompleteRequest,
    DeferRequest,
    EmptyRequest,
    FailRequest,
    HeartbeatRequest,
    ProgressRequest,
    ReleaseRequest,
    Request,
    TraceRequest,
    read,
)
from oaken_jobs.store.operations import Beat, Beaten
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route
from oaken_swarm.problems import problem
from oaken_swarm.routes import leases
from oaken_swarm.routes.jobs import shown


class BatchRequest(Request):
    """Operations on leases: each `{"op", "lease_id", …}` with the fields of that call."""

    ops: Annotated[list[Any], Field(min_length=1)]


_OPS: dict[str, tuple[type[Request], Callable[[Call, str, Any], Finish | Beat | Say]]] = {
    "complete": (CompleteRequest, leases.complete_op),
    "fail": (FailRequest, leases.fail_op),
    "defer": (DeferRequest, leases.defer_op),
    "release": (ReleaseRequest, leases.release_op),
    "ask": (AskRequest, leases.ask_op),
    "cancelled": (EmptyRequest, leases.cancelled_op),
    "heartbeat": (HeartbeatRequest, leases.heartbeat_op),
    "progress": (ProgressRequest, leases.progress_op),
    "trace": (TraceRequest, leases.trace_op),
}


async def batch(call: Call, asked: BatchRequest) -> Answer:
    most = call.core.jobs.rules.max_batch
    if len(asked.ops) > most:
        raise InvalidRequest(
            f"{len(asked.ops)} ops in one call; at most {most} ([jobs] max_batch). Send them in parts."
        )
    prepared = [_prepare(call, data, f"ops.{place}") for place, data in enumerate(asked.ops)]
    ops = [one for one in prepared if not isinstance(one, OakenError)]
    replies = iter(await call.core.jobs.finish_many(call.who, ops))
    return answer(
        {"results": [_shown(call, one if isinstance(one, OakenError) else next(replies)) for one in prepared]}
    )


def _prepare(call: Call, data: Any, where: str) -> Finish | Beat | Say | OakenError:
    try:
        if not isinstance(data, dict):
            raise InvalidRequest(f"{where} must be a JSON object with op, lease_id and the fields of that call.")
        fields = dict(cast("Json", data))
        verb, lease_id = fields.pop("op", None), fields.pop("lease_id", None)
        if not isinstance(verb, str) or verb not in _OPS:
            raise InvalidRequest(f"{where}.op must be one of {', '.join(_OPS)}.")
        if not isinstance(lease_id, str):
            raise InvalidRequest(f"{where}.lease_id must be the lease_id that a lease gave you, as text.")
        model, make = _OPS[verb]
        return make(call, lease_id, read(model, fields, where))
    except OakenError as refusal:
        return refusal


def _shown(call: Call, reply: Job | Beaten | Traced | OakenError) -> Json:
    if isinstance(reply, OakenError):
        return {"error": problem(reply), "status": reply.status}
    if isinstance(reply, Beaten | Traced):
        told: Json = {
            "job": shown(call, reply.job),
            "expires_at": views.iso(reply.expires_at),
            "cancelling": bool(reply.job.cancelling),
            "status": 200,
        }
        return {**told, "recorded": reply.recorded} if isinstance(reply, Traced) else told
    return {"job": shown(call, reply), "status": 200}


ROUTES = (
    Route(
        "POST",
        "/v1/leases/batch",
        batch,
        BatchRequest,
        size="bulk",
        needs="lease",
        repeats="itself",
        says="Many calls on leases in one",
        gives="BatchResults",
    ),
)

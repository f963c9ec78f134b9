"""The worker's way to a server over HTTP: what the loop in `oaken_jobs.worker` asks for, said in the client's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

from oaken_jobs.errors import BadJson, InvalidRequest, OakenError, TooLarge
from oaken_jobs.transport import Beat, Cancelled, Complete, Defer, Ending, Fail, Release, WorkItem
from oaken_swarm.client import Client, refusal_of

Json = dict[str, Any]

DEFAULT_LEASE_SECONDS = 60.0


class HttpTransport:
    """A `Transport` over a `Client`, which it closes. `agent` is `name` or `name/instance`.

    The worker has its own way with failures; give it a client with `tries=1`, or each beat is tried many times over.
    """

    def __init__(self, client: Client, agent: str) -> None:
        self._client = client
        self._agent = agent

    async def lease(
        self,
        *,
        queues: Sequence[str] | None,
        kinds: Sequence[str],
        max: int,
        lease_seconds: float | None,
        wait_seconds: float,
    ) -> list[WorkItem]:
        answer = await self._client.lease(
            agent=self._agent,
            queues=queues,
            kinds=kinds,
            max=max,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
        )
        return [_item(lease) for lease in answer["leases"]]

    async def heartbeat(self, lease_id: str) -> Beat:
        answer = await self._client.heartbeat(lease_id)
        return Beat(bool(answer.get("cancelling")))

    async def progress(self, lease_id: str, percent: float | None, message: str | None) -> Beat:
        answer = await self._client.report(lease_id, percent, message)
        return Beat(bool(cast(Json, answer.get("job") or {}).get("cancelling")))

    async def finish(self, endings: Sequence[Ending]) -> list[OakenError | None]:
        if len(endings) == 1:
            return [await self._one(endings[0])]
        refused = {ending.lease_id: error for ending in endings if (error := _unsendable(ending)) is not None}
        sent = [ending for ending in endings if ending.lease_id not in refused]
        if not sent:
            return list(refused.values())
        try:
            answer = await self._client.batch([_op(ending) for ending in sent])
        except (BadJson, InvalidRequest, TooLarge):
            # One of them is to blame, or only their sum; the others must not suffer for it.
            return [await self._one(ending) for ending in endings]
        found: dict[str, OakenError | None] = {}
        for ending, result in zip(sent, cast("list[Json]", answer["results"]), strict=True):
            problem: Json | None = result.get("error")
            found[ending.lease_id] = None if problem is None else refusal_of(problem, result.get("status") or 500)
        return [refused.get(ending.lease_id) or found.get(ending.lease_id) for ending in endings]

    def on_cancel(self, callback: Callable[[int], None]) -> None:
        """Does nothing: over HTTP a worker learns of a cancellation from its heartbeats."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _one(self, ending: Ending) -> OakenError | None:
        refused = _unsendable(ending)
        if refused is not None:
            return refused
        lease_id = ending.lease_id
        try:
            match ending:
                case Complete(done=done):
                    await self._client.complete(
                        lease_id, done.result, usage=done.usage, cost_usd=done.cost_usd, produced_by=done.produced_by
                    )
                case Fail():
                    await self._client.fail(
                        lease_id, ending.error, permanent=ending.permanent, retry_after=ending.retry_after
                    )
                case Defer():
                    await self._client.defer(lease_id, ending.seconds)
                case Release():
                    await self._client.release(lease_id)
                case Cancelled():
                    await self._client.cancelled(lease_id)
        except OakenError as error:
            return error
        return None


def _unsendable(ending: Ending) -> OakenError | None:
    if isinstance(ending, Complete) and ending.done.effects:
        return InvalidRequest(
            "A handler outside the server cannot return effects; return a result alone.",
            errors=[{"path": "/effects", "rule": "in-process only"}],
        )
    return None


def _op(ending: Ending) -> Json:
    op: Json
    match ending:
        case Complete(done=done):
            op = {"op": "complete", "result": done.result}
            op |= {"usage": done.usage, "cost_usd": done.cost_usd, "produced_by": done.produced_by}
        case Fail():
            op = {"op": "fail", "error": ending.error, "retry_after": ending.retry_after}
            op["permanent"] = ending.permanent or None
        case Defer():
            op = {"op": "defer", "seconds": ending.seconds}
        case Release():
            op = {"op": "release"}
        case Cancelled():
            op = {"op": "cancelled"}
    op["lease_id"] = ending.lease_id
    return {name: value for name, value in op.items() if value is not None}


def _item(lease: Json) -> WorkItem:
    job: Json = lease["job"]
    return WorkItem(
        lease_id=lease["lease_id"],
        lease_seconds=_lasts(lease, job),
        job_id=job["id"],
        kind=job["kind"],
        payload=job.get("payload") or {},
        queue=job["queue"],
        subject=job.get("subject"),
        attempt=job.get("attempts") or 1,
        epoch=cast(Json, job.get("lease") or {}).get("epoch") or 1,
        parent_id=job.get("parent_id"),
        instructions=lease.get("instructions"),
    )


def _lasts(lease: Json, job: Json) -> float:
    """Seconds that a lease was given for. Both times are the server's, so that its clock and ours need not agree."""
    try:
        given = datetime.fromisoformat(lease["expires_at"]) - datetime.fromisoformat(job["started_at"])
    except (KeyError, TypeError, ValueError):
        return DEFAULT_LEASE_SECONDS
    return given.total_seconds() if given.total_seconds() > 0 else DEFAULT_LEASE_SECONDS

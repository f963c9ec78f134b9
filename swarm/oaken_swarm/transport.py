"""The worker's way to a server over HTTP: what the loop in `oaken_jobs.worker` asks for, said in the client's calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import orjson

from oaken_jobs import traceparent
from oaken_jobs.errors import BadJson, InvalidRequest, OakenError, TooLarge
from oaken_jobs.transport import Ask, Beat, Cancelled, Complete, Defer, Ending, Fail, Release, WorkItem
from oaken_swarm.client import Client
from oaken_swarm.connection import refusal_of

Json = dict[str, Any]

DEFAULT_LEASE_SECONDS = 60.0
QUIET_BYTES = 1 << 20
"""Results up to this are sent without asking what the server's limit is, and so much is sent in one call."""
FALLBACK_BYTES = 16 << 20
"""The limit where the server does not tell its own."""


class HttpTransport:
    """A `Transport` over a `Client`, which it closes. `agent` is `name` or `name/instance`.

    The worker has its own way with failures; give it a client with `tries=1`, or each beat is tried many times over.
    """

    def __init__(self, client: Client, agent: str) -> None:
        self._client = client
        self._agent = agent
        self._most: int | None = None

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

    async def trace(self, lease_id: str, row: Json) -> Beat:
        answer = await self._client.trace(lease_id, [row])
        return Beat(bool(answer.get("cancelling")))

    async def finish(self, endings: Sequence[Ending]) -> list[OakenError | None]:
        if len(endings) == 1:
            return [await self._one(endings[0])]
        found: dict[str, OakenError | None] = {}
        part: list[Ending] = []
        size = 0
        for ending in endings:
            refused, bytes_ = _unsendable(ending), _size(ending)
            if refused is not None or bytes_ > QUIET_BYTES:
                found[ending.lease_id] = refused or await self._one(ending)
                continue
            if size + bytes_ > QUIET_BYTES:
                found |= await self._many(part)
                part, size = [], 0
            part.append(ending)
            size += bytes_
        found |= await self._many(part)
        return [found[ending.lease_id] for ending in endings]

    async def enqueue(self, kind: str, payload: Json, fields: Mapping[str, Any]) -> Json:
        return await self._client.enqueue(kind, payload, **fields)

    def on_cancel(self, callback: Callable[[int], None]) -> None:
        """Does nothing: over HTTP a worker learns of a cancellation from its heartbeats."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _many(self, endings: Sequence[Ending]) -> dict[str, OakenError | None]:
        """By lease, what the server says to each; one at a time where it does not take them together."""
        if not endings:
            return {}
        try:
            answer = await self._client.batch([_op(ending) for ending in endings])
        except (BadJson, InvalidRequest, TooLarge):
            # One of them is to blame, or only their sum; the others must not suffer for it.
            return {ending.lease_id: await self._one(ending) for ending in endings}
        found: dict[str, OakenError | None] = {}
        for ending, result in zip(endings, cast("list[Json]", answer["results"]), strict=True):
            problem: Json | None = result.get("error")
            found[ending.lease_id] = None if problem is None else refusal_of(problem, result.get("status") or 500)
        return found

    async def _too_large(self, ending: Ending) -> OakenError | None:
        """A server hangs up on a body far beyond its limit, which cannot be told from a broken line: so look first."""
        size = _size(ending)
        if size <= QUIET_BYTES:
            return None
        if self._most is None:
            try:
                limits = cast(Json, (await self._client.meta()).get("limits") or {})
                self._most = int(limits["max_result_bytes"])
            except (OakenError, KeyError, TypeError, ValueError):
                pass  # asked again the next time
        most = self._most or FALLBACK_BYTES
        if size <= most:
            return None
        return TooLarge(f"The result is {size} bytes, over the limit of {most}.", limit=most, actual=size)

    async def _one(self, ending: Ending) -> OakenError | None:
        refused = _unsendable(ending) or await self._too_large(ending)
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
                    await self._client.release(lease_id, after_children=ending.after_children)
                case Ask():
                    await self._client.ask(lease_id, ending.text, timeout_seconds=ending.timeout_seconds)
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


def _size(ending: Ending) -> int:
    """Bytes of the result; 0 where it is no JSON, which the client says better."""
    if not isinstance(ending, Complete):
        return 0
    try:
        return len(orjson.dumps(ending.done.result))
    except (TypeError, ValueError):
        return 0


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
            op = {"op": "release", "after_children": ending.after_children or None}
        case Ask():
            op = {"op": "ask", "text": ending.text, "timeout_seconds": ending.timeout_seconds}
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
        traceparent=traceparent.read(lease.get("traceparent")),
        created_at=_milliseconds(job.get("created_at")),
        leased_at=_milliseconds(job.get("started_at")),
        instructions=lease.get("instructions"),
        children=lease.get("children"),
        answers=lease.get("answers"),
    )


def _milliseconds(time: str | None) -> int | None:
    return round(datetime.fromisoformat(time).timestamp() * 1000) if time is not None else None


def _lasts(lease: Json, job: Json) -> float:
    """Seconds that a lease was given for. Both times are the server's, so that its clock and ours need not agree."""
    try:
        given = datetime.fromisoformat(lease["expires_at"]) - datetime.fromisoformat(job["started_at"])
    except (KeyError, TypeError, ValueError):
        return DEFAULT_LEASE_SECONDS
    return given.total_seconds() if given.total_seconds() > 0 else DEFAULT_LEASE_SECONDS

"""The worker's transport inside the process: calls the service directly, with the runner's own rights."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import orjson

from oaken_jobs import telemetry, views
from oaken_jobs.activity import Follower
from oaken_jobs.errors import InvalidRequest, OakenError, Unavailable
from oaken_jobs.jobs import Jobs
from oaken_jobs.model import Activity, Json, Leased, Principal, Usage
from oaken_jobs.moves import Finish
from oaken_jobs.requests import NewJobRequest, TraceRequest, read
from oaken_jobs.transport import Ask, Beat, Cancelled, Complete, Defer, Ending, Fail, Release, WorkItem


class LocalTransport:
    """Bound to one principal: a runner's."""

    def __init__(self, jobs: Jobs, follower: Follower, who: Principal) -> None:
        self._jobs = jobs
        self._follower = follower
        self._who = who
        self._listening = ExitStack()

    async def lease(
        self,
        *,
        queues: Sequence[str] | None,
        kinds: Sequence[str] | None,
        max: int,
        lease_seconds: float | None,
        wait_seconds: float,
    ) -> list[WorkItem]:
        leases = await self._jobs.lease(
            self._who, queues=queues, kinds=kinds, max=max, lease_seconds=lease_seconds, wait_seconds=wait_seconds
        )
        return [self._item(lease) for lease in leases]

    async def heartbeat(self, lease_id: str) -> Beat:
        beaten = await self._jobs.heartbeat(self._who, lease_id)
        return Beat(bool(beaten.job.cancelling), (beaten.job.lease_ms or 0) / 1000)

    async def progress(self, lease_id: str, percent: float | None, message: str | None) -> Beat:
        beaten = await self._jobs.heartbeat(self._who, lease_id, percent=percent, message=message, progress=True)
        return Beat(bool(beaten.job.cancelling), (beaten.job.lease_ms or 0) / 1000)

    async def trace(self, lease_id: str, row: Json) -> Beat:
        traced = await self._jobs.trace(self._who, lease_id, read(TraceRequest, {"rows": [row]}).rows)
        return Beat(bool(traced.job.cancelling), (traced.job.lease_ms or 0) / 1000)

    async def finish(self, endings: Sequence[Ending]) -> list[OakenError | None]:
        answers: list[OakenError | None] = [None] * len(endings)
        ops: list[tuple[int, Finish]] = []
        for place, ending in enumerate(endings):
            try:
                ops.append((place, self._op(ending)))
            except Exception as error:
                answers[place] = _refusal(error)
        replies = await asyncio.gather(*(self._jobs.finish(self._who, op) for _, op in ops), return_exceptions=True)
        for (place, _), reply in zip(ops, replies, strict=True):
            if isinstance(reply, Exception):
                answers[place] = _refusal(reply)
            elif isinstance(reply, BaseException):
                raise reply
        return answers

    async def enqueue(self, kind: str, payload: Json, fields: Mapping[str, Any]) -> Json:
        request = read(NewJobRequest, {**fields, "kind": kind, "payload": payload})
        enqueued = await self._jobs.enqueue(self._who, request, traceparent=telemetry.current())
        shown = views.job(enqueued.job, self._jobs.rules, self._jobs.now())
        warning = {} if enqueued.warning is None else {"warning": enqueued.warning}
        return {"job": shown, "created": enqueued.created, **warning}

    def on_cancel(self, callback: Callable[[int], None]) -> None:
        def heard(rows: list[Activity]) -> None:
            for row in rows:
                if row.verb == "cancel" and row.to_state == "running" and row.job_id is not None:
                    callback(row.job_id)

        self._listening.enter_context(self._follower.listen(heard, cancels_only=True))

    async def aclose(self) -> None:
        self._listening.close()

    def _op(self, ending: Ending) -> Finish:
        who, lease_id = self._who, ending.lease_id
        if isinstance(ending, Complete):
            done = ending.done
            usage = None
            if done.usage is not None or done.cost_usd is not None or done.produced_by is not None:
                usage = Usage(done.usage, done.cost_usd, done.produced_by)
            return self._jobs.complete_op(who, lease_id, done.result, usage, strict=True, effects=done.effects)
        if isinstance(ending, Fail):
            return self._jobs.fail_op(
                who, lease_id, ending.error, permanent=ending.permanent, retry_after=ending.retry_after
            )
        if isinstance(ending, Defer):
            return self._jobs.defer_op(who, lease_id, min(ending.seconds, math.floor(1e8)))
        if isinstance(ending, Release):
            return self._jobs.release_op(who, lease_id, after_children=ending.after_children)
        if isinstance(ending, Ask):
            return self._jobs.ask_op(who, lease_id, ending.text, timeout_seconds=ending.timeout_seconds)
        assert isinstance(ending, Cancelled)
        return self._jobs.cancelled_op(who, lease_id)

    def _item(self, lease: Leased) -> WorkItem:
        job, rules, now = lease.job, self._jobs.rules, self._jobs.now()
        return WorkItem(
            lease_id=lease.lease_id,
            lease_seconds=(job.lease_ms or 0) / 1000,
            job_id=job.id,
            kind=job.kind,
            payload=orjson.loads(lease.payload),
            queue=job.queue,
            subject=job.subject,
            attempt=job.attempts,
            epoch=job.epoch,
            parent_id=job.parent_id,
            traceparent=job.traceparent,
            created_at=job.created_at,
            leased_at=job.started_at,
            instructions=lease.instructions,
            children=None if lease.children is None else [views.child(one, rules, now) for one in lease.children],
            answers=None if lease.answers is None else [views.question(one) for one in lease.answers],
        )


_OWN_FAULT = (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError, RecursionError)
"""What comes of values that cannot be kept; anything else is the store's trouble, and may pass."""


def _refusal(error: Exception) -> OakenError:
    """One ending's own answer, whatever went wrong with it, so that no other suffers for it."""
    if isinstance(error, OakenError):
        return error
    name = type(error).__name__
    if isinstance(error, _OWN_FAULT):
        return InvalidRequest(f"The outcome cannot be kept ({name}).")
    return Unavailable(f"The store could not end the lease ({name}).")

"""A lease as long as somebody works under it: it beats, and knows whether it still stands."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from itertools import takewhile
from typing import Any, TypeVar

from oaken_jobs.clock import Clock, Timer
from oaken_jobs.errors import (
    Forbidden,
    InvalidRequest,
    LeaseLost,
    NotFound,
    OakenError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from oaken_jobs.model import Json
from oaken_jobs.redaction import clean
from oaken_jobs.requests import TraceRow
from oaken_jobs.telemetry import Attempt
from oaken_jobs.transport import Beat, Transport, WorkItem

log = logging.getLogger("oaken.worker")

T = TypeVar("T")

BACKOFF_CAP = 30.0
ERROR_CHARS = 2000

NOT_HELD = (LeaseLost, NotFound, Unauthenticated, Forbidden)


class HeldLease:
    """A lease as long as a handler works under it: beats, and knows whether it still stands."""

    def __init__(
        self, item: WorkItem, transport: Transport, clock: Clock, rng: random.Random, changed: Callable[[], None]
    ) -> None:
        self.item = item
        self.spans = Attempt(item)
        self.cancelling = False
        self.lost = False
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._changed = changed
        self._resting = False
        self.added = 0
        """Children that its handler has asked for."""
        self._expiry: Timer | None = None
        self._extend(clock.monotonic(), item.lease_seconds)
        self._beats = asyncio.create_task(self._beat())

    @property
    def wanted(self) -> bool:
        return not (self.lost or self.cancelling)

    def ask_to_stop(self) -> None:
        if self.wanted:
            self.cancelling = True
            self._changed()

    async def report(self, percent: float | None, message: str | None) -> None:
        await self._said("progress", self._transport.progress(self.item.lease_id, percent, message))

    async def trace(self, row: Json) -> None:
        try:
            await self._said("a row of the trace", self._transport.trace(self.item.lease_id, row))
        except InvalidRequest as refusal:
            # It quotes what it refuses, and what a handler raises is kept as the job's error.
            fields = dict.fromkeys(_known(one["field"]) for one in refusal.details.get("errors", ()))
            raise InvalidRequest(
                f"A row for the trace cannot be kept; look at {', '.join(fields) or 'its values'}."
            ) from None

    async def _said(self, what: str, call: Coroutine[Any, Any, Beat]) -> None:
        """What may get lost, unless the store refuses it."""
        try:
            await self._heard(within(self._clock, self.seconds / 3, call))
        except NOT_HELD:
            await asyncio.sleep(0)  # where the cancellation of a handler that runs for this lease alone arrives
        except Exception as error:
            if not passing(error):
                raise
            log.debug("%s of job %d did not get through: %s", what, self.item.job_id, type(error).__name__)

    async def enqueue(self, kind: str, payload: Json, fields: Mapping[str, Any]) -> Json:
        """Adds a child of the job, trying again while the lease stands. Under one key, so that a repeat adds no second one."""
        self.added += 1
        key = f"child of {self.item.job_id}, lease {self.item.epoch}, number {self.added}"
        said = {"idempotency_key": key, **fields, "parent_id": self.item.job_id}
        failures = 0
        while not self.lost:
            try:
                return await within(self._clock, self.seconds / 3, self._transport.enqueue(kind, payload, said))
            except Exception as error:
                failures += 1
                if not passing(error):
                    raise
                told = described(error)
                log.warning("a child of job %d could not be added yet, trying again: %s", self.item.job_id, told)
            await self._clock.sleep(backoff(failures, self._rng))
        raise LeaseLost(f"job {self.item.job_id} is no longer this worker's")

    def rest(self) -> None:
        """No more beats. What remains of the lease is for finishing."""
        self._resting = True
        self._beats.cancel()
        if self._expiry is not None:
            self._expiry.cancel()

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = True
            log.warning("lost the lease of job %d (%s): %s", self.item.job_id, self.item.kind, why)
            self.rest()
            self._changed()

    def _extend(self, since: float, seconds: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self.seconds = seconds
        self.deadline = since + seconds
        # A timer of its own, so that a beat that hangs cannot hide that the lease ran out.
        left = self.deadline - self._clock.monotonic()
        self._expiry = self._clock.call_later(left, lambda: self._lose("no heartbeat got through in time"))

    async def _heard(self, call: Coroutine[Any, Any, Beat]) -> None:
        sent = self._clock.monotonic()
        try:
            beat = await call
        except NOT_HELD as error:
            self._lose(error.code)
            raise
        if self._resting:
            return
        self._extend(sent, beat.lease_seconds or self.seconds)
        if beat.cancelling:
            self.ask_to_stop()

    async def _beat(self) -> None:
        failures = 0
        while not self._resting:
            third = self.seconds / 3
            await self._clock.sleep(min(third, backoff(failures, self._rng)) if failures else third)
            try:
                await self._heard(within(self._clock, third, self._transport.heartbeat(self.item.lease_id)))
                failures = 0
            except NOT_HELD:
                return
            except Exception as error:
                failures += 1
                log.warning("heartbeat of job %d failed, trying again: %s", self.item.job_id, described(error))


def _known(field: str) -> str:
    """The beginning of a field's path that is ours: the names behind it are the caller's, and may be as private as values."""
    ours = takewhile(lambda name: name == "rows" or name.isdecimal() or name in TraceRow.model_fields, field.split("."))
    return ".".join(ours) or "its values"


def backoff(failures: int, rng: random.Random, cap: float = BACKOFF_CAP) -> float:
    return min(cap, 0.5 * 2.0 ** min(failures - 1, 16)) * rng.uniform(0.5, 1.0)


def passing(error: Exception) -> bool:
    """Whether trying again may help: the store cannot be reached, is busy, or something broke that is not a refusal."""
    return not isinstance(error, OakenError) or isinstance(error, RateLimited) or error.status >= 500


def described(error: BaseException) -> str:
    """An error as a line that can be sent and kept, whatever it holds."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as broken:
        text = f"(its text cannot be read: {type(broken).__name__})"
    return clean(f"{name}: {text[:ERROR_CHARS]}"[:ERROR_CHARS] if text else name)


async def within(clock: Clock, seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call, but not for longer than this. Raises `Unavailable` then."""
    task = asyncio.ensure_future(call)
    late = False

    def expire() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = clock.call_later(seconds, expire)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if not late or (current is not None and current.cancelling()):
            raise
        raise Unavailable(f"no answer within {seconds:g} s") from None
    finally:
        timer.cancel()

"""Endings on their way to the store: said at once, and kept in memory where the store is away, until it answers again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import orjson

from oaken_jobs.clock import Clock
from oaken_jobs.errors import BadJson, InvalidRequest, OakenError, ResultInvalid, TooLarge
from oaken_jobs.handlers import bounded
from oaken_jobs.held import HeldLease, backoff, described, passing, within
from oaken_jobs.model import Json
from oaken_jobs.transport import Complete, Ending, Fail, Transport

log = logging.getLogger("oaken.worker")

LATE_SECONDS = 3600.0
"""How long after its lease a result is still offered: the store keeps a late one with its attempt, and it may be adopted."""
LAST_WORDS = 5.0
"""How long a worker that stops still tries, after its last handler has ended."""
MOST_KEPT = 1000
MOST_BYTES = 64 << 20
AT_ONCE = 100
"""Endings said in one call."""
PAUSE_CAP = 5.0
STOPPING_PAUSE_CAP = 1.0

_UNFIT = (ResultInvalid, BadJson, InvalidRequest, TooLarge)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An ending, and until when (monotonic seconds) it is worth saying."""

    lease: HeldLease
    ending: Ending
    until: float
    size: int = 0

    @property
    def id(self) -> str:
        return self.ending.lease_id


class Spool:
    """The endings of one worker. What is kept is bounded in number, bytes and time, and is lost with the process."""

    def __init__(self, transport: Transport, clock: Clock, rng: random.Random) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._kept: dict[str, _Kept] = {}
        self._delivery: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._asked_wait = 0.0
        self._closing = False

    async def send(self, endings: Sequence[tuple[HeldLease, Ending]]) -> None:
        """Says each once at least: whether a lease still stands is the store's to say. What it does not take now is kept."""
        for one in await self._say([_Kept(lease, ending, _until(lease, ending)) for lease, ending in endings]):
            self._keep(one)

    def answered(self) -> None:
        """The store, which was away, has answered somebody: what is kept is said now, unless it asked for more patience."""
        if not self._asked_wait:
            self._woken.set()

    async def close(self) -> None:
        """Tries for `LAST_WORDS` more, then lets go of what is left."""
        if self._delivery is None:
            return
        self._closing = True
        self._woken.set()
        delivery = self._delivery

        def expire() -> None:
            delivery.cancel()

        timer = self._clock.call_later(LAST_WORDS, expire)
        await asyncio.wait({delivery})
        timer.cancel()
        for one in self._kept.values():
            self._give_up(one, "the worker stops")
        self._kept.clear()
        self._closing = False

    def _keep(self, one: _Kept) -> None:
        one = replace(one, size=_size(one.ending))
        if len(self._kept) >= MOST_KEPT or sum(kept.size for kept in self._kept.values()) + one.size > MOST_BYTES:
            self._give_up(one, "too many others wait for the store to come back")
            return
        self._kept[one.id] = one
        if self._delivery is None:
            self._delivery = asyncio.create_task(self._deliver())

    async def _deliver(self) -> None:
        """Says what is kept, part by part, until nothing is."""
        failures = 1
        try:
            while self._kept:
                if failures:
                    await self._pause(failures)
                self._asked_wait = 0.0
                self._forget()
                part = list(self._kept.values())[:AT_ONCE]
                left = await self._say(part)
                for one in part:
                    del self._kept[one.id]
                # At the end, so that one which is never taken holds up no other.
                self._kept |= {one.id: one for one in left}
                failures = failures + 1 if left else 0
        finally:
            self._delivery = None

    async def _pause(self, failures: int) -> None:
        cap = STOPPING_PAUSE_CAP if self._closing else PAUSE_CAP
        self._woken.clear()
        seconds = max(backoff(failures, self._rng, cap), self._asked_wait)
        timer = self._clock.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    def _forget(self) -> None:
        now = self._clock.monotonic()
        for one in [one for one in self._kept.values() if one.until <= now]:
            self._give_up(one, "the store did not come back in time")
            del self._kept[one.id]

    def _give_up(self, one: _Kept, why: str) -> None:
        log.warning("job %d was not finished: %s", one.lease.item.job_id, why)
        one.lease.spans.finished(taken=False)

    async def _say(self, said: list[_Kept]) -> list[_Kept]:
        """Those that the store could not take now. One refused for what it says is said once more in other words."""
        left: list[_Kept] = []
        while said:
            again: list[_Kept] = []
            for one, error in zip(said, await self._send(said), strict=True):
                job = one.lease.item.job_id
                if error is None:
                    one.lease.spans.finished(taken=True)
                elif isinstance(error, _UNFIT) and (fail := _instead(one.ending, error)) != one.ending:
                    log.warning("the outcome of job %d was refused: %s", job, fail.error)
                    if error.details.get("tries_left") != 0:
                        again.append(replace(one, ending=fail))
                    else:
                        one.lease.spans.finished(taken=False)
                elif passing(error):
                    log.warning("job %d could not be finished yet: %s", job, described(error))
                    if isinstance(error, OakenError):
                        self._asked_wait = max(self._asked_wait, bounded(error.details.get("retry_after")) or 0.0)
                    left.append(one)
                else:
                    self._give_up(one, described(error))
            said = again
        return left

    async def _send(self, said: Sequence[_Kept]) -> Sequence[Exception | None]:
        seconds = max(1.0, min(one.lease.seconds for one in said) / 3)
        try:
            return await within(self._clock, seconds, self._transport.finish([one.ending for one in said]))
        except Exception as error:
            return [error] * len(said)


def _until(lease: HeldLease, ending: Ending) -> float:
    return lease.deadline + (LATE_SECONDS if isinstance(ending, Complete) else 0)


def _size(ending: Ending) -> int:
    return len(orjson.dumps(ending.done.result)) if isinstance(ending, Complete) else 0


def _instead(ending: Ending, error: OakenError) -> Fail:
    """What is said in place of an ending that was refused for what it says. Of nothing but our own words."""
    if isinstance(ending, Complete):
        return Fail(ending.lease_id, _unfit(error), permanent=True)
    return Fail(ending.lease_id, f"the outcome could not be kept: {error.code}", permanent=True)


def _unfit(error: OakenError) -> str:
    """Why a result was refused, in paths and rules: the server's message may quote the result, and this is stored."""
    limit, actual = error.details.get("limit"), error.details.get("actual")
    if isinstance(error, TooLarge) and isinstance(limit, int) and isinstance(actual, int):
        return f"result is {actual} bytes, over the limit of {limit}"
    problems: object = error.details.get("errors")
    told: list[str] = []
    for problem in cast("list[object]", problems) if isinstance(problems, list) else []:
        if isinstance(problem, dict):
            facts = cast(Json, problem)
            told.append(f"{facts.get('path') or facts.get('field') or '/'} breaks {facts.get('rule') or error.code}")
    return f"result does not fit: {'; '.join(told) or error.code}"

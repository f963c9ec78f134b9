"""The lease requests of this process that wait, in the order they came.

Each group that is committed carries them all, so that what the group itself makes runnable is handed out in it. Signals say that it is
worth asking again besides: other processes' commits, the next `run_at` or lease expiry, and a pass every few seconds for what was
missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oaken_jobs.clock import Clock, Timer
from oaken_jobs.commit import Committer
from oaken_jobs.errors import OakenError, Unavailable
from oaken_jobs.model import Leased, LeaseRef
from oaken_jobs.moves import Finish
from oaken_jobs.store.operations import Claim, Claimed, Op, Want

SAFETY_SECONDS = 5.0
"""How often waiting requests ask although nobody gave a signal."""
HELD_UP_SECONDS = 2.0
"""How long a request that does not wait asks again while other processes' transactions are at jobs it could have. Real time, not the
clock's: no test clock moves other processes."""
AGAIN_SECONDS = 0.002
"""Between two of these."""


@dataclass(eq=False, slots=True)
class _Waiter:
    want: Want
    future: asyncio.Future[list[Leased]]
    patient: bool
    """Waits when there is nothing; otherwise answered empty at once."""
    asked: bool = False
    in_claim: bool = False
    """A claim for it is under way; its answer is waited for, or what it brings would be held for nobody."""
    held_up_at: float | None = None
    """When it first got nothing."""
    over: bool = False
    """Its time was over while a claim was under way."""


class Dispatcher:
    """Serves lease requests longest waiting first; one new job wakes one of them."""

    def __init__(self, commit: Committer, clock: Clock) -> None:
        self._commit = commit
        self._clock = clock
        self._waiters: dict[_Waiter, None] = {}
        self._patient = 0
        self._worth_asking = False
        self._timer: Timer | None = None
        self._timer_at: float = 0
        self._closed = False
        self.interest: Callable[[bool], None] = lambda waiting: None
        """Told when the first patient request comes and when the last one has gone."""
        commit.claims = self._collect
        commit.unclaimed = self.wake

    @property
    def waiting(self) -> int:
        """How many lease requests wait."""
        return len(self._waiters)

    async def lease(self, want: Want, wait_seconds: float) -> list[Leased]:
        """Up to `want.max` jobs, at once or within `wait_seconds`; empty where none came.

        A caller that is cancelled gets nothing: a job claimed for it meanwhile is given back unharmed, unless the request had an
        idempotency key, under which its repeat gets it.
        """
        if self._closed:
            return []
        waiter = _Waiter(want, asyncio.get_running_loop().create_future(), wait_seconds > 0)
        self._waiters[waiter] = None
        if waiter.patient:
            self._patient += 1
            if self._patient == 1:
                self.interest(True)
        deadline = self._clock.call_later(wait_seconds, lambda: self._give_up(waiter)) if waiter.patient else None
        self._commit.kick()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.give_back(waiter.want, waiter.future.result())
            raise
        finally:
            if deadline is not None:
                deadline.cancel()
            self._forget(waiter)

    def wake(self) -> None:
        """Says that a job may have become runnable."""
        if self._waiters:
            self._worth_asking = True
            self._commit.kick()

    def close(self) -> None:
        """Answers all that wait with nothing, and every later request too."""
        self._closed = True
        for waiter in list(self._waiters):
            self._give_up(waiter)

    def _collect(self, ops: Sequence[Op]) -> tuple[Claim, Callable[[Claimed | BaseException], None]] | None:
        if not self._waiters:
            return None
        asking = [w for w in self._waiters if not w.future.done()]
        fresh = self._worth_asking
        self._worth_asking = False
        new = {waiter.want.filter for waiter in asking if not waiter.asked}
        for waiter in asking:
            # Who has waited longer for the same asks again with a newcomer, or it would overtake them.
            waiter.want.fresh = fresh or waiter.want.filter in new
            waiter.asked = True
        if not asking or not (ops or any(w.want.fresh for w in asking)):
            return None
        for waiter in asking:
            waiter.in_claim = True
        return Claim([w.want for w in asking]), lambda reply: self._answer(asking, reply)

    def _answer(self, asking: list[_Waiter], reply: Claimed | BaseException) -> None:
        if isinstance(reply, BaseException):
            for waiter in asking:
                if not waiter.future.done():
                    waiter.future.set_exception(
                        reply
                        if isinstance(reply, Unavailable)
                        else Unavailable("The store failed on this call. Try again.")
                    )
            return
        # The claim stopped short of what is there: who got nothing asks again at once, patient or not.
        more = reply.next_at is not None and reply.next_at <= self._clock.now()
        for waiter, leases in zip(asking, reply.leases, strict=True):
            waiter.in_claim = False
            if isinstance(leases, OakenError):
                if not waiter.future.done():
                    waiter.future.set_exception(leases)
            elif waiter.future.done():
                self.give_back(waiter.want, leases or [])
            elif not (leases or leases is None or waiter.over) and (
                # Who was in a claim without a signal for it was hardly asked for, and is soon.
                not waiter.want.fresh or self._asks_again(waiter, more, reply.held_up)
            ):
                continue
            else:
                waiter.future.set_result(leases or [])
                self._forget(waiter)
        if more:
            self.wake()
        elif reply.held_up and any(not w.future.done() for w in asking):
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.wake)
        elif any(not w.future.done() for w in asking):
            wait = SAFETY_SECONDS if reply.next_at is None else (reply.next_at - self._clock.now()) / 1000
            self._ask_in(min(max(wait, 0.0), SAFETY_SECONDS))

    def _asks_again(self, waiter: _Waiter, more: bool, held_up: bool) -> bool:
        """Whether who got nothing stays."""
        if waiter.patient or more:
            return True
        now = asyncio.get_running_loop().time()
        if waiter.held_up_at is None:
            waiter.held_up_at = now
        return held_up and now - waiter.held_up_at < HELD_UP_SECONDS

    def _ask_in(self, seconds: float) -> None:
        at = self._clock.monotonic() + seconds
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._clock.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.in_claim:
            waiter.over = True
            return
        if not waiter.future.done():
            waiter.future.set_result([])
        self._forget(waiter)

    def _forget(self, waiter: _Waiter) -> None:
        if self._waiters.pop(waiter, waiter) is None and waiter.patient:
            self._patient -= 1
            if not self._patient:
                self.interest(False)

    def give_back(self, want: Want, leases: list[Leased]) -> None:
        """Returns jobs whose caller has gone, unless its request had an idempotency key."""
        if want.once is not None:
            return
        for lease in leases:
            job = lease.job
            ref = LeaseRef(job.id, job.epoch, job.nonce or "")
            try:
                future = self._commit.submit(Finish(ref, want.holder, want.actor, "release"))
            except Unavailable:
                return  # stopping: the lease runs out by itself
            future.add_done_callback(_heard)


def _heard(future: asyncio.Future[Any]) -> None:
    """A lease that could not be given back runs out by itself."""
    if not future.cancelled():
        future.exception()

"""Group commit: gathers what concurrent callers ask for while a transaction is under way, and hands the store one batch.

A reply is given only after the commit. One caller's bad input, cancellation or crash never harms another: replies are kept by
place in the group, callers that have gone are passed over, and the loop survives whatever the store raises.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from oaken_jobs.errors import OakenError, Unavailable, stopping
from oaken_jobs.store.base import Applied, Store
from oaken_jobs.store.operations import Claim, Claimed, Op, Reply

log = logging.getLogger("oaken.commit")

GROUP = 512
"""Operations in one transaction at most: about 10 ms of work, so that other processes get their turn."""
PAUSE = 0.001
"""Seconds between groups while other processes have the database open. Without it one that commits back to back starves them:
their writes waited 180 to 230 ms at the 99th percentile, 5 with it."""

QUIET_TURNS = 2
"""Turns of the loop without another call before a group is put together: one in which what has arrived is read, one in which it is
taken up. While a transaction is under way, its thread and the loop's fight for the interpreter; so all that can be read is read first.
Calls over 32 connections otherwise settle into two groups of 16 by turns, and a quarter fewer are answered."""
GATHER_SECONDS = 0.003
"""How long calls may keep coming before a group is put together all the same."""
PATIENCE = 0.5
"""How long a group waits for those to ask again whose calls were in the last one or behind it, as a share of the time that took. Clients
have asked again by then; on a slow machine more turns pass meanwhile than `QUIET_TURNS`."""

STALL_SECONDS = 45.0
"""How long a transaction may take before its callers, and those behind it, are told that the store does not answer. Longer than the
store itself waits for another process's lock."""

Show = Callable[[Any], Any]
"""What a caller makes of a reply: something that takes time, and has no effect that anybody could see."""
ClaimSource = Callable[[Sequence[Op]], tuple[Claim, Callable[[Claimed | BaseException], None]] | None]


class Committer:
    """One per process. `claims` is asked for waiting lease requests when a group is put together, so that all of them go
    into one claim; `committed` is told of each group that is durable.

    Where the store takes several groups at a time, one is put together while another is under way. Lease requests are in one of them
    at most, or who has waited longer could be overtaken.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Call] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = False
        self._kicked = False
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        """Groups, where the store takes several at a time."""
        self._claiming = False
        """Lease requests are in a group that is under way."""
        self._closed = False
        self._expected = 0
        """Calls that may come together: those of the last group, and those that waited when it ended."""
        self._patience = 0.0
        self.claims: ClaimSource = lambda ops: None
        self.committed: Callable[[Sequence[Op]], None] = lambda ops: None
        self.measured: Callable[[float, bool], None] = lambda seconds, claimed: None
        """Told how long each transaction took, and whether jobs were claimed in it."""
        self.unclaimed: Callable[[], None] = lambda: None
        """Told that lease requests may have missed something: they were in another group when this one was committed."""
        self.shared = False
        """Whether other processes have the database open."""

    async def call(self, op: Op) -> Any:
        """The reply to one operation, once it is durable. Raises its refusal."""
        return await self.submit(op)

    def submit(self, op: Op, show: Show | None = None) -> asyncio.Future[Any]:
        """As `call`, as a future: cancel it to give up; what was asked for may be done all the same.

        With `show` what that makes of the reply, which it may be asked for before the reply is durable, and more than once.
        """
        return self._submit((op,), False, show)

    async def call_all(self, ops: Sequence[Op], show: Show | None = None) -> list[Any]:
        """Replies at each one's place, refusals as values; `show` as for `submit`."""
        parts = [self._submit(ops[at : at + GROUP], True, show) for at in range(0, len(ops), GROUP)]
        return [reply for part in parts for reply in await part]

    def _submit(self, ops: Sequence[Op], many: bool, show: Show | None = None) -> asyncio.Future[Any]:
        if self._closed:
            raise stopping()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        self._waiting.append(_Call(ops, future, many, show))
        if not self._running:
            self._start()
        return future

    def kick(self) -> None:
        """Asks for a group even where only lease requests wait."""
        if not self._closed:
            self._kicked = True
            if not self._running:
                self._start()

    async def close(self) -> None:
        """Takes nothing more and returns when what was taken is committed."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _start(self) -> None:
        self._running = True
        self._task = asyncio.get_running_loop().create_task(self._run(), name="commit")

    async def _run(self) -> None:
        try:
            while self._waiting or (self._kicked and not self._claiming):
                if len(self._under_way) + 1 > self._store.writers:
                    await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
                await self._gathered()
                calls, ops = self._next_group()
                unclaimed = self._claiming
                claim = None if unclaimed else self._claim(ops)
                if claim is not None:
                    ops.append(claim[0])
                if ops:
                    work = self._commit(ops, calls, claim[1] if claim else None, unclaimed=unclaimed)
                    if self._store.writers > 1:
                        group = asyncio.get_running_loop().create_task(work, name="commit a group")
                        self._under_way.add(group)
                        group.add_done_callback(self._under_way.discard)
                    else:
                        await work
                    if self.shared and (self._waiting or self._kicked):
                        await asyncio.sleep(PAUSE)
        finally:
            self._running = False

    def _claim(self, ops: list[Op]) -> tuple[Claim, Callable[[Any], None]] | None:
        """The lease requests that wait, to be put into a group of these operations."""
        self._kicked = False
        claim = self.claims(ops)
        self._claiming = claim is not None
        return claim

    async def _gathered(self) -> None:
        """Returns when those who ask at this moment have asked."""
        began = time.perf_counter()
        quiet = 0
        while len(self._waiting) < GROUP and (waited := time.perf_counter() - began) < GATHER_SECONDS:
            expected = len(self._waiting) < self._expected and waited < self._patience
            if quiet >= QUIET_TURNS and not expected:
                return
            before = len(self._waiting)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == before else 0

    def _next_group(self) -> tuple[list[_Call], list[Op]]:
        """The longest waiting calls that go into one group, less those whose callers have gone."""
        calls: list[_Call] = []
        ops: list[Op] = []
        taken = 0
        for call in self._waiting:
            if ops and len(ops) + len(call.ops) > GROUP:
                break
            taken += 1
            if not call.future.done():
                calls.append(call)
                ops.extend(call.ops)
        del self._waiting[:taken]
        return calls, ops

    async def _commit(
        self, ops: list[Op], calls: list[_Call], claimed: Callable[[Any], None] | None, *, unclaimed: bool
    ) -> None:
        replies: list[Reply]
        try:
            started = time.perf_counter()
            replies = await self._written(ops, calls, claimed)
            took = time.perf_counter() - started
            self._expected = len(calls) + len(self._waiting)
            # Where a database takes several groups, who waits turn by turn takes the processor from it.
            self._patience = PATIENCE * took if self._store.writers == 1 else 0.0
            self.measured(took, claimed is not None)
        except asyncio.CancelledError:
            _answer(calls, [Unavailable("Oaken was stopped; the outcome of this call is unknown.")] * len(ops))
            raise
        except BaseException as error:
            if not isinstance(error, OakenError):
                log.exception("a group of %d operations failed", len(ops))
                error = Unavailable("The store failed on this call; see the log of the server. Try again.")
            replies = [error] * len(ops)
        else:
            self.committed(ops)
        if claimed is not None:
            self._claiming = False
            claimed(replies[-1])
        _answer(calls, replies)
        if unclaimed:
            self.unclaimed()
        elif (self._kicked or self._waiting) and not self._running:
            self._start()  # a request that came while others were in this group

    async def _written(self, ops: list[Op], calls: list[_Call], claimed: Callable[[Any], None] | None) -> list[Reply]:
        """What the store replies. Where it stalls, on a disk that hangs for instance, nobody is left waiting for it: they hear that it
        does not answer. What it does in the end is done; a lease that nobody heard of is given back then."""
        write = asyncio.ensure_future(self._store.write(ops, _shower(calls)))
        while True:
            done, _ = await asyncio.wait((write,), timeout=STALL_SECONDS)
            if done:
                return write.result()
            log.error("the store has not answered for %g s; callers are told so", STALL_SECONDS)
            unknown = Unavailable(
                "The store does not answer; the outcome of this call is unknown. Look before you repeat it."
            )
            _answer(calls, [unknown] * len(ops))
            if claimed is not None:
                claimed(unknown)
            behind, self._waiting = self._waiting, []
            for call in behind:
                refusal = Unavailable("The store does not answer now; nothing was done. Try again in a few seconds.")
                _answer([call], [refusal] * len(call.ops))


@dataclass(slots=True, eq=False)
class _Call:
    """What one caller asked for. `many` says that it wants a list of replies, refusals as values."""

    ops: Sequence[Op]
    future: asyncio.Future[Any]
    many: bool
    show: Show | None
    early: Sequence[Reply] = ()
    """Replies that were shown before they were durable, if any were."""
    shown: Sequence[Any] = ()
    """What `show` made of each of these; None of a refusal."""

    def show_early(self, replies: Sequence[Reply]) -> None:
        if self.show is not None:
            with suppress(Exception):  # it will be raised again where the caller hears of it
                shown = [None if isinstance(reply, BaseException) else self.show(reply) for reply in replies]
                self.early, self.shown = replies, shown

    def told(self, replies: Sequence[Reply]) -> list[Any]:
        """What the caller gets to hear of its replies."""
        if self.show is None:
            return [_told(reply) for reply in replies]
        early = len(self.early) == len(replies)
        return [
            self.shown[place]
            if early and reply is self.early[place] and not isinstance(reply, BaseException)
            else _shown(reply, self.show)
            for place, reply in enumerate(replies)
        ]


def _shower(calls: Sequence[_Call]) -> Applied | None:
    """Shows replies while the disk works. None where nobody wants them shown."""
    if not any(call.show for call in calls):
        return None

    def applied(replies: Sequence[Reply]) -> None:
        for call, mine in _dealt(calls, replies):
            call.show_early(mine)

    return applied


def _answer(calls: list[_Call], replies: Sequence[Reply]) -> None:
    for call, mine in _dealt(calls, replies):
        if call.future.done():  # its caller gave up
            continue
        told = call.told(mine)
        if call.many:
            call.future.set_result(told)
        elif isinstance(told[0], BaseException):
            call.future.set_exception(told[0])
        else:
            call.future.set_result(told[0])


def _dealt(calls: Sequence[_Call], replies: Sequence[Reply]) -> Iterator[tuple[_Call, Sequence[Reply]]]:
    """Each call with its replies."""
    at = 0
    for call in calls:
        yield call, replies[at : at + len(call.ops)]
        at += len(call.ops)


def _shown(reply: Reply, show: Show) -> Any:
    if isinstance(reply, BaseException):
        return _told(reply)
    try:
        return show(reply)
    except Exception as error:
        return error


def _told(reply: Reply) -> Any:
    """The reply as a caller may see it: what the store never meant to raise goes to the log."""
    if isinstance(reply, BaseException) and not isinstance(reply, OakenError):
        log.error("an operation failed", exc_info=reply)
        return Unavailable("The store failed on this call; see the log of the server. Try again.")
    return reply

"""Calls that wait: each ends early when its client goes away, and all of them when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from starlette.types import Receive

AT_ONCE_SECONDS = 0.01
"""How long work may take before anyone looks whether its client is still there: that costs as much as many a call."""


class Waited(NamedTuple):
    """How a wait ended."""

    done: bool
    """Whether the work came to its end. Otherwise it was cancelled, and `value` is None."""
    value: Any
    gone: bool
    """Whether the client has gone away."""


class Waits:
    """The waiting calls of one server."""

    def __init__(self) -> None:
        self._ends: set[asyncio.Future[None]] = set()
        self.stopped = False
        """Whether nothing waits any more."""

    @property
    def open(self) -> int:
        """How many wait."""
        return len(self._ends)

    async def run(self, receive: Receive, work: Coroutine[Any, Any, Any], until: Coroutine[Any, Any, None]) -> Waited:
        """Does `work` until it is done, the client goes away, `until` returns or the server stops; raises what it raises.

        The request's body must have been read: from here on `receive` only tells that the client has gone.
        """
        task = asyncio.ensure_future(work)
        if not self.stopped:
            try:  # most are done before there is anything to look out for
                done, _ = await asyncio.wait((task,), timeout=AT_ONCE_SECONDS)
            except asyncio.CancelledError:
                until.close()
                await _cancelled(task)
                raise
            if done:
                until.close()
                return Waited(True, task.result(), False)
        gone = asyncio.ensure_future(_gone(receive))
        over = asyncio.ensure_future(until)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.add(end)
        if self.stopped:
            end.set_result(None)
        try:
            await asyncio.wait((task, gone, over, end), return_when=asyncio.FIRST_COMPLETED)
            if over.done() and (error := over.exception()) is not None and not task.done():
                raise error
            return Waited(task.done(), task.result() if task.done() else None, gone.done())
        finally:
            self._ends.discard(end)
            end.cancel()
            gone.cancel()
            over.cancel()
            await _cancelled(task)

    @staticmethod
    async def gone(receive: Receive) -> bool:
        """Whether the client has gone by now, as far as the server has heard. The request's body must have been read."""
        task = asyncio.ensure_future(_gone(receive))
        done, _ = await asyncio.wait((task,), timeout=0)
        task.cancel()
        return bool(done)

    def stop(self) -> None:
        """Ends all waits, and every later one at once."""
        self.stopped = True
        for end in self._ends:
            if not end.done():
                end.set_result(None)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancels what is not done. What it gives back then is given back before anything is answered."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

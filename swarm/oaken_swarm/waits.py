"""Calls that wait: each ends early when its client goes away, and all of them when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from starlette.types import Receive

AT_ONCE_SECONDS = 0.05
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

    def __init__(self, *, last: bool = False) -> None:
        """`last` says that what is done here does not end by itself, so that what ends it is looked out for from the beginning."""
        self._patience = 0.0 if last else AT_ONCE_SECONDS
        self._watches: set[_Watch] = set()
        self.stopped = False
        """Whether nothing waits any more."""

    @property
    def open(self) -> int:
        """How many wait."""
        return len(self._watches)

    async def run(self, receive: Receive, work: Coroutine[Any, Any, Any], until: Coroutine[Any, Any, None]) -> Waited:
        """Does `work` until it is done, the client goes away, `until` returns or the server stops; raises what it raises.

        The request's body must have been read: from here on `receive` only tells that the client has gone. What the work gives back when it
        is cancelled is given back before this returns.
        """
        watch = _Watch(receive, until)
        self._watches.add(watch)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                watch.begin(limit, self._patience)
                if self.stopped:
                    watch.end()
                value = await work
        except TimeoutError:
            if not limit.expired():
                raise
            if watch.error is not None:
                raise watch.error from None
            return Waited(False, None, watch.gone)
        finally:
            self._watches.discard(watch)
            watch.close()
        return Waited(True, value, watch.gone)

    @staticmethod
    def gone(receive: Receive) -> bool:
        """Whether the client has gone by now, as far as the server has heard. The request's body must have been read."""
        # One step, since in any pause the client could go unseen.
        looking = _gone(receive)
        try:
            looking.send(None)
        except StopIteration:
            return True
        finally:
            looking.close()
        return False

    def stop(self) -> None:
        """Ends all waits, and every later one at once."""
        self.stopped = True
        for watch in self._watches:
            watch.end()


class _Watch:
    """Looks out for what ends one wait early."""

    def __init__(self, receive: Receive, until: Coroutine[Any, Any, None]) -> None:
        self._receive = receive
        self._until = until
        self._limit: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.gone = False
        """Whether the client has gone away."""
        self.error: BaseException | None = None
        """What `until` raised."""

    def begin(self, limit: asyncio.Timeout, patience: float) -> None:
        """From now on the wait ends when `limit` is told so. What ends it is looked out for after `patience` seconds."""
        self._limit = limit
        if patience:
            self._timer = asyncio.get_running_loop().call_later(patience, self._look_out)
        else:
            self._look_out()

    def end(self) -> None:
        """Ends the wait now, unless it is about to end."""
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Looks out for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._tasks:
            self._until.close()
        for task in self._tasks:
            task.cancel()

    def _look_out(self) -> None:
        loop = asyncio.get_running_loop()
        gone, over = loop.create_task(_gone(self._receive)), loop.create_task(self._until)
        gone.add_done_callback(self._is_gone)
        over.add_done_callback(self._is_over)
        self._tasks = [gone, over]

    def _is_gone(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.gone = True
            self.end()

    def _is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.error = task.exception()
            self.end()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

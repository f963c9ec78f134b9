"""A thread with an event loop, for code that has none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from oaken_jobs.errors import Unavailable

T = TypeVar("T")

CANCEL_SECONDS = 1.0
"""How long an interrupted call may take to let go of its connection."""


class Portal:
    """Runs coroutines for other threads. Its own thread begins with the first, and again after `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine. What interrupts the caller (Ctrl-C) cancels it. Raises `Unavailable` where the portal is closed."""
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await call
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(watched(), self._running())
        try:
            return future.result()
        except CancelledError:
            raise Unavailable("The client was closed before the answer came.") from None
        except BaseException:
            if future.cancel():
                # What it was using must be free for what comes next, the end of an iterator for instance.
                ended.wait(CANCEL_SECONDS)
            raise

    def close(self, last: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Cancels what still runs, then calls `last` in order, and ends the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_end(last), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started = Future[asyncio.AbstractEventLoop]()
                self._thread = threading.Thread(target=_serve, args=(started,), name="oaken client", daemon=True)
                self._thread.start()
                self._loop = started.result()
            return self._loop


def _serve(started: Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:
        started.set_result(runner.get_loop())
        runner.get_loop().run_forever()


async def _end(last: Sequence[Callable[[], Awaitable[None]]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    for each in last:
        await each()

"""A thread with an event loop, for code that has none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

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

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """The outcome of what `make` begins. What interrupts the caller (Ctrl-C) cancels it. Raises `Unavailable` where it is closed.

        The caller may be interrupted between any two steps. So what is awaited is made by the loop's thread: it never exists
        without a task that can be cancelled.
        """
        call, loop = _Call(make), self._running()
        try:
            loop.call_soon_threadsafe(call.begin)
            return call.outcome.result()
        except CancelledError:
            raise Unavailable("The client was closed before the answer came.") from None
        except BaseException:
            if not call.outcome.done():
                loop.call_soon_threadsafe(call.cancel)
                # What it was using must be free for what comes next, the end of an iterator for instance.
                call.ended.wait(CANCEL_SECONDS)
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


class _Call(Generic[T]):
    """One call that another thread waits for. Its methods belong to the loop's thread."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self.outcome = Future[T]()
        self.ended = threading.Event()
        self._make = make
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._awaited())
        self._task.add_done_callback(self._settle)

    def cancel(self) -> None:
        if self._task is None:
            self.ended.set()
        else:
            self._task.cancel()

    async def _awaited(self) -> T:
        return await self._make()

    def _settle(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.cancel()
        elif error := task.exception():
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())
        self.ended.set()


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

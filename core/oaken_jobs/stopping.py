"""Stops that go to their end whatever fails on the way, and starts that end where a stop is asked for meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from oaken_jobs.errors import Unavailable
from oaken_jobs.held import described

log = logging.getLogger("oaken.stopping")

LEAVE_AT_ONCE = 130
"""The exit code of a process that does not wait for its stop."""
UNDO_SECONDS = 2.0
"""How long a start that is given up may take to undo what it has begun."""

Step = tuple[str, Callable[[], Awaitable[object]]]


class Unfinished(Unavailable):
    """Parts of a stop failed. Each has been logged, and the rest of the stop was done."""


async def every(*steps: Step) -> None:
    """Takes every step of a stop, in order, although one before it failed; each failure is a line in the log. Raises `Unfinished`
    when all have been taken."""
    failed: list[str] = []
    for name, act in steps:
        try:
            await act()
        except Unfinished:
            failed.append(name)  # told where it happened
        except (Exception, asyncio.CancelledError) as error:
            failed.append(name)
            log.error("stopping: %s failed, the rest goes on: %s", name, described(error))
    if failed:
        raise Unfinished(
            f"The stop was not complete: {', '.join(failed)} failed; see the log. Leases run out by themselves."
        )


async def unless_asked(start: Awaitable[None], asked: asyncio.Event) -> bool:
    """Awaits a start, whose errors it raises; False where a stop is asked for before it is through.

    The start is cancelled then. One that cannot be, because a thread of it waits for another process's lock, is left with the process.
    """
    starting = asyncio.ensure_future(start)
    waiting = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if not starting.done():
        log.info("a stop is asked for during the start, which is given up")
        starting.cancel()
        await asyncio.wait((starting,), timeout=UNDO_SECONDS)
        if not starting.done():
            os._exit(LEAVE_AT_ONCE)
        if starting.cancelled():
            return False
    await starting
    return not asked.is_set()

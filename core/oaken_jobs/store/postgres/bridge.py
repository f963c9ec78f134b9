"""Runs plain functions whose statements are awaited.

The work of a transaction is written once, as plain functions (see `oaken_jobs.store.sql`). On SQLite it runs on the connection's thread.
Here it runs in a greenlet of the loop's own thread: `wait` hands an awaitable to the coroutine that runs the function, which awaits it
and comes back with what it gave, or raises what it raised. The loop goes on meanwhile, as at every await.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from greenlet import getcurrent, greenlet

P = ParamSpec("P")
T = TypeVar("T")


def wait(awaitable: Awaitable[T]) -> T:
    """What an awaitable gives; only inside a function that `run` runs."""
    outside = getcurrent().parent
    assert outside is not None
    result: Any = outside.switch(awaitable)
    return result


async def run(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the function returns. Cancelling it raises `CancelledError` in the function, where it waits."""
    inside = greenlet(function)
    inside.gr_context = getcurrent().gr_context
    given: Any = inside.switch(*args, **kwargs)
    while not inside.dead:
        try:
            value = await given
        except BaseException as error:
            given = inside.throw(error)
        else:
            given = inside.switch(value)
    return given

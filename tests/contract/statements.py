"""What a test does with the statements of a store on PostgreSQL: `watch` puts a function between the store and its connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from oaken_jobs.core import Core

Meet = Callable[[Any, str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Of the connection, the statement, and what carries it out: what the store is given."""


def watch(core: Core, meet: Meet) -> None:
    """From now on each statement of a transaction goes through `meet`. The connections there were are dropped."""
    store: Any = core.store
    connect = store._server.connect

    async def connected(*settings: Any) -> Any:
        return _Watched(await connect(*settings), meet)

    store._server.connect = connected
    while store._writers:
        store._writers.pop().terminate()


class _Watched:
    def __init__(self, connection: Any, meet: Meet) -> None:
        self._connection = connection
        self._meet = meet

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name not in ("execute", "fetch", "fetchrow"):
            return found

        async def met(statement: str, *values: Any, timeout: float | None = None) -> Any:
            return await self._meet(self._connection, statement, partial(found, statement, *values, timeout=timeout))

        return met

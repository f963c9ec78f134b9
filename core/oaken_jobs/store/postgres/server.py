"""How a PostgreSQL server is reached: connections set up as Oaken needs them, and what their errors mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncpg

from oaken_jobs.config import without_password
from oaken_jobs.errors import ConfigError, OakenError, Unavailable


class Connection(Protocol):
    """What is used of asyncpg's connections, which say little of types themselves. All raise what is in `lost` when they break."""

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...
    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...
    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str: ...
    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Any], columns: Sequence[str], timeout: float | None = None
    ) -> str: ...
    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, object], None]) -> None: ...
    def add_termination_listener(self, callback: Callable[[Any], None]) -> None: ...
    def get_server_pid(self) -> int: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self) -> None: ...


class Pool(Protocol):
    """The same of its pools."""

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Connection]: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


_library: Any = asyncpg

CONNECT_SECONDS = 5.0
"""After which an attempt to connect is given up."""
IDLE_SECONDS = 300.0
"""After which a connection for reading that nobody uses is closed."""

lost: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""Errors of a server that is away, is being restarted, or has nothing left to give; the last is one that is no longer the primary."""

# What waits for a lock so long, or idles so long inside a transaction, holds others up: the database ends it, and it is run again. Plans
# of lists are made for each call, by what is asked for. Where the statistics still are those of an empty table, a bitmap would gather and
# sort all that an index has in order already.
SETTINGS = {
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "15s",
    "plan_cache_mode": "force_custom_plan",
    "enable_bitmapscan": "off",
    "jit": "off",
}
WRITING = {**SETTINGS, "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
"""For what writes: all is found by keys and in the order of an index, so one plan is good for all calls. To make one each time took the
database longer than to carry it out. What is good for an empty table is not for a full one, though: see `PLANS_SECONDS`."""
PLANS_SECONDS = 1.0
"""How long a plan is kept."""


class Server:
    """Where the database is. Nothing that it says holds the password."""

    def __init__(self, url: str, *, prepared: bool) -> None:
        """`prepared`: a connection is the same backend for as long as it lives, so statements stay prepared and settings stay set."""
        parts = urlsplit(url)
        if parts.scheme not in ("postgresql", "postgres"):
            raise ConfigError(
                f"database.url begins with {parts.scheme or 'nothing'}://; Oaken knows postgresql://USER:PASSWORD@HOST:PORT/DATABASE. "
                "Leave it out to keep jobs in SQLite, in the data folder."
            )
        self._url = url
        self._options: dict[str, Any] = {
            "timeout": CONNECT_SECONDS,
            "statement_cache_size": 1024 if prepared else 0,
            "max_cached_statement_lifetime": 0,
        }
        self.prepared = prepared
        self.begin = "begin isolation level read committed"
        """Begins a transaction. Where a connection may be another backend each time, settings are made in each."""
        if not prepared:
            self.begin += "".join(f"; set local {name} = '{value}'" for name, value in WRITING.items())
        self.name = without_password(url)

    async def connect(self, settings: Mapping[str, str] = SETTINGS) -> Connection:
        """A connection of its own. Raises what asyncpg raises."""
        return await _library.connect(self._url, server_settings=self._settings(settings), **self._options)

    async def pool(self, size: int) -> Pool:
        """At most so many connections, made when they are needed."""
        return await _library.create_pool(
            self._url,
            min_size=0,
            max_size=size,
            max_inactive_connection_lifetime=IDLE_SECONDS,
            reset=_nothing,
            server_settings=self._settings(SETTINGS),
            **self._options,
        )

    def _settings(self, settings: Mapping[str, str]) -> dict[str, str] | None:
        return {"application_name": "oaken", **settings} if self.prepared else None

    async def hang_up(self, connection: Connection) -> None:
        """Closes a connection; one that does not answer is dropped."""
        try:
            await asyncio.wait_for(connection.close(), CONNECT_SECONDS)
        except lost:
            connection.terminate()

    def refusal(self, error: BaseException) -> OakenError:
        """What is wrong with a server that could not be opened, and what to do."""
        if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
            return ConfigError(
                f"{self.name} does not let Oaken in: {words(error)}. Check user and password in database.url."
            )
        if isinstance(error, asyncpg.InvalidCatalogNameError):
            return ConfigError(
                f"{self.name}: {words(error)}. Create it (createdb), or name another one in database.url."
            )
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            return ConfigError(
                f"{self.name}: {words(error)}. At its first start Oaken's user needs the right to create tables in the schema "
                "(grant create, usage on schema public)."
            )
        return Unavailable(
            f"{self.name} cannot be opened: {words(error)}. Check that it runs and can be reached from here."
        )


async def _nothing(connection: object) -> None:
    """Readers leave nothing behind on a connection, so nothing has to be put back, which would cost a round trip."""


def words(error: BaseException) -> str:
    """What an error says, without statements and their values."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__

"""The trace in a table. It is reached over connections of its own, and by nothing else than this module, so that it may have rights of its
own: whoever may do all else need not be able to read what was said in private."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from oaken_jobs.archive import FOLLOW_ROWS, FOLLOW_SECONDS, PAGE_BYTES, Kept, row_of
from oaken_jobs.clock import Clock
from oaken_jobs.errors import Unavailable
from oaken_jobs.model import Json
from oaken_jobs.store.postgres.server import CONNECT_SECONDS, Connection, Pool, Server, lost, words
from oaken_jobs.tracing import TracePage

T = TypeVar("T")

CONNECTIONS = 2
"""One that writes, and one for who reads."""
SECONDS = 10.0
"""After which a statement is given up."""
FORGOTTEN_AT_ONCE = 500

_LOCK = 0x6F616B7472
# One at a time from the first number drawn to the commit, which are one statement: whoever follows the numbers misses none.
_ADD = f"""
with alone as materialized (select pg_advisory_xact_lock({_LOCK}))
insert into trace (id, at, job_id, agent, bytes, body)
select r.id, r.at, r.job_id, r.agent, octet_length(r.body), r.body from alone cross join
  unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[]) r(id, at, job_id, agent, body)
on conflict (id) do nothing"""
_FIND = """
select n, bytes from trace
where ($1::text is null or n < (select n from trace where id = $1)) and ($2::bigint is null or job_id = $2)
  and ($3::text is null or split_part(agent, '/', 1) = split_part($3, '/', 1) and $3 in (agent, split_part(agent, '/', 1)))
order by n desc limit $4"""
_SHOW = "select body from trace where n = any($1::bigint[]) order by n desc"
_NEWEST = "select coalesce(max(n), 0) from trace"
_NEXT = "select n, body from trace where n > $1 order by n limit $2"
_FORGET = "delete from trace where n in (select n from trace where {} order by n limit {} for update skip locked)"
_OLD = _FORGET.format("at < $1", FORGOTTEN_AT_ONCE)
_FAR = _FORGET.format("n <= $1", FORGOTTEN_AT_ONCE)
_TOO_MUCH = """
select n from (select n, sum(bytes) over (order by n desc) as total from trace) t where total > $1 order by n desc limit 1"""


class PostgresArchive:
    """A trace of at most `most_bytes`, and a little more until that is noticed: after each `look_bytes` that this process adds, and
    whenever old rows are forgotten. A user who may not reach the table keeps nothing, and leaves forgetting to others."""

    def __init__(self, server: Server, *, most_bytes: int, look_bytes: int) -> None:
        self.place = server.name
        self._server = server
        self._most_bytes = most_bytes
        self._look_bytes = look_bytes
        self._added = 0
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def add(self, rows: Sequence[Kept]) -> None:
        values = [
            [row.id for row in rows],
            [row.at for row in rows],
            [row.job_id for row in rows],
            [row.agent for row in rows],
        ]
        texts = [row.text.decode() for row in rows]
        await self._on(lambda connection: connection.execute(_ADD, *values, texts, timeout=SECONDS))
        self._added += sum(len(row.text) for row in rows)
        if self._added >= self._look_bytes:
            self._added = 0
            await self._bound()

    async def read(self, *, job_id: int | None, agent: str | None, before: str | None, limit: int) -> TracePage:
        async def page(connection: Connection) -> TracePage:
            found = await connection.fetch(_FIND, before, job_id, agent, limit + 1, timeout=SECONDS)
            shown = _fitting([(row[0], row[1]) for row in found[:limit]])
            bodies = await connection.fetch(_SHOW, shown, timeout=SECONDS)
            rows = [row for body in bodies if (row := row_of(body[0])) is not None]
            return TracePage(rows, rows[-1]["id"] if rows and len(found) > len(shown) else None)

        try:
            return await self._on(page)
        except Unavailable as error:
            raise _unreadable(error) from None

    async def follow(self, clock: Clock) -> AsyncGenerator[list[Json]]:
        try:
            place: int = await self._on(lambda connection: connection.fetchval(_NEWEST, timeout=SECONDS))
            while True:
                found = await self._on(_behind(place))
                if found:
                    place = found[-1][0]
                    yield [row for _, body in found if (row := row_of(body)) is not None]
                else:
                    await clock.sleep(FOLLOW_SECONDS)
        except Unavailable as error:
            raise _unreadable(error) from None

    async def forget(self, before: int) -> None:
        await self._delete(_OLD, before)
        await self._bound()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), CONNECT_SECONDS)
            except (*lost, asyncpg.PostgresError):
                pool.terminate()

    async def _bound(self) -> None:
        """Drops the oldest rows where there are more than there may be."""
        last = await self._on(
            lambda connection: connection.fetchval(_TOO_MUCH, self._most_bytes, timeout=SECONDS), None
        )
        if last is not None:
            await self._delete(_FAR, last)

    async def _delete(self, statement: str, up_to: int) -> None:
        done = "DELETE"
        while done != "DELETE 0":
            done = await self._on(lambda c: c.execute(statement, up_to, timeout=SECONDS), "DELETE 0")

    async def _on(self, act: Callable[[Connection], Awaitable[T]], *barred: T) -> T:
        """What `act` gives on a connection; twice where one was broken, since all that is done here may be done again. `barred` is the
        answer where the table is closed to us. Raises `Unavailable`."""
        problem: BaseException | None = None
        for _ in range(2):
            try:
                pool = await self._opened()
                async with pool.acquire(timeout=SECONDS) as connection:
                    return await act(connection)
            except asyncpg.InsufficientPrivilegeError as error:
                if barred:
                    return barred[0]
                raise Unavailable(f"{words(error)}; docs/postgres.md says which rights it needs") from None
            except (*lost, asyncpg.PostgresError) as error:
                problem = error
                if not isinstance(error, lost):
                    break
        raise Unavailable(words(problem) if problem is not None else "it is closed") from None

    async def _opened(self) -> Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await self._server.pool(CONNECTIONS)
            return self._pool


def _behind(place: int) -> Callable[[Connection], Awaitable[list[Any]]]:
    return lambda connection: connection.fetch(_NEXT, place, FOLLOW_ROWS, timeout=SECONDS)


def _fitting(found: Sequence[tuple[int, int]]) -> list[int]:
    """Those of rows, by number and size, that make up a page."""
    shown: list[int] = []
    size = 0
    for number, taken in found:
        if shown and size + taken > PAGE_BYTES:
            break
        shown.append(number)
        size += taken
    return shown


def _unreadable(error: Unavailable) -> Unavailable:
    return Unavailable(f"The trace cannot be read ({error.message}).")

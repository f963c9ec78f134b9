"""The store on PostgreSQL: a connection that writes, a pool that reads, and one that listens for other processes' commits."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import asyncpg

from oaken_jobs.clock import Clock, DatabaseClock
from oaken_jobs.errors import ConfigError, OakenError, Unavailable
from oaken_jobs.kinds import Rules
from oaken_jobs.model import FREE, Job
from oaken_jobs.store.base import Applied
from oaken_jobs.store.operations import Op, Recover, Reply
from oaken_jobs.store.postgres import schema
from oaken_jobs.store.postgres.bridge import run
from oaken_jobs.store.postgres.copying import require_whole
from oaken_jobs.store.postgres.queries import ACTIVITY_HEAD, COLUMNS
from oaken_jobs.store.postgres.remembered import Remembered
from oaken_jobs.store.postgres.rows import Types
from oaken_jobs.store.postgres.server import PLANS_SECONDS, WRITING, Connection, Pool, Server, lost, words
from oaken_jobs.store.postgres.session import Session
from oaken_jobs.store.postgres.signals import Signals
from oaken_jobs.store.postgres.walks import Walks
from oaken_jobs.store.sql import reads
from oaken_jobs.store.sql.cache import RowCache
from oaken_jobs.store.sql.continuity import Break, Continuity
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.reading import Reading
from oaken_jobs.store.sql.transaction import Moment, Transaction

log = logging.getLogger("oaken.store")

P = ParamSpec("P")
T = TypeVar("T")

STATEMENT_SECONDS = 10.0
"""After which a statement is given up, and its connection with it: it hangs."""
LIST_SECONDS = 60.0
"""The same for lists and counts."""
TRIES = 8
"""How often a transaction is begun that the database ends in favour of another, or that found its connection broken."""

_GIVES_WAY = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.UniqueViolationError,
)
"""Errors of a transaction that met another one; alone it would have gone well. (No unique key is ever broken but by two at once.)"""


class PostgresStore(Reading):
    """Jobs in a PostgreSQL database that any number of processes have open."""

    writers = 2
    """While the database works on one group, this process puts the next one together."""
    shared = True

    def __init__(self, url: str, rules: Rules, clock: Clock, *, pool_size: int = 8, listen: bool = True) -> None:
        """`pool_size` is the most connections for reading; one more writes. With `listen` another one hears of other processes' commits at
        once; without, for poolers in transaction mode and servers that know no LISTEN, they are looked for."""
        self.rules = rules
        self.moves: Counter[tuple[str, str]] = Counter()
        self.steady = False
        self._clock = clock
        self._server = Server(url, prepared=listen)
        self._pool_size = pool_size
        self._pool: Pool | None = None
        self._few = asyncio.Semaphore(max(1, pool_size - 2))
        """Of the pool for lists and counts, so that what is found by a key does not wait behind them."""
        self._writers: list[Connection] = []
        """Connections for writing that nobody uses at the moment; no more than groups are written at a time."""
        self._planned: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        """When each of them last made its plans anew."""
        self._signals = Signals(self._server, self._newest, self._tell, listen=listen)
        self._types: Types = {}
        self._leased_kinds: dict[str, int] = {}
        self._continuity = Continuity(clock)
        self._remembered = Remembered()
        self._walks = Walks()
        self._drawn = 0
        """Ids of activity that this process has drawn; those that others have tell that they have written."""
        self._drawn_by_others = 0

    async def open(self) -> None:
        try:
            connection = await self._server.connect(WRITING)
            self._writers.append(connection)
            await schema.migrate(connection, self._server.name)
            await require_whole(connection, self._server.name)
            self._types = {(row[0], row[1]): row[2] for row in await connection.fetch(COLUMNS)}
            session = self._session(connection, STATEMENT_SECONDS)
            if isinstance(self._clock, DatabaseClock):
                self._clock.set((await run(session.moment))[0])
            self._continuity.went_on(self._clock.now())
            self._leased_kinds = await run(reads.leased_kinds, session)
            self._pool = await self._server.pool(self._pool_size)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            await self.close()
            raise self._server.refusal(error) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._signals.stop()
        pool, writers = self._pool, self._writers
        self._pool, self._writers = None, []
        for writer in writers:
            await self._server.hang_up(writer)
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), STATEMENT_SECONDS)
            except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                pool.terminate()

    async def write(self, ops: Sequence[Op], applied: Applied | None = None) -> list[Reply]:
        problem: BaseException | None = None
        grace: list[Op] = []
        for tries in range(1, TRIES + 1):
            if self._pool is None:
                raise Unavailable("The store is closed; the server is stopping. Try again when it is back.")
            connection = self._free_writer()
            fresh = connection is None
            try:
                connection = connection or await self._server.connect(WRITING)
                replies = await self._write(connection, [*grace, *ops], None if grace else applied, graced=bool(grace))
            except _Discontinued as error:
                problem = error
                grace = await self._grace(error)
            except _GIVES_WAY as error:
                problem = error
                log.debug("a transaction gave way to another one: %s", type(error).__name__)
                await asyncio.sleep(random.uniform(0.0, 0.01 * tries))
            except lost as error:
                problem = error
                if fresh:  # not one that had broken meanwhile
                    break
            else:
                return replies[len(grace) :]
            finally:
                if connection is not None and not connection.is_closed():
                    self._give_back(connection)
        assert problem is not None
        raise _unavailable(problem) from None

    def _give_back(self, connection: Connection) -> None:
        if self._pool is None:  # closed meanwhile
            connection.terminate()
        else:
            self._writers.append(connection)

    def _free_writer(self) -> Connection | None:
        while self._writers:
            connection = self._writers.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _write(
        self, connection: Connection, ops: Sequence[Op], applied: Applied | None, *, graced: bool
    ) -> list[Reply]:
        """The group in one transaction; where one operation breaks it, each under a savepoint. What is raised was not done, but
        for `Unavailable`; a connection that is of no more use is closed. `graced`: the group begins with the grace that a break of time
        asks for. Until it is committed every group asks for it, or one beside it would take leases from healthy workers."""
        try:
            group = self._group(connection, graced)
            await group.apply(ops)
        except BaseException as error:
            await self._roll_back(connection, error)
            if len(ops) == 1 or isinstance(error, (*lost, *_GIVES_WAY, _Discontinued, asyncio.CancelledError)):
                raise
            group = self._group(connection, graced)
            try:
                await group.one_by_one(ops)
            except BaseException as error:
                await self._roll_back(connection, error)
                raise
        if applied is not None:
            asyncio.get_running_loop().call_soon(applied, group.replies)
        try:
            await connection.execute("commit", timeout=STATEMENT_SECONDS)
        except _GIVES_WAY as error:
            await self._roll_back(connection, error)
            raise
        except asyncio.CancelledError:
            connection.terminate()
            raise
        except BaseException as error:
            connection.terminate()
            raise Unavailable(
                f"The outcome of this call is unknown: {words(error)}. Look before you repeat it."
            ) from error
        if graced:
            self._continuity.went_on(group.now)
        for version, job, payload in group.written:
            self._remembered.keep(version, job, payload)
            if job.lease_expires is not None:
                self._walks.leased(job.lease_expires)
        queued = (job for _, job, _ in group.written if job.state == "queued" and job.blocked == FREE)
        self._walks.runnable(queued, group.now)
        self._leased_kinds |= group.leased
        self.moves.update(group.moved)
        if group.told:
            self._drawn += group.drawn
            self._signals.send()
        return group.replies

    def _session(self, connection: Connection, seconds: float) -> Session:
        return Session(connection, self._types, seconds, self._remembered, self._walks)

    def _group(self, connection: Connection, graced: bool) -> _Group:
        session = self._session(connection, STATEMENT_SECONDS)
        return _Group(connection, session, self._begin(connection), partial(self._transaction, graced))

    def _begin(self, connection: Connection) -> str:
        kept_until = self._planned.get(connection, -math.inf) + PLANS_SECONDS
        if not self._server.prepared or time.monotonic() < kept_until:
            return self._server.begin
        self._planned[connection] = time.monotonic()
        return f"discard plans; {self._server.begin}"

    def _transaction(self, graced: bool, session: Session) -> Transaction:
        return Transaction(session, lambda: self._moment(session, graced), self.rules, self._leased_kinds, RowCache())

    def _moment(self, session: Session, graced: bool) -> Moment:
        """Raises `_Discontinued` where nothing should be judged yet."""
        now, drawn = session.moment()
        if not isinstance(self._clock, DatabaseClock):
            now = self._clock.now()
        if not graced:
            broken = self._continuity.broken(now, steady=self.steady)
            if broken is not None:
                raise _Discontinued(broken, now)
            self._continuity.went_on(now)
        if isinstance(self._clock, DatabaseClock):  # now, for a transaction takes its time
            self._clock.set(now)
        by_others = drawn - self._drawn
        foreign, self._drawn_by_others = by_others != self._drawn_by_others, by_others
        return Moment(now, foreign)

    async def _grace(self, broken: _Discontinued) -> list[Op]:
        """What is to be done before anything else: where nobody else was there either, running leases get a grace."""
        self._walks.forget()  # its times
        what, since = broken.why
        if since is not None:
            seen = "select 1 from processes where seen_at > ?1 and seen_at <= ?2"
            if await self._find(lambda db: db.one(seen, since, broken.now)) is not None:
                self._continuity.went_on(broken.now)
                return []
        log.warning("%s; running leases are given a grace", what)
        return [Recover(round(self.rules.recovery_grace * 1000))]

    async def _roll_back(self, connection: Connection, error: BaseException) -> None:
        """Ends a transaction without effect. Where the connection is at fault it is dropped, and the database ends it."""
        if isinstance(error, (*lost, asyncio.CancelledError)):
            connection.terminate()
            return
        try:
            await connection.execute("rollback", timeout=STATEMENT_SECONDS)
        except BaseException:
            connection.terminate()

    async def changed(self) -> bool:
        if self._pool is None:
            return False
        return await self._signals.changed()

    async def _newest(self) -> int:
        """Up to which id the activity can be read."""
        return await self._find(lambda db: db.all(ACTIVITY_HEAD)[0][0])

    async def _tell(self, statement: str) -> None:
        """Runs a statement that signals, where nobody waits for it."""
        if self._pool is not None:
            async with self._pool.acquire(timeout=STATEMENT_SECONDS) as connection:
                self._signals.own(connection.get_server_pid())
                await connection.execute(statement, timeout=STATEMENT_SECONDS)

    async def _find(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._on_reader(STATEMENT_SECONDS, function, *args, **kwargs)

    async def _read(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._few:
            return await self._on_reader(LIST_SECONDS, function, *args, **kwargs)

    async def _on_reader(
        self, seconds: float, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        problem: BaseException | None = None
        for _ in range(2):  # a connection may have broken while nobody used it
            if self._pool is None:
                raise Unavailable("The store is closed; the server is stopping. Try again when it is back.")
            try:
                async with self._pool.acquire(timeout=STATEMENT_SECONDS) as connection:
                    session = self._session(connection, seconds)
                    try:
                        return await run(function, session, *args, **kwargs)
                    except TimeoutError:
                        connection.terminate()
                        raise
            except TimeoutError as error:
                raise _unavailable(error) from None
            except lost as error:
                problem = error
        assert problem is not None
        raise _unavailable(problem) from None

    async def backup(self, target: Path) -> None:
        raise ConfigError(
            f"Jobs are kept on {self._server.name}; {target} would not be a copy of that. Back it up with pg_dump, or with what your "
            "provider has for it."
        )

    async def size(self) -> int:
        return await self._read(lambda db: db.all("select pg_database_size(current_database())")[0][0])


class _Discontinued(Exception):
    """Time has not gone on as it should; `now` (ms) is what it is."""

    def __init__(self, why: Break, now: int) -> None:
        super().__init__(why.what)
        self.why = why
        self.now = now


class _Group:
    """One transaction of a store, from BEGIN to just before COMMIT."""

    def __init__(
        self, connection: Connection, session: Session, begin: str, transaction: Callable[[Session], Transaction]
    ) -> None:
        self._connection = connection
        self._session = session
        self._begin = begin
        self._transaction = transaction
        self.replies: list[Reply] = []
        self.leased: dict[str, int] = {}
        self.moved: Counter[tuple[str, str]] = Counter()
        self.told = False
        """Whether rows of activity were written."""
        self.now = 0
        self.drawn = 0
        """Ids of activity that were drawn."""
        self.written: list[tuple[int, Job, str | None]] = []
        """The version of the row, the job, and its payload where that is at hand."""

    async def apply(self, ops: Sequence[Op]) -> None:
        """All in one."""
        await self._connection.execute(self._begin, timeout=STATEMENT_SECONDS)
        work = await self._work(ops)
        if self._session.version is not None:
            self.written = [(self._session.version, job, payload) for job, payload in work.written]

    async def one_by_one(self, ops: Sequence[Op]) -> None:
        """Each for itself, so that one that breaks leaves the others alone."""
        await self._connection.execute(self._begin, timeout=STATEMENT_SECONDS)
        for op in ops:
            await self._connection.execute("savepoint one", timeout=STATEMENT_SECONDS)
            try:
                await self._work([op])
            except (*lost, *_GIVES_WAY, asyncio.CancelledError):
                raise
            except BaseException as error:
                await self._connection.execute("rollback to one", timeout=STATEMENT_SECONDS)
                self._session.forget()
                self.replies.append(error)
            await self._connection.execute("release one", timeout=STATEMENT_SECONDS)

    def _applied(self, work: Transaction, ops: Sequence[Op]) -> list[Reply]:
        replies = work.apply(ops)
        self._session.write()
        return replies

    async def _work(self, ops: Sequence[Op]) -> Transaction:
        work = self._transaction(self._session)
        self.replies += await run(self._applied, work, ops)
        self.leased |= work.leased
        self.moved.update(work.moved)
        self.told = self.told or work.told
        self.now = work.now
        self.drawn = self._session.drawn
        return work


def _unavailable(error: BaseException) -> OakenError:
    return Unavailable(f"The database cannot answer now: {words(error)}. Try again in a few seconds.")

"""The store on SQLite: one writer connection, a few readers, one more that watches for other processes' commits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from oaken_jobs.clock import Clock
from oaken_jobs.errors import ConfigError, OakenError, Unavailable
from oaken_jobs.kinds import Rules
from oaken_jobs.store.base import Applied
from oaken_jobs.store.operations import Op, Recover, Reply
from oaken_jobs.store.sql import reads
from oaken_jobs.store.sql.cache import RowCache
from oaken_jobs.store.sql.continuity import Continuity
from oaken_jobs.store.sql.reading import Reading
from oaken_jobs.store.sql.transaction import Moment, Transaction
from oaken_jobs.store.sqlite import schema
from oaken_jobs.store.sqlite.driver import (
    Connection,
    Database,
    Error,
    OperationalError,
    connect,
    copy,
    create_file,
    data_version,
)

log = logging.getLogger("oaken.store")

P = ParamSpec("P")
T = TypeVar("T")

READERS = 2
LOOKED_SECONDS = 0.005
"""So long counts the look of the writer with which each transaction begins: under load nobody else need look for other processes' commits,
for which the threads and the loop would have to take turns."""


class SqliteStore(Reading):
    """Jobs in one file. Several processes may have it open at once."""

    writers = 1
    shared = False

    def __init__(self, path: Path, rules: Rules, clock: Clock) -> None:
        self.path = path
        self.rules = rules
        self._clock = clock
        self._writer: Connection | None = None
        self._watcher: Connection | None = None
        self._quick: Connection | None = None
        """For what is found by a key, so that it does not wait behind lists and counts."""
        self._readers: list[Connection] = []
        self._free: asyncio.Queue[Connection] = asyncio.Queue()
        self._version = 0
        """What the watcher saw: another one after each commit, also of this process."""
        self._looked_at = float("-inf")
        """When the writer looked last, in seconds of real time."""
        self._foreign_version: int = 0
        """What the writer saw: another one after commits of other processes alone."""
        self._foreign = False
        """Another process has committed, and nobody was told yet."""
        self._own = False
        """This process has committed since the watcher looked."""
        self._unsure = False
        """Somebody else may have, too; the writer is to be asked."""
        self._asking: asyncio.Task[None] | None = None
        self._leased_kinds: dict[str, int] = {}
        self._cache = RowCache()
        self._continuity = Continuity(clock)
        self.steady = False
        self.moves: Counter[tuple[str, str]] = Counter()

    async def open(self) -> None:
        try:
            create_file(self.path)
        except OSError as error:
            raise ConfigError(
                f"The data folder {self.path.parent} cannot be used: {error.strerror}. Name another one with --data-dir or "
                "OAKEN_DATA_DIR."
            ) from None
        try:
            self._writer = await connect(self.path)
            await self._writer.run(schema.migrate, str(self.path), self._clock.now())
            self._foreign_version = await self._writer.run(data_version)
            self._leased_kinds = await self._writer.run(reads.leased_kinds)
            self._watcher = await connect(self.path, readonly=True)
            self._version = await self._watcher.run(data_version)
            self._quick = await connect(self.path, readonly=True)
            for _ in range(READERS):
                reader = await connect(self.path, readonly=True)
                self._readers.append(reader)
                self._free.put_nowait(reader)
        except Error as error:
            await self.close()
            raise Unavailable(
                f"The database {self.path} cannot be opened: {error}. Check that it is a database of Oaken's and that you may "
                "write to it and its folder."
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._asking is not None:
            await asyncio.wait([self._asking])
        open_ones = [c for c in (self._watcher, self._quick, *self._readers, self._writer) if c is not None]
        self._writer = self._watcher = self._quick = None
        self._readers = []
        for connection in open_ones:
            await connection.close()

    async def write(self, ops: Sequence[Op], applied: Applied | None = None) -> list[Reply]:
        if self._writer is None:
            raise Unavailable("The store is closed; the server is stopping. Try again when it is back.")
        try:
            tell = partial(asyncio.get_running_loop().call_soon_threadsafe, applied) if applied is not None else None
            return await self._writer.run(self._write, ops, tell)
        except OperationalError as error:
            raise _unavailable(error) from None

    def _write(
        self, database: Database, ops: Sequence[Op], tell: Callable[[list[Reply]], object] | None
    ) -> list[Reply]:
        """On the writer's thread. After a jump of the clock, or where this process stood still, the group is preceded by a
        grace for all running leases, or the first claim or sweep would take them from healthy workers."""
        broken = self._continuity.broken(self._clock.now(), steady=self.steady)
        if broken is None:
            replies = self._write_group(database, ops, tell)
        else:
            log.warning("%s; running leases are given a grace", broken.what)
            grace = Recover(round(self.rules.recovery_grace * 1000))
            replies = self._write_group(database, [grace, *ops], None)[1:]
        self._continuity.went_on(self._clock.now())
        return replies

    def _write_group(
        self, database: Database, ops: Sequence[Op], tell: Callable[[list[Reply]], object] | None
    ) -> list[Reply]:
        """The group in one transaction; where one operation breaks it, each under a savepoint."""
        database.execute("begin immediate")
        try:
            foreign = not self._cache.valid_for(self._look(database))
            work = Transaction(
                database, lambda: Moment(self._clock.now(), foreign), self.rules, self._leased_kinds, self._cache
            )
            replies = work.apply(ops)
            leased, moved = work.leased, work.moved
        except BaseException as error:
            database.execute("rollback")
            self._cache.clear()
            work = None
            if len(ops) == 1 or isinstance(error, OperationalError):
                raise
            database.execute("begin immediate")
            replies, leased, moved = self._one_by_one(database, ops)
        if tell is not None:
            tell(replies)
        try:
            database.execute("commit")
        except BaseException as error:
            self._cache.clear()
            if database.in_transaction:
                database.execute("rollback")
                raise
            raise Unavailable(f"The outcome of this call is unknown: {error}. Look before you repeat it.") from error
        self._own = True
        if work is not None:
            work.committed()
        self._leased_kinds |= leased
        self.moves.update(moved)
        return replies

    def _one_by_one(
        self, database: Database, ops: Sequence[Op]
    ) -> tuple[list[Reply], dict[str, int], Counter[tuple[str, str]]]:
        replies: list[Reply] = []
        leased: dict[str, int] = {}
        moved: Counter[tuple[str, str]] = Counter()
        for op in ops:
            database.execute("savepoint one")
            try:
                work = Transaction(
                    database, lambda: Moment(self._clock.now(), True), self.rules, self._leased_kinds, RowCache()
                )
                replies += work.apply([op])
                leased |= work.leased
                moved.update(work.moved)
            except BaseException as error:
                database.execute("rollback to one")
                replies.append(error)
            database.execute("release one")
        return replies, leased, moved

    async def changed(self) -> bool:
        if self._watcher is None:
            return False
        if time.monotonic() - self._looked_at < LOOKED_SECONDS:
            return self._take_foreign()
        own, self._own = self._own, False
        try:
            version = await self._watcher.run(data_version)
        except OperationalError as error:
            self._own = own or self._own
            raise _unavailable(error) from None
        if version != self._version:
            self._version = version
            if own:
                self._unsure = True
                if self._asking is None or self._asking.done():
                    self._asking = asyncio.get_running_loop().create_task(self._ask(), name="looking for others")
            else:
                self._foreign = True
        return self._take_foreign()

    def _take_foreign(self) -> bool:
        found, self._foreign = self._foreign, False
        return found

    async def _ask(self) -> None:
        """Finds out whether some of what was committed is of another process; what comes while the writer is asked is asked for again."""
        while self._unsure and self._writer is not None:
            self._unsure = False
            try:
                await self._writer.run(self._look)
            except (Error, ValueError):  # of a connection that fails, or is being closed
                self._foreign = True

    def _look(self, database: Database) -> int:
        """On the writer's thread: its data version. Notes where another process has committed."""
        self._looked_at = time.monotonic()
        version: int = data_version(database)
        if version != self._foreign_version:
            self._foreign_version = version
            self._foreign = True
        return version

    async def _read(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._writer is None:
            raise Unavailable("The store is closed; the server is stopping. Try again when it is back.")
        reader = await self._free.get()
        try:
            # A caller that gives up must not hand the connection on while its query still runs.
            return await _to_its_end(reader.run(function, *args, **kwargs))
        except OperationalError as error:
            raise _unavailable(error) from None
        finally:
            self._free.put_nowait(reader)

    async def _find(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._quick is None:
            raise Unavailable("The store is closed; the server is stopping. Try again when it is back.")
        try:
            return await self._quick.run(function, *args, **kwargs)
        except OperationalError as error:
            raise _unavailable(error) from None

    async def backup(self, target: Path) -> None:
        spare = target.with_name(f".{target.name}.part")
        try:
            spare.unlink(missing_ok=True)
            create_file(spare)
            # Of its own: it is busy for as long as the copy takes.
            reader = await connect(self.path, readonly=True)
            try:
                problem = await reader.run(copy, spare)
            finally:
                await reader.close()
            if problem is not None:
                raise Unavailable(f"The copy is not sound ({problem}); nothing was kept. See `oaken doctor`.")
            spare.replace(target)
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror}. Name another file.") from None
        except Error as error:
            raise Unavailable(f"The copy could not be made ({error}); nothing was kept.") from None
        finally:
            with suppress(OSError):  # whatever stood in the way has been told
                spare.unlink()

    async def size(self) -> int:
        total = 0
        for name in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            try:
                total += name.stat().st_size
            except FileNotFoundError:
                continue
        return total


async def _to_its_end(call: Any) -> Any:
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _unavailable(error: BaseException) -> OakenError:
    return Unavailable(f"The database cannot answer now: {error}. Try again in a few seconds.")

"""PostgreSQL's side of `Database`: a connection inside a function that `bridge.run` runs.

Each statement is a round trip, and costs both sides more than a row that it writes. So what is written is put off until something is read
or the transaction ends, and then goes in one statement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from oaken_jobs.model import Job
from oaken_jobs.store.postgres.bridge import wait
from oaken_jobs.store.postgres.dialect import own
from oaken_jobs.store.postgres.queries import (
    LANES_STILL_OPEN,
    LOCK,
    LOCK_FREE_JOBS,
    LOCK_JOBS,
    MOMENT,
    NEW_JOB_IDS,
    PUBLISH,
    QUERIES,
    RESERVE,
    TAKE_HEAD,
    VERSION,
    WALK_DUE,
    WALK_LANES,
    WALK_LANES_WITHIN,
    WALK_NEXT_EXPIRY,
)
from oaken_jobs.store.postgres.remembered import Remembered
from oaken_jobs.store.postgres.rows import Prepared, Types, insert, together, update
from oaken_jobs.store.postgres.server import Connection
from oaken_jobs.store.postgres.walks import Walks
from oaken_jobs.store.sql.claim import DRAINED
from oaken_jobs.store.sql.database import Row, adding
from oaken_jobs.store.sql.lane import WIDTH, Filter, Lane
from oaken_jobs.store.sql.unit import JOBS_BY_ID, PAYLOADS_BY_ID

LOCKS = 2048
"""Names are locked by their hash. The database has room for some thousands of locks at a time, shared by all who use it."""
_LOCKS_OF_OURS = 0x6F616B << 32


class Session:
    """A connection for one function: a transaction, or some reading."""

    queries = QUERIES
    concurrent = True

    def __init__(
        self, connection: Connection, types: Types, seconds: float, remembered: Remembered, walks: Walks
    ) -> None:
        """No statement takes longer than `seconds`; then `TimeoutError` is raised, and the connection is of no more use."""
        self._connection = connection
        self._types = types
        self._remembered = remembered
        self._walks = walks
        self._seconds = seconds
        self._locked: set[int] = set()
        self._put_off: list[Prepared] = []
        self._touched: defaultdict[str, set[Any]] = defaultdict(set)
        """By table: the rows that these are about, by their first column."""
        self._taken: dict[int, int] = {}
        """Jobs that `head` has locked, and the versions of their rows."""
        self._now_and_drawn: tuple[int, int] | None = None
        self._job_ids: Sequence[int] = ()
        self.version: int | None = None
        """That rows have which this transaction writes, once it has told of something."""
        self.drawn = 0
        """Ids of activity that this transaction has drawn."""

    def all(self, statement: str, *values: Any) -> Sequence[Row]:
        self.write()
        return wait(self._connection.fetch(own(statement), *values, timeout=self._seconds))

    listed = all

    def many(self, columns: tuple[str, ...], statement: str, *values: Any) -> Sequence[Row]:
        return self.all(statement, *values)

    def one(self, statement: str, *values: Any) -> Row | None:
        self.write()
        return wait(self._connection.fetchrow(own(statement), *values, timeout=self._seconds))

    def run(self, statement: str, *values: Any) -> int:
        self.write()
        done = wait(self._connection.execute(own(statement), *values, timeout=self._seconds))
        return int(done.rpartition(" ")[2])

    def reserve(self, ids: Sequence[int], new: int) -> Iterable[Job]:
        self._now_and_drawn = None
        if not ids and not new:
            return ()
        now, drawn, found, versions, fresh = self.all(RESERVE, ids, new)[0]
        self._now_and_drawn, self._job_ids = (now, drawn), fresh
        return self._as_they_are(zip(found or (), versions or (), strict=True))

    def jobs(self, ids: Sequence[int], *, wait: bool) -> Iterable[Job]:
        taken = [(job_id, self._taken[job_id]) for job_id in ids if job_id in self._taken]
        # All lock them in one order, so nobody waits for one who waits for them.
        others = [job_id for job_id in ids if job_id not in self._taken]
        return self._as_they_are([*taken, *(self.all(LOCK_JOBS if wait else LOCK_FREE_JOBS, others) if others else ())])

    def head(self, *values: Any) -> Sequence[Row]:
        *lane, now, limit, over = values
        taken = self.all(TAKE_HEAD, *lane, now, limit, over)
        self._taken.update((job_id, version) for _, job_id, version in taken)
        found = [(run_at, job_id) for run_at, job_id, _ in taken]
        if len(found) < limit:
            # Those that somebody is at belong to the head, too, or nobody would come back for one that is let go again.
            passed = [*over, *(job_id for _, job_id in found)]
            found += self.all(QUERIES.head, *lane, now, limit - len(found), passed)
        return found

    def _as_they_are(self, locked: Iterable[Row]) -> list[Job]:
        """Jobs by id and version."""
        found: list[Job] = []
        unknown: dict[int, int] = {}
        for job_id, version in locked:
            entry = self._remembered.get(job_id)
            if entry is not None and entry.version == version:
                found.append(entry.job)
            else:
                unknown[job_id] = version
        if unknown:
            for row in self.all(JOBS_BY_ID, list(unknown)):
                job = Job._make(row)
                self._remembered.keep(unknown[job.id], job)
                found.append(job)
        return found

    def lanes(self, filter: Filter, now: int | None, *, look: bool) -> tuple[Sequence[Row], bool]:
        known = None if look else self._walks.lanes(filter)
        if known is not None:
            return self.all(LANES_STILL_OPEN, *self.columns(known, WIDTH)), False
        walk = WALK_LANES if filter.within is None else WALK_LANES_WITHIN
        *lanes, (*_, took) = self.all(walk, *filter.values(self.array))
        if now is not None:
            self._walks.keep_lanes(filter, map(Lane._make, lanes), took / 1000, now)
        return lanes, True

    def due(self, now: int, limit: int) -> Sequence[Row]:
        since = self._walks.nothing_due(now)
        *found, (_, took, _) = self.all(WALK_DUE, now, limit, since)
        if not since and all(what == DRAINED for what, _, _ in found):
            self._walks.keep_nothing_due(took / 1000, now)
        return found

    def next_expiry(self, now: int) -> int | None:
        known = self._walks.next_expiry(now)
        if known is not None:
            return known[0]
        at, took = self.all(WALK_NEXT_EXPIRY)[0]
        self._walks.keep_next_expiry(at, took / 1000)
        return at

    def payloads(self, ids: Sequence[int]) -> dict[int, str]:
        # Those that are remembered belong to rows that `jobs` has found to be as they were.
        found = {
            job_id: entry.payload
            for job_id in ids
            if (entry := self._remembered.get(job_id)) and entry.payload is not None
        }
        missing = [job_id for job_id in ids if job_id not in found]
        if missing:
            found.update((row[0], row[1]) for row in self.all(PAYLOADS_BY_ID, missing))
        return found

    def known(self, job_id: int) -> Job | None:
        entry = self._remembered.get(job_id)
        return None if entry is None else entry.job

    def array(self, values: Iterable[Any]) -> Any:
        return list(values)

    def columns(self, rows: Iterable[Row], width: int) -> tuple[Any, ...]:
        return tuple(zip(*rows, strict=True)) or ((),) * width

    def insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        self._later(table, rows, insert(self._types, table, columns, rows))

    def replace(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        # In the order of their keys, so that two transactions that write the same ones do not wait for each other.
        ordered = sorted(rows, key=lambda row: row[: len(key)])
        self._later(table, rows, insert(self._types, table, columns, ordered, end=_instead(key, columns)))

    def count(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        ordered = sorted(rows, key=lambda row: row[: len(key)])
        self._later(table, rows, insert(self._types, table, columns, ordered, end=adding(table, key, columns)))

    def update(self, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        self._later(table, rows, update(self._types, table, keys, columns, rows))

    def _later(self, table: str, rows: Sequence[Row], made: Prepared) -> None:
        """Puts a statement off. Parts of one statement do not see what the others write, so no two of them are about one row."""
        touched, about = self._touched[table], {row[0] for row in rows}
        if not touched.isdisjoint(about):
            self.write()
        self._touched[table] |= about
        self._put_off.append(made)

    def write(self) -> None:
        """Carries out what was put off."""
        if self._put_off:
            made = together(self._taken_off())
            wait(self._connection.execute(made.statement, *made.values, timeout=self._seconds))

    def _taken_off(self) -> list[Prepared]:
        parts, self._put_off = self._put_off, []
        self._touched.clear()
        return parts

    def new_job_ids(self, count: int) -> Sequence[int]:
        ids, self._job_ids = self._job_ids[:count], self._job_ids[count:]
        if len(ids) < count:
            ids = [*ids, *self.all(NEW_JOB_IDS, count - len(ids))[0][0]]
        return ids

    def add_activity(self, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        self.drawn += len(rows)
        made = insert(self._types, "activity", columns, rows, ids="nextval('activity_ids')")
        told = together([*self._taken_off(), made], before=PUBLISH, end=VERSION)
        rows = wait(self._connection.fetch(told.statement, *told.values, timeout=self._seconds))
        self.version = rows[0][0]

    def lock(self, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        alone = {_number(name) for name in names} - self._locked
        together = {_number(name) for name in shared} - self._locked - alone
        if not alone and not together:
            return
        keys = sorted(alone | together)
        self.all(LOCK, keys, [key in together for key in keys])
        self._locked |= alone

    def forget(self) -> None:
        """What was locked since a savepoint has been let go of, and what was put off is not done."""
        self._locked.clear()
        self._taken.clear()
        self._taken_off()

    def moment(self) -> tuple[int, int]:
        """The database's time in milliseconds, and the newest id of activity that anybody has drawn; as they were when `reserve` had all
        that it waited for."""
        if self._now_and_drawn is not None:
            return self._now_and_drawn
        now, drawn = self.all(MOMENT)[0]
        return now, drawn


def _number(name: str) -> int:
    return _LOCKS_OF_OURS + crc32(name.encode()) % LOCKS


@lru_cache(maxsize=64)
def _instead(key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    return f" on conflict ({', '.join(key)}) do update set {sets}"

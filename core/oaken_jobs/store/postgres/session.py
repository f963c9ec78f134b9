"""PostgreSQL's side of `Database`: a connection inside a function that `bridge.run` runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from oaken_jobs.model import Job
from oaken_jobs.store.postgres.bridge import wait
from oaken_jobs.store.postgres.dialect import own
from oaken_jobs.store.postgres.queries import LOCK, LOCK_FREE_JOBS, LOCK_JOBS, MOMENT, PUBLISH, QUERIES, VERSION
from oaken_jobs.store.postgres.remembered import Remembered
from oaken_jobs.store.postgres.rows import Prepared, Types, insert, update
from oaken_jobs.store.postgres.server import Connection
from oaken_jobs.store.sql.database import Row
from oaken_jobs.store.sql.unit import JOBS_BY_ID, PAYLOADS_BY_ID

LOCKS = 2048
"""Names are locked by their hash. The database has room for some thousands of locks at a time, shared by all who use it."""
_LOCKS_OF_OURS = 0x6F616B << 32


class Session:
    """A connection for one function: a transaction, or some reading."""

    queries = QUERIES
    concurrent = True

    def __init__(self, connection: Connection, types: Types, seconds: float, remembered: Remembered) -> None:
        """No statement takes longer than `seconds`; then `TimeoutError` is raised, and the connection is of no more use."""
        self._connection = connection
        self._types = types
        self._remembered = remembered
        self._seconds = seconds
        self._locked: set[int] = set()
        self.version: int | None = None
        """That rows have which this transaction writes, once it has told of something."""
        self.drawn = 0
        """Ids of activity that this transaction has drawn."""

    def all(self, statement: str, *values: Any) -> Sequence[Row]:
        return wait(self._connection.fetch(own(statement), *values, timeout=self._seconds))

    listed = all

    def one(self, statement: str, *values: Any) -> Row | None:
        return wait(self._connection.fetchrow(own(statement), *values, timeout=self._seconds))

    def run(self, statement: str, *values: Any) -> int:
        done = wait(self._connection.execute(own(statement), *values, timeout=self._seconds))
        return int(done.rpartition(" ")[2])

    def jobs(self, ids: Sequence[int], *, wait: bool) -> Iterable[Job]:
        # All lock them in one order, so nobody waits for one who waits for them.
        locked = self.all(LOCK_JOBS if wait else LOCK_FREE_JOBS, ids)
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
        self._write(insert(self._types, table, columns, rows))

    def replace(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        # In the order of their keys, so that two transactions that write the same ones do not wait for each other.
        ordered = sorted(rows, key=lambda row: row[: len(key)])
        self._write(insert(self._types, table, columns, ordered, end=_instead(key, columns)))

    def update(self, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        self._write(update(self._types, table, keys, columns, rows))

    def _write(self, prepared: Prepared) -> None:
        wait(self._connection.execute(prepared.statement, *prepared.values, timeout=self._seconds))

    def new_job_ids(self, count: int) -> Sequence[int]:
        return (
            [row[0] for row in self.all("select nextval('job_ids') from generate_series(1, ?1)", count)]
            if count
            else []
        )

    def add_activity(self, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        self.drawn += len(rows)
        made = insert(self._types, "activity", columns, rows, ids="nextval('activity_ids')")
        self.version = self.all(f"with {PUBLISH}, told as ({made.statement}) {VERSION}", *made.values)[0][0]

    def lock(self, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        alone = {_number(name) for name in names} - self._locked
        together = {_number(name) for name in shared} - self._locked - alone
        if not alone and not together:
            return
        keys = sorted(alone | together)
        self.all(LOCK, keys, [key in together for key in keys])
        self._locked |= alone

    def forget_locks(self) -> None:
        """What was locked since a savepoint has been let go of."""
        self._locked.clear()

    def moment(self) -> tuple[int, int]:
        """The database's time in milliseconds, and the newest id of activity that anybody has drawn."""
        now, drawn = self.all(MOMENT)[0]
        return now, drawn


def _number(name: str) -> int:
    return _LOCKS_OF_OURS + crc32(name.encode()) % LOCKS


@lru_cache(maxsize=64)
def _instead(key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    return f" on conflict ({', '.join(key)}) do update set {sets}"

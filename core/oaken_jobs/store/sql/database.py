"""What the work of a transaction needs of an engine.

Statements that both engines understand stand where they are used, in a dialect that each driver makes its own. Parameters are `?1`, `?2`;
`in ids(?1)` and `in texts(?1)` look in a list, made by `array`; `greatest`, `least` and `ilike` are PostgreSQL's; `for update`, with
`skip locked` or without, means nothing where one transaction runs at a time. Where the engines need different statements, each has its
own in `Queries`.

Functions here are plain ones. On SQLite they run on the connection's thread; on PostgreSQL each statement gives the loop its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from oaken_jobs.model import Job
from oaken_jobs.store.sql.lane import Filter

Row = tuple[Any, ...]
"""Or what can be read, compared and unpacked like one."""


@lru_cache(maxsize=64)
def adding(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """What an insert ends with whose values are added to those of a row with the same key."""
    sums = ", ".join(f"{column} = {table}.{column} + excluded.{column}" for column in columns if column not in key)
    return f" on conflict ({', '.join(key)}) do update set {sums}"


@dataclass(frozen=True)
class Queries:
    """Statements that the engines have each in its own words. Lists of several columns go in by `Database.columns`, so the numbers of
    parameters behind them differ."""

    lanes: str
    """The lanes (rows of `Lane`) that a request may take from; of queues, kinds, not of kinds (each a list or null),
    and a workspace, which only `lanes_within` looks at. `listed`."""
    lanes_within: str
    head: str
    """(run_at, id) of the first jobs that are due in a lane: of its columns, now, how many, and ids to pass over. For
    `Database.head`."""
    firsts: str
    """By lane: [run_at, id] of its first due job or null, in the order of the lanes; then now, and ids
    to pass over. `listed`."""
    heads: str
    """(run_at, id, kind) of the first due jobs of each of several lanes: of the lanes, now, how many of each, ids to pass over.
    `listed`."""
    next_run: str
    """When the first job of some lanes falls due, or did; null where there is none."""
    live_keys: str
    """(workspace, dedupe key, id) of live jobs: of (workspace, dedupe key)."""
    live_targets: str
    """(workspace, kind, target, id) of live jobs: of (workspace, kind, target)."""
    queue_labels: str
    """(workspace, subject, layer, value): of (workspace, subject), then the label's key."""
    busy_keys: str
    """(workspace, serial key, id, agent) of running jobs: of (workspace, serial key)."""
    firsts_of_key: str
    """The first blocked job of a serial key in each lane: of workspace, key."""
    hide: str
    """Blocks the due jobs of a key: of workspace, key, now, and one that is left out. The ids."""
    childless: str
    """Those of some jobs (`array`) that have no child that is not final."""
    children: str
    """(id, live children, all children) of some jobs (`array`)."""
    at_work: str
    """Those of some kinds (`array`) of which a job runs."""
    task: str
    """A task by its id, and when one of its jobs was last changed."""
    old_tasks: str
    """Deletes those of some tasks (`array`) whose jobs have all ended before a moment, or are gone."""
    activity_head: str
    """The id up to which all rows of activity are there that ever will be; 0 for none."""
    activity_behind: str
    """The id of the newest row of activity behind so many newer ones, or null."""
    tagged: str
    """The condition that a job `j` has the tag `?0`."""
    last_job: str
    """The id of the newest job there ever was, or null."""
    damage: str
    """What is wrong with the database itself, a row for each thing; `ok` where it is sound."""


class Database(Protocol):
    """A connection, inside a transaction or for reading. Rows are read to their end."""

    queries: Queries
    concurrent: bool
    """Whether other transactions may write while this one does."""

    def all(self, statement: str, *values: Any) -> Sequence[Row]:
        """The rows that a statement gives."""
        ...

    def one(self, statement: str, *values: Any) -> Row | None:
        """The first row, None for none."""
        ...

    def run(self, statement: str, *values: Any) -> int:
        """How many rows a statement changed."""
        ...

    def listed(self, statement: str, *values: Any) -> Sequence[Row]:
        """The rows of a statement of `Queries` that says `listed`; an engine may have it answer with one row that holds all."""
        ...

    def many(self, columns: tuple[str, ...], statement: str, *values: Any) -> Sequence[Row]:
        """As `all`, for what may be many rows of these columns, which hold text and whole numbers alone; an engine may have one row hold
        them all."""
        ...

    def reserve(self, ids: Sequence[int], new: int) -> Iterable[Job]:
        """As `jobs` with `wait`, and prepares for so many new ones; where others write, the first thing once the names are locked."""
        ...

    def jobs(self, ids: Sequence[int], *, wait: bool) -> Iterable[Job]:
        """Those of these jobs that exist. Nobody else changes them until the transaction has ended; where somebody is at one, this waits,
        or without `wait` leaves it out."""
        ...

    def head(self, *values: Any) -> Sequence[Row]:
        """What `Queries.head` gives for these values. Where others write, as many of them as can be are this transaction's from now on, and
        `jobs` need not ask for them."""
        ...

    def lanes(self, filter: Filter, now: int | None, *, look: bool) -> tuple[Sequence[Row], bool]:
        """The lanes that `Queries.lanes` gives, and whether they were looked for just now. An engine for which that takes long may, without
        `look`, tell those it found a moment ago."""
        ...

    def due(self, now: int, limit: int) -> Sequence[Row]:
        """What `claim.DUE` gives, since the time before which there is nothing more."""
        ...

    def next_expiry(self, now: int) -> int | None:
        """When the next lease ends (ms), None where there is none. It may have been given back meanwhile."""
        ...

    def payloads(self, ids: Sequence[int]) -> dict[int, str]:
        """Of these jobs, which `jobs` has given."""
        ...

    def known(self, job_id: int) -> Job | None:
        """A job as it was at some time, where that is at hand: for what never changes of it."""
        ...

    def array(self, values: Iterable[Any]) -> Any:
        """How a list goes into a statement."""
        ...

    def columns(self, rows: Iterable[Row], width: int) -> tuple[Any, ...]:
        """How a list of rows goes into a statement; each engine with parameters of its own."""
        ...

    def insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """Adds rows in their order. Each has a value somewhere; null ones get their column's default."""
        ...

    def replace(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """As `insert`, but a row with a key that is there takes the other's place. No key comes twice."""
        ...

    def count(self, table: str, key: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """As `insert`, but what is not of the key is added to a row with a key that is there. No key comes twice."""
        ...

    def update(self, table: str, keys: tuple[str, ...], columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """Sets columns of the rows found by `keys`; each of `rows` has the keys first, and is found once at most."""
        ...

    def new_job_ids(self, count: int) -> Sequence[int]:
        """Ids for new jobs, ascending, above all there ever were. Those that are not used stay free or are lost."""
        ...

    def add_activity(self, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """Adds rows of activity; they get their ids in the order in which transactions become visible."""
        ...

    def lock(self, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        """Takes these names for the transaction, and the `shared` ones together with others that share them, waiting for who has them.

        All take names in one order, so those who take at once what they need never wait for each other. Where one transaction runs at a
        time there is nothing to do.
        """
        ...

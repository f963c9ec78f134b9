"""The `Store` protocol, and what it is asked and answers; what it writes is in `operations`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from oaken_jobs.kinds import Rules
from oaken_jobs.model import (
    Activity,
    AgentRow,
    Attempt,
    Job,
    LogRow,
    ProgressRow,
    Question,
    Schedule,
)
from oaken_jobs.store.operations import Op, ProcessRow, Reply, SessionRow, TokenRow


class AuditRow(NamedTuple):
    """A row of `audit`, column for column."""

    id: int
    at: int
    actor_kind: str
    actor_id: str
    actor_via: str
    action: str
    outcome: str
    job_id: int | None
    agent: str | None
    rows: int | None


class AuditPage(NamedTuple):
    """Audit rows, newest first, and where to go on; None at the end."""

    rows: list[AuditRow]
    next_cursor: str | None


class TaskRow(NamedTuple):
    """A row of `tasks`, and what it takes from its jobs."""

    id: str
    actor_kind: str
    actor_id: str
    workspace: str | None
    """The one its caller was bound to."""
    job_ids: tuple[int, ...]
    said: str
    created_at: int
    changed_at: int
    """When one of its jobs was last changed."""


class HealthRow(NamedTuple):
    """How a plugin was when it was last looked at (ms)."""

    plugin: str
    healthy: bool
    reason: str | None
    at: int


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list shows. Times in milliseconds; `query` looks in title, kind, subject, tags and error."""

    states: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    not_queues: tuple[str, ...] = ()
    actor: str | None = None
    agent: str | None = None
    subject: str | None = None
    tag: str | None = None
    parent_id: int | None = None
    grades: tuple[str, ...] = ()
    created_after: int | None = None
    created_before: int | None = None
    finished_after: int | None = None
    finished_before: int | None = None
    query: str | None = None
    workspace: str | None = None
    asking: bool = False
    """Only those with an open question."""
    concerns: str | None = None
    """Only jobs this principal enqueued, holds or held."""


@dataclass(frozen=True, slots=True)
class ActivityFilter:
    """Which rows of the activity are read; nothing said means any."""

    verbs: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    job_id: int | None = None
    workspace: str | None = None


class Counts(NamedTuple):
    """How many jobs a queue has in a state."""

    queue: str
    state: str
    jobs: int


class Leases(NamedTuple):
    """What a token has leased."""

    live: int
    last_hour: int
    """Counted for tokens with `max_per_hour` alone."""


class Depth(NamedTuple):
    """How many jobs of a kind are in a state of a queue; of queued ones, how long (ms) the one has waited that could run longest."""

    state: str
    queue: str
    kind: str
    jobs: int
    waited_ms: int | None


SPENT = "spent"
"""Stands for a state where what attempts cost is counted, whatever became of their jobs."""


class Finishes(NamedTuple):
    """How many jobs ended in a minute (of those since 1970) in a state; as `SPENT`, how many attempts said what they cost, and how much."""

    minute: int
    state: str
    jobs: int
    cost_usd: float


class Waiting(NamedTuple):
    """Queued jobs of one queue, kind and priority that wait alike, as far as their rows say it."""

    queue: str
    jobs: int
    since: int
    """When (ms) the first of them became, or becomes, runnable."""
    due: bool
    """Whether they could run."""
    sample: int
    """The id of one of them; of those of a queue that could run, the one that has waited longest stands for its own."""


class Surroundings(NamedTuple):
    """What besides its own row keeps a queued job from running; see `waits`."""

    paused: frozenset[str]
    running: dict[str, int]
    """Live leases of capped kinds."""
    serial: dict[tuple[str, str], tuple[int, str]]
    """By (workspace, serial key): the job of it that runs, and its agent."""
    children: dict[int, tuple[int, int]]
    """By parent: children that are not final, and all."""
    leased: dict[str, int]
    """By kind: when one was last leased, to within a minute."""
    at_work: frozenset[str]
    """Kinds of which a job runs."""


class Finding(NamedTuple):
    """One thing that was looked at: `ok`, `warn` or `bad`, and what was found; of what is not well also what to do."""

    level: str
    what: str


class Document(NamedTuple):
    """A stored document: id (hash of its text), title, where it came from."""

    document: str
    title: str | None
    characters: int
    created_at: int
    sources: tuple[str, ...] = ()


EVERYTHING = ActivityFilter()


Applied = Callable[[list[Reply]], None]
"""Told of replies that are not durable yet, perhaps never will be: for what may be put together while the disk works, and kept back."""


class Store(Protocol):
    """A database that keeps jobs. All methods may raise `Unavailable` when it cannot answer now."""

    rules: Rules
    writers: int
    """How many groups it works on at a time."""
    shared: bool
    """Whether several servers may work on it, each of which takes the others' place while they are away."""
    moves: Counter[tuple[str, str]]
    """What this process did to jobs since it opened the store: by verb, and the state it led to."""
    steady: bool
    """Set while somebody writes every second: a longer silence then means that this process stood still, and with it every
    heartbeat to it."""

    async def open(self) -> None:
        """Opens it, creating or migrating its tables. Raises `ConfigError` for one of a newer program."""
        ...

    async def close(self) -> None:
        """Closes it; nothing is touched afterwards. Idempotent."""
        ...

    async def write(self, ops: Sequence[Op], applied: Applied | None = None) -> list[Reply]:
        """One transaction for all of `ops`; a reply at each one's place. Durable when it returns. `applied` may be told before, on the
        loop, what it will return if all goes well."""
        ...

    async def changed(self) -> bool:
        """Whether another process has committed since the last call; where this one has, too, perhaps not before the next one. Cheap; may
        say yes once too often. Raises `Unavailable`."""
        ...

    async def jobs(self, ids: Sequence[int]) -> list[Job]:
        """The jobs of these ids that exist, in ascending order."""
        ...

    async def payloads(self, ids: Sequence[int]) -> dict[int, str]: ...

    async def results(self, ids: Sequence[int]) -> dict[int, str]: ...

    async def list_jobs(self, where: JobFilter, before: int | None, limit: int) -> list[Job]:
        """Newest first, ids below `before`."""
        ...

    async def ended(self, where: JobFilter, limit: int) -> list[Job]:
        """Final jobs, the last that ended first."""
        ...

    async def late_result(self, job_id: int, epoch: int) -> str | None: ...

    async def matching(self, where: JobFilter, after: int, up_to: int, limit: int) -> list[int]:
        """Ids above `after`, up to `up_to`, ascending."""
        ...

    async def count(self, where: JobFilter, after: int, up_to: int) -> int:
        """How many jobs `matching` would find in all."""
        ...

    async def last_id(self) -> int:
        """Of the newest job there ever was; 0 for none."""
        ...

    async def surroundings(self, jobs: Sequence[Job], now: int) -> Surroundings: ...

    async def questions(self, job_id: int) -> list[Question]:
        """The newest 200, oldest first."""
        ...

    async def open_questions(self, where: JobFilter, limit: int) -> list[Question]:
        """Of the jobs that wait for an answer, the longest waiting first."""
        ...

    async def attempts(self, job_id: int) -> list[Attempt]:
        """Oldest first."""
        ...

    async def progress(self, job_id: int, limit: int = 200) -> list[ProgressRow]:
        """The newest `limit`, oldest first."""
        ...

    async def activity(self, after: int, limit: int, where: ActivityFilter = EVERYTHING) -> list[Activity]:
        """Rows after a cursor, in commit order."""
        ...

    async def latest_activity(self, limit: int, where: ActivityFilter = EVERYTHING) -> list[Activity]:
        """Newest first; of a job all there are, else those among the newest few thousand."""
        ...

    async def old_activity(self, after: int, before: int, replayable: int, limit: int) -> list[int]:
        """The ids of rows behind `after` that may be forgotten: from before a moment (ms), about no job that is there, and not among the
        newest `replayable`."""
        ...

    async def activity_behind(self, newest: int) -> int:
        """The cursor behind which come the newest so many rows; 0 where there are not more."""
        ...

    async def activity_forgotten(self) -> int:
        """The cursor up to which rows may be missing, since old ones are forgotten."""
        ...

    async def activity_of(self, job_id: int, limit: int = 1000, *, reports: bool = True) -> list[Activity]:
        """Of a job the latest, oldest first; those of progress only with `reports`."""
        ...

    async def log_lines(self, levels: Sequence[str], before: int | None, after: int | None, limit: int) -> list[LogRow]:
        """Of these levels: newest first, below the id `before`; or oldest first, above `after`."""
        ...

    async def activity_head(self) -> int:
        """The cursor of the newest row there ever was; 0 when there was none."""
        ...

    async def concerns(self, job_id: int, principal: str) -> bool:
        """Whether this principal enqueued, holds or held the job."""
        ...

    async def held(self, holder: str) -> list[Job]:
        """Running jobs whose lease this principal has, newest first."""
        ...

    async def counts(self, workspace: str | None = None) -> list[Counts]: ...

    async def backlog(self, where: JobFilter, now: int) -> list[Waiting]:
        """Queued jobs by what keeps them waiting."""
        ...

    async def finishes(self, since: int, workspace: str | None = None) -> list[Finishes]:
        """From the minute of a moment (ms) on."""
        ...

    async def session(self, digest: str) -> SessionRow | None:
        """By the hash of its secret, also one whose time is over."""
        ...

    async def sessions(self) -> list[SessionRow]: ...

    async def states(self, where: JobFilter) -> dict[str, int]:
        """How many jobs are in each state."""
        ...

    async def depths(self, now: int) -> list[Depth]:
        """What there is, for figures."""
        ...

    async def backup(self, target: Path) -> None:
        """Copies all there is at one moment into a new file, and checks the copy. Raises `ConfigError` for a file that cannot be
        written, `Unavailable` for a copy that is not sound."""
        ...

    async def size(self) -> int:
        """Bytes on disk."""
        ...

    async def paused(self) -> set[str]: ...

    async def agents(self, workspace: str | None = None) -> list[AgentRow]:
        """Last seen first; with `workspace` only those bound to it."""
        ...

    async def leased_kinds(self) -> set[str]:
        """Kinds that some agent has leased at some time."""
        ...

    async def labels(self, workspace: str, subject: str) -> dict[str, dict[str, str]]:
        """Layer to key to value."""
        ...

    async def tokens(self) -> list[TokenRow]: ...

    async def leases_of(self, holder: str, now: int) -> Leases: ...

    async def audit(self, before: int | None, limit: int) -> list[AuditRow]:
        """Newest first, ids below `before`."""
        ...

    async def schedules(self, workspace: str | None = None) -> list[Schedule]:
        """By workspace and name."""
        ...

    async def next_schedule(self) -> int | None:
        """When the next schedule is due (ms); None where there is none."""
        ...

    async def schedules_ahead(self, now: int) -> bool:
        """Whether a schedule was made, or has run, at a time that has not come yet: by a clock that was wrong."""
        ...

    async def task(self, task_id: str) -> TaskRow | None: ...

    async def documents(self, workspace: str, ids: Sequence[str]) -> list[Document]: ...

    async def vectors(self, workspace: str, model: str | None = None) -> list[tuple[str, str, list[float]]]:
        """(subject, model, vector) of every stored vector."""
        ...

    async def processes(self) -> list[ProcessRow]: ...

    async def plugin_health(self) -> list[HealthRow]:
        """By name."""
        ...

    async def check(self) -> list[str]:
        """Problems of the database itself, in words; empty when it is sound."""
        ...

"""The nouns: Job, Lease, Actor, Principal, Queue, Activity. Immutable, typed; times are integer milliseconds UTC.

Rows are `NamedTuple`s because a row of the database becomes one without a call for each field, which at tens of thousands of
jobs a second is most of what reading them costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Role = Literal["viewer", "user", "agent", "admin"]
ActorKind = Literal["user", "agent", "system"]
Via = Literal["mcp", "http", "cli", "schedule", "worker"]
Reason = Literal[
    "cancelled_by_user",
    "permanent",
    "out_of_attempts",
    "payload_invalid",
    "result_invalid",
    "lease_lost",
]
RoutedBy = Literal["label", "stage", "default", "requeue"]
Outcome = Literal["succeeded", "failed", "retry", "deferred", "released", "cancelled", "lost", "refused"]

STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
FINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})
ROLES: tuple[Role, ...] = ("viewer", "user", "agent", "admin")

PRIORITIES: dict[str, int] = {"user": 100, "ingest": 50, "backfill": 10}
MAX_PRIORITY = 1000
DEFAULT_WORKSPACE = "default"


class Actor(NamedTuple):
    """Who did something, and by which door."""

    kind: str
    id: str
    via: str


SYSTEM = Actor("system", "oaken", "worker")


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller as the doors know it: the actor, what it may do, and the instance that holds its leases.

    `name` is the token's name (or what stands for it on stdio and in the process itself); leases are bound to it.
    `runner` marks Oaken's own workers, which alone may run internal kinds.
    """

    actor: Actor
    roles: frozenset[str]
    instance: str | None = None
    runner: bool = False

    @property
    def name(self) -> str:
        return self.actor.id

    @property
    def holder(self) -> str:
        """What leases are bound to. No token can be named like the system's own."""
        return f"system:{self.actor.id}" if self.runner else self.actor.id

    @property
    def agent(self) -> str:
        """`name` or `name/instance`: how a lease shows its holder."""
        return f"{self.actor.id}/{self.instance}" if self.instance else self.actor.id


class Job(NamedTuple):
    """A row of `jobs`, column for column. Bodies (payload, result) live in tables of their own.

    The columns an enqueue sets come first (`ENQUEUED` of them); the rest start as their defaults.
    """

    id: int
    workspace: str
    kind: str
    queue: str
    routed_by: str
    state: str
    priority: int
    title: str | None
    tags: str | None
    """JSON array, or None for none."""
    subject: str | None
    target: str | None
    dedupe_key: str | None
    parent_id: int | None
    max_attempts: int
    budget_usd: float | None
    created_at: int
    run_at: int
    """When the job became, or becomes, runnable."""
    actor_kind: str
    actor_id: str
    actor_via: str
    schema_hash: str | None
    """Of the payload schema the payload was last checked against."""
    cancelling: int = 0
    reason: str | None = None
    blocked: int = 0
    attempts: int = 0
    lost: int = 0
    deferrals: int = 0
    coalesced: int = 0
    invalid_results: int = 0
    """Results of this attempt that did not fit."""
    started_at: int | None = None
    finished_at: int | None = None
    epoch: int = 0
    nonce: str | None = None
    holder: str | None = None
    """Principal name of the lease's holder; only while running."""
    agent: str | None = None
    """`name/instance` of the present or, once the job has left its hands, the last holder."""
    lease_expires: int | None = None
    lease_ms: int | None = None
    """How long the lease lasts from each heartbeat that does not say otherwise."""
    policy: str | None = None
    """What the claim copied from the kind: see `retry.Policy`."""
    percent: int | None = None
    message: str | None = None
    progress_at: int | None = None
    last_error: str | None = None
    usage: str | None = None
    cost_usd: float | None = None
    produced_by: str | None = None
    grade: str | None = None
    grade_why: str | None = None
    grade_version: int | None = None

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def having(self, changes: Mapping[str, Any]) -> Job:
        """The job with these columns changed: `_replace` in half the time, on the path of every claim and finish."""
        values: list[Any] = list(self)
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return Job._make(values)


_PLACES = {name: place for place, name in enumerate(Job._fields)}
ENQUEUED = Job._fields.index("cancelling")
"""How many of a job's columns an enqueue sets."""


class Attempt(NamedTuple):
    """A row of `attempts`: one claim of one job, and how it ended."""

    job_id: int
    epoch: int
    attempt: int
    agent: str
    holder: str
    nonce: str
    started_at: int
    ended_at: int | None
    outcome: str | None
    error: str | None
    usage: str | None
    cost_usd: float | None
    produced_by: str | None
    verb: str | None
    body_hash: str | None
    answer: str | None
    """JSON of the columns that the finish changed, so that a repeat gets the first answer again."""


class Activity(NamedTuple):
    """A row of the outbox: what changed, in ids, states and numbers only, never private text."""

    id: int
    at: int
    event: str
    verb: str
    job_id: int | None
    name: str | None
    """Of the queue, token or agent, where the change is not a job's."""
    from_state: str | None
    to_state: str | None
    epoch: int | None
    attempt: int | None
    percent: int | None
    actor_kind: str
    actor_id: str
    actor_via: str


class ProgressRow(NamedTuple):
    """One step of a job's trail."""

    at: int
    percent: int | None
    message: str | None
    epoch: int


class LeaseRef(NamedTuple):
    """What a lease id says: job, epoch, and the random part that only its holder was told."""

    job_id: int
    epoch: int
    nonce: str


class Leased(NamedTuple):
    """A job handed to a worker: everything needed to do it and to finish it."""

    job: Job
    payload: str
    """JSON text, as stored."""
    instructions: str | None = None

    @property
    def lease_id(self) -> str:
        return f"{self.job.id}-{self.job.epoch}-{self.job.nonce}"


class NewJob(NamedTuple):
    """What a caller asks for, already checked: payload is JSON text of an object, text is clean, times are milliseconds."""

    kind: str
    payload: str
    subject: str | None = None
    target: str | None = None
    dedupe_key: str | None = None
    priority: int | None = None
    run_at: int | None = None
    delay_ms: int = 0
    max_attempts: int | None = None
    parent_id: int | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    budget_usd: float | None = None


class Enqueued(NamedTuple):
    """The answer to an enqueue. `created` is false where a live job with the same dedupe key or target was returned."""

    job: Job
    created: bool
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt cost, as its worker says. Unknown is None, never 0."""

    usage: dict[str, int | float] | None = None
    cost_usd: float | None = None
    produced_by: str | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as configured and as it stands."""

    name: str
    kind: str | None
    workers: int
    by_label: bool
    hidden: bool
    configured: bool
    paused: bool
    counts: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent as last seen."""

    agent: str
    name: str
    first_seen: int
    last_seen: int
    leased: int
    succeeded: int
    failed: int
    holds: tuple[int, ...] = ()


class Grade(NamedTuple):
    """How well a job went and why, by one versioned function."""

    grade: Literal["ok", "note", "warn", "bad"]
    why: str
    version: int


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, newest first; `next_cursor` is opaque and bound to the filters it came from."""

    jobs: list[Job]
    next_cursor: str | None


# What may be put into a document's or subject's rows together with a finish, in the same transaction.


@dataclass(frozen=True, slots=True)
class SpawnJob:
    """Enqueue a child of the finishing job's parent (or of the job itself where it has none), with the job's priority.

    Nothing is enqueued where the document `unless_document` is stored already.
    """

    new: NewJob
    unless_document: str | None = None


@dataclass(frozen=True, slots=True)
class KeepDocument:
    """Write a document's text once; its id is the hash of the text."""

    document: str
    title: str | None
    text: str


@dataclass(frozen=True, slots=True)
class KeepSource:
    """Remember where a document came from."""

    document: str
    source: str


@dataclass(frozen=True, slots=True)
class KeepVector:
    """Write a subject's vector; a later one of the same model replaces it."""

    subject: str
    model: str
    vector: list[float]


@dataclass(frozen=True, slots=True)
class SetLabels:
    """Set labels of a subject in one layer, `machine` or `human`; the layer's other keys stay."""

    subject: str
    layer: Literal["machine", "human"]
    labels: dict[str, str]


Effect = SpawnJob | KeepDocument | KeepSource | KeepVector | SetLabels

Json = dict[str, Any]
"""A JSON object in memory."""

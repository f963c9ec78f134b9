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
    "expired",
    "cancel_grace",
]
RoutedBy = Literal["label", "stage", "default", "schedule", "requeue"]
Outcome = Literal[
    "succeeded",
    "failed",
    "retry",
    "deferred",
    "released",
    "asked",
    "cancelled",
    "refused",
    "lost",
    "overruled",
    "resumed",
    "superseded",
    "adopted",
]
"""How an attempt ended. `overruled`: it was asked to stop and did not; `resumed`: its agent took it up again under a new lease;
`superseded`: another attempt's late result was adopted; `adopted`: that was this one."""

STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
FINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})
ROLES: tuple[Role, ...] = ("viewer", "user", "agent", "admin")

PRIORITIES: dict[str, int] = {"user": 100, "ingest": 50, "backfill": 10}
MAX_PRIORITY = 1000
DEFAULT_WORKSPACE = "default"

FREE, SERIAL, CHILDREN = 0, 1, 2
"""What keeps a queued job from being offered (`Job.blocked`): nothing, a job of its serial key, its children."""


class Actor(NamedTuple):
    """Who did something, and by which door."""

    kind: str
    id: str
    via: str


SYSTEM = Actor("system", "oaken", "worker")


class Limits(NamedTuple):
    """What bounds the leasing of a token; None for no bound."""

    queues: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    max_leases: int | None = None
    """Live leases, of all instances together."""
    max_per_hour: int | None = None
    """Leases that were handed out in the last hour."""


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller as the doors know it: the actor, what it may do, and the instance that holds its leases.

    `name` is the token's name (or what stands for it on stdio and in the process itself); leases are bound to it.
    `runner` marks Oaken's own workers, which alone may run internal kinds. With `workspace` it sees and touches nothing of any
    other one.
    """

    actor: Actor
    roles: frozenset[str]
    instance: str | None = None
    runner: bool = False
    workspace: str | None = None
    by_token: bool = False
    """It came with a token, which may have been revoked since."""
    limits: Limits = NO_LIMITS

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
    serial_key: str | None
    """Of one key at most one job runs at a time."""
    parent_id: int | None
    max_attempts: int
    budget_usd: float | None
    created_at: int
    run_at: int
    """When the job became, or becomes, runnable. For one that asked a question: when it goes on without an answer."""
    expires_at: int | None
    """Cancelled if it does not run by then."""
    actor_kind: str
    actor_id: str
    actor_via: str
    schema_hash: str | None
    """Of the payload schema the payload was last checked against."""
    blocked: int = FREE
    """`FREE`, `SERIAL` or `CHILDREN`: a blocked job is in no lane."""
    traceparent: str | None = None
    """Of the W3C: the trace that the job belongs to, and the span it was enqueued in."""
    cancelling: int = 0
    cancel_deadline: int | None = None
    """When a running job that was asked to stop, and reports no progress, is overruled."""
    reason: str | None = None
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
    progress_seq: int | None = None
    """The highest number its present holder gave a report."""
    question: str | None = None
    """What it waits to be told. Kept with its answer in the questions."""
    joined: int = 0
    """It has waited for its children; its leases list them."""
    asked: int = 0
    """How many questions it has asked; its leases carry them."""
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
    """One claim of one job, and how it ended: a row of `attempts`. One that goes on is in the row of its job alone."""

    job_id: int
    epoch: int
    attempt: int
    agent: str
    holder: str
    nonce: str
    started_at: int
    ended_at: int | None = None
    outcome: str | None = None
    error: str | None = None
    usage: str | None = None
    cost_usd: float | None = None
    produced_by: str | None = None
    verb: str | None = None
    body_hash: str | None = None
    answer: str | None = None
    """JSON of the columns that the finish changed, so that a repeat gets the first answer again."""
    late: int | None = None
    """1 where a result came that was refused because the lease was lost; it is kept and may be adopted."""

    @classmethod
    def of(cls, job: Job) -> Attempt:
        """The one that a running job is in."""
        assert job.agent is not None
        assert job.holder is not None
        assert job.nonce is not None
        assert job.started_at is not None
        return cls(job.id, job.epoch, job.attempts, job.agent, job.holder, job.nonce, job.started_at)


class Activity(NamedTuple):
    """A row of the outbox: what changed, in ids, states and numbers only, never private text."""

    id: int
    at: int
    event: str
    verb: str
    job_id: int | None
    name: str | None
    """Of the queue, token, agent or plugin, where the change is not a job's."""
    from_state: str | None
    to_state: str | None
    epoch: int | None
    attempt: int | None
    percent: int | None
    actor_kind: str
    actor_id: str
    actor_via: str
    workspace: str | None = None
    """Of the job, or of the token or agent that is bound to one."""
    data: str | None = None
    """JSON of the fields of a plugin's own event."""
    job_kind: str | None = None
    queue: str | None = None
    """Kind and present queue of the job, as long as it is there; not written with the row."""


class LogRow(NamedTuple):
    """A line of the log as it was kept. `process` is its role and number."""

    id: int
    at: int
    level: str
    logger: str
    message: str
    process: str


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


class Schedule(NamedTuple):
    """Jobs that come by the clock: every so often, or by a cron expression."""

    workspace: str
    name: str
    queue: str
    kind: str
    payload: str
    """JSON text."""
    priority: int
    every_ms: int | None
    cron: str | None
    timezone: str | None
    """For the cron expression; None is UTC."""
    anchor: int = 0
    """From where an interval counts its periods: when it was added or last changed."""
    next_run: int = 0
    last_run: int | None = None
    last_job: int | None = None
    owner: str | None = None
    """The plugin whose schedule it is; None where somebody added it."""
    created_at: int = 0
    actor_kind: str = "system"
    actor_id: str = "oaken"
    actor_via: str = "schedule"


class Question(NamedTuple):
    """What a lease holder asked, and what it was told. Text of others: untrusted."""

    id: int
    job_id: int
    epoch: int
    agent: str
    text: str
    asked_at: int
    answer: str | None
    """None while it is open, and where time ran out."""
    answered_at: int | None
    actor_kind: str | None
    actor_id: str | None
    actor_via: str | None


class Child(NamedTuple):
    """A child as its parent's next lease lists it."""

    job: Job
    result: str | None
    """JSON text; None where there is none, or where `cut`."""
    cut: bool = False
    """The result is left out because all of them together would be too long; read it by the child's id."""


class Leased(NamedTuple):
    """A job handed to a worker: everything needed to do it and to finish it."""

    job: Job
    payload: str
    """JSON text, as stored."""
    instructions: str | None = None
    children: tuple[Child, ...] | None = None
    """Of a job that has waited for its children, oldest first."""
    children_more: int = 0
    """How many there are beyond those listed."""
    answers: tuple[Question, ...] | None = None
    """Of a job that has asked: its latest questions, oldest first."""
    replayed: bool = False
    """An earlier answer again: this request's idempotency key was used before."""

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
    serial_key: str | None = None
    on_duplicate: str = "keep"
    """`replace`: a live job of the same key or target that is still queued gets this payload."""
    expires_at: int | None = None
    ttl_ms: int | None = None
    workspace: str | None = None
    """None: the parent's, else the default one."""


class Enqueued(NamedTuple):
    """The answer to an enqueue. `created` is false where a live job with the same dedupe key or target was returned."""

    job: Job
    created: bool
    warning: str | None = None
    replayed: bool = False
    """The first answer again: this idempotency key was used before."""
    replaced: bool | None = None
    """Whether a job that was there got the new payload, where that was asked for; one that runs keeps its own."""


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
    """An agent as last seen. One that is `draining` gets nothing new."""

    agent: str
    name: str
    first_seen: int
    last_seen: int
    leased: int
    succeeded: int
    failed: int
    holds: tuple[int, ...] = ()
    draining: bool = False


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

    Nothing is enqueued where the document `unless_document` is stored already, nor, where `if_retriage` names a subject, unless
    somebody asked that it be triaged again.
    """

    new: NewJob
    unless_document: str | None = None
    if_retriage: str | None = None


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

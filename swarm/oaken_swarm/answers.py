"""What answers hold, for `/openapi.json`: the shapes that `views` makes, written down once more so that a test can hold them together."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from oaken_jobs.model import Outcome, Reason, Role, RoutedBy, State

Moment = Annotated[
    str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", examples=["2026-01-31T12:00:00.000Z"])
]
Count = Annotated[int, Field(ge=0)]


class Shape(BaseModel):
    """Fields may be added; none is renamed or removed."""


class Actor(Shape):
    """Who did something, and by which door."""

    kind: Literal["user", "agent", "system"]
    id: str
    via: Literal["mcp", "http", "cli", "schedule", "worker"]


class Grade(Shape):
    grade: Literal["ok", "note", "warn", "bad"]
    why: str
    version: int


class Wait(Shape):
    """Why a queued job is not running."""

    code: Literal["paused", "limit", "serial", "retry", "delayed", "children", "answer", "no_agent"]
    text: str
    until: Moment | None = None


class HeldLease(Shape):
    agent: str
    expires_at: Moment
    epoch: int


class ProgressNow(Shape):
    percent: int | None
    message: str | None
    at: Moment


class Job(Shape):
    """A job. Payload and result are there where they were asked for."""

    id: int
    workspace: str
    kind: str
    queue: str
    routed_by: RoutedBy
    state: State
    cancelling: bool
    reason: Reason | None
    waits: list[Wait]
    priority: int
    title: str | None
    tags: list[str]
    subject: str | None
    target: str | None
    dedupe_key: str | None
    serial_key: str | None
    parent_id: int | None
    payload: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    produced_by: str | None
    attempts: Count
    max_attempts: Count
    lost: Count
    deferrals: Count
    coalesced: Count
    created_at: Moment
    run_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    expires_at: Moment | None
    actor: Actor
    agent: str | None
    lease: HeldLease | None
    progress: ProgressNow | None
    question: str | None
    last_error: str | None
    usage: dict[str, Any] | None
    cost_usd: float | None
    budget_usd: float | None
    grade: Grade | None


class Problem(Shape):
    """A refusal: `detail` says what was wrong, with which value, and what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str


class OneJob(Shape):
    job: Job


class Cancelled(OneJob):
    changed: bool


class Enqueued(OneJob):
    created: bool
    warning: str | None = None
    replayed: bool | None = None
    replaced: bool | None = None


class OneOfMany(Shape):
    """A job, or why there is none."""

    status: int
    job: Job | None = None
    created: bool | None = None
    warning: str | None = None
    replayed: bool | None = None
    replaced: bool | None = None
    error: Problem | None = None


class EnqueuedMany(Shape):
    jobs: list[OneOfMany]


class Jobs(Shape):
    jobs: list[Job]
    next_cursor: str | None


class WaitedJob(OneJob):
    final: bool


class WaitedJobs(Shape):
    jobs: list[Job]
    final: bool


class AnyObject(Shape):
    """A JSON object, as it was sent."""


class ProgressRow(Shape):
    at: Moment
    percent: int | None
    message: str | None
    epoch: int


class ProgressTrail(Shape):
    progress: list[ProgressRow]


class Attempt(Shape):
    epoch: int
    attempt: int
    agent: str
    started_at: Moment
    ended_at: Moment | None
    outcome: Outcome | None
    error: str | None
    usage: dict[str, Any] | None
    cost_usd: float | None
    produced_by: str | None
    late_result: bool


class Attempts(Shape):
    attempts: list[Attempt]


class EventData(Shape):
    """What applies of ids, states and numbers."""

    verb: str
    actor: Actor


class Event(Shape):
    id: str
    ts: Moment
    kind: str
    data: EventData


class Activity(Shape):
    activity: list[Event]


class Events(Shape):
    events: list[Event]
    cursor: str
    resync: bool


class Question(Shape):
    job_id: int
    epoch: int
    agent: str
    text: str
    asked_at: Moment
    answer: str | None
    answered_at: Moment | None
    answered_by: Actor | None


class Questions(Shape):
    questions: list[Question]


class Bulk(Shape):
    matched: Count
    done: Count
    skipped: Count
    remaining: Count
    cursor: str | None
    up_to: Count


class Lease(Shape):
    lease_id: str
    expires_at: Moment
    job: Job
    traceparent: str | None = None
    instructions: str | None = None
    children: list[Job] | None = None
    children_more: Count | None = None
    answers: list[Question] | None = None


class Leases(Shape):
    """`limited` says why there are none, where that is for the limits of the token."""

    leases: list[Lease]
    limited: str | None = None


class Beaten(Shape):
    expires_at: Moment
    cancelling: bool


class Traced(Beaten):
    recorded: Count


class BatchResult(Shape):
    status: int
    job: Job | None = None
    expires_at: Moment | None = None
    cancelling: bool | None = None
    recorded: Count | None = None
    error: Problem | None = None


class BatchResults(Shape):
    results: list[BatchResult]


class Counts(Shape):
    queued: Count
    running: Count
    succeeded: Count
    failed: Count
    cancelled: Count


class Queue(Shape):
    name: str
    kind: str | None
    workers: Count
    by_label: bool
    hidden: bool
    configured: bool
    paused: bool
    counts: Counts


class Queues(Shape):
    queues: list[Queue]


class OneQueue(Shape):
    queue: Queue


class Schedule(Shape):
    name: str
    workspace: str
    queue: str
    kind: str
    payload: dict[str, Any]
    priority: int
    every_seconds: float | None
    cron: str | None
    timezone: str | None
    next_run: Moment
    last_run: Moment | None
    last_job_id: int | None
    owner: str | None
    created_at: Moment
    actor: Actor


class Schedules(Shape):
    schedules: list[Schedule]


class OneSchedule(Shape):
    schedule: Schedule


class PutSchedule(OneSchedule):
    changed: bool


class Document(Shape):
    document: str
    title: str | None
    characters: Count
    created_at: Moment
    sources: list[str]


class Labels(Shape):
    """By layer (`human`, `machine`): key to value."""

    subject: str
    labels: dict[str, dict[str, str]]


class Subject(Labels):
    document: Document | None = None


class Snapshot(Shape):
    now: Moment
    counts: Counts
    active: list[Job]
    recent: list[Job]
    questions: list[Question]


class Agent(Shape):
    agent: str
    name: str
    first_seen: Moment
    last_seen: Moment
    holds: list[int]
    leased: Count
    succeeded: Count
    failed: Count
    draining: bool


class Agents(Shape):
    agents: list[Agent]


class Drained(Shape):
    agent: str
    draining: bool
    changed: bool


class Kind(Shape):
    name: str
    payload_schema: dict[str, Any] | None
    result_schema: dict[str, Any] | None
    instructions: str | None
    limit: int | None
    lease_seconds: float | None
    max_attempts: int | None
    retry_delays: list[float]
    on_lost: Literal["requeue", "fail"]
    internal: bool
    plugin: str | None


class Kinds(Shape):
    kinds: list[Kind]


class Limits(Shape):
    """What bounds the leasing of a token; null for no bound."""

    queues: list[str] | None
    kinds: list[str] | None
    max_leases: Count | None
    max_per_hour: Count | None


class Me(Shape):
    name: str
    actor: Actor
    workspace: str | None
    roles: list[Role]
    limits: Limits
    may: list[str]


class Plugin(Shape):
    name: str
    healthy: bool


class Meta(Shape):
    version: str
    features: list[str]
    limits: dict[str, int]
    plugins: list[Plugin]


class Token(Limits):
    """Never the secret, nor its hash."""

    name: str
    kind: Literal["user", "agent"]
    roles: list[Role]
    created_at: Moment
    workspace: str | None
    expires_at: Moment | None
    revoked_at: Moment | None
    rotated_at: Moment | None
    last_used_at: Moment | None


class NewToken(Token):
    """The secret is shown this once."""

    token: str


class Tokens(Shape):
    tokens: list[Token]


class AuditRow(Shape):
    id: int
    ts: Moment
    actor: Actor
    action: str
    outcome: str
    job_id: int | None
    agent: str | None
    rows: int | None


class Audit(Shape):
    audit: list[AuditRow]
    next_cursor: str | None


class LogLine(Shape):
    id: int
    ts: Moment
    level: Literal["debug", "info", "warning", "error"]
    logger: str
    message: str
    process: str


class Logs(Shape):
    logs: list[LogLine]
    next_cursor: str | None


class TraceRow(Shape):
    """What a model or an agent was told (`input`) or answered (`output`), as sent; `attributes` by the names of OpenTelemetry."""

    id: str
    ts: Moment
    event: Literal["lease", "finish", "agent"]
    job_id: int
    agent: str
    actor: Actor
    attributes: dict[str, Any]


class Trace(Shape):
    rows: list[TraceRow]
    next_cursor: str | None


class Resource(Shape):
    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[Literal["header"]]


class Health(Shape):
    status: Literal["ok"]

"""What a store can be asked to write.

Every write is an operation; `Store.write` takes a group of them and is one transaction. Within a group the order is fixed:
what ends or changes jobs first, then what adds them, then claims, so that a job freed or added in a group can be claimed in it.
Each operation has its reply at its own place; one that is refused answers with an `OakenError` and leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from oaken_jobs.errors import OakenError
from oaken_jobs.model import (
    NO_LIMITS,
    Actor,
    Enqueued,
    Job,
    Leased,
    LeaseRef,
    Limits,
    LogRow,
    NewJob,
    Schedule,
    SetLabels,
)
from oaken_jobs.moves import Finish

IDEMPOTENT_MS = 86_400_000
"""How long an idempotency key is remembered: a day."""
TASK_MS = 86_400_000
"""How long a task is kept once the last of its jobs has ended: a day."""


class Once(NamedTuple):
    """An idempotency key: of whom, and for what request. A repeat gets the first answer, another request `IdempotencyConflict`."""

    holder: str
    key: str
    hash: str


@dataclass(slots=True)
class Enqueue:
    """Adds a job, or answers with the live one of the same dedupe key or target. Reply: `Enqueued`."""

    new: NewJob
    actor: Actor
    schema_hash: str | None = None
    held_by: str | None = None
    """Where set, `parent_id` must be a job this principal holds: an agent may only add children."""
    within: str | None = None
    """The workspace that the caller is bound to."""
    once: Once | None = None
    queue: str | None = None
    """Where a schedule puts it; otherwise routing decides."""
    traceparent: str | None = None
    """None: its parent's, if it has any. Not part of `new`, since a repeat from elsewhere is the same request."""


@dataclass(slots=True)
class Want:
    """One waiting lease request: whose it is and what it would take. None for queues or kinds means any."""

    holder: str
    agent: str
    actor: Actor
    max: int = 1
    lease_ms: int | None = None
    usual_seconds: float | None = None
    """Without `lease_ms`: as in `Rules.lease_for`."""
    queues: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    not_kinds: tuple[str, ...] = ()
    within: str | None = None
    """The only workspace it may take from."""
    once: Once | None = None
    by_token: bool = False
    """The holder is a token's name; a revoked one gets nothing."""
    fresh: bool = True
    """Asked for the first time, or after a signal. Otherwise it can get only what this very group made runnable."""

    @property
    def filter(self) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None, tuple[str, ...], str | None]:
        return (self.queues, self.kinds, self.not_kinds, self.within)


@dataclass(slots=True)
class Claim:
    """Hands out jobs to waiting requests, in their order. Reply: `Claimed`."""

    wants: list[Want]


class Claimed(NamedTuple):
    """What each want got (None: it will never get anything, its token is barred or its idempotency key used up), and when (ms) it is
    worth asking again where somebody got less than wanted."""

    leases: list[list[Leased] | OakenError | None]
    next_at: int | None
    held_up: bool = False
    """Other transactions were at jobs that may be there again in a moment: who got nothing asks again."""


@dataclass(slots=True)
class Resume:
    """Gives an agent its own living leases again, under new ids. Reply: `list[Leased]`."""

    holder: str
    agent: str
    actor: Actor
    lease_ms: int | None = None


@dataclass(slots=True)
class Beat:
    """Extends a lease from now; with `progress` also appends to the trail. Reply: `Beaten`."""

    ref: LeaseRef
    holder: str
    actor: Actor
    lease_ms: int | None = None
    progress: bool = False
    percent: int | None = None
    message: str | None = None
    seq: int | None = None
    may_read: bool = False
    """The caller may read any job, and be told who holds it."""
    within: str | None = None
    """The workspace that the caller is bound to."""


class Beaten(NamedTuple):
    job: Job
    expires_at: int


@dataclass(slots=True)
class Cancel:
    """Cancels a queued job, asks a running one to stop. Reply: `Cancelled`."""

    job_id: int
    actor: Actor
    within: str | None = None


class Cancelled(NamedTuple):
    job: Job
    changed: bool


@dataclass(slots=True)
class Requeue:
    """Puts a failed, cancelled or queued job back. Reply: `Job`."""

    job_id: int
    actor: Actor
    queue: str | None = None
    retriage: bool = False
    """Clear the machine's labels of its subject and ask routing again."""
    within: str | None = None


@dataclass(slots=True)
class Answer:
    """Answers the open question of a job, which is then runnable. Reply: `Job`."""

    job_id: int
    text: str
    actor: Actor
    own: bool = False
    """Only a job that this very actor enqueued."""
    within: str | None = None
    epoch: int | None = None
    """Only a question asked under the lease of that epoch."""


@dataclass(slots=True)
class AddTask:
    """Keeps a task of these jobs for an actor. `said` is JSON text. Reply: None."""

    id: str
    actor: Actor
    job_ids: tuple[int, ...]
    said: str
    within: str | None = None
    """The workspace that the caller is bound to."""


@dataclass(slots=True)
class Adopt:
    """Takes the late result of an old attempt as the job's. Reply: `Job`."""

    job_id: int
    epoch: int
    actor: Actor
    within: str | None = None


@dataclass(slots=True)
class Edit:
    """Changes columns of a job that say how it is treated and shown: `priority`, `title`, `tags` (JSON). Reply: `Job`."""

    job_id: int
    changes: dict[str, Any]
    actor: Actor
    within: str | None = None


@dataclass(slots=True)
class Erase:
    """Takes away a job that has ended, with all that belongs to it; of the activity the ids and states stay. Reply: `Job`, as it was."""

    job_id: int
    actor: Actor
    within: str | None = None


@dataclass(slots=True)
class Begin:
    """A call that may be made once under a key begins. Reply: what `Settle` kept for it before (`str`; empty: it began, and how it
    ended is not known), or None, and it is remembered that it began. `IdempotencyConflict` for another request under the key."""

    once: Once


@dataclass(slots=True)
class Settle:
    """Keeps the answer of such a call; with None it never was. Reply: None."""

    once: Once
    answer: str | None


@dataclass(slots=True)
class Drain:
    """Gives an agent (`name` for all its instances, or `name/instance`) nothing new, or again. Reply: whether that changed
    anything (`bool`)."""

    agent: str
    draining: bool
    actor: Actor


@dataclass(slots=True)
class SetPaused:
    """Pauses or resumes a queue. Reply: whether that changed anything (`bool`)."""

    queue: str
    paused: bool
    actor: Actor


@dataclass(slots=True)
class KeepLabels:
    """Sets labels of a subject; an empty value removes one. Reply: None."""

    labels: SetLabels
    actor: Actor
    workspace: str


@dataclass(slots=True)
class Sweep:
    """Takes back expired leases, ends jobs that expired and those whose worker would not stop, the longest due first, at most
    `limit` of each; forgets old idempotency keys. Reply: how many of the kind of which there were most (`int`)."""

    limit: int = 500


@dataclass(slots=True)
class KeepLog:
    """Keeps lines of the log; their ids are given here. Reply: None."""

    rows: list[LogRow]


@dataclass(slots=True)
class Prune:
    """Forgets jobs that ended before `before` (ms), with all that belongs to them, the rows of `activity` by id, log lines from before
    `log_before`, audit rows from before `audit_before`, at most `limit` of each, and tasks whose jobs all ended `TASK_MS` ago; the newest
    `replayable` rows of activity stay. Reply: how many of the sort of which there were most (`int`), `limit` where some jobs, or tasks,
    are not through."""

    before: int
    log_before: int
    audit_before: int
    replayable: int
    activity: Sequence[int]
    limit: int


@dataclass(slots=True)
class Recover:
    """Lets no running lease end before `grace_ms` from now, nor outlast its own length. Reply: how many run (`int`)."""

    grace_ms: int


@dataclass(slots=True)
class PutSchedule:
    """Adds or changes a schedule. Reply: `(Schedule, whether anything changed)`."""

    schedule: Schedule
    actor: Actor


@dataclass(slots=True)
class RemoveSchedule:
    """Removes a schedule. Reply: None; `NotFound` where there is none."""

    workspace: str
    name: str
    actor: Actor


@dataclass(slots=True)
class FireOne:
    """Enqueues the job of a schedule now. Reply: `Enqueued`; `NotFound` where there is none."""

    workspace: str
    name: str
    actor: Actor


@dataclass(slots=True)
class Fire:
    """Enqueues the jobs of schedules that are due, the longest due first, at most `limit`, and moves these on. Reply: how many
    (`int`). Where many are late, their jobs are spread over `spread_ms`. Schedules that a wrong clock has moved too far get their next
    slot from now."""

    spread_ms: int
    limit: int = 500


@dataclass(slots=True)
class AddToken:
    """Stores a token's hash. Reply: `TokenRow`; `Conflict` where the name was ever used."""

    name: str
    kind: str
    roles: tuple[str, ...]
    hash: str
    expires_at: int | None
    actor: Actor
    workspace: str | None = None
    limits: Limits = NO_LIMITS


@dataclass(slots=True)
class RotateToken:
    """Gives a token another secret, and where `expires_at` is given another end; all else stays. Reply: `TokenRow`; `NotFound`, and
    `Conflict` where it was revoked or has expired and gets no new end."""

    name: str
    hash: str
    expires_at: int | None
    actor: Actor


@dataclass(slots=True)
class UseTokens:
    """Writes down when tokens were last used: by name, in ms. Reply: None."""

    used: dict[str, int]


@dataclass(slots=True)
class AddSession:
    """Logs a browser in with a token; forgets sessions whose time is over. Reply: None."""

    hash: str
    token: str
    token_hash: str
    expires_at: int
    actor: Actor
    most: int
    """How many sessions the token may have then. Those unused longest are ended for it."""
    instead_of: str | None
    """The hash of a session that ends, if there is one."""


@dataclass(slots=True)
class SeeSession:
    """Writes down when (ms) a session was last used. Reply: None."""

    hash: str
    at: int


@dataclass(slots=True)
class EndSession:
    """Ends a session. Reply: None; `NotFound` where there is none."""

    id: int
    actor: Actor


@dataclass(slots=True)
class AddCode:
    """Keeps the hash of a login code. Reply: None."""

    hash: str
    token: str
    token_hash: str
    expires_at: int


@dataclass(slots=True)
class UseCode:
    """Uses a login code up. Reply: name and hash of its token, `(str, str)`; None for one that is not good, or not any more."""

    hash: str


@dataclass(slots=True)
class RevokeToken:
    """Revokes a token and gives its leases back unharmed. Reply: `TokenRow`."""

    name: str
    actor: Actor


@dataclass(slots=True)
class Audit:
    """Adds an audit row: who did what, with ids and numbers alone. Reply: None."""

    actor: Actor
    action: str
    outcome: str
    """`allowed` or `refused`."""
    job_id: int | None = None
    agent: str | None = None
    rows: int | None = None
    """How many were shown."""


class SeenAgent(NamedTuple):
    agent: str
    name: str
    at: int
    leased: int
    succeeded: int
    failed: int
    workspace: str | None


@dataclass(slots=True)
class SeeAgents:
    """Adds what agents did since the last time. Reply: None."""

    agents: list[SeenAgent]


@dataclass(slots=True)
class SetHealth:
    """Writes down how a plugin is, with the reason where it is not well. Reply: whether that is a change (`bool`)."""

    plugin: str
    healthy: bool
    reason: str | None
    actor: Actor


@dataclass(slots=True)
class ForgetHealth:
    """Forgets how plugins are that are not among these. Reply: None."""

    plugins: tuple[str, ...]


@dataclass(slots=True)
class Emit:
    """Writes an event of a plugin's own, about a job where one is named; its workspace is the job's then. `data` is JSON text.
    Reply: None; `NotFound` where there is no such job."""

    plugin: str
    event: str
    data: str
    actor: Actor
    job_id: int | None = None
    workspace: str | None = None


@dataclass(slots=True)
class Register:
    """Says that this process lives and has the database open. Reply: the living processes (`list[ProcessRow]`)."""

    row: ProcessRow


@dataclass(slots=True)
class Unregister:
    """Says that a process is gone. Reply: None."""

    process: str


class ProcessRow(NamedTuple):
    """A process that has the database open."""

    process: str
    """Random, one for each start."""
    role: str
    pid: int
    host: str
    version: str
    started_at: int
    seen_at: int
    address: str | None = None
    """Of one that serves: where, as a URL."""


class SessionRow(NamedTuple):
    """A browser that is logged in: by hashes of what it keeps, and of the token that it logged in with."""

    id: int
    hash: str
    token: str
    token_hash: str
    created_at: int
    seen_at: int
    """To within a minute."""
    expires_at: int


class TokenRow(NamedTuple):
    """A token without its secret."""

    name: str
    kind: str
    roles: str
    hash: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    workspace: str | None = None
    queues: str | None = None
    """JSON array, as `kinds`; None for any."""
    kinds: str | None = None
    max_leases: int | None = None
    max_per_hour: int | None = None
    rotated_at: int | None = None
    last_used_at: int | None = None
    """To within a minute."""


Op = (
    Enqueue
    | Claim
    | Resume
    | Finish
    | Beat
    | Cancel
    | Requeue
    | Answer
    | AddTask
    | Adopt
    | Edit
    | Erase
    | Begin
    | Settle
    | Drain
    | PutSchedule
    | RemoveSchedule
    | FireOne
    | Fire
    | SetPaused
    | KeepLabels
    | Sweep
    | KeepLog
    | Prune
    | Recover
    | AddToken
    | RotateToken
    | UseTokens
    | AddSession
    | SeeSession
    | EndSession
    | AddCode
    | UseCode
    | RevokeToken
    | Audit
    | SeeAgents
    | SetHealth
    | ForgetHealth
    | Emit
    | Register
    | Unregister
)
Reply = (
    Enqueued
    | Claimed
    | list[Leased]
    | Job
    | Beaten
    | Cancelled
    | bool
    | str
    | int
    | TokenRow
    | tuple[Schedule, bool]
    | tuple[str, str]
    | list[ProcessRow]
    | BaseException
    | None
)

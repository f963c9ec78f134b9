"""How things look as JSON: the same wherever they are shown. Names are part of the interface."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter

import orjson

from oaken_jobs.events.event import Event, JobEvent, PluginEvent
from oaken_jobs.grading import grade
from oaken_jobs.kinds import Kind, Rules
from oaken_jobs.model import (
    AgentRow,
    Attempt,
    Child,
    Grade,
    Job,
    Json,
    Leased,
    LogRow,
    ProgressRow,
    Question,
    Queue,
    Schedule,
)
from oaken_jobs.store.base import AuditRow, Document
from oaken_jobs.store.operations import TokenRow
from oaken_jobs.waits import Wait
from oaken_jobs.waits import waits as waits_of


@lru_cache(4096)  # a job has five of them, and those of one group are mostly alike
def iso(ms: int | None) -> str | None:
    """A moment as text: UTC, milliseconds, `Z`. One outside the years 1970 to 9999 is shown as the nearest inside.

    >>> iso(1_764_417_600_000)
    '2025-11-29T12:00:00.000Z'
    """
    if ms is None:
        return None
    seconds, rest = divmod(min(max(ms, 0), _LAST_MS), 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which there is no ISO 8601 that everyone reads."""


@lru_cache(4096)
def _second(seconds: int) -> str:
    """Most times shown at one moment lie within a few seconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def job_grade(job: Job, rules: Rules, now: int) -> Grade | None:
    """The stored grade of a final job, the computed one of a live job."""
    if job.final:
        if job.grade is None:
            return None
        return Grade(job.grade, job.grade_why or "", job.grade_version or 0)  # type: ignore[arg-type]
    return grade(job, rules.kinds.get(job.kind), None, now)


def job(
    job: Job,
    rules: Rules,
    now: int,
    *,
    payload: str | None = None,
    result: str | None = None,
    bodies: bool = False,
    waits: Sequence[Wait] | None = None,
) -> Json:
    """A job as the interface shows it. With `bodies`, payload and result (JSON text) are put in. `waits` is all that keeps it from
    running; left out, what its own row says of that is shown."""
    if waits is None:
        waits = waits_of(job, rules, None, now)
    graded = job_grade(job, rules, now)
    running = job.state == "running"
    shown: Json = {
        "id": job.id,
        "workspace": job.workspace,
        "kind": job.kind,
        "queue": job.queue,
        "routed_by": job.routed_by,
        "state": job.state,
        "cancelling": bool(job.cancelling),
        "reason": job.reason,
        "waits": [wait(one) for one in waits],
        "priority": job.priority,
        "title": job.title,
        "tags": orjson.loads(job.tags) if job.tags else [],
        "subject": job.subject,
        "target": job.target,
        "dedupe_key": job.dedupe_key,
        "serial_key": job.serial_key,
        "parent_id": job.parent_id,
        "produced_by": job.produced_by,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "lost": job.lost,
        "deferrals": job.deferrals,
        "coalesced": job.coalesced,
        "created_at": iso(job.created_at),
        "run_at": iso(job.run_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
        "expires_at": iso(job.expires_at),
        "actor": {"kind": job.actor_kind, "id": job.actor_id, "via": job.actor_via},
        "agent": job.agent,
        "lease": {"agent": job.agent, "expires_at": iso(job.lease_expires), "epoch": job.epoch} if running else None,
        "progress": (
            {"percent": job.percent, "message": job.message, "at": iso(job.progress_at)}
            if job.progress_at is not None
            else None
        ),
        "question": job.question,
        "last_error": job.last_error,
        "usage": orjson.loads(job.usage) if job.usage else None,
        "cost_usd": job.cost_usd,
        "budget_usd": job.budget_usd,
        "grade": {"grade": graded.grade, "why": graded.why, "version": graded.version} if graded else None,
    }
    if bodies:
        shown["payload"] = orjson.loads(payload) if payload is not None else {}
        shown["result"] = orjson.loads(result) if result is not None else None
    return shown


def wait(row: Wait) -> Json:
    """`until` is absent where no clock ends it."""
    shown: Json = {"code": row.code, "text": row.text}
    if row.until is not None:
        shown["until"] = iso(row.until)
    return shown


def question(row: Question) -> Json:
    """What was asked, and what was answered: text of others."""
    actor = {"kind": row.actor_kind, "id": row.actor_id, "via": row.actor_via} if row.actor_id is not None else None
    return {
        "job_id": row.job_id,
        "epoch": row.epoch,
        "agent": row.agent,
        "text": row.text,
        "asked_at": iso(row.asked_at),
        "answer": row.answer,
        "answered_at": iso(row.answered_at),
        "answered_by": actor,
    }


def child(row: Child, rules: Rules, now: int) -> Json:
    """A child as its parent's lease lists it: with its result, without its payload."""
    shown = job(row.job, rules, now)
    shown["result"] = orjson.loads(row.result) if row.result is not None else None
    if row.cut:
        shown["result_cut"] = True
    return shown


def leased(lease: Leased, rules: Rules, now: int) -> Json:
    """A lease with its job, payload included."""
    shown: Json = {
        "lease_id": lease.lease_id,
        "expires_at": iso(lease.job.lease_expires),
        "job": job(lease.job, rules, now, payload=lease.payload, bodies=True),
    }
    if lease.job.traceparent is not None:
        shown["traceparent"] = lease.job.traceparent
    if lease.instructions is not None:
        shown["instructions"] = lease.instructions
    if lease.children is not None:
        shown["children"] = [child(one, rules, now) for one in lease.children]
        if lease.children_more:
            shown["children_more"] = lease.children_more
    if lease.answers is not None:
        shown["answers"] = [question(one) for one in lease.answers]
    return shown


def attempt(row: Attempt) -> Json:
    return {
        "epoch": row.epoch,
        "attempt": row.attempt,
        "agent": row.agent,
        "started_at": iso(row.started_at),
        "ended_at": iso(row.ended_at),
        "outcome": row.outcome,
        "error": row.error,
        "usage": orjson.loads(row.usage) if row.usage else None,
        "cost_usd": row.cost_usd,
        "produced_by": row.produced_by,
        "late_result": row.late is not None and row.outcome != "adopted",
    }


def progress(row: ProgressRow) -> Json:
    return {"at": iso(row.at), "percent": row.percent, "message": row.message, "epoch": row.epoch}


def event(happened: Event) -> Json:
    row = happened.row
    names, values = _OF_JOBS if isinstance(happened, JobEvent) else _OF_OTHERS
    data: Json = {name: value for name, value in zip(names, values(row), strict=True) if value is not None}
    if isinstance(happened, PluginEvent):
        data["fields"] = happened.fields
    data["actor"] = {"kind": row.actor_kind, "id": row.actor_id, "via": row.actor_via}
    return {"id": str(row.id), "ts": iso(row.at), "kind": row.event, "data": data}


# What events tell, and where it stands in a row of activity; what a kind of event has none of is null there.
_OF_JOBS = (
    ("verb", "job_id", "job_kind", "queue", "from", "to", "epoch", "attempt", "percent", "workspace"),
    attrgetter(
        "verb", "job_id", "job_kind", "queue", "from_state", "to_state", "epoch", "attempt", "percent", "workspace"
    ),
)
_OF_OTHERS = (
    ("verb", "job_id", "name", "from", "to", "workspace"),
    attrgetter("verb", "job_id", "name", "from_state", "to_state", "workspace"),
)


def log_line(row: LogRow) -> Json:
    shown = {
        "ts": iso(row.at),
        "level": row.level,
        "logger": row.logger,
        "message": row.message,
        "process": row.process,
    }
    return {"id": row.id, **shown} if row.id else shown


def audit(row: AuditRow) -> Json:
    return {
        "id": row.id,
        "ts": iso(row.at),
        "actor": {"kind": row.actor_kind, "id": row.actor_id, "via": row.actor_via},
        "action": row.action,
        "outcome": row.outcome,
        "job_id": row.job_id,
        "agent": row.agent,
        "rows": row.rows,
    }


def queue(row: Queue) -> Json:
    return {
        "name": row.name,
        "kind": row.kind,
        "workers": row.workers,
        "by_label": row.by_label,
        "hidden": row.hidden,
        "configured": row.configured,
        "paused": row.paused,
        "counts": {
            state: row.counts.get(state, 0) for state in ("queued", "running", "succeeded", "failed", "cancelled")
        },
    }


def agent(row: AgentRow) -> Json:
    return {
        "agent": row.agent,
        "name": row.name,
        "first_seen": iso(row.first_seen),
        "last_seen": iso(row.last_seen),
        "holds": list(row.holds),
        "leased": row.leased,
        "succeeded": row.succeeded,
        "failed": row.failed,
        "draining": row.draining,
    }


def kind(row: Kind, rules: Rules) -> Json:
    """A kind as these rules have it: its limit is the one that counts."""
    return {
        "name": row.name,
        "payload_schema": row.payload_schema.source if row.payload_schema else None,
        "result_schema": row.result_schema.source if row.result_schema else None,
        "instructions": row.instructions,
        "limit": rules.caps.get(row.name),
        "lease_seconds": row.lease_seconds,
        "max_attempts": row.max_attempts,
        "retry_delays": list(row.retry_delays),
        "on_lost": row.on_lost,
        "internal": row.internal,
        "plugin": row.plugin,
    }


def schedule(row: Schedule) -> Json:
    return {
        "name": row.name,
        "workspace": row.workspace,
        "queue": row.queue,
        "kind": row.kind,
        "payload": orjson.loads(row.payload),
        "priority": row.priority,
        "every_seconds": row.every_ms / 1000 if row.every_ms is not None else None,
        "cron": row.cron,
        "timezone": row.timezone,
        "next_run": iso(row.next_run),
        "last_run": iso(row.last_run),
        "last_job_id": row.last_job,
        "owner": row.owner,
        "created_at": iso(row.created_at),
        "actor": {"kind": row.actor_kind, "id": row.actor_id, "via": row.actor_via},
    }


def token(row: TokenRow) -> Json:
    """Never the secret, nor its hash."""
    return {
        "name": row.name,
        "kind": row.kind,
        "roles": row.roles.split(","),
        "created_at": iso(row.created_at),
        "workspace": row.workspace,
        "queues": orjson.loads(row.queues) if row.queues else None,
        "kinds": orjson.loads(row.kinds) if row.kinds else None,
        "max_leases": row.max_leases,
        "max_per_hour": row.max_per_hour,
        "expires_at": iso(row.expires_at),
        "revoked_at": iso(row.revoked_at),
        "rotated_at": iso(row.rotated_at),
        "last_used_at": iso(row.last_used_at),
    }


def document(row: Document) -> Json:
    return {
        "document": row.document,
        "title": row.title,
        "characters": row.characters,
        "created_at": iso(row.created_at),
        "sources": list(row.sources),
    }

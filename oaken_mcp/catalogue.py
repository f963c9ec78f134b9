"""The tools as clients see them: names, schemas and words. Together they stay small, for every client carries all of them along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from oaken_jobs import auth
from oaken_jobs.model import ROLES, Json, Principal
from oaken_mcp import arguments, tools


@dataclass(frozen=True)
class Tool:
    """A tool as clients see it, and what carries it out. `actions` are those of which a caller must be allowed one."""

    name: str
    title: str
    about: str
    takes: type[BaseModel]
    described: dict[str, str]
    gives: Json
    run: Callable[[tools.Context, Any], Awaitable[Json]]
    actions: tuple[str, ...]
    reads: bool = False
    destroys: bool = False
    repeatable: bool = False

    def allowed(self, who: Principal) -> bool:
        """Whether the caller's roles let it use this tool."""
        return any(auth.may(who, action) for action in self.actions)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of which one suffices."""
        return tuple(role for role in ROLES if any(role in auth.MAY[action] for action in self.actions))

    def input_schema(self) -> Json:
        """Of its arguments."""
        return arguments.input_schema(self.takes, self.described)

    def output_schema(self) -> Json:
        """Of its answers. Everything may be absent."""
        return {"type": "object", "properties": self.gives}


_JOB: Json = {"type": "object", "properties": {"id": {"type": "integer"}}}
"""Open, as every object is that does not say otherwise."""
_JOBS: Json = {"type": "array", "items": _JOB}
_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_NUMBER: Json = {"type": "integer"}

_LEASE_ID = "As lease gave it."
_USAGE = "Tokens and such."
_COST = "US dollars."

TOOLS: tuple[Tool, ...] = (
    Tool(
        "enqueue",
        "Enqueue a job",
        "Puts a job, or many with payloads, into the queue. Use it to hand work to agents. Returns it with its id at "
        "once, or with its result if it ends within wait seconds. Next: wait or status.",
        arguments.Enqueue,
        {
            "kind": "Kind of work; status lists kinds.",
            "payload": "What the worker needs.",
            "subject": "About what, such as note:17.",
            "target": "One live job a kind and target.",
            "dedupe_key": "One live job a key.",
            "on_duplicate": "replace: it gets this payload.",
            "serial_key": "One job of a key runs at a time.",
            "priority": "0 to 1000, higher first; else 50, users 100.",
            "delay_seconds": "Not before so many seconds.",
            "run_at": "Not before 2030-01-31T12:00:00Z.",
            "ttl_seconds": "Cancelled if not running by then.",
            "expires_at": "Same, as a time.",
            "max_attempts": "Attempts in all.",
            "parent_id": "The job it is part of.",
            "title": "For people.",
            "tags": "Words to find it by.",
            "budget_usd": "What it may cost.",
            "idempotency_key": "Repeats within a day add nothing.",
            "workspace": "Else default.",
            "payloads": "Many jobs, one each.",
            "lease_id": "Adds children of this lease's job.",
            "wait": "Seconds to wait.",
        },
        {"job": _JOB, "created": _FLAG, "job_ids": {"type": "array", "items": _NUMBER}},
        tools.enqueue,
        ("enqueue",),
    ),
    Tool(
        "status",
        "Look at jobs",
        "With job_id: the job with payload, result, error and what it waits for; part and offset read on in a long "
        "one. Without: your leases, open questions, recent jobs, queues, kinds. Ended jobs stay, by default 30 days.",
        arguments.Status,
        {
            "job_id": "The job.",
            "part": "Read one part, as text.",
            "offset": "Read on from here.",
        },
        {"job": _JOB, "next_offset": _NUMBER},
        tools.status,
        ("read", "lease"),
        reads=True,
        repeatable=True,
    ),
    Tool(
        "list_jobs",
        "List jobs",
        "Lists jobs, newest first, without payloads and results. Use it to find jobs. Next: status, or the next page "
        "with next_cursor.",
        arguments.ListJobs,
        {
            "state": "Only in this state.",
            "kind": "Only this kind.",
            "queue": "Only in this queue.",
            "parent_id": "Only its children.",
            "mine": "Only those you enqueued or held.",
            "query": "Text in title, kind, subject, tags or error.",
            "cursor": "next_cursor of the last page.",
            "limit": "Jobs on a page.",
        },
        {"jobs": _JOBS, "next_cursor": _TEXT},
        tools.list_jobs,
        ("read", "lease"),
        reads=True,
        repeatable=True,
    ),
    Tool(
        "wait",
        "Wait for jobs",
        "Waits until the jobs have ended or the seconds are over; returns them with results, and final. Next, if not "
        "final: answer what they ask; something else, then wait again.",
        arguments.WaitFor,
        {
            "job_id": "The job.",
            "job_ids": "Or several, up to 50.",
            "seconds": "How long at most.",
        },
        {"final": _FLAG, "job": _JOB, "jobs": _JOBS},
        tools.wait,
        ("read", "lease"),
        reads=True,
        repeatable=True,
    ),
    Tool(
        "requeue",
        "Requeue a job",
        "Puts a failed, cancelled or queued job back to run now, attempts and error cleared. Use it once the cause "
        "is mended. Returns the job.",
        arguments.Requeue,
        {
            "job_id": "The job.",
            "queue": "Another queue for it.",
            "retriage": "Intake: triage decides anew.",
        },
        {"job": _JOB},
        tools.requeue,
        ("manage",),
    ),
    Tool(
        "cancel",
        "Cancel a job",
        "Cancels a queued job, asks a running one to stop; spares children. Returns the job, and if it changed.",
        arguments.Cancel,
        {"job_id": "The job."},
        {"job": _JOB, "changed": _FLAG},
        tools.cancel,
        ("manage",),
        destroys=True,
        repeatable=True,
    ),
    Tool(
        "answer",
        "Answer a question",
        "Answers what a job asks; its next lease carries the answer. Use it when status or wait shows a question you "
        "can answer. Returns the job. Next: wait.",
        arguments.Answer,
        {"text": "The answer.", "job_id": "The job that asks."},
        {"job": _JOB},
        tools.answer_question,
        ("enqueue",),
    ),
    Tool(
        "lease",
        "Lease jobs",
        "Takes jobs for you alone. Returns lease_id, expires_at, payload, instructions, children and answers of "
        "each, or none. Next: heartbeat before it expires; then complete, fail or release.",
        arguments.Lease,
        {
            "queues": "Only these queues.",
            "kinds": "Only these kinds: those you can do.",
            "max": "How many at most.",
            "lease_seconds": "Else the kind's own, else 1800.",
            "wait_seconds": "Wait for one so long.",
            "resume": "Only leases you hold, if you lost their ids.",
        },
        {"leases": {"type": "array", "items": {"type": "object", "properties": {"lease_id": _TEXT}}}},
        tools.lease,
        ("lease",),
    ),
    Tool(
        "heartbeat",
        "Keep a lease",
        "Extends a lease from now and may report progress. Use it well before expires_at. Returns the new "
        "expires_at; if cancelling, stop and call release.",
        arguments.Heartbeat,
        {
            "lease_id": _LEASE_ID,
            "lease_seconds": "Else as before.",
            "percent": "How far the work is.",
            "message": "The same in words.",
        },
        {"expires_at": _TEXT, "cancelling": _FLAG},
        tools.heartbeat,
        ("lease",),
        repeatable=True,
    ),
    Tool(
        "complete",
        "Complete a job",
        "Ends a lease with the work done. Returns the job. If the result does not fit its kind, correct it and call "
        "again. Next: lease.",
        arguments.Complete,
        {
            "lease_id": _LEASE_ID,
            "result": "Any JSON object.",
            "usage": _USAGE,
            "cost_usd": _COST,
            "produced_by": "The model used.",
        },
        {"job": _JOB},
        tools.complete,
        ("lease",),
        repeatable=True,
    ),
    Tool(
        "fail",
        "Fail a job",
        "Ends a lease with the work failed. The job is tried again later, unless permanent or out of attempts. "
        "Returns the job. Next: lease.",
        arguments.Fail,
        {
            "lease_id": _LEASE_ID,
            "error": "What went wrong; no secrets.",
            "permanent": "Trying again would not help.",
            "retry_after": "Not before so many seconds.",
            "usage": _USAGE,
            "cost_usd": _COST,
        },
        {"job": _JOB},
        tools.fail,
        ("lease",),
        repeatable=True,
    ),
    Tool(
        "release",
        "Give a job back",
        "Ends a lease without outcome, the attempt not counted. Use it when you cannot do the job now, need its children "
        "or an answer first, or it is cancelling. Returns the job. Next: lease.",
        arguments.Release,
        {
            "lease_id": _LEASE_ID,
            "seconds": "Not before so many seconds; with a question: wait at most.",
            "after_children": "Not before its children have ended.",
            "question": "Ask who enqueued it; the next lease has the answer.",
        },
        {"job": _JOB},
        tools.release,
        ("lease",),
        repeatable=True,
    ),
)

"""The tools as clients see them: names, schemas and words. Together they stay small, for every client carries all of them along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from oaken_jobs import auth
from oaken_jobs.model import Json, Principal
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

    def input_schema(self) -> Json:
        """Of its arguments."""
        return arguments.input_schema(self.takes, self.described)

    def output_schema(self) -> Json:
        """Of its answers. Everything may be absent."""
        return {"type": "object", "properties": self.gives}


_JOB: Json = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "additionalProperties": True,
}


def _is(kind: str, about: str) -> Json:
    return {"type": kind, "description": about}


def _rows(about: str) -> Json:
    return {"type": "array", "description": about, "items": _JOB}


_LEASE_ID = "The lease, as lease gave it."
_USAGE = "What the attempt used, as known."
_COST = "What it cost, US dollars."

TOOLS: tuple[Tool, ...] = (
    Tool(
        "enqueue",
        "Enqueue a job",
        "Puts a job, or many with payloads, into the queue. Use it to hand work over to agents. Returns the job with "
        "its id at once, or its result if it ends within wait seconds. Next: wait or status.",
        arguments.Enqueue,
        {
            "kind": "Kind of work; status lists kinds.",
            "payload": "What the worker needs: any JSON object.",
            "subject": "What it is about, such as note:17.",
            "target": "Same, for this kind and target.",
            "dedupe_key": "A live job of this key is returned, nothing added.",
            "priority": "0 to 1000, higher first; 50, for people 100.",
            "delay_seconds": "Not before so many seconds.",
            "run_at": "Not before 2030-01-31T12:00:00Z.",
            "max_attempts": "Attempts in all.",
            "parent_id": "The job this is a part of.",
            "title": "A line for people.",
            "tags": "Words to find it by.",
            "budget_usd": "What it may cost, US dollars.",
            "payloads": "Many jobs, one a payload.",
            "lease_id": "Lease you hold: children of its job.",
            "wait": "Seconds to wait for the end.",
        },
        {
            "job": _JOB,
            "created": _is("boolean", "False: it was there."),
            "final": _is("boolean", "Whether it has ended."),
            "job_ids": {"type": "array", "description": "Of payloads, in order.", "items": {"type": "integer"}},
        },
        tools.enqueue,
        ("enqueue",),
    ),
    Tool(
        "status",
        "Look at a job, or at all",
        "With job_id: the job with payload, result and error; part and offset read on in a long one. Without: your "
        "leases, recent jobs, queues and kinds. Use it to look, wait to wait.",
        arguments.Status,
        {
            "job_id": "The job.",
            "part": "The one part to read, as text.",
            "offset": "Character to read on from.",
        },
        {
            "job": _JOB,
            "text": _is("string", "The part, from offset on."),
            "next_offset": _is("integer", "Absent at the end."),
        },
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
            "kind": "Only of this kind.",
            "queue": "Only in this queue.",
            "parent_id": "Only children of this job.",
            "mine": "Only those you enqueued or held.",
            "query": "Text in title, kind, subject, tags or error.",
            "cursor": "next_cursor of the last page; same filters.",
            "limit": "Jobs on a page, or fewer long ones.",
        },
        {"jobs": _rows("The page."), "next_cursor": _is("string", "Absent on the last page.")},
        tools.list_jobs,
        ("read", "lease"),
        reads=True,
        repeatable=True,
    ),
    Tool(
        "wait",
        "Wait for jobs",
        "Waits until the jobs have ended or the seconds are over; returns them with results, and final. Next, if not "
        "final: something else, then wait again.",
        arguments.WaitFor,
        {
            "job_id": "The job.",
            "job_ids": "Or several, up to 50.",
            "seconds": "How long at most.",
        },
        {
            "final": _is("boolean", "Whether all have ended."),
            "job": _JOB,
            "jobs": _rows("Those of job_ids."),
        },
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
        {"job_id": "The job.", "queue": "Another queue for it."},
        {"job": _JOB},
        tools.requeue,
        ("manage",),
    ),
    Tool(
        "cancel",
        "Cancel a job",
        "Cancels a queued job, asks a running one to stop; spares children. Returns the job, and whether that "
        "changed it.",
        arguments.Cancel,
        {"job_id": "The job."},
        {"job": _JOB, "changed": _is("boolean", "False: it had ended.")},
        tools.cancel,
        ("manage",),
        destroys=True,
        repeatable=True,
    ),
    Tool(
        "lease",
        "Lease jobs to do",
        "Takes jobs for you alone to do. Returns lease_id, expires_at, payload and instructions of each, or none. "
        "Next: heartbeat before it expires; then complete, fail or release.",
        arguments.Lease,
        {
            "queues": "Only from these queues.",
            "kinds": "Only these kinds: those you can do.",
            "max": "How many at most.",
            "lease_seconds": "Else the kind's own, else 1800.",
            "wait_seconds": "How long to wait for one.",
        },
        {"leases": _rows("Each with lease_id, expires_at, job.")},
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
            "lease_seconds": "New length; else as before.",
            "percent": "How far the work is.",
            "message": "How far, in words.",
        },
        {
            "expires_at": _is("string", "When the lease ends now."),
            "cancelling": _is("boolean", "The job is to be cancelled."),
        },
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
            "result": "The result: a JSON object.",
            "usage": _USAGE,
            "cost_usd": _COST,
            "produced_by": "The model that did it.",
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
        "Returns the job.",
        arguments.Fail,
        {
            "lease_id": _LEASE_ID,
            "error": "What went wrong; no secrets.",
            "permanent": "Trying again would not help.",
            "retry_after": "Not again before so many seconds.",
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
        "Ends a lease without outcome: the job goes back, the attempt not counted. Use it when you cannot do it now, "
        "or it is cancelling. Returns the job.",
        arguments.Release,
        {"lease_id": _LEASE_ID, "seconds": "Not again before so many seconds."},
        {"job": _JOB},
        tools.release,
        ("lease",),
        repeatable=True,
    ),
)

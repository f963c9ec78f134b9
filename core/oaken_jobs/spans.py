"""Rows of the trace, and what they are called in OpenTelemetry. Pure functions.

A job is a trace, an attempt a span of it, and what an agent adds a span inside the attempt. Their ids follow from the job, so that every
process gives the same ones.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from oaken_jobs import traceparent, views
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Job, Json, Leased, Principal
from oaken_jobs.tracing import End

CONVENTIONS: Final = "semantic-conventions-genai 0.1.0"
"""Of OpenTelemetry, whose names `attributes` gives."""

_UNCOUNTED = frozenset({"defer", "release", "ask"})
"""After these the job has the attempt no longer that they ended."""


def leased(who: Principal, lease: Leased, rules: Rules, now: int) -> Json:
    """What a lease tells its holder."""
    job = lease.job
    told: Json = {
        "title": job.title,
        "subject": job.subject,
        "instructions": lease.instructions,
        "payload": orjson.Fragment(lease.payload),
        "children": None if lease.children is None else [views.child(one, rules, now) for one in lease.children],
        "answers": None if lease.answers is None else [views.question(one) for one in lease.answers],
    }
    return _row(who, now, rules, "lease", job.id, job.epoch, job, operation="invoke_agent", input=_given(told))


def finished(who: Principal, end: End, rules: Rules, now: int) -> Json:
    """What a holder answered, or tried to."""
    op, job = end.op, end.job
    answers = {
        "complete": None if op.result_text is None else orjson.Fragment(op.result_text),
        "fail": op.said,
        "ask": op.question,
    }
    uncounted = job is not None and end.refusal is None and op.verb in _UNCOUNTED
    attempt = {"attempt": job.attempts + 1} if job is not None and uncounted else {}
    usage = op.usage
    return _row(
        who,
        now,
        rules,
        "finish",
        op.ref.job_id,
        op.ref.epoch,
        job,
        verb=op.verb,
        operation="invoke_agent",
        model=usage and usage.produced_by,
        usage=usage and usage.usage,
        cost_usd=usage and usage.cost_usd,
        error_type=end.refusal or ("job_failed" if op.verb == "fail" else None),
        output=answers.get(op.verb),
        **attempt,
    )


def said(who: Principal, job: Job, row: Json, rules: Rules, now: int) -> Json:
    """What the holder adds: a span of its own inside the attempt."""
    inner = {"span_id": secrets.token_hex(8), "parent_span_id": span_id(job, job.epoch)}
    times = {name: views.iso(row[name]) for name in ("started_at", "ended_at") if row.get(name) is not None}
    return _row(who, now, rules, "agent", job.id, job.epoch, job, **{**row, **times, **inner})


def trace_id(job: Job) -> str:
    """32 hex digits: of the trace that the job was enqueued in, else its own; of two installations' jobs of one number they differ."""
    if job.traceparent is not None:
        return traceparent.trace_id(job.traceparent)
    return _hash(16, job.id, job.created_at)


def span_id(job: Job, epoch: int) -> str:
    """16 hex digits, of one attempt."""
    return _hash(8, job.id, job.created_at, epoch)


def _hash(size: int, *parts: int) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=size).hexdigest()


def _row(
    who: Principal, now: int, rules: Rules, event: str, job_id: int, epoch: int, job: Job | None, **fields: Any
) -> Json:
    of_job: Json = {}
    if job is not None:
        known = rules.kinds.get(job.kind)
        of_job = {
            "trace_id": trace_id(job),
            "span_id": span_id(job, epoch),
            "workspace": job.workspace,
            "kind": job.kind,
            "queue": job.queue,
            "plugin": known.plugin if known is not None else None,
        }
        if job.epoch == epoch:
            of_job |= {"attempt": job.attempts, "agent": job.agent}
    row: Json = {
        "id": secrets.token_hex(8),
        "ts": views.iso(now),
        "event": event,
        "job_id": job_id,
        "epoch": epoch,
        "agent": who.agent,
        "actor": {"kind": who.actor.kind, "id": who.actor.id, "via": who.actor.via},
    }
    return _given(row | of_job | fields)


def _given(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


_NAMES = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "tool": "gen_ai.tool.name",
    "agent": "gen_ai.agent.id",
    "error_type": "error.type",
}
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_read_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_creation_input_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "reasoning_output_tokens": "gen_ai.usage.reasoning.output_tokens",
}
"""What agents call their counts."""


def attributes(row: Json) -> dict[str, str | int]:
    """A row as read, as attributes of a span. Content is private: JSON text, as structured attributes are on spans."""
    found: dict[str, str | int] = {new: row[name] for name, new in _NAMES.items() if name in row}
    if "job_id" in row:
        found["gen_ai.conversation.id"] = str(row["job_id"])
    if "agent" in row:
        found["gen_ai.agent.name"] = str(row["agent"]).partition("/")[0]
    if "model" in row:
        found["gen_ai.response.model" if row.get("event") == "finish" else "gen_ai.request.model"] = row["model"]
    for name, count in cast("Json", row.get("usage") or {}).items():
        if name in _USAGE and isinstance(count, int | float):
            found[_USAGE[name]] = int(count)
    return found | {name: orjson.dumps(value).decode() for name, value in _content(row).items()}


def _content(row: Json) -> dict[str, Any]:
    given, answer = row.get("input"), row.get("output")
    if "tool" in row:
        return _given({"gen_ai.tool.call.arguments": given, "gen_ai.tool.call.result": answer})
    found: dict[str, Any] = {}
    if row.get("event") == "lease" and isinstance(given, Mapping):
        told = dict(cast("Json", given))
        instructions = told.pop("instructions", None)
        if instructions is not None:
            found["gen_ai.system_instructions"] = [{"type": "text", "content": instructions}]
        given = told
    if given is not None:
        found["gen_ai.input.messages"] = _messages(given, {"role": "user"})
    if answer is not None:
        ended = "error" if "error_type" in row else "stop"
        found["gen_ai.output.messages"] = _messages(answer, {"role": "assistant", "finish_reason": ended})
    return found


def _messages(value: Any, message: Json) -> list[Any]:
    """The messages that a value is, or the one that holds it."""
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        if listed and all(isinstance(one, dict) and "role" in one and "parts" in one for one in listed):
            return listed
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return [message | {"parts": [{"type": "text", "content": text}]}]

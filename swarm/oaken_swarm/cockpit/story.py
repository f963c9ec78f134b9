"""A job's story on one line of time: what happened to it, each attempt as one thing with its beginning and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oaken_jobs.model import Json
from oaken_swarm.cockpit.template import milliseconds

_SAYS: dict[str, str] = {
    "enqueue": "enqueued",
    "coalesce": "asked for again under the same key; nothing was added",
    "replace": "asked for again; the payload was replaced",
    "claim": "leased",
    "complete": "completed",
    "fail": "failed",
    "defer": "deferred",
    "release": "released",
    "ask": "asked a question",
    "answer": "answered",
    "resume": "taken up again under a new lease",
    "cancelled": "stopped, as it was asked to",
    "lose": "its lease ran out",
    "overrule": "overruled: it did not stop in time",
    "expire": "expired before it ran",
    "adopt": "a late result was adopted",
    "cancel": "cancelled",
    "edit": "edited",
    "requeue": "requeued",
}
"""What happened, by its verb."""


def told(
    events: Sequence[Json], attempts: Sequence[Json], questions: Sequence[Json], progress: Sequence[Json]
) -> list[Json]:
    """Entries, the oldest first, of what the interface shows: when, what was done, by whom, from which state to which. `attempt` is that
    which began, `ended` that which ended, `reports` its progress; `question` and `answer` what was asked and answered."""
    begun = {attempt["epoch"]: attempt for attempt in attempts}
    asked = {question["epoch"]: question for question in questions}
    reports: dict[int, list[Json]] = {}
    for report in progress:
        reports.setdefault(report["epoch"], []).append(report)
    entries: list[Json] = []
    for event in events:
        data, kind = event["data"], event["kind"]
        if kind == "question_asked":
            continue
        verb, epoch = data["verb"], data.get("epoch")
        entry: Json = {
            "at": event["ts"],
            "verb": verb if kind == "job_state_changed" else "plugin",
            "says": _says(kind, data),
            "actor": data["actor"],
            "from": data.get("from"),
            "to": data.get("to"),
            "attempt": begun.get(epoch) if verb in ("claim", "resume") else None,
            "ended": begun.get(epoch) if verb in _ENDS and kind == "job_state_changed" else None,
            "question": asked.get(epoch) if verb == "ask" else None,
            "answer": _answered(questions, event) if verb == "answer" else None,
            "reports": reports.get(epoch, []) if verb in ("claim", "resume") else [],
        }
        entries.append(entry)
    return entries


_ENDS = frozenset(("complete", "fail", "defer", "release", "ask", "cancelled", "lose", "overrule", "adopt"))


def _says(kind: str, data: Json) -> str:
    if kind != "job_state_changed":
        fields = ", ".join(f"{name} {value}" for name, value in data.get("fields", {}).items())
        return f"{kind}{': ' if fields else ''}{fields}"
    verb = data["verb"]
    if verb == "cancel" and data.get("to") == "running":
        return "asked to stop"
    if verb == "fail" and data.get("to") == "queued":
        return "failed, and will be tried again"
    if verb == "claim" and data.get("to") == "failed":
        return "refused: its payload does not fit its kind any more"
    return _SAYS.get(verb, verb)


def _answered(questions: Sequence[Json], event: Json) -> Json | None:
    return next((one for one in questions if one["answered_at"] == event["ts"] and one["answer"] is not None), None)


class Bar(dict[str, Any]):
    """Where on the line of time something stands: `x` and `width` of a thousand, `what` it was, and what it `says`."""


def bars(job: Json, attempts: Sequence[Json], now: int) -> list[Bar]:
    """The attempts of a job on a line from its beginning to its end, or to now."""
    start = milliseconds(job["created_at"])
    end = max(milliseconds(job["finished_at"]) if job["finished_at"] else now, start + 1)
    found: list[Bar] = []
    for attempt in attempts:
        begun = milliseconds(attempt["started_at"])
        over = milliseconds(attempt["ended_at"]) if attempt["ended_at"] else now
        x = 1000 * (begun - start) / (end - start)
        width = 1000 * (over - begun) / (end - start)
        found.append(
            Bar(
                x=round(min(max(x, 0), 996), 1),
                width=round(min(max(width, 4), 1000), 1),
                what=attempt["outcome"] or "running",
                says=f"attempt {attempt['attempt']}: {attempt['outcome'] or 'running'}",
            )
        )
    return found

"""How well a job went, or is going, and why: one pure function, so that everything that shows a job says the same.

Final grades are computed at the finish, when the result is in memory, and stored; live ones are computed when read.
Change a rule and `VERSION` grows: stored grades keep the version that gave them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from oaken_jobs.kinds import Kind
from oaken_jobs.model import Grade, Job, Json

VERSION: Final = 1

Level = Literal["ok", "note", "warn", "bad"]

FAILED = "failed"
SAYS_NOT_OK = "the result says it did not succeed"
SAYS_ERROR = "the result carries an error"
ALL_FAILED = "everything in it failed"
SOME_FAILED = "some of it failed"
SOME_SKIPPED = "some of it was skipped"
PARTIAL = "the result is partial"
TRUNCATED = "the result is truncated"
NO_OUTPUT = "no output, where the kind requires some"
DID_NOTHING = "it did nothing"
FINISHED_ANYWAY = "finished although asked to stop"
FITS = "the result fits its kind"
UNGRADED = "ungraded"
CANCELLED_BY_USER = "cancelled by a person"
CANCELLED = "cancelled"
WOULD_NOT_STOP = "was asked to stop and does not"
MISSED_HEARTBEAT = "missed a heartbeat"
NOT_FIRST_ATTEMPT = "not the first attempt"
WAITS_FOR_RETRY = "waiting for a retry"
WAITS_TOO_LONG = "queued longer than expected"
OVER_BUDGET = "over its budget"
"""Stands after the other reason: `the result fits its kind, over its budget`."""

_WORSE: dict[Level, Level] = {"ok": "note", "note": "warn", "warn": "bad", "bad": "bad"}

_BEAT_SHARE = 0.5
"""Workers beat when a third of the lease is gone, so with less than half of it left one beat was missed."""


def grade(job: Job, kind: Kind | None, result: Json | None, now_ms: int, *, fits: bool | None = None) -> Grade | None:
    """The grade of a job as it stands at `now_ms`, or None where there is nothing to say.

    `result` is that of a succeeded job. `fits` says that it was checked against its kind's schema; None that there was
    no schema (a result that does not fit never succeeds). `kind` is what is known of the job's kind, None for nothing.
    The first rule that matches decides; over its budget a job is one step worse. No word of a result is in a reason.
    """
    return _in_budget(_graded(job, kind, now_ms, result or {}, fits), job, job.cost_usd)


def grade_result(job: Job, kind: Kind | None, result: Json, fits: bool | None, cost_usd: float | None) -> Grade | None:
    """What `grade` will say of a running job once it has succeeded with `result`, having cost `cost_usd`."""
    return _in_budget(_succeeded(job, kind, result, fits), job, cost_usd)


def _in_budget(found: tuple[Level, str] | None, job: Job, cost_usd: float | None) -> Grade | None:
    if found is None:
        return None
    level, why = found
    if job.budget_usd is not None and cost_usd is not None and cost_usd > job.budget_usd:
        level, why = _WORSE[level], f"{why}, {OVER_BUDGET}"
    return Grade(level, why, VERSION)


def _graded(job: Job, kind: Kind | None, now_ms: int, result: Json, fits: bool | None) -> tuple[Level, str] | None:
    if job.state == "failed":
        return "bad", FAILED
    if job.state == "succeeded":
        return _succeeded(job, kind, result, fits)
    if job.state == "cancelled":
        return ("note", CANCELLED_BY_USER) if job.reason == "cancelled_by_user" else ("warn", CANCELLED)
    if job.state == "running":
        return _running(job, now_ms)
    return _queued(job, kind, now_ms)


_TELLING = frozenset(
    ("ok", "success", "error", "failed", "total", "skipped", "partial", "truncated", "processed", "noop")
)
"""Keys of a result that say how it went."""


def _succeeded(job: Job, kind: Kind | None, result: Json, fits: bool | None) -> tuple[Level, str]:
    found = None if _TELLING.isdisjoint(result) else _told(result)
    if found is not None and found[0] != "note":
        return found
    if kind is not None and kind.requires_output and all(_is_empty(value) for value in result.values()):
        return "warn", NO_OUTPUT
    if found is not None:
        return found
    if job.cancelling:
        return "note", FINISHED_ANYWAY
    return ("ok", FITS) if fits else ("note", UNGRADED)


def _told(result: Json) -> tuple[Level, str] | None:
    """What the result itself says."""
    failed, total = _number(result, "failed"), _number(result, "total")
    if result.get("ok") is False or result.get("success") is False:
        return "bad", SAYS_NOT_OK
    if _is_filled(result.get("error")):
        return "bad", SAYS_ERROR
    if failed is not None and total is not None and failed >= total > 0:
        return "bad", ALL_FAILED
    if failed is not None and failed > 0:
        return "warn", SOME_FAILED
    if (_number(result, "skipped") or 0) > 0:
        return "warn", SOME_SKIPPED
    if result.get("partial") is True:
        return "warn", PARTIAL
    if result.get("truncated") is True:
        return "warn", TRUNCATED
    if _number(result, "processed") == 0 or result.get("noop") is True:
        return "note", DID_NOTHING
    return None


def _running(job: Job, now_ms: int) -> tuple[Level, str] | None:
    if job.cancelling and job.cancel_deadline is not None and job.cancel_deadline <= now_ms:
        return "warn", WOULD_NOT_STOP
    lease = job.lease_ms or 0
    if job.lease_expires is not None and job.lease_expires - now_ms < lease * _BEAT_SHARE:
        return "warn", MISSED_HEARTBEAT
    return ("warn", NOT_FIRST_ATTEMPT) if job.attempts > 1 else None


def _queued(job: Job, kind: Kind | None, now_ms: int) -> tuple[Level, str] | None:
    expected = kind.expected_wait if kind is not None else None
    if expected is not None and now_ms - max(job.created_at, job.run_at) > expected * 1000:
        return "warn", WAITS_TOO_LONG
    return ("warn", WAITS_FOR_RETRY) if job.attempts > 0 and job.run_at > now_ms else None


def _number(result: Mapping[str, Any], key: str) -> int | float | None:
    """A number of the result; a boolean or a text that looks like one is none."""
    value = result.get(key)
    return value if type(value) in (int, float) else None


def _is_filled(value: Any) -> bool:
    return isinstance(value, (str, list, dict)) and value not in ("", [], {})


def _is_empty(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, list | dict) and not value)
    )

from typing import Any

import pytest

from oaken_jobs import grading
from oaken_jobs.grading import grade
from oaken_jobs.kinds import Kind
from oaken_jobs.model import Job

NOW = 1_800_000_000_000
KIND = Kind("k", expected_wait=60)
NEEDS_OUTPUT = Kind("k", requires_output=True)


def _job(state: str, **changes: Any) -> Job:
    values: dict[str, Any] = dict.fromkeys(Job._fields)
    values |= {"id": 1, "state": state, "attempts": 1, "cancelling": 0, "created_at": NOW, "run_at": NOW}
    return Job(**(values | changes))


def _graded(job: Job, kind: Kind | None = KIND, result: Any = None, fits: bool | None = None) -> tuple[str, str] | None:
    found = grade(job, kind, result, NOW, fits=fits)
    if found is None:
        return None
    assert found.version == grading.VERSION
    return found.grade, found.why


@pytest.mark.parametrize(
    ("result", "level", "why"),
    [
        ({"ok": False}, "bad", grading.SAYS_NOT_OK),
        ({"success": False}, "bad", grading.SAYS_NOT_OK),
        ({"success": False, "processed": 0}, "bad", grading.SAYS_NOT_OK),
        ({"ok": 0}, "ok", grading.FITS),
        ({"ok": "false"}, "ok", grading.FITS),
        ({"ok": None, "success": True}, "ok", grading.FITS),
        ({"error": "x"}, "bad", grading.SAYS_ERROR),
        ({"error": ["x"]}, "bad", grading.SAYS_ERROR),
        ({"error": {"code": 1}}, "bad", grading.SAYS_ERROR),
        ({"error": ""}, "ok", grading.FITS),
        ({"error": []}, "ok", grading.FITS),
        ({"error": {}}, "ok", grading.FITS),
        ({"error": None}, "ok", grading.FITS),
        ({"error": False}, "ok", grading.FITS),
        ({"error": True}, "ok", grading.FITS),
        ({"error": 1}, "ok", grading.FITS),
        ({"failed": 3, "total": 3}, "bad", grading.ALL_FAILED),
        ({"failed": 4, "total": 3}, "bad", grading.ALL_FAILED),
        ({"failed": 2, "total": 3}, "warn", grading.SOME_FAILED),
        ({"failed": 0, "total": 0}, "ok", grading.FITS),
        ({"failed": 0, "total": 3}, "ok", grading.FITS),
        ({"failed": 1, "total": 0}, "warn", grading.SOME_FAILED),
        ({"failed": 1, "total": True}, "warn", grading.SOME_FAILED),
        ({"failed": 1, "total": "1"}, "warn", grading.SOME_FAILED),
        ({"failed": 0.5}, "warn", grading.SOME_FAILED),
        ({"failed": True}, "ok", grading.FITS),
        ({"failed": True, "total": True}, "ok", grading.FITS),
        ({"failed": "3", "total": 3}, "ok", grading.FITS),
        ({"failed": -1}, "ok", grading.FITS),
        ({"skipped": 1}, "warn", grading.SOME_SKIPPED),
        ({"skipped": 0}, "ok", grading.FITS),
        ({"skipped": True}, "ok", grading.FITS),
        ({"partial": True}, "warn", grading.PARTIAL),
        ({"partial": 1}, "ok", grading.FITS),
        ({"partial": False}, "ok", grading.FITS),
        ({"truncated": True}, "warn", grading.TRUNCATED),
        ({"truncated": "yes"}, "ok", grading.FITS),
        ({"truncated": True, "processed": 0}, "warn", grading.TRUNCATED),
        ({"processed": 0}, "note", grading.DID_NOTHING),
        ({"processed": 0.0}, "note", grading.DID_NOTHING),
        ({"processed": 1}, "ok", grading.FITS),
        ({"processed": False}, "ok", grading.FITS),
        ({"processed": "0"}, "ok", grading.FITS),
        ({"noop": True}, "note", grading.DID_NOTHING),
        ({"noop": 1}, "ok", grading.FITS),
        ({}, "ok", grading.FITS),
        (None, "ok", grading.FITS),
    ],
)
def test_a_succeeded_job_is_graded_by_what_its_result_says(result: Any, level: str, why: str) -> None:
    assert _graded(_job("succeeded"), result=result, fits=True) == (level, why)


@pytest.mark.parametrize(
    ("result", "empty"),
    [
        ({}, True),
        (None, True),
        ({"a": None, "b": "", "c": [], "d": {}, "e": " \n"}, True),
        ({"a": 0}, False),
        ({"a": False}, False),
        ({"a": "", "b": "x"}, False),
        ({"a": [None]}, False),
    ],
)
def test_an_empty_result_is_a_warning_where_the_kind_requires_output(result: Any, empty: bool) -> None:
    expected = ("warn", grading.NO_OUTPUT) if empty else ("ok", grading.FITS)
    assert _graded(_job("succeeded"), NEEDS_OUTPUT, result, fits=True) == expected
    assert _graded(_job("succeeded"), KIND, result, fits=True) == ("ok", grading.FITS)


def test_a_job_that_finished_although_asked_to_stop_is_noted() -> None:
    job = _job("succeeded", cancelling=1)
    assert _graded(job, result={"a": 1}, fits=True) == ("note", grading.FINISHED_ANYWAY)
    assert _graded(job, result={"a": 1}) == ("note", grading.FINISHED_ANYWAY)
    assert _graded(job, result={"noop": True}) == ("note", grading.DID_NOTHING)
    assert _graded(job, result={"failed": 1}) == ("warn", grading.SOME_FAILED)


def test_a_job_without_a_known_schema_is_ungraded() -> None:
    assert _graded(_job("succeeded"), result={"a": 1}) == ("note", "ungraded")
    assert _graded(_job("succeeded"), None, {"a": 1}) == ("note", "ungraded")
    assert _graded(_job("succeeded"), None, {"ok": False}) == ("bad", grading.SAYS_NOT_OK)


@pytest.mark.parametrize("reason", ["permanent", "out_of_attempts", "lease_lost", "result_invalid", None])
def test_a_failed_job_is_bad_whatever_else_is_true(reason: str | None) -> None:
    assert _graded(_job("failed", reason=reason, cancelling=1, attempts=3)) == ("bad", grading.FAILED)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("cancelled_by_user", ("note", grading.CANCELLED_BY_USER)),
        ("expired", ("warn", grading.CANCELLED)),
        ("cancel_grace", ("warn", grading.CANCELLED)),
        (None, ("warn", grading.CANCELLED)),
    ],
)
def test_a_cancelled_job_is_a_note_where_a_person_did_it_and_a_warning_otherwise(
    reason: str | None, expected: tuple[str, str]
) -> None:
    assert _graded(_job("cancelled", reason=reason)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lease_expires": NOW + 60_000}, None),
        ({"lease_expires": NOW + 40_000}, None),
        ({"lease_expires": NOW + 30_000}, None),
        ({"lease_expires": NOW + 29_999}, ("warn", grading.MISSED_HEARTBEAT)),
        ({"lease_expires": NOW - 1}, ("warn", grading.MISSED_HEARTBEAT)),
        ({"lease_expires": NOW + 29_999, "attempts": 2}, ("warn", grading.MISSED_HEARTBEAT)),
        ({"lease_expires": NOW + 60_000, "attempts": 2}, ("warn", "not the first attempt")),
        ({"lease_expires": None, "lease_ms": None}, None),
    ],
)
def test_a_running_job_is_a_warning_when_it_is_silent_or_tried_before(
    changes: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert _graded(_job("running", **({"lease_ms": 60_000} | changes))) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"attempts": 0, "created_at": NOW - 60_000, "run_at": NOW - 60_000}, None),
        ({"attempts": 0, "created_at": NOW - 60_001, "run_at": NOW - 60_001}, ("warn", grading.WAITS_TOO_LONG)),
        ({"attempts": 0, "created_at": NOW - 90_000, "run_at": NOW - 10_000}, None),
        ({"attempts": 0, "created_at": NOW - 10_000, "run_at": NOW - 90_000}, None),
        ({"attempts": 0, "created_at": NOW - 90_000, "run_at": NOW + 1}, None),
        ({"attempts": 1, "run_at": NOW + 1}, ("warn", grading.WAITS_FOR_RETRY)),
        ({"attempts": 1, "run_at": NOW}, None),
        ({"attempts": 1, "created_at": NOW - 90_000, "run_at": NOW - 90_000}, ("warn", grading.WAITS_TOO_LONG)),
    ],
)
def test_a_queued_job_is_a_warning_when_it_waits_too_long_or_for_a_retry(
    changes: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert _graded(_job("queued", **changes)) == expected


def test_a_kind_without_an_expected_wait_never_waits_too_long() -> None:
    old = _job("queued", attempts=0, created_at=0, run_at=0)
    assert _graded(old, Kind("k")) is None
    assert _graded(old, None) is None


OVER = {"budget_usd": 1.0, "cost_usd": 1.01}


@pytest.mark.parametrize(
    ("job", "result", "level"),
    [
        (_job("succeeded", **OVER), {"a": 1}, "note"),
        (_job("succeeded", **OVER), {"noop": True}, "warn"),
        (_job("succeeded", **OVER), {"partial": True}, "bad"),
        (_job("succeeded", **OVER), {"ok": False}, "bad"),
        (_job("cancelled", reason="cancelled_by_user", **OVER), None, "warn"),
        (_job("failed", **OVER), None, "bad"),
        (_job("running", attempts=2, **OVER), None, "bad"),
    ],
)
def test_a_job_over_its_budget_is_one_step_worse_and_says_so(job: Job, result: Any, level: str) -> None:
    within = _graded(job._replace(cost_usd=1.0), result=result, fits=True)
    assert within is not None
    assert _graded(job, result=result, fits=True) == (level, f"{within[1]}, over its budget")


@pytest.mark.parametrize("changes", [OVER, {"budget_usd": 1.0}, {"cost_usd": 5.0}])
def test_a_job_with_nothing_to_say_stays_without_a_grade(changes: dict[str, Any]) -> None:
    assert _graded(_job("queued", attempts=0, **changes)) is None


def test_unknown_cost_or_budget_changes_no_grade() -> None:
    for changes in ({"budget_usd": 1.0}, {"cost_usd": 5.0}, {"budget_usd": 1.0, "cost_usd": 1.0}):
        assert _graded(_job("succeeded", **changes), result={}, fits=True) == ("ok", grading.FITS)


def test_no_word_of_a_result_is_in_a_reason() -> None:
    for key in ("error", "ok", "failed", "partial", "anything"):
        found = _graded(_job("succeeded"), result={key: "hunter2"})
        assert found is not None
        assert "hunter2" not in found[1]

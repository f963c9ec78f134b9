"""`oaken schedule` as a person meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Said, oaken

Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return lambda *arguments, **more: oaken(*arguments, data=tmp_path / "data", **more)


def test_a_schedule_is_added_listed_run_and_removed(run: Run) -> None:
    empty = run("schedule", "list")
    assert "oaken schedule add NAME" in empty.out
    added = run(
        "schedule", "add", "tidy", "--queue", "default", "--kind", "work", "--every", "3600", "--payload", '{"n": 1}'
    )
    assert added.out.startswith("Schedule tidy is set; it runs next in 60 min (")
    assert (
        "stays as it was"
        in run(
            "schedule",
            "add",
            "tidy",
            "--queue",
            "default",
            "--kind",
            "work",
            "--every",
            "3600",
            "--payload",
            '{"n": 1}',
        ).out
    )
    cron = run(
        "schedule",
        "add",
        "brief",
        "--queue",
        "default",
        "--kind",
        "work",
        "--cron",
        "30 6 * * mon-fri",
        "--timezone",
        "Europe/Berlin",
    )
    assert cron.code == 0
    listed: dict[str, Any] = json.loads(run("schedule", "list", "--json").out)
    assert [(one["name"], one["cron"], one["timezone"]) for one in listed["schedules"]] == [
        ("brief", "30 6 * * MON-FRI", "Europe/Berlin"),
        ("tidy", None, None),
    ]
    assert "every 3600 s" in run("schedule", "list").out
    assert run("schedule", "run", "tidy").out == "Job 1 (work) is queued on default.\n"
    assert json.loads(run("job", "status", "1", "--json").out)["job"]["routed_by"] == "schedule"
    assert run("schedule", "remove", "tidy").out == "Schedule tidy is removed.\n"
    gone = run("schedule", "remove", "tidy")
    assert (gone.code, gone.err.startswith("oaken: There is no schedule 'tidy'")) == (1, True)


def test_what_is_wrong_with_a_schedule_is_said(run: Run) -> None:
    for arguments, why in (
        (("--cron", "@daily"), "words such as @daily"),
        (("--cron", "0 0 30 2 *"), "such a date never comes"),
        ((), "Give either --every SECONDS or --cron EXPRESSION"),
        (("--every", "5", "--timezone", "Europe/Berlin"), "timezone is for cron"),
    ):
        told = run("schedule", "add", "s", "--queue", "default", "--kind", "work", *arguments)
        assert (told.code, why in told.err) == (1, True), told.err

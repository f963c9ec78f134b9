"""How answers look in a terminal: JSON for programs, tables and short lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STYLES = {
    "queued": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
    "ok": "green",
    "note": "blue",
    "warn": "yellow",
    "bad": "red",
}


def as_json(value: Any) -> None:
    """Prints a value as indented JSON."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def line(text: str) -> None:
    """Prints one line; what came from others has its line ends and control characters taken out."""
    sys.stdout.write(plain(text) + "\n")


def plain(text: str) -> str:
    """Text of others, safe for a terminal: no control characters, so no escape sequences either."""
    return "".join(c if c.isprintable() else " " for c in text)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Prints rows under their columns, or `empty` where there are none."""
    found = list(rows)
    if not found:
        line(empty)
        return
    console = Console(highlight=False, soft_wrap=False)
    shown = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in found:
        shown.add_row(*(_cell(value) for value in row))
    console.print(shown)


def _cell(value: Any) -> Text:
    if value is None or value == "":
        return Text("")
    text = plain(str(value))
    return Text(text, style=_STYLES.get(text, ""))


def ago(moment: str | None) -> str:
    """How long ago, or in how long, a moment of the interface is: `5 s ago`, `in 2 min`."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    size = abs(seconds)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if size >= length:
            amount = f"{size / length:.0f} {unit}"
            break
    else:
        amount = f"{size:.0f} s"
    return f"{amount} ago" if seconds >= 0 else f"in {amount}"


def job_rows(jobs: Iterable[dict[str, Any]]) -> Iterable[Sequence[Any]]:
    """Rows for `JOB_COLUMNS`."""
    for job in jobs:
        yield (
            job["id"],
            job["kind"],
            job["queue"],
            "cancelling" if job["cancelling"] else job["state"],
            job["grade"]["grade"] if job["grade"] else None,
            f"{job['attempts']}/{job['max_attempts']}",
            job["agent"],
            ago(job["finished_at"] or job["started_at"] or job["created_at"]),
            job["title"] or job["last_error"],
        )


JOB_COLUMNS = ("id", "kind", "queue", "state", "grade", "attempts", "agent", "when", "title")


def job_card(job: dict[str, Any]) -> None:
    """One job, a field a line, fields that say nothing left out."""
    for name, value in job.items():
        if value is None or value == [] or value == {} or value is False or value == "":
            continue
        if isinstance(value, dict | list):
            value = orjson.dumps(value).decode()
        line(f"{name:14}{value}")

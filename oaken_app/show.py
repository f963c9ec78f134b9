"""How answers look in a terminal: JSON for programs, tables and short lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

STYLES = {
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


def json_line(value: Any) -> None:
    """Prints a value as one line of JSON."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")


def lines_of_json(value: Any) -> None:
    """Prints a value of others as indented JSON for people: nothing in it can steer the terminal."""
    for text in orjson.dumps(value, option=orjson.OPT_INDENT_2).decode().split("\n"):
        line(text)


def line(text: str) -> None:
    """Prints one line; what came from others has its line ends and control characters taken out."""
    sys.stdout.write(plain(text) + "\n")


def plain(text: str) -> str:
    """Text of others, safe for a terminal: no control characters, so no escape sequences, and nothing that turns the
    direction of writing. What joins the parts of one sign stays."""
    return "".join(c if c.isprintable() or c in _JOINERS else " " for c in text)


_JOINERS = "\u200c\u200d"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    empty: str,
    shrink: Mapping[str, int] | None = None,
    drop: Sequence[str] = (),
) -> None:
    """Prints rows under their columns, a line each, or `empty` where there are none.

    On a terminal that is too narrow, the columns of `shrink` are cut, in this order and to this width at least; if that
    is not enough, the columns of `drop` are left out, in this order. No other column is cut, and nothing where the output
    goes to a file or a pipe.
    """
    found = [[_cell(value) for value in row] for row in rows]
    if not found:
        line(empty)
        return
    console = Console(highlight=False)
    lines = [[Text(name, style="bold") for name in columns], *found]
    widths = {name: max(cell_len(row[at].plain) for row in lines) for at, name in enumerate(columns)}
    gap = 2
    if console.is_terminal:
        gap = _fit(widths, console.width, shrink or {}, drop)
    last = list(widths)[-1]
    for row in lines:
        shown = Text(no_wrap=True)
        for name, cell in zip(columns, row, strict=True):
            if name in widths:
                cell.truncate(widths[name], overflow="ellipsis")
                shown.append_text(cell)
                shown.append(" " * (0 if name == last else widths[name] - cell_len(cell.plain) + gap))
        shown.rstrip()
        console.print(shown, no_wrap=True, overflow="ignore", crop=False)


def _fit(widths: dict[str, int], room: int, shrink: Mapping[str, int], drop: Sequence[str]) -> int:
    """Makes columns narrower until they fit, and says how far apart they stand."""

    def over(gap: int) -> int:
        return sum(widths.values()) + gap * (len(widths) - 1) - room

    gap = 2
    for name, least in shrink.items():
        if over(gap) > 0 and name in widths:
            widths[name] = max(min(least, widths[name]), widths[name] - over(gap))
    if over(gap) > 0:
        gap = 1
    for name in drop:
        if over(gap) > 0:
            widths.pop(name, None)
    return gap


def _cell(value: Any) -> Text:
    if value is None or value == "":
        return Text("")
    text = plain(str(value))
    return Text(text, style=STYLES.get(text, ""))


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
            job_note(job),
        )


def job_note(job: dict[str, Any]) -> str | None:
    """What is most worth saying of a job in one line."""
    if job["question"] is not None:
        return f"asks: {job['question']}"
    return job["title"] or job["last_error"] or "; ".join(wait["text"] for wait in job["waits"])


def event_line(happened: dict[str, Any]) -> str:
    """An event in one line: `12:00:03 job 17 embed: queued -> running (claim, attempt 1) by embedder`."""
    data = happened["data"]
    at = datetime.fromisoformat(happened["ts"]).astimezone().strftime("%H:%M:%S")
    if "job_id" in data:
        about = f"job {data['job_id']} {data.get('job_kind', '')}".rstrip()
    else:
        about = f"{happened['kind'].removesuffix('_changed').replace('_', ' ')} {data.get('name', '')}".rstrip()
    before, after = data.get("from"), data.get("to")
    moved = f"{before} -> {after}" if before and after and before != after else (after or "") if not before else ""
    facts = [data["verb"] if data["verb"] != moved else ""]
    if data.get("attempt"):
        facts.append(f"attempt {data['attempt']}")
    if data.get("percent") is not None:
        facts.append(f"{data['percent']} %")
    told = ", ".join(fact for fact in facts if fact)
    what = f"{moved} ({told})" if moved and told else moved or told
    return f"{at} {about}: {what} by {data['actor']['id']}"


JOB_COLUMNS = ("id", "kind", "queue", "state", "grade", "tries", "agent", "when", "title / error")


def job_table(jobs: Iterable[dict[str, Any]], empty: str) -> None:
    """Jobs, a line each."""
    table(
        JOB_COLUMNS,
        job_rows(jobs),
        empty,
        shrink={"title / error": 16, "agent": 10, "queue": 7},
        drop=("agent", "tries", "when", "grade", "queue", "title / error"),
    )


LONGEST = 400
"""Characters of a value on a card."""


def job_card(job: dict[str, Any]) -> None:
    """One job, a field a line, fields that say nothing left out."""
    for name, value in job.items():
        if (not value and name not in ("payload", "result")) or value is None:
            continue
        text = _words(name, value, job)
        if len(text) > LONGEST:
            text = text[:LONGEST] + "… (--json shows all)"
        if text:
            line(f"{name:14}{text}")


def _words(name: str, value: Any, job: dict[str, Any]) -> str:
    match name:
        case "state":
            return f"{value}, cancelling" if job["cancelling"] else value
        case "cancelling":
            return ""
        case "grade":
            return f"{value['grade']} ({value['why']})" if value["why"] else value["grade"]
        case "actor":
            return f"{value['id']} ({value['via']})" if value["via"] else value["id"]
        case "lease":
            return f"held by {value['agent']}, runs out {ago(value['expires_at'])}"
        case "progress":
            parts = [f"{value['percent']} %" if value["percent"] is not None else "", value["message"] or ""]
            return f"{', '.join(part for part in parts if part)} ({ago(value['at'])})"
        case "attempts":
            return f"{value} of {job['max_attempts']}"
        case "max_attempts":
            return "" if job["attempts"] else str(value)
        case "agent":
            return "" if job["lease"] else str(value)
        case "workspace" | "routed_by":
            return "" if value == "default" else str(value)
        case "waits":
            return "; ".join(wait["text"] for wait in value)
        case "tags":
            return ", ".join(value)
        case _:
            return orjson.dumps(value).decode() if isinstance(value, dict | list) else str(value)

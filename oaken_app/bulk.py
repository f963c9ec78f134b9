"""Changing all jobs that match: filters as options, and the calls it takes, one after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from oaken_app.backend import call, place
from oaken_app.show import as_json, line
from oaken_swarm.client import Client

Change = Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any]]]
"""One call, with `dry_run` and `cursor`: `{"matched", "done", "skipped", "remaining", "cursor"}`."""

All = Annotated[bool, typer.Option("--all", help="Instead of numbers: all jobs that match the filters below.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what matches; change nothing.")]
ToCancel = Annotated[list[str] | None, typer.Option("--state", help="queued, running; may be given several times.")]
ToRequeue = Annotated[
    list[str] | None,
    typer.Option("--state", help="queued, failed, cancelled; may be given several times. Unless given, failed."),
]
Kinds = Annotated[list[str] | None, typer.Option("--kind", help="May be given several times.")]
Queues = Annotated[list[str] | None, typer.Option("--queue", help="May be given several times.")]
Grades = Annotated[list[str] | None, typer.Option("--grade", help="ok, note, warn, bad.")]
Agent = Annotated[str | None, typer.Option(help="Who holds or last held it: name or name/instance.")]
Subject = Annotated[str | None, typer.Option(help="What it is about.")]
Tag = Annotated[str | None, typer.Option(help="One of its tags.")]
ParentId = Annotated[int | None, typer.Option(help="Children of this job.")]
Workspace = Annotated[str | None, typer.Option(help="Only jobs of this workspace.")]
Query = Annotated[str | None, typer.Option("--query", "-q", help="Look in title, kind, subject, tags, error.")]


def chosen(job_ids: list[int] | None, everything: bool, example: str, **filters: Any) -> dict[str, Any] | None:
    """The filter that was given, or None where jobs were named. Exits with code 2 for neither, both, or too little; `example` is
    the state of a filter that works here."""
    given = {name: value for name, value in filters.items() if value}
    if everything and job_ids:
        raise typer.BadParameter("give numbers of jobs, or --all with filters; not both.")
    if everything and not given:
        raise typer.BadParameter(f"--all needs at least one filter, for instance --state {example}.")
    if not everything and given:
        raise typer.BadParameter("filters choose jobs only together with --all.")
    if not everything and not job_ids:
        raise typer.BadParameter(f"give numbers of jobs, or --all with filters such as --state {example}.")
    return given if everything else None


def change(
    data_dir: Path | None,
    act: Change,
    verb: str,
    *,
    dry_run: bool,
    json: bool,
    states: Sequence[str] = (),
    to: str | None = None,
) -> None:
    """Calls `act` until nothing remains, says on stderr how far it is, and prints the totals. For people are `verb` (`requeued`), the
    `states` of the jobs that were meant, and the queue `to` which they go."""

    async def run(client: Client) -> dict[str, Any]:
        told = await act(client, {"dry_run": dry_run})
        total = {name: told[name] for name in ("matched", "done", "skipped", "remaining")}
        while not dry_run and told["cursor"] is not None:
            typer.echo(f"{total['done'] + total['skipped']} of {total['matched']} …", err=True)
            told = await act(client, {"cursor": told["cursor"]})
            total |= {"done": total["done"] + told["done"], "skipped": total["skipped"] + told["skipped"]}
            total["remaining"] = told["remaining"]
        return total

    total = call(data_dir, run)
    state = " or ".join(states) + " " if states else ""
    into = f" to queue {to}" if to is not None else ""
    if json:
        as_json(total)
    elif not total["matched"]:
        line(f"No {state}jobs match in {place(data_dir)} that could be changed so.")
    elif dry_run:
        line(f"{_jobs(total['matched'], state)} would be {verb}{into}; nothing was changed.")
    else:
        skipped = f"; {total['skipped']} refused, or changed meanwhile" if total["skipped"] else ""
        line(
            f"{verb.capitalize()}{':' if ' ' in verb else ''} {total['done']} of {_jobs(total['matched'], state)}{into}{skipped}."
        )


def _jobs(count: int, state: str) -> str:
    return f"{count} {state}{'job' if count == 1 else 'jobs'}"

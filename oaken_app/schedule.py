"""`oaken schedule …`: jobs that come by the clock."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oaken_app.backend import call, place
from oaken_app.job import read_payload
from oaken_app.options import DataDir, Json
from oaken_app.show import ago, as_json, line, table
from oaken_jobs.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

Name = Annotated[str, typer.Argument(help="The schedule's name.")]
Workspace = Annotated[str | None, typer.Option(help="Its workspace. Default: default.")]


@app.command(name="list")
def list_schedules(workspace: Workspace = None, data_dir: DataDir = None, json: Json = False) -> None:
    """List schedules with their next runs."""
    told = call(data_dir, lambda client: client.schedules(workspace=workspace))
    if json:
        as_json(told)
        return
    rows = [
        (
            one["name"],
            one["kind"],
            one["queue"],
            f"every {one['every_seconds']:g} s" if one["every_seconds"] else one["cron"],
            one["timezone"] or ("" if one["every_seconds"] else "UTC"),
            ago(one["next_run"]),
            ago(one["last_run"]),
            one["last_job_id"],
        )
        for one in told["schedules"]
    ]
    table(
        ("name", "kind", "queue", "when", "zone", "next", "last", "job"),
        rows,
        f"No schedules in {place(data_dir)}. `oaken schedule add NAME --queue Q --kind K --every SECONDS` adds one.",
        shrink={"kind": 8, "queue": 7},
        drop=("last", "job", "zone", "queue"),
    )


@app.command()
def add(
    name: Name,
    queue: Annotated[str, typer.Option(help="The queue its jobs go to.")],
    kind: Annotated[str, typer.Option(help="The kind of its jobs.")],
    payload: Annotated[str | None, typer.Option(help="A JSON object, @FILE, or - for standard input.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=1000, help="Of its jobs. Default: 50.")] = None,
    every: Annotated[float | None, typer.Option(help="Seconds from one run to the next.")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Minute, hour, day of month, month, day of week: '30 6 * * mon-fri'.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="Of --cron, for instance Europe/Berlin. Default: UTC.")] = None,
    workspace: Workspace = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Add a schedule, or change the one of that name. Added again unchanged, it keeps its next run."""
    if (every is None) == (cron is None):
        raise InvalidRequest("Give either --every SECONDS or --cron EXPRESSION: when it runs.")
    said: dict[str, Any] = {
        "priority": priority,
        "every_seconds": every,
        "cron": cron,
        "timezone": timezone,
        "workspace": workspace,
    }
    given = {key: value for key, value in said.items() if value is not None}
    body = read_payload(payload)
    told = call(data_dir, lambda client: client.put_schedule(name, queue, kind, body, **given))
    if json:
        as_json(told)
        return
    how = "is set" if told["changed"] else "stays as it was"
    line(f"Schedule {name} {how}; it runs next {ago(told['schedule']['next_run'])} ({told['schedule']['next_run']}).")


@app.command()
def remove(name: Name, workspace: Workspace = None, data_dir: DataDir = None) -> None:
    """Remove a schedule. Jobs that it has enqueued stay."""
    call(data_dir, lambda client: client.remove_schedule(name, workspace=workspace))
    line(f"Schedule {name} is removed.")


@app.command()
def run(name: Name, workspace: Workspace = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Enqueue its job now. Its times stay as they are."""
    told = call(data_dir, lambda client: client.run_schedule(name, workspace=workspace))
    if json:
        as_json(told)
        return
    line(f"Job {told['job']['id']} ({told['job']['kind']}) is queued on {told['job']['queue']}.")

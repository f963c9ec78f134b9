"""`oaken queue …`: see queues, pause and resume them, run their failed jobs again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oaken_app import bulk
from oaken_app.backend import call
from oaken_app.options import DataDir, Json
from oaken_app.show import as_json, line, table
from oaken_jobs.errors import NotFound
from oaken_swarm.client import Client

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

Name = Annotated[str, typer.Argument(help="The queue's name.")]


@app.command(name="list")
def list_queues(
    everything: Annotated[bool, typer.Option("--all", help="Hidden ones too.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List queues with what is in them."""
    told = call(data_dir, lambda client: client.queues(all=everything))
    if json:
        as_json(told)
        return
    rows = [
        (
            q["name"],
            "paused" if q["paused"] else ("" if q["configured"] else "not configured"),
            q["kind"],
            q["workers"],
            *(q["counts"][state] for state in ("queued", "running", "succeeded", "failed", "cancelled")),
        )
        for q in told["queues"]
    ]
    table(
        ("queue", "note", "stage", "workers", "queued", "running", "succeeded", "failed", "cancelled"),
        rows,
        "No queues.",
        shrink={"stage": 5, "note": 6},
        drop=("workers", "stage", "note"),
    )


@app.command()
def pause(name: Name, data_dir: DataDir = None) -> None:
    """Stop a queue from handing out jobs. Running ones finish; `resume` undoes it."""
    call(data_dir, lambda client: client.pause_queue(name))
    line(f"Queue {name} is paused.")


@app.command()
def resume(name: Name, data_dir: DataDir = None) -> None:
    """Let a paused queue hand out jobs again."""
    call(data_dir, lambda client: client.resume_queue(name))
    line(f"Queue {name} hands out jobs.")


@app.command()
def requeue(
    name: Name,
    state: Annotated[
        list[str] | None, typer.Option(help="failed, cancelled, queued; several times. Unless given, failed.")
    ] = None,
    dry_run: bulk.DryRun = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Put all failed jobs of a queue back to run now.

    Each starts anew: its attempts, error, result and expiry are cleared; its history stays.
    """
    filter: dict[str, Any] = {"queue": [name], "state": state or ["failed"]}

    async def act(client: Client, fields: dict[str, Any]) -> dict[str, Any]:
        known = [queue["name"] for queue in (await client.queues(all=True))["queues"]]
        if name not in known:
            raise NotFound(f"There is no queue {name!r}. There are {', '.join(known)}.")
        return await client.requeue_all(filter, **fields)

    bulk.change(data_dir, act, "requeued", dry_run=dry_run, json=json, states=filter["state"])

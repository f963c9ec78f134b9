"""`oaken agents`: who works, what they hold, what they have done; and which of them get nothing new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oaken_app.backend import call
from oaken_app.options import DataDir, Json
from oaken_app.show import ago, as_json, line, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="NAME with all its instances, or NAME/INSTANCE.")]


@app.callback(invoke_without_command=True)
def agents(ctx: typer.Context, data_dir: DataDir = None, json: Json = False) -> None:
    """List agents, last seen first; or drain one."""
    if ctx.invoked_subcommand is not None:
        ctx.obj = data_dir  # said before the subcommand, it is meant all the same
        return
    told = call(data_dir, lambda client: client.agents())
    if json:
        as_json(told)
        return
    rows = [
        (
            a["agent"],
            "draining" if a["draining"] else "",
            ago(a["last_seen"]),
            ", ".join(map(str, a["holds"])),
            a["leased"],
            a["succeeded"],
            a["failed"],
        )
        for a in told["agents"]
    ]
    table(
        ("agent", "note", "last seen", "holds", "leased", "succeeded", "failed"),
        rows,
        "No agent has asked for work yet.",
    )


@app.command()
def drain(ctx: typer.Context, name: Name, data_dir: DataDir = None) -> None:
    """Give an agent nothing new. It keeps and finishes what it holds; `undrain` undoes it."""
    _drain(ctx, name, data_dir, True)


@app.command()
def undrain(ctx: typer.Context, name: Name, data_dir: DataDir = None) -> None:
    """Let a drained agent have new jobs again."""
    _drain(ctx, name, data_dir, False)


def _drain(ctx: typer.Context, name: str, data_dir: Path | None, draining: bool) -> None:
    told = call(data_dir or ctx.obj, lambda client: client.drain(name, draining))
    already = "" if told["changed"] else " already"
    line(f"Agent {told['agent']} is {'drained' if draining else 'given new jobs'}{already}.")

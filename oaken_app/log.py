"""`oaken log …`: what servers, runners and MCP servers have logged."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Literal

import typer

from oaken_app.backend import connected
from oaken_app.options import DataDir
from oaken_app.show import json_line, line
from oaken_swarm.client import Client

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

LOOK_SECONDS = 0.5
PAGE = 500


@app.callback()
def _log() -> None:  # pyright: ignore[reportUnusedFunction]
    pass


@app.command()
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=PAGE, help="How many of the newest.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as new ones come. Ctrl-C ends it.")] = False,
    level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Only lines of this level or above.")
    ] = "info",
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each.")] = False,
) -> None:
    """Show the newest log lines, oldest first. On a server this needs an admin's token."""

    async def run() -> None:
        async with connected(data_dir) as client:
            await _tail(client, lines, follow, level, json)

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        pass


async def _tail(client: Client, lines: int, follow: bool, level: str, json: bool) -> None:
    rows: list[dict[str, Any]] = (await client.logs(level=level, limit=lines))["logs"][::-1]
    if not rows and not follow:
        line("Nothing of that level has been logged, or it is not kept any more.")
    last = 0
    while True:
        for row in rows:
            _show(row, json)
            last = row["id"]
        sys.stdout.flush()
        if not follow:
            return
        if len(rows) < PAGE:
            await asyncio.sleep(LOOK_SECONDS)
        if last:
            rows = (await client.logs(level=level, after=last, limit=PAGE))["logs"]
        else:  # none yet; what comes first comes newest first
            rows = (await client.logs(level=level, limit=PAGE))["logs"][::-1]


def _show(row: dict[str, Any], json: bool) -> None:
    if json:
        json_line(row)
        return
    first, *rest = row["message"].split("\n")
    line(f"{row['ts']} {row['level']:7} {row['process']:14} {row['logger']}: {first}")
    for text in rest:
        line(f"    {text}")

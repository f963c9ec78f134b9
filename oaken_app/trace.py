"""`oaken trace …`: what models and agents were told and answered. For admins; every read is written down."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer

from oaken_app.backend import call
from oaken_app.options import DataDir
from oaken_app.show import json_line, line

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

LONGEST = 2_000


@app.callback()
def _trace() -> None:  # pyright: ignore[reportUnusedFunction]
    pass


@app.command()
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100, help="How many of the newest rows.")] = 10,
    job: Annotated[int | None, typer.Option(help="Only rows about this job.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only rows of this agent: NAME, or NAME/INSTANCE.")] = None,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each row, whole.")] = False,
) -> None:
    """Show the newest rows of the trace, oldest first. On a server this needs an admin's token."""
    told = call(data_dir, lambda client: client.trace_rows(job_id=job, agent=agent, limit=lines))
    rows: list[dict[str, Any]] = told["rows"][::-1]
    if json:
        for row in rows:
            json_line(row)
        return
    if not rows:
        line("There are no such rows. The trace is kept only where [trace] enabled = true is set.")
    for row in rows:
        line(f"{row['ts']} {row['event']} job {row['job_id']} by {row['agent']}{_facts(row)}")
        for name in ("input", "output"):
            if name in row:
                text = row[name] if isinstance(row[name], str) else orjson.dumps(row[name]).decode()
                line(f"  {name}: {text if len(text) <= LONGEST else text[:LONGEST] + '… (--json shows all)'}")


def _facts(row: dict[str, Any]) -> str:
    facts = [row[name] for name in ("verb", "operation", "model", "tool", "error_type") if row.get(name)]
    return f": {', '.join(facts)}" if facts else ""

"""`oaken migrate-store`: moves a data folder's jobs into PostgreSQL."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from oaken_app.compose import server_of, trace_journal
from oaken_app.options import Json
from oaken_app.show import as_json, line, plain, table
from oaken_jobs import config, files
from oaken_jobs.clock import SystemClock
from oaken_jobs.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SHOWN = 20
"""Replaced characters that are told one by one."""


@app.command()
def migrate_store(
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--data-dir",
            help="The data folder, or sqlite:///FOLDER/core.db. Default: OAKEN_DATA_DIR, or the user's data folder (oaken-swarm).",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--to",
            "--database-url",
            help="The empty database, postgresql://USER@HOST/DATABASE. Default: OAKEN_DATABASE_URL, or [database] url, where a password "
            "is better kept: others can see options.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Copy all that a data folder keeps into an empty PostgreSQL database: jobs in every state with their ids, leases, results and
    history, tokens, schedules, events, and the trace.

    Stop all servers, runners and MCP servers of the folder first; it is not copied while they have it open. The folder stays as it is:
    if you change your mind, start them on it again. A copy that ended half-way is gone on with by the same command. In the end counts
    and sums of all tables are compared. Then set OAKEN_DATABASE_URL, or [database] url, for every process, and start them.
    """
    settings = config.load(_folder(source), database={"url": target})
    if settings.database.url is None:
        raise ConfigError("Name the database to move to with --to, or in OAKEN_DATABASE_URL.")
    server = server_of(settings.database.url, settings)
    from oaken_jobs import moving  # not where there is none of what PostgreSQL takes

    try:
        moved = asyncio.run(moving.move(settings.data_dir, trace_journal(settings), server, SystemClock(), _tell))
    finally:
        _clear()
    if json:
        figures = {name: {"rows": found.rows, "sum": f"{found.sum:x}"} for name, found in moved.figures.items()}
        as_json({"from": str(settings.data_dir), "to": server.name, "tables": figures, "replaced": moved.replaced})
        return
    rows = [(name, found.rows, f"{found.sum:x}") for name, found in moved.figures.items() if found.rows]
    table(("table", "rows", "sum, the same on both sides"), rows, "There was nothing to copy.")
    if moved.replaced:
        line(
            f"PostgreSQL cannot hold the character NUL; {moving.INSTEAD} is in its place in {len(moved.replaced)} texts:"
        )
        for told in moved.replaced[:SHOWN]:
            line(f"  {told}")
    line(
        f"All of {settings.data_dir} is in {server.name} now, and still where it was. Set OAKEN_DATABASE_URL, or [database] url, for "
        "every process from now on."
    )


def _folder(source: str | None) -> Path | None:
    """The data folder that is meant by a folder, its database, or the URL of that."""
    if source is None:
        return None
    path = Path("/" + source.removeprefix("sqlite://").lstrip("/") if source.startswith("sqlite://") else source)
    return path.parent if path.name == files.DATABASE else path


def _tell(what: str, done: int, rows: int) -> None:
    """On a terminal, one line that changes."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{plain(what)}: {done:,} of {rows:,} rows")
        sys.stderr.flush()


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")

"""`oaken serve` and `oaken runner`: the long-lived processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from oaken_app.process import Process, run
from oaken_jobs.config import load
from oaken_jobs.errors import ConfigError

serve = typer.Typer(add_completion=False, rich_markup_mode=None)
runner = typer.Typer(add_completion=False, rich_markup_mode=None)

DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of the database. Default: OAKEN_DATA_DIR, or the user's data folder (oaken-swarm)."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="PostgreSQL to keep jobs in, postgresql://USER@HOST/DATABASE. Default: OAKEN_DATABASE_URL, or [database] url; without any, "
        "SQLite in the data folder. A password is better kept in OAKEN_DATABASE_URL: others can see options."
    ),
]


@serve.command()
def _serve(  # pyright: ignore[reportUnusedFunction]
    host: Annotated[str | None, typer.Option(help="Where to listen. Default: [server] host, 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Default: [server] port, 8787; 0 takes a free one.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    no_runner: Annotated[bool, typer.Option("--no-runner", help="Run no job bodies in this process.")] = False,
) -> None:
    """Run the server: HTTP, duties, and the built-in job bodies. Prints one line when it is ready."""
    try:
        settings = load(data_dir, server={"host": host, "port": port}, database={"url": database_url})
    except ConfigError as error:
        raise ConfigError(error.message.replace("the call: [server] ", "--")) from None
    process = Process(settings, runner=not no_runner)
    run(process, lambda: print(f"oaken ready on {process.address}", flush=True))


@runner.command()
def _runner(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:  # pyright: ignore[reportUnusedFunction]
    """Run only job bodies and duties, beside a server started with --no-runner."""
    settings = load(data_dir, database={"url": database_url})
    run(Process(settings, role="runner"), lambda: print("oaken runner ready", file=sys.stderr, flush=True))

"""`oaken backup`: a copy of the database as it is at one moment, while everything goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from oaken_app.backend import core_on
from oaken_app.compose import trace_journal
from oaken_app.options import DataDir
from oaken_app.show import line
from oaken_jobs import config
from oaken_jobs.errors import ConfigError, Conflict, NotFound
from oaken_jobs.store.sqlite.driver import create_file

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="Where the copy goes; it must not be there yet.")],
    trace: Annotated[bool, typer.Option("--trace", help="The trace, too, as FILE.trace.jsonl.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Copy the database of a data folder into FILE, whether or not a server runs. The trace stays behind unless it is asked for.

    The copy is checked, and only its owner may read it. To restore it, put it into an empty data folder as core.db and start Oaken on that.
    Jobs on PostgreSQL are backed up by its own means, such as pg_dump.
    """
    settings = config.load(data_dir)
    if settings.url is not None and data_dir is None:
        raise ConfigError(
            f"A backup is made where the data folder is, and OAKEN_URL is set ({settings.url}). Run it on that machine, or name a folder "
            "with --data-dir."
        )
    aside = file.with_name(f"{file.name}.trace.jsonl")
    if not file.absolute().parent.is_dir():
        raise NotFound(
            f"There is no folder {file.absolute().parent}. A backup makes none: the disk it belongs on may not be there."
        )
    for target in (file, aside) if trace else (file,):
        if target.exists():
            raise Conflict(f"{target} is there already, and is not overwritten. Name another file.")
    asyncio.run(_copy(data_dir, file))
    told = f"{file}: {file.stat().st_size / 1e6:.1f} MB, checked"
    if trace:
        told += f"; {aside}: {_copy_trace(settings, aside)} rows of the trace"
    line(told)


async def _copy(data_dir: Path | None, file: Path) -> None:
    async with core_on(data_dir) as core:
        await core.store.backup(file)


def _copy_trace(settings: config.Settings, target: Path) -> int:
    rows = 0
    create_file(target)
    with target.open("wb") as written:
        for row in trace_journal(settings).lines():
            written.write(row + b"\n")
            rows += 1
    return rows

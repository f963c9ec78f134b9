"""`oaken events …`: the event log of a data folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import orjson
import typer

from oaken_app.options import DataDir
from oaken_app.show import event_line, json_line, line
from oaken_jobs import config
from oaken_jobs.errors import ConfigError, NotFound
from oaken_jobs.events.event import check_kinds
from oaken_jobs.journal import Follow, Journal

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

LOOK_SECONDS = 0.25
PAGE = 500


@app.callback()
def _events() -> None:  # pyright: ignore[reportUnusedFunction]
    pass


@app.command()
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the newest.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as new ones come. Ctrl-C ends it.")] = False,
    kind: Annotated[list[str] | None, typer.Option(help="Only events of this kind; several times for more.")] = None,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="The lines of the log as they are.")] = False,
) -> None:
    """Show the newest events of the log, across its rotated files, oldest first.

    The log is written by servers, runners and MCP servers. `oaken watch` also shows the events of a remote server.
    """
    check_kinds(kind or ())
    journal, place = _journal(data_dir)
    try:
        _tail(journal, place, lines, follow, frozenset(kind) if kind else None, json)
    except OSError as error:
        raise ConfigError(
            f"The event log {place} cannot be read: {error.strerror or error}. Check what [log] events_file names."
        ) from None
    except KeyboardInterrupt:
        pass


def _tail(journal: Journal, place: Path, lines: int, follow: bool, wanted: frozenset[str] | None, json: bool) -> None:
    following = Follow(journal) if follow else None  # from here on nothing is lost
    found: list[bytes] = []
    for one in journal.backwards():
        if len(found) >= lines:
            break
        if _wanted(one, wanted):
            found.append(one)
    if not found and not follow:
        line(f"There are no such events in {place} yet.")
    for one in reversed(found):
        _show(one, json)
    while following is not None:
        for one in following.read(PAGE):
            if _wanted(one, wanted):
                _show(one, json)
        sys.stdout.flush()
        time.sleep(LOOK_SECONDS)


def _journal(data_dir: Path | None) -> tuple[Journal, Path]:
    settings = config.load(data_dir)
    if settings.url is not None and data_dir is None:
        raise ConfigError(
            f"The event log is a file in a data folder, and OAKEN_URL is set ({settings.url}). Name the folder with --data-dir, "
            "or use `oaken watch`."
        )
    if not settings.log.events_file:
        raise ConfigError("The event log is off: [log] events_file is empty.")
    path = settings.data_dir / settings.log.events_file
    if not settings.data_dir.is_dir():
        raise NotFound(f"There is no data folder {settings.data_dir}.")
    return Journal(path, settings.log.file_max_bytes, settings.log.file_backups), path


def _wanted(text: bytes, kinds: frozenset[str] | None) -> bool:
    if kinds is None:
        return True
    try:
        return orjson.loads(text)["kind"] in kinds
    except (ValueError, TypeError, KeyError):
        return False


def _show(text: bytes, json: bool) -> None:
    try:
        happened = orjson.loads(text)
        if json:
            json_line(happened)
        else:
            line(event_line(happened))
    except (ValueError, TypeError, KeyError):
        line(text.decode("utf-8", "replace"))  # not written by us

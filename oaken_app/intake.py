"""`oaken intake FILE…`: take texts in, to be stored, embedded and triaged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oaken_app.backend import call
from oaken_app.options import DataDir, Json
from oaken_app.show import as_json, line
from oaken_jobs.errors import InvalidRequest, OakenError
from oaken_swarm.client import Client

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _read(path: Path) -> tuple[str, str | None]:
    """The text of a file, and where it came from. Raises `InvalidRequest` for what is no text."""
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return raw.decode("utf-8"), None if str(path) == "-" else str(path)
    except UnicodeDecodeError:
        raise InvalidRequest("this is not UTF-8 text; convert it first.") from None
    except OSError as error:
        raise InvalidRequest(f"{error.strerror or error}.") from None


@app.command()
def intake(
    files: Annotated[list[Path], typer.Argument(help="Text files, or - for standard input.")],
    title: Annotated[str | None, typer.Option(help="Instead of the first heading.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Into this workspace instead of the default one.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Take in texts: each is stored once, whatever its name, then waits to be embedded and triaged by agents."""

    async def act(client: Client) -> list[dict[str, Any] | OakenError]:
        answers: list[dict[str, Any] | OakenError] = []
        for path in files:
            try:
                text, source = _read(path)
                answers.append(await client.intake(text, title=title, source=source, workspace=workspace))
            except OakenError as refusal:
                answers.append(refusal)
        return answers

    refused = False
    for path, told in zip(files, call(data_dir, act), strict=True):
        if isinstance(told, OakenError):
            refused = True
            typer.echo(f"oaken: {path}: {' '.join(told.message.split())}", err=True)
        elif json:
            as_json(told)
        else:
            line(f"{path}: job {told['job']['id']}")
    if refused:
        raise typer.Exit(1)

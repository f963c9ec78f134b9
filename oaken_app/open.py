"""`oaken open`: the pages in a browser, logged in, without a token being copied.

The browser gets a file that only its owner can read, which posts a code that is good once, within a minute. So the code stands in no
address, no list of processes and no log.
"""

from __future__ import annotations

import asyncio
import html
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from oaken_app.admin import NAME
from oaken_app.backend import core_on, require_data
from oaken_app.options import DataDir
from oaken_app.show import line
from oaken_app.vault import write_private
from oaken_jobs import config
from oaken_jobs.errors import InvalidRequest, NotFound, Unauthenticated
from oaken_jobs.maintenance import living
from oaken_swarm.visit import CODE_PATH

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FILE = "open.html"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Oaken</title>
<form method="post" action="{action}"><input type="hidden" name="code" value="{code}"><button>Log in to Oaken</button></form>
<script>document.forms[0].submit()</script></html>
"""


@app.command()
def open_pages(
    name: Annotated[str, typer.Option("--as", help="The name of the token to be logged in as.")] = NAME,
    data_dir: DataDir = None,
) -> None:
    """Open the pages of the server that runs on a data folder, logged in."""
    settings = config.load(data_dir)
    if settings.url is not None and data_dir is None:
        raise InvalidRequest(
            f"`oaken open` works on the machine of the server. Open {settings.url} in a browser and log in with a token, or name the "
            "folder with --data-dir."
        )
    require_data(data_dir)
    address, code = asyncio.run(_code(data_dir, name))
    file = settings.data_dir / FILE
    write_private(file, redirect(address, code))
    line(f"Opening {address} as {name}. If no browser comes up, open {file} in one within a minute.")
    webbrowser.open(file.resolve().as_uri())


def redirect(address: str, code: str) -> str:
    """A page that posts the code to the server at this address, by itself or when its button is pressed."""
    return _PAGE.format(action=html.escape(address + CODE_PATH), code=html.escape(code))


async def _code(data_dir: Path | None, name: str) -> tuple[str, str]:
    """The address of a server of the folder, and a login code. Raises `NotFound` where none runs."""
    async with core_on(data_dir) as core:
        rows = [row for row in await core.store.processes() if row.address is not None and living(row)]
        if not rows:
            raise NotFound("No server runs on this data folder. Start one with `oaken serve`.")
        newest = max(rows, key=lambda row: row.started_at)
        try:
            code = await core.sessions.new_code(name)
        except Unauthenticated as refusal:
            raise Unauthenticated(
                f"{refusal.message.partition('. ')[0]}. Make another with `oaken token create NAME --role admin`, and open the pages with "
                "`oaken open --as NAME`."
            ) from None
        return _reachable(str(newest.address)), code


def _reachable(address: str) -> str:
    """An address that a browser on this machine can open."""
    found = urlsplit(address)
    host = _EVERYWHERE.get(found.hostname or "")
    return address if host is None else f"{found.scheme}://{host}:{found.port}"

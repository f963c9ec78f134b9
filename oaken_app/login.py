"""`oaken login URL` and `oaken logout URL`: a token for a server elsewhere, kept so that `OAKEN_URL` alone suffices."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from oaken_app import vault
from oaken_app.show import line
from oaken_jobs.errors import InvalidRequest
from oaken_swarm.client import Client
from oaken_swarm.connection import base_url

login = typer.Typer(add_completion=False, rich_markup_mode=None)
logout = typer.Typer(add_completion=False, rich_markup_mode=None)

Url = Annotated[str, typer.Argument(help="The address of the server, for instance https://oaken.example.")]


@login.command()
def _login(  # pyright: ignore[reportUnusedFunction]
    url: Url,
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read the token from standard input instead of asking for it.")
    ] = False,
) -> None:
    """Check a token against a server, and keep it in the system's keyring, or in a file for you alone where that does not work."""
    url = base_url(url)
    if token_stdin or not sys.stdin.isatty():
        token = sys.stdin.read().strip()
    else:
        token = str(typer.prompt("Token", hide_input=True, err=True)).strip()
    if not token:
        raise InvalidRequest(
            "No token was given. One is made by `oaken token create NAME --role ROLE` on the server's side."
        )
    me = asyncio.run(_me(url, token))
    try:
        kept = vault.of_server(url).keep(token)
    except OSError as error:
        raise InvalidRequest(f"The token is good, but cannot be kept: {error}. Set OAKEN_TOKEN instead.") from None
    line(f"Logged in to {url} as {me['name']} ({', '.join(me['roles'])}). The token is in {kept.place}.")
    if kept.why is not None:
        sys.stderr.write(f"oaken: it is in a file, for you alone to read: {kept.why}\n")


async def _me(url: str, token: str) -> dict[str, Any]:
    async with Client(url, token) as client:
        return await client.me()


@logout.command()
def _logout(url: Url) -> None:  # pyright: ignore[reportUnusedFunction]
    """Forget the token for a server. It stays good; `oaken token revoke` ends it."""
    url = base_url(url)
    known = vault.of_server(url).forget()
    line(f"Logged out of {url}." if known else f"There was no token for {url}.")

"""What commands talk to: a server where `OAKEN_URL` is set, else the data folder itself, by the same calls either way.

On the data folder the service runs inside the command, without a port or a token; whoever may read the folder is its user.
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx2

from oaken_app import vault
from oaken_app.compose import core_of
from oaken_jobs import config, files, plugins
from oaken_jobs.config import Settings
from oaken_jobs.core import Core
from oaken_jobs.errors import NotFound, Unauthenticated
from oaken_jobs.model import Actor, Principal
from oaken_swarm.app import App
from oaken_swarm.client import DEFAULT_TRIES, Client
from oaken_swarm.connection import base_url

T = TypeVar("T")


def token_for(settings: Settings, url: str) -> str:
    """The token for a server elsewhere. Raises `Unauthenticated` where there is none; may wait for the keyring."""
    token = settings.token or vault.of_server(url).find()
    if token is None:
        raise Unauthenticated(
            f"There is no token for {url}: `oaken login {url}` keeps one, or set OAKEN_TOKEN. "
            "`oaken token create NAME --role user` makes one on the server's side (`--role agent` for a worker)."
        )
    return token


def local_principal() -> Principal:
    """Who calls on the data folder itself: `user:` and the login name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "local"
    return Principal(Actor("user", name, "cli"), frozenset({"user", "agent", "admin"}))


@asynccontextmanager
async def core_on(data_dir: Path | None) -> AsyncGenerator[Core]:
    """The core on a data folder, without duties. Raises `ConfigError` and `Unavailable`."""
    settings = config.load(data_dir)
    core = core_of(settings, plugins.load(settings).rules, "cli")
    await core.open()
    try:
        yield core
    finally:
        await core.close()


@asynccontextmanager
async def connected(data_dir: Path | None, *, stays: bool = False) -> AsyncGenerator[Client]:
    """A client of the server at `OAKEN_URL`, or of the data folder where that is not set or the folder is named.

    With `stays`, for a process that works until it is stopped: it does the duties of a data folder, and leaves trying again to
    its own loop.
    """
    settings = config.load(data_dir)
    tries = 1 if stays else DEFAULT_TRIES
    if settings.url is not None and data_dir is None:
        url = base_url(settings.url)
        token = await asyncio.to_thread(token_for, settings, url)
        async with Client(url, token, tries=tries) as client:
            yield client
        return
    async with core_on(data_dir) as core:
        if stays:
            await core.start_duties()
        app = App(core, settings.server, local=local_principal())
        try:
            async with Client("http://127.0.0.1", transport=httpx2.ASGITransport(app), tries=tries) as client:
                yield client
        finally:
            app.stop()


def require_data(data_dir: Path | None) -> None:
    """Raises `NotFound` where there is no data folder: a command that only looks is not to make one out of a mistyped name."""
    settings = config.load(data_dir)
    remote = settings.url is not None and data_dir is None
    if not remote and settings.database.url is None and not (settings.data_dir / files.DATABASE).exists():
        raise NotFound(
            f"There is nothing of Oaken's in {settings.data_dir}. Name another folder with --data-dir, or begin with `oaken serve`."
        )


def place(data_dir: Path | None) -> str:
    """What commands talk to, for people: the server's URL, the database's, or the folder."""
    settings = config.load(data_dir)
    if settings.url is not None and data_dir is None:
        return settings.url
    url = settings.database.url
    return str(settings.data_dir) if url is None else config.without_password(url)


def call(data_dir: Path | None, act: Callable[[Client], Awaitable[T]]) -> T:
    """Runs one command's calls."""

    async def run() -> T:
        async with connected(data_dir) as client:
            return await act(client)

    return asyncio.run(run())

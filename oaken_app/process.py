"""Composes a process out of its parts and owns their start and stop.

Start: address, database, the first token, duties, plugins, runner, HTTP server. Stop: no new requests, and those that wait are
answered; duties; runner, with its grace; plugins; streams and handlers of events; the database. Each step is logged; nothing touches
the database afterwards, and the line that says the process has stopped is the last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Literal

from oaken_app.admin import make_admin
from oaken_app.compose import core_of
from oaken_jobs import plugins
from oaken_jobs.config import Settings, without_password
from oaken_jobs.core import calm_collector
from oaken_jobs.plugins import AtWork
from oaken_jobs.runner import Runner
from oaken_jobs.stopping import LEAVE_AT_ONCE, Step, Unfinished, every, unless_asked
from oaken_jobs.store.sqlite.driver import unsafe_version
from oaken_mcp.http import Endpoint
from oaken_swarm.app import App
from oaken_swarm.exposure import exposure, tls
from oaken_swarm.server import Server

if TYPE_CHECKING:
    from oaken_jobs.clock import Clock
    from oaken_swarm.oidc import Oidc

log = logging.getLogger("oaken.process")


class Process:
    """One process of Oaken: role `serve` answers HTTP, and runs job bodies unless `runner` is false; role `runner` only runs
    job bodies. `start` and `stop` are idempotent; a process that was stopped is not started again."""

    def __init__(self, settings: Settings, *, role: Literal["serve", "runner"] = "serve", runner: bool = True) -> None:
        """Raises `ConfigError` for settings that cannot be used together."""
        self.settings = settings
        self._loaded = plugins.load(settings)
        self.core = core_of(settings, self._loaded.rules, role)
        self._server: Server | None = None
        self._mcp: Endpoint | None = None
        self._exposed: str | None = None
        if role == "serve":
            self._exposed = exposure(settings.server)
            certificate = tls(settings.server, settings.data_dir)
            self._mcp = Endpoint(self.core)
            app = App(self.core, settings.server, {"mcp": self._mcp}, oidc=_oidc(settings, self.core.clock))
            self._server = Server(app, settings.server.host, settings.server.port, certificate)
        self._runner: Runner | None = None
        self._plugins: AtWork | None = None
        if runner or role == "runner":
            core, grace = self.core, settings.runner.grace
            self._runner = Runner(core.jobs, core.follower, core.clock, self._loaded.handlers(), grace)
            self._plugins = AtWork(self._loaded, core.schedules, core.bus, core.commit, core.clock)
        self._started = False
        self._begun = False
        """Whether the start came to its end; the stop of one that failed is not told, its error is to stand alone."""
        self._stop: asyncio.Task[None] | None = None

    @property
    def address(self) -> str | None:
        """`http://host:port`, or with `https`; None for a process that does not serve."""
        return self._server.address if self._server is not None else None

    async def start(self) -> None:
        """Returns when everything works. What was begun is undone if something fails.

        Raises `ConfigError` for an address that cannot be taken, `Unavailable` for a database that cannot be opened.
        """
        if self._started:
            return
        self._started = True
        self.core.log_keeper.listen()
        self._loaded.report()
        try:
            if self._server is not None:
                self._server.bind()
                if self._exposed is not None:
                    log.warning("%s", self._exposed)
            await self.core.open()
            url = self.settings.database.url
            if url is None and (danger := unsafe_version()) is not None:
                log.warning("%s", danger)
            log.info("database open in %s", self.settings.data_dir if url is None else without_password(url))
            if self._server is not None:
                await make_admin(self.core.tokens, self.settings.data_dir)
            self.core.maintenance.address = self.address
            await self.core.start_duties()
            log.info("duties begun")
            if self._plugins is not None:
                await self._plugins.start()
            if self._runner is not None:
                await self._runner.start()
                log.info("runner begun")
            if self._server is not None:
                await self._server.start()
                log.info("serving on %s", self.address)
            self._begun = True
        except BaseException:
            with suppress(Unfinished):
                await self.stop()
            raise

    async def stop(self) -> None:
        """Returns when everything has stopped. A handler that ignores its cancellation keeps it pending. Raises `Unfinished` where
        something failed, of which nothing goes on either."""
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_task(self._stop_all(), name="stop")
        await asyncio.shield(self._stop)

    async def _stop_all(self) -> None:
        steps: list[Step] = []
        if self._server is not None:
            steps.append(self._step("refusing requests", self._refuse, "no new requests"))
        steps.append(self._step("the duties", self.core.stop_duties, "duties ended"))
        if self._runner is not None:
            steps.append(self._step("the runner", self._end_runner, "runner ended"))
        if self._plugins is not None:
            steps.append(("the plugins", self._plugins.stop))
        if self._server is not None:
            steps.append(self._step("the server", self._end_server, "streams ended"))
        steps.append(self._step("the core", self.core.close, "database closed"))
        await every(*steps)

    def _step(self, name: str, act: Callable[[], Awaitable[None]], told: str) -> Step:
        """A step of the stop, logged when it is done; not where the start failed, whose error is to stand alone."""

        async def run() -> None:
            await act()
            if self._begun:
                log.info("%s", told)

        return name, run

    async def _refuse(self) -> None:
        assert self._server is not None
        self._server.refuse()

    async def _end_server(self) -> None:
        assert self._server is not None
        assert self._mcp is not None
        await every(("calls over MCP", self._mcp.stop), ("connections", self._server.stop))

    async def _end_runner(self) -> None:
        assert self._runner is not None
        steps: list[Step] = [("the workers", self._runner.stop)]
        if self.core.opened:
            steps.append(("writing down what the workers did last", self.core.jobs.flush))
        await every(*steps)


def _oidc(settings: Settings, clock: Clock) -> Oidc | None:
    """What checks tokens of the issuer that the settings name, if they do."""
    if "oidc" not in settings.auth:
        return None
    from oaken_swarm.oidc import Oidc  # it brings cryptography along

    return Oidc(settings.auth["oidc"], clock)


def run(process: Process, ready: Callable[[], None]) -> None:
    """Runs a process until SIGTERM or SIGINT, and stops it in order; a second signal leaves at once.

    `ready` is called when everything works. Raises what `Process.start` and `Process.stop` raise.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=process.settings.log.level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    calm_collector()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_until_signalled(process, ready))


async def _until_signalled(process: Process, ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, _leave)
        loop.call_soon_threadsafe(asked.set)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, on_signal)
    begun = await unless_asked(process.start(), asked)
    try:
        if begun:
            ready()
            await asked.wait()
            grace = process.settings.runner.grace
            log.info("stopping: jobs that run have %g s; a second signal leaves at once", grace)
    finally:
        await process.stop()
    log.info("stopped")


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(LEAVE_AT_ONCE)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None for Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

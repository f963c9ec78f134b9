"""A worker of one's own: leases jobs of the kinds it has handlers for from a server, and does them."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

from oaken_jobs import worker as core
from oaken_jobs.errors import ConfigError, OakenError, Unauthenticated
from oaken_jobs.handlers import Handlers
from oaken_swarm.client import Client
from oaken_swarm.connection import DEFAULT_URL, NO_TOKEN
from oaken_swarm.transport import HttpTransport

log = logging.getLogger("oaken.worker")

F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """Leases and does jobs of the server at `url` as `agent`, which is the name of its token.

    `url` and `token` come from `OAKEN_URL` and `OAKEN_TOKEN` unless given. `instance` tells workers of one name apart;
    unless given it is made of host, process and chance. `queues` limits where jobs are taken from. Seconds:
    `lease_seconds` (unless given, the kind's), and `grace` for running handlers when the worker stops.

        worker = Worker("http://127.0.0.1:8787", agent="embedder", token="…")

        @worker.handler("embed", concurrency=4)
        async def embed(job):
            return {"model": "m-1", "vector": [0.1, 0.2]}

        worker.run()
    """

    def __init__(
        self,
        url: str | None = None,
        agent: str | None = None,
        token: str | None = None,
        *,
        instance: str | None = None,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        grace: float = 30.0,
        client: Client | None = None,
    ) -> None:
        """`client` is for tests. Raises ValueError without an agent's name; what else is wrong, `run` says."""
        if not agent:
            raise ValueError('a worker needs the name of its token as agent, for instance agent="embedder"')
        self.agent = agent if "/" in agent else f"{agent}/{instance or _instance()}"
        self._handlers = Handlers()
        self._wrong: OakenError | None = None
        self._grace = grace
        if client is None:
            try:
                client = Client(url, token, tries=1)
                self._wrong = None if client.has_token else Unauthenticated(NO_TOKEN)
            except ConfigError as error:
                self._wrong = error
                client = Client(DEFAULT_URL, "none", tries=1)  # never called
        self._client = client
        self._loop = core.Worker(
            HttpTransport(client, self.agent),
            self._handlers,
            queues=queues,
            lease_seconds=lease_seconds,
            grace=grace,
        )
        self._stop: asyncio.Task[None] | None = None

    def handler(self, kind: str, concurrency: int = 1) -> Callable[[F], F]:
        """Registers `async def f(job) -> dict | None | Done`, at most `concurrency` of it at once.

        A plain function runs in a thread. It may raise `PermanentJobError`, `Deferred`, `AfterChildren` or `Ask`; any other
        exception is a failed attempt.
        """
        return self._handlers.handler(kind, concurrency)

    def batch_handler(self, kind: str, max: int = 64, linger: float = 0.05) -> Callable[[F], F]:
        """Registers `async def f(jobs) -> list`: for each job, in order, a dict, None, `Done` or an exception.

        One batch at a time of up to `max` jobs. A batch that is not full waits up to `linger` seconds for more.
        """
        return self._handlers.batch_handler(kind, max, linger)

    def run(self) -> None:
        """Works until SIGINT or SIGTERM, then stops in order; a second one leaves at once.

        Logs to stderr where the program has no logging of its own. Exits with status 1, and one line on stderr that says
        why, where the worker cannot do its work at all: what `run_async` raises.
        """
        _log_to_stderr()
        try:
            asyncio.run(self.run_until_signalled())
        except OakenError as error:
            sys.stderr.write(f"oaken worker: {' '.join(error.message.split())}\n")
            raise SystemExit(1) from None

    async def run_async(self) -> None:
        """Works until stopped or cancelled, on the caller's loop, handling no signals.

        Raises `ConfigError` for a URL or a token that is none, and the error with which the server refuses this worker
        for good: `Unauthenticated`, `Forbidden`, `InvalidRequest`. A server out of reach is asked again.
        """
        if self._wrong is not None:
            raise self._wrong
        if self._handlers.kinds:
            log.info("%s works on %s for %s", self.agent, self._handlers.summary, self._client.url)
        await self._loop.run()
        log.info("stopped")

    async def stop(self) -> None:
        """Takes nothing new, gives running handlers their grace, then cancels them and releases their jobs."""
        await self._loop.stop()

    async def run_until_signalled(self, leaving: Callable[[], None] | None = None) -> None:
        """`run_async`, ended in order by SIGINT or SIGTERM where this is the main thread; a second one leaves at once, after
        `leaving` was called."""
        if threading.current_thread() is not threading.main_thread():
            await self.run_async()
            return
        loop = asyncio.get_running_loop()

        def on_signal(number: int, frame: FrameType | None) -> None:
            # From here on the system has its own way: a second signal ends the process, whatever handlers do.
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, signal.SIG_DFL if leaving is None else on_second)
            loop.call_soon_threadsafe(self._stop_soon)

        def on_second(number: int, frame: FrameType | None) -> None:
            assert leaving is not None
            leaving()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

        before = {each: signal.signal(each, on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            await self.run_async()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler if handler is not None else signal.SIG_DFL)

    def _stop_soon(self) -> None:
        held = self._loop.holds
        if held:
            log.info(
                "stopping: waiting up to %g s for %d job%s; Ctrl-C again leaves at once",
                self._grace,
                held,
                "" if held == 1 else "s",
            )
        else:
            log.info("stopping")
        self._stop = asyncio.get_running_loop().create_task(self.stop())


def _log_to_stderr() -> None:
    """Shows our own log where nobody has said what is to become of it."""
    ours = logging.getLogger("oaken")
    if ours.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)


def _instance() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:32].strip("-.") or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"

"""Duties that every long-lived process does, idempotently, after a cheap look whether anything is due.

Each second: take back expired leases, write down what agents did and which tokens were used. Every ten: say that this process lives.
(A jump of the machine's clock, or that this process stood still, is noticed by the store, before anything is judged by it.)
"""

from __future__ import annotations

import logging
import os
import secrets
import socket

from oaken_jobs import __version__
from oaken_jobs.auth import Tokens
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.jobs import Jobs
from oaken_jobs.loop import Loop
from oaken_jobs.stopping import every
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import ProcessRow, Recover, Register, Sweep, Unregister

log = logging.getLogger("oaken.maintenance")

TICK_SECONDS = 1.0
REGISTER_SECONDS = 10.0
SWEEP_BATCH = 500


class Maintenance(Loop):
    """`tick` does one round, for tests and for the loop.

    At its start it registers this process. The first process to have the database open gives running leases a grace: their workers could
    not reach it. So does a server that is the only one there can be. At its end it says that this process is gone.
    """

    def __init__(self, store: Store, commit: Committer, jobs: Jobs, tokens: Tokens, clock: Clock, role: str) -> None:
        super().__init__("maintenance", self.tick, clock, TICK_SECONDS)
        self._store = store
        self._commit = commit
        self._jobs = jobs
        self._tokens = tokens
        self._role = role
        self._process = secrets.token_hex(8)
        self.address: str | None = None
        """Where this process serves, as a URL; to be set before the start."""
        self._started_at = clock.now()
        self._registered_at: float | None = None

    async def _begin(self) -> None:
        others = await self._register()
        if not others or (self._role == "serve" and not self._store.shared):
            await self._recover("start")
        self._store.steady = True
        await super()._begin()

    async def _end(self) -> None:
        await super()._end()
        self._store.steady = False
        await every(
            ("writing down what agents did", self._flush),
            ("leaving the list of processes", lambda: self._commit.call(Unregister(self._process))),
        )

    async def tick(self) -> None:
        """One round of all duties that are due."""
        while await self._commit.call(Sweep(SWEEP_BATCH)) == SWEEP_BATCH:
            pass
        await self._flush()
        if self._registered_at is None or self._clock.monotonic() - self._registered_at >= REGISTER_SECONDS:
            await self._register()

    async def _flush(self) -> None:
        await self._jobs.flush()
        await self._tokens.flush()

    async def _register(self) -> list[ProcessRow]:
        """The other living processes."""
        row = ProcessRow(
            self._process,
            self._role,
            os.getpid(),
            socket.gethostname(),
            __version__,
            self._started_at,
            self._clock.now(),
            self.address,
        )
        rows: list[ProcessRow] = await self._commit.call(Register(row))
        self._registered_at = self._clock.monotonic()
        others = [r for r in rows if r.process != self._process and living(r)]
        self._commit.shared = bool(others) and not self._store.shared
        return others

    async def _recover(self, why: str) -> None:
        grace = round(self._jobs.rules.recovery_grace * 1000)
        running = await self._commit.call(Recover(grace))
        if running:
            log.info("%s: %d running leases last at least %g s from now", why, running, grace / 1000)


def living(row: ProcessRow) -> bool:
    """Whether the process still runs, as far as this machine can tell; the row of a dead one stays for a while."""
    if row.host != socket.gethostname():
        return True
    if row.pid == os.getpid():
        return True
    try:
        os.kill(row.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True

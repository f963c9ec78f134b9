"""Says that this process has committed, and hears when others have: by LISTEN and NOTIFY without payload, collapsed, each in a transaction
of its own; and by looking, now and then for what was missed, or all the time where there is no LISTEN."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from oaken_jobs.errors import Unavailable
from oaken_jobs.store.postgres.server import CONNECT_SECONDS, Connection, Server, lost, words

log = logging.getLogger("oaken.store")

CHANNEL = "oaken"
SOON_SECONDS = 0.01
"""Before the first look after something was committed: its rows may become readable a moment later (see `ACTIVITY_HEAD`). Each further
look comes after twice the time."""
SAFETY_SECONDS = 2.0
"""Between looks for signals that were missed."""
LOOK_SECONDS = 0.05
"""Between looks where there is no LISTEN."""
ALIVE_SECONDS = 10.0
"""Between questions whether a silent connection still is one."""
# It carries no data that could be lost, so nobody waits for the disk.
_SEND = f"begin; set local synchronous_commit = off; notify {CHANNEL}; commit"


class Signals:
    """`changed` is asked all the time while somebody waits, and mostly answers without a look at the database."""

    def __init__(self, server: Server, newest: Callable[[], Awaitable[int]], *, listen: bool) -> None:
        """`newest` reads up to which id the activity can be read."""
        self._server = server
        self._newest = newest
        self._longest = SAFETY_SECONDS if listen else LOOK_SECONDS
        self._listen = listen
        self._heard = False
        self._seen = 0
        self._wait = SOON_SECONDS
        self._look_at = 0.0
        self._connection: Connection | None = None
        self._to_send = asyncio.Event()
        self._broken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins; returns when commits of others from now on will be heard of."""
        self._seen = await self._newest()
        await self._connect()
        self._tasks = [
            asyncio.get_running_loop().create_task(self._keep(), name="listening"),
            asyncio.get_running_loop().create_task(self._send(), name="notifying"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []
        if self._connection is not None:
            await self._server.hang_up(self._connection)
            self._connection = None

    def send(self) -> None:
        """This process has committed something that others may wait for."""
        self._to_send.set()
        self._soon()

    async def changed(self) -> bool:
        """As `Store.changed`."""
        if self._heard:
            self._heard = False
            self._soon()
            return True
        if time.monotonic() < self._look_at:
            return False
        self._wait = min(2 * self._wait, self._longest)
        self._look_at = time.monotonic() + self._wait
        newest = await self._newest()
        if newest == self._seen:
            return False
        self._seen = newest
        return True

    def _soon(self) -> None:
        self._wait = SOON_SECONDS
        self._look_at = min(self._look_at, time.monotonic() + SOON_SECONDS)

    async def _connect(self) -> None:
        self._broken.clear()
        self._connection = await self._server.connect()
        self._connection.add_termination_listener(self._ended)
        if self._listen:
            await self._connection.add_listener(CHANNEL, self._hear)
        self._heard = True  # what was said while nobody listened

    def _ended(self, connection: object) -> None:
        self._broken.set()

    def _hear(self, connection: object, process: int, channel: str, payload: object) -> None:
        if self._connection is not None and process != self._connection.get_server_pid():
            self._heard = True

    async def _keep(self) -> None:
        """Connects again whenever the connection has broken."""
        wait = 0.1
        while True:
            if self._connection is None or self._connection.is_closed():
                try:
                    await self._connect()
                    wait = 0.1
                except (*lost, Unavailable) as error:
                    log.warning("cannot listen for other processes, trying again: %s", words(error))
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, 2.0)
                    continue
            connection = self._connection
            assert connection is not None
            try:
                await asyncio.wait_for(self._broken.wait(), ALIVE_SECONDS)
            except TimeoutError:
                try:
                    await connection.execute("select 1", timeout=CONNECT_SECONDS)
                except lost:
                    connection.terminate()
                    self._connection = None

    async def _send(self) -> None:
        """Sends one signal for all that was committed since the last one."""
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            connection = self._connection
            if connection is None or connection.is_closed():
                await asyncio.sleep(SOON_SECONDS)  # others look for themselves meanwhile
                continue
            try:
                await connection.execute(_SEND, timeout=CONNECT_SECONDS)
            except lost:
                connection.terminate()

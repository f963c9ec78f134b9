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
SEND_SECONDS = 0.01
"""From one signal to the next: under load one is sent for many commits."""
SAFETY_SECONDS = 2.0
"""Between looks for signals that were missed."""
LOOK_SECONDS = 0.05
"""Between looks where there is no LISTEN."""
ALIVE_SECONDS = 10.0
"""Between questions whether a silent connection still is one."""
# It carries no data that could be lost, so nobody waits for the disk.
SEND = f"begin; set local synchronous_commit = off; notify {CHANNEL}; commit"


class Signals:
    """`changed` is asked all the time while somebody waits, and mostly answers without a look at the database. Nobody listens before it is
    asked for the first time: most commands never do."""

    def __init__(
        self,
        server: Server,
        newest: Callable[[], Awaitable[int]],
        tell: Callable[[str], Awaitable[None]],
        *,
        listen: bool,
    ) -> None:
        """`newest` reads up to which id the activity can be read; `tell` runs a statement, and says on which backend by `own`."""
        self._server = server
        self._newest = newest
        self._tell = tell
        self._longest = SAFETY_SECONDS if listen else LOOK_SECONDS
        self._listen = listen
        self._heard = False
        self._seen = -1
        self._wait = SOON_SECONDS
        self._look_at = 0.0
        self._own: set[int] = set()
        self._connection: Connection | None = None
        self._broken = asyncio.Event()
        self._to_send = False
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        tasks = [task for task in (self._listening, self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._connection is not None:
            await self._server.hang_up(self._connection)
            self._connection = None

    def own(self, process: int) -> None:
        """Signals of this backend are this process's own."""
        self._own.add(process)

    def send(self) -> None:
        """This process has committed something that others may wait for."""
        self._to_send = True
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="notifying")
        self._soon()

    async def changed(self) -> bool:
        """As `Store.changed`."""
        if self._listen and self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._keep(), name="listening")
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

    def _hear(self, connection: object, process: int, channel: str, payload: object) -> None:
        if process not in self._own:
            self._heard = True

    async def _keep(self) -> None:
        """Listens, again whenever the connection has broken."""
        wait = 0.1
        while True:
            try:
                if self._connection is None or self._connection.is_closed():
                    await self._connect()
                    wait = 0.1
                await self._until_broken()
            except lost as error:
                log.warning("cannot listen for other processes, trying again: %s", words(error))
                await asyncio.sleep(wait)
                wait = min(2 * wait, 2.0)

    async def _connect(self) -> None:
        self._broken.clear()
        self._connection = await self._server.connect()
        self._connection.add_termination_listener(lambda _: self._broken.set())
        await self._connection.add_listener(CHANNEL, self._hear)
        self._heard = True  # what was said while nobody listened

    async def _until_broken(self) -> None:
        assert self._connection is not None
        try:
            await asyncio.wait_for(self._broken.wait(), ALIVE_SECONDS)
        except TimeoutError:
            try:
                await self._connection.execute("select 1", timeout=CONNECT_SECONDS)
            except lost:
                self._connection.terminate()
                raise

    async def _send(self) -> None:
        """Sends one signal for all that was committed since the last one."""
        while self._to_send:
            self._to_send = False
            try:
                await self._tell(SEND)
            except (*lost, Unavailable) as error:
                log.debug("a signal was not sent: %s", words(error))  # others look for themselves
            await asyncio.sleep(SEND_SECONDS)

"""Ports, and a stretch of network that can be told to lose what is sent, or to break: a proxy on loopback before a server there."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import closing
from urllib.parse import urlsplit

ABORTIVE = struct.pack("ii", 1, 0)
"""For SO_LINGER: who closes tells the other end that the connection is broken, not that it was ended."""


def free_port() -> int:
    """A port of loopback that stays free while its server is away: none of those that the system gives to clients."""
    while True:
        with closing(socket.socket()) as taken:
            try:
                taken.bind(("127.0.0.1", port := random.randint(20_000, 30_000)))
            except OSError:
                continue
            return port


class Link:
    """The way to a port of loopback. It passes on everything unless told otherwise.

        async with Link(server.port) as link:
            connection = await asyncpg.connect(link.through(server.url))
            link.drop()

    It runs on the caller's loop, so clients that block that loop get nothing through it.
    """

    def __init__(self, port: int) -> None:
        """`port` is where the server listens, now or later."""
        self._target = port
        self._requests = asyncio.Event()
        self._answers = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.mend()

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.mend()
        self.cut()

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        """How many clients are connected, whether they are answered or not."""
        return sum(writer.get_extra_info("sockname")[1] == self.port for writer in self._open)

    def through(self, url: str) -> str:
        """The address of the same thing, by this way."""
        parts = urlsplit(url)
        return parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{self.port}").geturl()

    def drop(self, *, requests: bool = True, answers: bool = True) -> None:
        """Nothing passes any more, or nothing one way. Connections stay, new ones are taken and hear nothing.

        What is sent meanwhile waits here, and arrives after `mend`, as it does when a network comes back.
        """
        if requests:
            self._requests.clear()
        if answers:
            self._answers.clear()

    def mend(self) -> None:
        """Everything passes again."""
        self._requests.set()
        self._answers.set()

    def cut(self) -> None:
        """Breaks all connections there are; what waits here is lost. New ones are treated as before."""
        for writer in list(self._open):
            _break(writer)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with _Kept(self._open, writer):
            await self._requests.wait()
            try:
                onward, back = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                _break(writer)
                return
            with _Kept(self._open, back):
                # The end of one way ends the other: neither PostgreSQL nor HTTP goes on with half a connection.
                ways = [
                    asyncio.create_task(_pass_on(reader, back, self._requests)),
                    asyncio.create_task(_pass_on(onward, writer, self._answers)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)


class _Kept:
    """One end of a connection that is among those that can be cut; closed at the end, after what was passed on."""

    def __init__(self, among: set[asyncio.StreamWriter], writer: asyncio.StreamWriter) -> None:
        self._among = among
        self._writer = writer

    def __enter__(self) -> None:
        self._among.add(self._writer)

    def __exit__(self, *_: object) -> None:
        self._among.discard(self._writer)
        self._writer.close()


def _break(writer: asyncio.StreamWriter) -> None:
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTIVE)
    writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event) -> None:
    """Passes on what comes, while it may, until one end has gone."""
    try:
        while data := await reader.read(1 << 16):
            await passing.wait()
            writer.write(data)
            await writer.drain()
        await passing.wait()
    except OSError:
        pass

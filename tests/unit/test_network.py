"""The stretch of network that tests break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.network import Link


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    """In front of a server that sends back each line."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                heard.append(line)
                writer.write(line)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with Link(server.sockets[0].getsockname()[1]) as link:
        yield link
    server.close()


heard: list[bytes] = []


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, link: Link) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", link.port))

    def say(self, line: bytes) -> None:
        self.writer.write(line)

    async def hear(self, seconds: float = 10) -> bytes:
        return await asyncio.wait_for(self.reader.readline(), seconds)

    async def hears_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            await self.hear(0.05)


async def test_everything_passes_until_told_otherwise(link: Link) -> None:
    caller = await Caller.to(link)
    caller.say(b"one\n")
    assert await caller.hear() == b"one\n"
    assert link.connections == 1
    assert link.through("postgresql://a:b@127.0.0.1:5432/x?y=1") == f"postgresql://a:b@127.0.0.1:{link.port}/x?y=1"
    caller.writer.close()


async def test_a_partition_answers_nobody_old_or_new_and_when_it_ends_what_was_sent_arrives(link: Link) -> None:
    old = await Caller.to(link)
    old.say(b"before\n")
    await old.hear()
    link.drop()
    new = await Caller.to(link)
    for caller in (old, new):
        caller.say(b"during\n")
        await caller.hears_nothing()
    link.mend()
    for caller in (old, new):
        assert await caller.hear() == b"during\n"
        caller.writer.close()


async def test_where_answers_alone_are_lost_the_server_has_done_it_all_the_same(link: Link) -> None:
    heard.clear()
    caller = await Caller.to(link)
    link.drop(requests=False)
    caller.say(b"do it\n")
    await caller.hears_nothing()
    assert heard == [b"do it\n"]
    link.cut()
    with pytest.raises(ConnectionResetError):
        await caller.hear()


async def test_a_cut_breaks_what_is_connected_and_lets_others_in(link: Link) -> None:
    caller = await Caller.to(link)
    caller.say(b"one\n")
    await caller.hear()
    link.cut()
    with pytest.raises(ConnectionResetError):
        await caller.hear()
    again = await Caller.to(link)
    again.say(b"two\n")
    assert await again.hear() == b"two\n"
    again.writer.close()


async def test_the_end_of_one_side_is_told_to_the_other(link: Link) -> None:
    caller = await Caller.to(link)
    caller.say(b"one\n")
    await caller.hear()
    caller.writer.close()
    deadline = asyncio.get_running_loop().time() + 10
    while link.connections:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


async def test_what_a_server_says_before_it_goes_arrives() -> None:
    async def farewell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 1_000_000)
        writer.close()

    server = await asyncio.start_server(farewell, "127.0.0.1", 0)
    async with Link(server.sockets[0].getsockname()[1]) as link:
        caller = await Caller.to(link)
        assert len(await asyncio.wait_for(caller.reader.read(), 10)) == 1_000_000
        caller.writer.close()
    server.close()


async def test_a_server_that_is_not_there_is_a_broken_connection(link: Link) -> None:
    async with Link(1) as nowhere:
        caller = await Caller.to(nowhere)
        with pytest.raises(ConnectionResetError):
            await caller.hear()

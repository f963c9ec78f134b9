"""Connections before anybody is known: heads of bounded size, and bounded time for heads and bodies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oaken_jobs.core import Core
from oaken_swarm import server as server_module
from tests.service import Service, eventually, serve

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
async def hasty(core: Core, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A server that waits for nobody."""
    for name, seconds in {
        "HEAD_SECONDS": 0.05,
        "BODY_SECONDS": 0.05,
        "UNREAD_SECONDS": 0.05,
        "LOOK_SECONDS": 0.01,
    }.items():
        monkeypatch.setattr(server_module, name, seconds)
    service = await serve(core)
    yield service
    await service.close()


async def told(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the end of the connection."""
    return await asyncio.wait_for(reader.read(), 10)


@pytest.mark.parametrize(
    "begin",
    [b"GET /", HEAD + b"X: ", HEAD + b"X", HEAD, b"\r\n"],
    ids=["a path", "a value", "a name", "many headers", "empty lines"],
)
async def test_a_head_without_end_is_cut_off(server: Service, begin: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    more = {HEAD: b"X-Y: z\r\n", b"\r\n": b"\r\n"}.get(begin, b"x" * 8)
    writer.write(begin)
    answer = asyncio.ensure_future(reader.read())
    for _ in range(2000):
        if answer.done():
            break
        writer.write(more * 8192)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(writer.drain(), 10)
        await asyncio.sleep(0)
    assert answer.done()
    assert (await answer).startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    writer.close()
    assert (await (await server.client()).healthz()) == {"status": "ok"}


@pytest.mark.parametrize("whole", [True, False])
async def test_a_head_over_the_limit_is_told_so(server: Service, whole: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"X: " + b"x" * server_module.MAX_HEAD_BYTES + (b"\r\n\r\n" if whole else b""))
    answer = await told(reader)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer
    assert b'"code":"head_too_large"' in answer
    writer.close()


async def test_a_head_below_the_limit_is_read_whatever_comes_with_it(server: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    large = HEAD + b"X: " + b"x" * 60_000 + b"\r\n"
    body = b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000
    writer.write((large + body) * 3 + large + b"\r\n")
    for _ in range(4):
        assert (await asyncio.wait_for(reader.readuntil(b'"ok"}'), 10)).count(b" 200 OK") == 1
    writer.close()


async def test_a_head_that_takes_too_long_is_408(hasty: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port)
    writer.write(HEAD + b"\r\n" + HEAD)
    answer = await told(reader)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert answer.count(b"HTTP/1.1 408 ") == 1
    writer.close()


async def test_a_connection_that_never_asks_is_closed_in_silence(hasty: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port)
    assert await told(reader) == b""
    writer.close()


async def test_a_body_that_stands_still_is_408(hasty: Service) -> None:
    token = await hasty.token("ann", "user")
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 99\r\n\r\n"
    writer.write(head.encode() + b"{")
    answer = await told(reader)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"timeout"' in answer
    writer.close()


async def test_a_body_that_nobody_waits_for_does_not_keep_its_connection(hasty: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port)
    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
    answer = await told(reader)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.count(b"HTTP/1.1") == 1
    writer.close()


async def test_a_call_that_waits_is_not_one_that_stands_still(hasty: Service) -> None:
    client = await hasty.client()
    assert await client.lease(wait_seconds=0.3) == {"leases": []}


async def test_a_connection_that_never_reads_its_answers_is_cut_off(hasty: Service) -> None:
    token = await hasty.token("ann", "user")
    head = f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", hasty.port)) as deaf:
        deaf.setblocking(False)
        deaf.sendall(head.encode() * 200)

        open_there = hasty.server._uvicorn.server_state.connections  # type: ignore[union-attr]

        async def came() -> bool:
            return bool(open_there)

        async def cut_off() -> bool:
            return not open_there

        await eventually(came)
        await eventually(cut_off)
        deaf.settimeout(10)
        answers = b"".join(iter(lambda: deaf.recv(1 << 20), b""))
    assert 0 < answers.count(b"HTTP/1.1 200 ") < 200


@pytest.mark.parametrize("before", [0, 1])
async def test_a_wait_with_another_call_behind_it_ends_when_its_client_goes(
    server: Service, core: Core, before: int
) -> None:
    token = await server.token("ann", "user", "agent")
    head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"
    body = b'{"wait_seconds":60}'
    said = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    ask = f"GET /v1/me HTTP/1.1\r\n{head}\r\n".encode()
    writer.write(ask * before + f"POST /v1/leases HTTP/1.1\r\n{said}".encode() + body + ask)

    async def waiting() -> bool:
        return core.dispatch.waiting == 1

    async def gone() -> bool:
        return core.dispatch.waiting == 0

    await eventually(waiting)
    writer.close()
    await eventually(gone)


async def test_a_body_is_never_taken_for_none_because_of_an_upgrade(server: Service) -> None:
    token = await server.token("bot", "user", "agent")
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    status, told = await server.raw(
        f'POST /v1/jobs HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{{"kind":"echo"}}'.encode()
    )
    assert (status, b"Upgrade" in told) == (400, True)
    status, told = await server.raw(f"GET /v1/me HTTP/1.1\r\n{head}\r\n".encode())
    assert (status, b"bot" in told) == (200, True)


@pytest.mark.parametrize("path", [b"/healthz", b"/nowhere", b"/login", b"/v1/jobs"])
async def test_a_call_leaves_nothing_to_the_garbage_collector(server: Service, path: bytes) -> None:
    """What goes round in a circle stays until the collector looks, with all that hangs on it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

    async def call() -> None:
        writer.write(HEAD.replace(b"/healthz", path) + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))

    await call()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await call()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(one).__name__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left["RequestResponseCycle"] == 0, left
    writer.close()


@pytest.mark.parametrize("cut", [b"", b"Host: local", b"localhost \t"], ids=["whole", "in the value", "behind it"])
async def test_spaces_behind_a_value_mean_nothing(server: Service, cut: bytes) -> None:
    """The parser leaves them, however the head is cut into pieces."""
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost \t\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    first = head[: head.index(cut) + len(cut)] if cut else head
    writer.write(first)
    if cut:
        connections: Any = server.server._uvicorn.server_state.connections

        async def came() -> bool:
            return any(connection._head_bytes == len(first) for connection in connections)

        await eventually(came)
        writer.write(head[len(first) :])
    assert (await told(reader)).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_spaces_behind_it_do_not_hide_that_a_client_waits_to_go_on(server: Service) -> None:
    token = await server.token("ann", "user")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue \r\n"
    writer.write(f"{head}Authorization: Bearer {token}\r\nContent-Length: 12\r\nConnection: close\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 100 ")
    writer.write(b'{"kind":"a"}')
    assert (await told(reader)).startswith(b"HTTP/1.1 201 ")
    writer.close()

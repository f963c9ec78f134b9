"""Clients that are slow, silent, gone or wrong about what they send, beside others of one real server."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

from oaken_swarm import Client
from oaken_swarm.server import HEAD_SECONDS
from tests.process.test_serve import token_for
from tests.processes import clean_environ

SOON = 2.0
"""Seconds within which others are answered, whatever goes on beside them."""
MANY = 10_000
SPARE = 300
"""Files that a process needs besides its connections."""
LARGE = {"text": "x" * 900_000}


class Server:
    """`oaken serve` in a process of its own."""

    def __init__(self, folder: Path, said: Path) -> None:
        self.token = asyncio.run(token_for(folder))
        self._said = said
        with said.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "oaken_app.main", "serve", "--port", "0", "--data-dir", str(folder)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=clean_environ(),
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().removeprefix("oaken ready on ").strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def head(self, method: str, path: str, length: int | None = None) -> bytes:
        body = "" if length is None else f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
        return (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n{body}\r\n".encode()
        )

    def connect(self) -> socket.socket:
        """A connection whose end here takes in as little as may be."""
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours.connect(("127.0.0.1", self.port))
        return ours

    def stop(self) -> None:
        """It stops as it is asked to, and has had nothing to complain of."""
        self.process.terminate()
        assert self.process.wait(20) == 0
        said = self._said.read_text()
        assert "Traceback" not in said
        assert " ERROR " not in said

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def files() -> Iterator[int]:
    """How many files this process and those it starts may have open: as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MANY + SPARE if hard == resource.RLIM_INFINITY else min(hard, MANY + SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def server(files: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("slow")
    found = Server(folder / "data", folder / "stderr")
    try:
        yield found
        found.stop()
    finally:
        found.kill()


@pytest.fixture
async def other(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url, server.token, tries=1) as client:
        yield client


async def served(server: Server, other: Client) -> None:
    """A client that is there already is answered soon, and so is one that comes."""
    async with asyncio.timeout(SOON):
        await other.enqueue("work")
    async with asyncio.timeout(SOON):
        async with Client(server.url, server.token, tries=1) as new:
            await new.snapshot()


async def large_result(other: Client) -> int:
    """The id of a job with one."""
    job_id = (await other.enqueue("large"))["job"]["id"]
    (lease,) = (await other.lease(kinds=["large"]))["leases"]
    await other.complete(lease["lease_id"], LARGE)
    return job_id


def resident_mb(server: Server) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Left(asyncio.Protocol):
    """A connection that is opened and left."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


async def dripping(server: Server, call: bytes) -> bytes:
    """Sends a byte a second; everything it is told."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answer = asyncio.ensure_future(reader.read())
    for place in range(len(call)):
        writer.write(call[place : place + 1])
        done, _ = await asyncio.wait((answer,), timeout=1)
        if done:
            break
    writer.close()
    return await answer


async def test_connections_that_are_left_or_drip_are_closed_in_the_end_and_others_served_meanwhile(
    server: Server, other: Client, files: int
) -> None:
    many = min(MANY, files - SPARE)
    loop = asyncio.get_running_loop()
    drips = [asyncio.ensure_future(dripping(server, server.head("GET", "/v1/me"))) for _ in range(20)]
    left: list[Left] = []
    while len(left) < many:
        opened = await asyncio.gather(
            *(loop.create_connection(Left, "127.0.0.1", server.port) for _ in range(min(500, many - len(left))))
        )
        left += [one for _, one in opened]
        await served(server, other)
    closing = asyncio.ensure_future(asyncio.wait([one.closed for one in left]))
    deadline = time.monotonic() + HEAD_SECONDS + 10
    while not closing.done():
        await served(server, other)
        assert time.monotonic() < deadline, f"{sum(not one.closed.done() for one in left)} of {many} are still open"
        await asyncio.wait((closing,), timeout=0.2)
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in await asyncio.gather(*drips))
    await served(server, other)


async def test_answers_that_nobody_reads_hold_up_nobody_and_are_made_one_at_a_time(
    server: Server, other: Client
) -> None:
    job_id = await large_result(other)
    before = resident_mb(server)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            deaf = stack.enter_context(server.connect())
            deaf.sendall(server.head("GET", f"/v1/jobs/{job_id}/result") * 40)
        for _ in range(10):
            await served(server, other)
        assert resident_mb(server) - before < 20 * 5  # of 20 times 40 answers, most are not there yet
    await served(server, other)


async def test_a_stream_that_nobody_reads_holds_up_neither_jobs_nor_other_streams(
    server: Server, other: Client
) -> None:
    with server.connect() as deaf:
        deaf.sendall(server.head("GET", "/v1/events"))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 24)
        writer.write(server.head("GET", "/v1/events"))
        assert b": oaken" in await reader.readuntil(b": oaken\n\n")
        for _ in range(3):
            async with asyncio.timeout(10):
                told = await other.enqueue_many([{"kind": "work"}] * 1000)
                last = told["jobs"][-1]["job"]["id"]
                await reader.readuntil(b'"job_id":%d,' % last)
            await served(server, other)
        writer.close()
    await served(server, other)


async def test_clients_that_close_in_the_middle_of_an_answer_are_forgotten(server: Server, other: Client) -> None:
    job_id = await large_result(other)
    for reset in (True, False) * 20:
        with server.connect() as leaving:
            if reset:  # the close is a reset of the connection
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.sendall(server.head("GET", f"/v1/jobs/{job_id}/result") * 2)
            assert await asyncio.to_thread(leaving.recv, 100)
    await served(server, other)


async def test_a_body_shorter_than_it_said_does_nothing(server: Server, other: Client) -> None:
    body = orjson.dumps({"kind": "short"})
    for end in (len(body), len(body) - 1, 0):
        with server.connect() as lying:
            lying.sendall(server.head("POST", "/v1/jobs", len(body) + 1) + body[:end])
    await served(server, other)
    assert (await other.jobs(kind="short"))["jobs"] == []


async def test_a_body_longer_than_it_said_is_one_call_and_then_none(server: Server, other: Client) -> None:
    body = orjson.dumps({"kind": "long"})
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(server.head("POST", "/v1/jobs", len(body)) + body)
    assert b" 201 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(body)
    async with asyncio.timeout(SOON):
        assert (await reader.read()).count(b"HTTP/1.1 400 ") == 1
    writer.close()
    assert len((await other.jobs(kind="long"))["jobs"]) == 1


async def test_a_client_that_does_not_read_keeps_no_server_from_stopping(tmp_path: Path) -> None:
    stopping = await asyncio.to_thread(Server, tmp_path / "data", tmp_path / "stderr")
    try:
        async with Client(stopping.url, stopping.token, tries=1) as other:
            job_id = await large_result(other)
            with stopping.connect() as deaf:
                deaf.sendall(stopping.head("GET", f"/v1/jobs/{job_id}/result") * 40)
                await served(stopping, other)
                await asyncio.to_thread(stopping.stop)
    finally:
        stopping.kill()

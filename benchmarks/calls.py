"""Calls over HTTP for benchmarks: a client that does as little as it can, in a process of its own, and a plain server as a bound."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp


class Caller:
    """One kept connection, with as little of HTTP as it takes. `headers` are lines that each call has besides."""

    def __init__(self, token: str, headers: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n{headers}"
        self._heads: dict[tuple[str, int], bytes] = {}
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: bytes) -> bytes:
        head = self._heads.get((path, len(body)))
        if head is None:  # most are sent again and again, and the client shares the machine with the server
            head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode()
            self._heads[path, len(body)] = head
        self._writer.write(head + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer[9] == 50, answer[:200]  # 2xx
        length = int(answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


async def work(
    port: int,
    do: Callable[[Caller], Awaitable[None]],
    *,
    connections: int,
    seconds: float,
    headers: str = "",
) -> int:
    """How often the work was done over all connections, with the token in `BENCH_TOKEN`."""
    until = time.perf_counter() + seconds

    async def connection() -> int:
        caller = Caller(os.environ["BENCH_TOKEN"], headers, *await asyncio.open_connection("127.0.0.1", port))
        done = 0
        while time.perf_counter() < until:
            await do(caller)
            done += 1
        caller.close()
        return done

    return sum(await asyncio.gather(*(connection() for _ in range(connections))))


async def load(module: str, port: int, token: str, what: str, seconds: float) -> float:
    """How often a second `python -m MODULE --client PORT WHAT` does its work, which it prints."""
    arguments = [sys.executable, "-m", module, "--client", str(port), what, "--seconds", str(seconds)]
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=subprocess.PIPE, env={**os.environ, "BENCH_TOKEN": token}
    )
    out, _ = await process.communicate()
    return int(out) / seconds


@asynccontextmanager
async def plain(app: ASGIApp) -> AsyncGenerator[int]:
    """Serves an application by uvicorn with Oaken's settings and nothing else; its port."""
    config = uvicorn.Config(
        app,
        port=0,
        interface="asgi3",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        backlog=2048,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    ticks = asyncio.create_task(server.main_loop())
    yield server.servers[0].sockets[0].getsockname()[1]
    ticks.cancel()
    await server.shutdown()

"""Enqueues over HTTP beside a bare echo: calls a second at 32 connections, from a client process of their own.

    python -m benchmarks.http [--seconds 3] [--rounds 3]

The bound is a Starlette application that answers the same JSON with the same uvicorn settings, and does nothing. Wanted: single enqueues at
0.42 of it (0.55 is the aim), each checked, authenticated and durable; batches of 100 at 0.6 of the same batches inside the process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.store import PAYLOAD, WHO
from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from oaken_jobs.requests import NewJobRequest
from oaken_swarm.app import App
from oaken_swarm.server import Server

CONNECTIONS = 32
WANTED, WANTED_BATCH = 0.42, 0.6
ONE = orjson.dumps({"kind": "bench", "payload": PAYLOAD})
MANY = orjson.dumps({"jobs": [{"kind": "bench", "payload": PAYLOAD}] * 100})


async def _client(port: int, token: str, body: bytes, seconds: float) -> int:
    """How many calls were answered well."""
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    until = time.perf_counter() + seconds

    async def connection() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        done = 0
        while time.perf_counter() < until:
            writer.write(head + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer[9] == 50, answer[:200]  # 2xx
            length = int(answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
            done += 1
        writer.close()
        return done

    return sum(await asyncio.gather(*(connection() for _ in range(CONNECTIONS))))


async def _load(port: int, token: str, body: str, seconds: float) -> float:
    """Calls a second from another process."""
    arguments = [sys.executable, "-m", "benchmarks.http", "--client", str(port), body, "--seconds", str(seconds)]
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=subprocess.PIPE, env={**os.environ, "BENCH_TOKEN": token}
    )
    out, _ = await process.communicate()
    return int(out) / seconds


async def _echo(seconds: float) -> float:
    async def echo(request: Request) -> Response:
        value = orjson.loads(await request.body())
        return Response(orjson.dumps({"job": value, "created": True}), 201, media_type="application/json")

    app = Starlette(routes=[Route("/v1/jobs", echo, methods=["POST"])])
    config = uvicorn.Config(
        app,
        port=0,
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
    port = server.servers[0].sockets[0].getsockname()[1]
    rate = await _load(port, "none", "one", seconds)
    ticks.cancel()
    await server.shutdown()
    return rate


async def _oaken(folder: Path, body: str, seconds: float) -> float:
    core = Core.on_folder(folder, Rules(), "serve")
    await core.open()
    await core.start_duties()
    _, token = await core.tokens.create(Actor("user", "bench", "cli"), "bench", ["user"])
    server = Server(App(core, ServerSettings(port=0)), "127.0.0.1", 0)
    await server.start()
    rate = await _load(int(server.address.rsplit(":", 1)[1]), token, body, seconds)
    await server.stop()
    await core.close()
    return rate


async def _inside(folder: Path, seconds: float) -> float:
    """Batches of 100 a second, by as many callers, without HTTP."""
    core = Core.on_folder(folder, Rules(), "serve")
    await core.open()
    until, started = time.perf_counter() + seconds, time.perf_counter()

    async def caller() -> int:
        done = 0
        while time.perf_counter() < until:
            await core.jobs.enqueue_many(WHO, [NewJobRequest(kind="bench", payload=PAYLOAD) for _ in range(100)])
            done += 1
        return done

    done = sum(await asyncio.gather(*(caller() for _ in range(CONNECTIONS))))
    rate = done / (time.perf_counter() - started)
    await core.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each figure is measured (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; the median is shown (default 3)")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        port, body = cast("list[str]", options.client)
        sent = ONE if body == "one" else MANY
        print(uvloop.run(_client(int(port), os.environ["BENCH_TOKEN"], sent, options.seconds)))
        return
    calm_collector()
    seconds: float = options.seconds
    figures: dict[str, list[float]] = {}
    for _ in range(options.rounds):  # in turns, so that a slow moment of the machine hits all alike
        for name in ("echo", "enqueue", "batches inside", "batches over HTTP"):
            folder = Path(tempfile.mkdtemp(prefix="oaken-bench-", dir=Path.cwd()))
            work: Any = {
                "echo": lambda: _echo(seconds),
                "enqueue": lambda f=folder: _oaken(f, "one", seconds),
                "batches inside": lambda f=folder: _inside(f, seconds),
                "batches over HTTP": lambda f=folder: _oaken(f, "many", seconds),
            }[name]
            try:
                figures.setdefault(name, []).append(uvloop.run(work()))
            finally:
                shutil.rmtree(folder)
    middle = {name: statistics.median(values) for name, values in figures.items()}
    print(f"{'':24}{'calls/s':>10}{'of its bound':>14}{'wanted':>8}")
    for name, bound, wanted in (
        ("echo", "echo", None),
        ("enqueue", "echo", WANTED),
        ("batches inside", "batches inside", None),
        ("batches over HTTP", "batches inside", WANTED_BATCH),
    ):
        print(
            f"{name:24}{middle[name]:>10.0f}{middle[name] / middle[bound]:>14.2f}{'' if wanted is None else f'{wanted:.2f}':>8}"
        )


if __name__ == "__main__":
    main()

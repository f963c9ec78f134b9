"""Calls over HTTP beside a bare echo and a peer: how many a second at 32 connections, from a client process of their own.

    python -m benchmarks.http [--seconds 3] [--rounds 3]

The bound is a Starlette application that answers the same JSON with the same uvicorn settings, and does nothing. Wanted: single enqueues at
0.42 of it (0.55 is the aim), each checked, authenticated and durable; batches of 100 at 0.6 of the same batches inside the process.

The peer is jobd, a published job daemon on SQLite, as it ships: it may lose the last commits at a power cut. A cycle of its is submit,
next-job, complete; one of ours enqueue, lease, complete. Wanted are 5 times as many. Both servers are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import orjson
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.calls import Caller, load, plain, work
from benchmarks.store import PAYLOAD, WHO
from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from oaken_jobs.requests import NewJobRequest
from oaken_swarm.app import App
from oaken_swarm.server import Server

CONNECTIONS = 32
WANTED, WANTED_BATCH, WANTED_PEER = 0.42, 0.6, 5.0
ONE = orjson.dumps({"kind": "bench", "payload": PAYLOAD})
PEER_JOB = orjson.dumps({"cmd": ["true"], "cwd": "/tmp", "project": "bench", "env": {"text": "hello", "n": "1"}})
PEER_WORKER = orjson.dumps(
    {"host": "bench", "free_vram_gb": 0, "unregistered_vram_gb": 0, "free_ram_gb": 64, "idle_cpus": 64, "wait_s": 10}
)
MANY = orjson.dumps({"jobs": [{"kind": "bench", "payload": PAYLOAD}] * 100})


async def _one(caller: Caller) -> None:
    await caller.post("/v1/jobs", ONE)


async def _many(caller: Caller) -> None:
    await caller.post("/v1/jobs", MANY)


async def _cycle(caller: Caller) -> None:
    await caller.post("/v1/jobs", ONE)
    (lease,) = orjson.loads(await caller.post("/v1/leases", b'{"wait_seconds":10}'))["leases"]
    await caller.post(f"/v1/leases/{lease['lease_id']}/complete", b'{"result":{"ok":true}}')


async def _peer_cycle(caller: Caller) -> None:
    await caller.post("/submit", PEER_JOB)
    while (job := orjson.loads(await caller.post("/next-job", PEER_WORKER))) is None:
        pass  # another has taken the one it saw
    await caller.post(f"/jobs/{job['id']}/complete", b'{"exit_code":0}')


WORK = {"one": _one, "many": _many, "cycle": _cycle, "peer": _peer_cycle}


async def _load(port: int, token: str, what: str, seconds: float) -> float:
    return await load("benchmarks.http", port, token, what, seconds)


async def _process(
    command: list[str], environ: dict[str, str], port: int, token: str, what: str, seconds: float
) -> float:
    """The same on a server that this starts, once it listens."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OAKEN_", "JOBD_"))}
    server = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**clean, **environ}
    )
    try:
        for _ in range(300):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return await _load(port, token, what, seconds)
        raise TimeoutError(f"{command} does not listen at port {port} after 30 s")
    finally:
        server.terminate()
        await server.wait()


async def _cycles(folder: Path, seconds: float) -> float:
    core = Core.on_folder(folder, Rules(), "cli")
    await core.open()
    _, token = await core.tokens.create(Actor("user", "bench", "cli"), "bench", ["user", "agent"])
    await core.close()
    port = _free_port()
    serve = [sys.executable, "-m", "oaken_app.main", "serve", "--no-runner", "--port", str(port)]
    return await _process(serve, {"OAKEN_DATA_DIR": str(folder)}, port, token, "cycle", seconds)


async def _peer_cycles(folder: Path, seconds: float) -> float:
    port = _free_port()
    environ = {
        "JOBD_ALLOW_NO_AUTH": "1",
        "JOBD_CONFIG_DIR": str(folder),
        "JOBD_DB_URL": f"sqlite:///{folder / 'jobd.db'}",
        "JOBD_LOGS_DIR": str(folder / "logs"),
        "JOBD_PORT": str(port),
    }
    return await _process([sys.executable, "-m", "jobd.main"], environ, port, "none", "peer", seconds)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def _echo(seconds: float) -> float:
    async def echo(request: Request) -> Response:
        value = orjson.loads(await request.body())
        return Response(orjson.dumps({"job": value, "created": True}), 201, media_type="application/json")

    app = Starlette(routes=[Route("/v1/jobs", echo, methods=["POST"])])
    async with plain(app) as port:
        return await _load(port, "none", "one", seconds)


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
        port, what = cast("list[str]", options.client)
        print(uvloop.run(work(int(port), WORK[what], connections=CONNECTIONS, seconds=options.seconds)))
        return
    calm_collector()
    seconds: float = options.seconds
    figures: dict[str, list[float]] = {}
    for _ in range(options.rounds):  # in turns, so that a slow moment of the machine hits all alike
        for name in ("echo", "enqueue", "batches inside", "batches over HTTP", "cycles of jobd", "cycles"):
            folder = Path(tempfile.mkdtemp(prefix="oaken-bench-", dir=Path.cwd()))
            measure: Any = {
                "echo": lambda: _echo(seconds),
                "enqueue": lambda f=folder: _oaken(f, "one", seconds),
                "batches inside": lambda f=folder: _inside(f, seconds),
                "batches over HTTP": lambda f=folder: _oaken(f, "many", seconds),
                "cycles of jobd": lambda f=folder: _peer_cycles(f, seconds),
                "cycles": lambda f=folder: _cycles(f, seconds),
            }[name]
            try:
                figures.setdefault(name, []).append(uvloop.run(measure()))
            finally:
                shutil.rmtree(folder)
    middle = {name: statistics.median(values) for name, values in figures.items()}
    print(f"{'':24}{'a second':>10}{'of its bound':>14}{'wanted':>8}")
    for name, bound, wanted in (
        ("echo", "echo", None),
        ("enqueue", "echo", WANTED),
        ("batches inside", "batches inside", None),
        ("batches over HTTP", "batches inside", WANTED_BATCH),
        ("cycles of jobd", "cycles of jobd", None),
        ("cycles", "cycles of jobd", WANTED_PEER),
    ):
        print(
            f"{name:24}{middle[name]:>10.0f}{middle[name] / middle[bound]:>14.2f}{'' if wanted is None else f'{wanted:.2f}':>8}"
        )


if __name__ == "__main__":
    main()

"""Tool calls over MCP's streamable HTTP beside a trivial tool of the SDK's own: calls a second at 16 connections. And how soon `oaken mcp`
answers on stdio, beside the import of the SDK.

    python -m benchmarks.mcp [--seconds 3] [--rounds 3]

The bound is the SDK's server with a tool that answers its argument, with the same uvicorn settings, without sessions, answering in JSON.
Wanted: `enqueue`, authenticated, checked and durable, at 0.6 of it. The client is another process that sends the same bytes again and
again. Wanted of the start: an answer within a second.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
import uvloop
from mcp.server.lowlevel import Server as McpServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from benchmarks.calls import Caller, load, plain, work
from benchmarks.store import PAYLOAD
from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from oaken_mcp.http import PATH, Endpoint
from oaken_swarm.app import App
from oaken_swarm.server import Server

CONNECTIONS = 16
WANTED = 0.6
WANTED_SECONDS = 1.0


def _message(tool: str, arguments: dict[str, Any]) -> bytes:
    params = {"name": tool, "arguments": arguments}
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


BODIES = {
    "echo": _message("echo", {"text": "hello"}),
    "enqueue": _message("enqueue", {"kind": "bench", "payload": PAYLOAD}),
}


HEADERS = "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n"


async def _call(caller: Caller, body: bytes) -> None:
    told = await caller.post(PATH, body)
    assert b'"result"' in told, told[:300]
    assert b'"isError":true' not in told, told[:300]


async def _load(port: int, token: str, tool: str, seconds: float) -> float:
    return await load("benchmarks.mcp", port, token, tool, seconds)


async def _echo(seconds: float) -> float:
    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = str((params.arguments or {})["text"])
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    manager = StreamableHTTPSessionManager(
        McpServer("echo", on_call_tool=call_tool), json_response=True, stateless=True
    )
    async with manager.run(), plain(manager.handle_request) as port:
        return await _load(port, "none", "echo", seconds)


async def _oaken(folder: Path, seconds: float) -> float:
    core = Core.on_folder(folder, Rules(), "serve")
    await core.open()
    await core.start_duties()
    _, token = await core.tokens.create(Actor("user", "bench", "cli"), "bench", ["user"])
    endpoint = Endpoint(core)
    server = Server(App(core, ServerSettings(port=0), {"mcp": endpoint}), "127.0.0.1", 0)
    await server.start()
    rate = await _load(int(server.address.rsplit(":", 1)[1]), token, "enqueue", seconds)
    await endpoint.stop()
    await server.stop()
    await core.close()
    return rate


def _import_seconds() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mcp.server"], check=True)
    return time.perf_counter() - begun


def _start_seconds(folder: Path) -> float:
    """From the start of `oaken mcp` on a folder to its first answer."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    command = [sys.executable, "-m", "oaken_app.main", "mcp", "--data-dir", str(folder)]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(orjson.dumps(hello) + b"\n")
        process.stdin.flush()
        told = process.stdout.readline()
        seconds = time.perf_counter() - begun
        process.stdin.close()
    assert b'"result"' in told, told[:300]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each figure is measured (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; the median is shown (default 3)")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        port, tool = options.client
        do = partial(_call, body=BODIES[tool])
        print(uvloop.run(work(int(port), do, connections=CONNECTIONS, seconds=options.seconds, headers=HEADERS)))
        return
    calm_collector()
    echoes: list[float] = []
    enqueues: list[float] = []
    imports: list[float] = []
    starts: list[float] = []
    for _ in range(options.rounds):  # in turns, so that a slow moment of the machine hits both
        echoes.append(uvloop.run(_echo(options.seconds)))
        folder = Path(tempfile.mkdtemp(prefix="oaken-bench-", dir=Path.cwd()))
        try:
            enqueues.append(uvloop.run(_oaken(folder, options.seconds)))
            imports.append(_import_seconds())
            starts.append(_start_seconds(folder))
        finally:
            shutil.rmtree(folder)
    bound, rate = statistics.median(echoes), statistics.median(enqueues)
    print(f"{'':24}{'calls/s':>10}{'of its bound':>14}{'wanted':>8}")
    print(f"{'echo of the SDK':24}{bound:>10.0f}{1.0:>14.2f}{'':>8}")
    print(f"{'enqueue':24}{rate:>10.0f}{rate / bound:>14.2f}{WANTED:>8.2f}")
    print(f"\n{'':24}{'seconds':>10}{'':>14}{'wanted':>8}")
    print(f"{'import of the SDK':24}{statistics.median(imports):>10.2f}")
    print(f"{'first answer on stdio':24}{statistics.median(starts):>10.2f}{'':>14}{WANTED_SECONDS:>8.2f}")


if __name__ == "__main__":
    main()

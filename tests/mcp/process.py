"""The server as a process of its own, spoken to line by line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.forks import command

ROOT = Path(__file__).parents[2]
META = "io.modelcontextprotocol/"
SECONDS = 20


class Peer:
    """A client of one server process."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name
        self._id = 0
        self._answers: dict[int, Any] = {}
        self.lines: list[str] = []

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Sends a request without waiting; its id."""
        self._id += 1
        self.write({"id": self._id, "method": method, "params": params})
        return self._id

    async def answer(self, request_id: int | None) -> dict[str, Any]:
        """The answer to a request, whichever comes first."""
        assert self.process.stdout is not None
        while request_id not in self._answers:
            line = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
            assert line, "the server ended"
            self.lines.append(line.decode())
            message = json.loads(line)
            self._answers[message["id"]] = message
        return self._answers.pop(request_id)

    async def initialize(self) -> dict[str, Any]:
        client = {"name": self.name, "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        answer = await self.answer(self.send("initialize", params))
        self.write({"method": "notifications/initialized"})
        return answer["result"]

    def modern(self, **params: Any) -> dict[str, Any]:
        """Params in the envelope of the later era."""
        meta = {
            "protocolVersion": "2026-07-28",
            "clientCapabilities": {},
            "clientInfo": {"name": self.name, "version": "1"},
        }
        return {**params, "_meta": {META + name: value for name, value in meta.items()}}

    async def call(self, tool: str, **arguments: Any) -> Any:
        """The structured answer of a tool."""
        answer = await self.answer(self.send("tools/call", {"name": tool, "arguments": arguments}))
        assert not answer["result"]["isError"], answer
        return answer["result"]["structuredContent"]

    async def end(self) -> tuple[int, str]:
        """Closes stdin; the exit code and what else was on stdout."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self.ended()

    def hang_up(self) -> None:
        """Closes both pipes, as the end of a client's process does."""
        for descriptor in (0, 1):
            self.process._transport.get_pipe_transport(descriptor).close()  # type: ignore[attr-defined]

    async def ended(self, seconds: float = 2) -> tuple[int, str]:
        """The exit code, which must come in time, and what else was on stdout."""
        code = await asyncio.wait_for(self.process.wait(), seconds)
        assert self.process.stdout is not None
        return code, (await self.process.stdout.read()).decode()

    async def stderr(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


@asynccontextmanager
async def server(
    data_dir: Path, *options: str, name: str = "tester", program: str | None = None
) -> AsyncIterator[Peer]:
    """A running server; killed at the end if it has not ended by itself."""
    start = [sys.executable, "-c", program] if program else command("oaken_mcp.__main__")
    process = await asyncio.create_subprocess_exec(
        *start,
        "--data-dir",
        str(data_dir),
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("core", "swarm", "."))},
        cwd=data_dir,
        limit=1 << 16,
    )
    try:
        yield Peer(process, name)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()

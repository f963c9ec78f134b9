"""A thousand agents in long poll and a hundred event streams on one server: their memory, and how soon one of them has a new job.

    python -m benchmarks.crowd [--rounds 200]

Memory is what the resident set of `oaken serve` grew by from before the first of them to when all wait. The time is that from the start of
an enqueue call to the arrival of the lease at whichever agent gets it; all streams are told of each job besides. Linux only, for the
memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import uvloop

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor

AGENTS, STREAMS = 1000, 100
WANTED_MB, WANTED_MS = 60.0, 20.0
ALL_WAIT = (f"oaken_lease_requests_waiting {AGENTS}.0", f"oaken_streams {STREAMS}.0")


class _Connection:
    """One kept connection, with as little of HTTP as it takes: a client library for each agent would be what is measured."""

    def __init__(self, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._token = token
        self.reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, port: int, token: str) -> _Connection:
        return cls(token, *await asyncio.open_connection("127.0.0.1", port))

    async def begin(self, method: str, path: str, fields: Any = None) -> bytes:
        """Sends a call; the head of its answer."""
        body = b"" if fields is None else orjson.dumps(fields)
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
        said = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{head}{said}\r\n".encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        assert answer[9] == 50, answer[:200]  # 2xx
        return answer

    async def ask(self, method: str, path: str, fields: Any = None) -> bytes:
        """Sends a call; the body of its answer."""
        head = await self.begin(method, path, fields)
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return await self.reader.readexactly(length)


async def _agent(port: int, token: str, number: int, arrived: asyncio.Queue[float]) -> None:
    """Waits for jobs, says when one came, and completes it."""
    connection = await _Connection.to(port, token)
    asked = {"agent": f"bench/{number}", "wait_seconds": 60}
    while True:
        answer = await connection.ask("POST", "/v1/leases", asked)
        at = time.perf_counter()
        for lease in orjson.loads(answer)["leases"]:
            await connection.ask("POST", f"/v1/leases/{lease['lease_id']}/complete", {"result": {}})
            arrived.put_nowait(at)


async def _stream(port: int, token: str, seen: list[int], number: int) -> None:
    """Reads events, and counts them."""
    connection = await _Connection.to(port, token)
    await connection.begin("GET", "/v1/events")
    while data := await connection.reader.read(1 << 16):
        seen[number] += data.count(b"event: ")


def _resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def _measure(pid: int, port: int, token: str, rounds: int) -> tuple[float, float, list[float], list[int]]:
    """Memory before and with all of them (MB), milliseconds from enqueues to leases, and how many events each stream saw."""
    caller = await _Connection.to(port, token)
    await caller.ask("GET", "/metrics")  # which has loaded what it needs
    before = _resident_mb(pid)
    arrived: asyncio.Queue[float] = asyncio.Queue()
    seen = [0] * STREAMS
    crowd = [asyncio.create_task(_agent(port, token, n, arrived)) for n in range(AGENTS)]
    crowd += [asyncio.create_task(_stream(port, token, seen, n)) for n in range(STREAMS)]

    async def all_wait() -> None:
        while True:
            figures = (await caller.ask("GET", "/metrics")).decode()
            if all(line in figures for line in ALL_WAIT):
                return
            for task in crowd:
                if task.done():
                    task.result()
            await asyncio.sleep(0.1)

    await asyncio.wait_for(all_wait(), 30)
    with_all = _resident_mb(pid)
    took: list[float] = []
    for n in range(rounds):
        await asyncio.sleep(0.02 + n % 10 / 1000)  # at changing distances from the server's own rhythm
        began = time.perf_counter()
        await caller.ask("POST", "/v1/jobs", {"kind": "bench", "payload": {"n": n}})
        took.append((await asyncio.wait_for(arrived.get(), 30) - began) * 1000)
    for task in crowd:
        task.cancel()
    await asyncio.wait(crowd)
    return before, with_all, took, seen


async def _token(folder: Path) -> str:
    core = Core.on_folder(folder, Rules(), "cli")
    await core.open()
    _, token = await core.tokens.create(Actor("user", "bench", "cli"), "bench", ["user", "agent"])
    await core.close()
    return token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="how many jobs are enqueued (default 200)")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("OAKEN_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="oaken-bench-", dir=Path.cwd()) as folder:
        token = asyncio.run(_token(Path(folder)))
        command = [sys.executable, "-m", "oaken_app.main", "serve", "--port", "0", "--no-runner", "--data-dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            before, with_all, took, seen = uvloop.run(_measure(server.pid, port, token, options.rounds))
        finally:
            server.terminate()
            server.wait()
    grown, median = with_all - before, statistics.median(took)
    late = sorted(took)[int(len(took) * 0.95)]
    print(f"{AGENTS} agents in long poll, {STREAMS} event streams, each of which saw {min(seen)} events or more")
    print(f"{'':34}{'measured':>10}{'wanted':>8}")
    print(f"{'resident before, MB':34}{before:>10.1f}")
    print(f"{'grown by, MB':34}{grown:>10.1f}{WANTED_MB:>8.0f}")
    print(f"{'enqueue to lease, median, ms':34}{median:>10.1f}{WANTED_MS:>8.0f}")
    print(f"{'enqueue to lease, p95, ms':34}{late:>10.1f}")
    sys.exit(grown >= WANTED_MB or median >= WANTED_MS)


if __name__ == "__main__":
    main()

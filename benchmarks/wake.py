"""How long a waiting lease request takes to be answered: from an enqueue over another connection, and from another process's.

python -m benchmarks.wake [--rounds 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_swarm import Client

WANTED_MS = {"another connection": 10.0, "another process": 50.0}
WHO = Principal(Actor("user", "bench", "cli"), frozenset({"user", "agent", "admin"}))


async def _answers(client: Client, enqueue: Callable[[], Awaitable[object]], rounds: int) -> list[float]:
    """Milliseconds from the start of an enqueue to the answer of a request that was waiting for it."""
    took: list[float] = []
    for n in range(rounds):
        waiting = asyncio.create_task(client.lease(wait_seconds=20))
        await asyncio.sleep(0.03 + n % 10 / 1000)  # until it waits, at changing distances from the server's own rhythm
        began = time.perf_counter()
        adding = asyncio.create_task(enqueue())  # type: ignore[arg-type]
        (lease,) = (await waiting)["leases"]
        took.append((time.perf_counter() - began) * 1000)
        await adding
        await client.complete(lease["lease_id"], {})
    return took


async def _measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    core = Core.on_folder(folder, Rules(), "cli")
    await core.open()
    _, token = await core.tokens.create(WHO.actor, "bench", ["user", "agent"])
    command = [sys.executable, "-m", "oaken_app.main", "serve", "--port", "0", "--no-runner", "--data-dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert server.stdout is not None
        url = server.stdout.readline().removeprefix("oaken ready on ").strip()
        async with Client(url, token) as waiting, Client(url, token) as other:
            return {
                "another connection": await _answers(waiting, lambda: other.enqueue("work"), rounds),
                "another process": await _answers(
                    waiting, lambda: core.jobs.enqueue(WHO, NewJobRequest(kind="work")), rounds
                ),
            }
    finally:
        server.terminate()
        server.wait()
        await core.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="how often each is measured (default 200)")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("OAKEN_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="oaken-bench-", dir=Path.cwd()) as folder:
        figures = asyncio.run(_measure(Path(folder), options.rounds))
    slow = False
    print(f"{'':22}{'p50 ms':>8}{'p99 ms':>8}{'wanted':>8}")
    for name, took in figures.items():
        ordered = sorted(took)
        median = statistics.median(ordered)
        slow |= median >= WANTED_MS[name]
        print(f"{name:22}{median:>8.1f}{ordered[int(len(ordered) * 0.99)]:>8.1f}{WANTED_MS[name]:>8.0f}")
    sys.exit(slow)


if __name__ == "__main__":
    main()

"""Three processes (a busy server, a command line, an MCP server) writing to one file: how long each write takes.

python -m benchmarks.contention [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shutil
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest

ROLES = (("serve", 16), ("cli", 1), ("mcp", 2))
"""Role, and how many callers it has at once."""
WANTED_MS = 100.0

spawned = multiprocessing.get_context("spawn")


def write(folder: Path, role: str, callers: int, seconds: float, start: Barrier, results: Any) -> None:
    """One process: enqueues, leases and completes; puts (role, sorted seconds of each write, ids it finished)."""

    async def run() -> None:
        calm_collector()
        core = Core.on_folder(folder, Rules(), role)
        await core.open()
        await core.maintenance.start()
        took: list[float] = []
        done: list[int] = []
        who = Principal(Actor("user", role, "http"), frozenset({"user", "agent"}))

        async def timed(call: Any) -> Any:
            began = time.perf_counter()
            answer = await call
            took.append(time.perf_counter() - began)
            return answer

        async def caller() -> None:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                await timed(core.jobs.enqueue(who, NewJobRequest(kind="work", payload={"by": role})))
                for lease in await timed(core.jobs.lease(who)):
                    done.append((await timed(core.jobs.complete(who, lease.lease_id))).id)

        await asyncio.to_thread(start.wait, 60)
        try:
            await asyncio.gather(*(caller() for _ in range(callers)))
        finally:
            await core.close()
        results.put((role, sorted(took), done))

    asyncio.run(run())


def measure(folder: Path, seconds: float) -> list[tuple[str, list[float], list[int]]]:
    """What each process put, after all have ended well."""
    start, results = spawned.Barrier(len(ROLES)), spawned.Queue()
    processes = [spawned.Process(target=write, args=(folder, *role, seconds, start, results)) for role in ROLES]
    for process in processes:
        process.start()
    answers = [results.get(timeout=seconds + 60) for _ in processes]
    for process in processes:
        process.join(60)
        if process.exitcode != 0:
            raise RuntimeError(f"a process ended with {process.exitcode}")
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long they write (default 60)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="oaken-bench-", dir=Path.cwd()))
    try:
        answers = measure(folder, options.seconds)
    finally:
        shutil.rmtree(folder)
    print(f"{'':8}{'writes':>10}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}")
    worst = 0.0
    for role, took, _ in answers:
        p50, p99, most = (took[int((len(took) - 1) * q)] * 1000 for q in (0.5, 0.99, 1.0))
        worst = max(worst, p99)
        print(f"{role:8}{len(took):>10}{p50:>10.1f}{p99:>10.1f}{most:>10.1f}")
    print(f"worst p99 {worst:.1f} ms (wanted under {WANTED_MS:.0f})")
    sys.exit(worst >= WANTED_MS)


if __name__ == "__main__":
    main()

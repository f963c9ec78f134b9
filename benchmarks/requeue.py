"""Requeues a hundred thousand failed jobs by one filter while fifty agents lease and complete others, and looks for stalls.

    python -m benchmarks.requeue [JOBS]

A stall is the time from a lease request to its answer. Wanted: none over 200 ms. The same agents without the requeue beside them are
the peer. Absolute times: on a busy machine look at the ratio.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter

JOBS = 100_000
AGENTS = 50
WANTED_MS = 200
ME = Principal(Actor("user", "bench", "cli"), frozenset({"user", "agent"}))


async def _fail(core: Core, count: int) -> None:
    request = NewJobRequest(kind="old", payload={"text": "x" * 100}, max_attempts=1)
    for _ in range(0, count, 1000):
        await core.jobs.enqueue_many(ME, [request] * 1000)
        leases = await core.jobs.lease(ME, max=1000, kinds=["old"])
        await core.jobs.finish_many(ME, [core.jobs.fail_op(ME, one.lease_id, "boom") for one in leases])


async def _agent(core: Core, name: str, stop: asyncio.Event, stalls: list[float]) -> None:
    who = Principal(Actor("agent", name, "http"), frozenset({"agent", "user"}))
    while not stop.is_set():
        started = time.perf_counter()
        await core.jobs.enqueue(who, NewJobRequest(kind="live"))
        (lease, *_) = await core.jobs.lease(who, kinds=["live"], wait_seconds=30) or [None]
        if lease is not None:
            await core.jobs.complete(who, lease.lease_id)
        stalls.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(0.05)


async def _measure(core: Core, work: asyncio.Future[None] | None, seconds: float) -> list[float]:
    stop, stalls = asyncio.Event(), list[float]()
    agents = [asyncio.ensure_future(_agent(core, f"agent-{n}", stop, stalls)) for n in range(AGENTS)]
    await (work if work is not None else asyncio.sleep(seconds))
    stop.set()
    await asyncio.gather(*agents)
    return sorted(stalls)


async def _requeue(core: Core) -> None:
    cursor, done, started = None, 0, time.perf_counter()
    while True:
        bulk = await core.jobs.requeue_all(ME, JobFilter(states=("failed",), kinds=("old",)), cursor=cursor)
        done += bulk.done
        cursor = bulk.cursor
        if cursor is None:
            break
    print(f"requeued {done} jobs in {time.perf_counter() - started:.1f} s")


async def _main(count: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        core = Core.on_folder(Path(folder), Rules(), "serve")
        await core.open()
        await core.maintenance.start()
        await _fail(core, count)
        calm_collector()
        alone = await _measure(core, None, 5)
        beside = await _measure(core, asyncio.ensure_future(_requeue(core)), 0)
        await core.close()
    print(f"{AGENTS} agents, one cycle of enqueue, lease and complete (ms)  median    99 %     max")
    for name, stalls in (("alone", alone), ("beside the requeue", beside)):
        p99 = stalls[int(len(stalls) * 0.99)]
        print(f"{name:58}{stalls[len(stalls) // 2]:8.1f}{p99:8.1f}{stalls[-1]:8.1f}")
    print(f"wanted: no cycle over {WANTED_MS} ms")
    return beside[-1] <= WANTED_MS


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)) else 1)

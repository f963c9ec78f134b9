"""Prunes a million jobs while a job falls due each second, and looks how late these are leased.

    python -m benchmarks.prune [JOBS]

Wanted: none later than 200 ms. The same without pruning beside is the peer.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.shapes import NOW
from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.sqlite.driver import Database

JOBS = 1_000_000
WANTED_MS = 200
ME = Principal(Actor("user", "bench", "cli"), frozenset({"user", "agent"}))


def _fill(database: Database, count: int) -> None:
    """Jobs that ended long ago, each with its payload, result, attempt and three changes."""
    at = NOW - 400 * 86_400_000
    numbers = f"with recursive c(n) as (select 1 union all select n + 1 from c where n < {count})"
    database.execute("begin")
    database.execute(
        f"{numbers} insert into jobs (workspace, kind, queue, routed_by, state, priority, max_attempts, created_at, run_at, actor_kind, "
        f"actor_id, actor_via, epoch, attempts, finished_at) select 'default', 'old', 'default', 'default', 'succeeded', 50, 5, {at}, "
        f"{at}, 'user', 'bench', 'http', 1, 1, {at} + n from c"
    )
    database.execute('insert into payloads select id, \'{"text":"hello"}\' from jobs')
    database.execute("insert into results select id, '{\"ok\":true}' from jobs")
    database.execute(
        "insert into attempts (job_id, epoch, attempt, agent, holder, nonce, started_at, ended_at, outcome) "
        f"select id, 1, 1, 'a', 'a', 'x', {at}, {at}, 'succeeded' from jobs"
    )
    for verb in ("enqueue", "claim", "complete"):
        database.execute(
            "insert into activity (at, event, verb, job_id, to_state, actor_kind, actor_id, actor_via) "
            f"select {at}, 'job_state_changed', '{verb}', id, 'succeeded', 'user', 'bench', 'http' from jobs"
        )
    database.execute("commit")


async def _due(core: Core, seconds: float, stop: asyncio.Event) -> list[float]:
    """How late (ms) jobs are leased that fall due twice a second."""
    late: list[float] = []
    until = time.monotonic() + seconds
    while not stop.is_set() and time.monotonic() < until:
        job = (await core.jobs.enqueue(ME, NewJobRequest(kind="live", delay_seconds=0.5))).job
        (lease,) = await core.jobs.lease(ME, kinds=["live"], wait_seconds=30)
        late.append(core.clock.now() - job.run_at)
        await core.jobs.complete(ME, lease.lease_id)
    return sorted(late)


async def _main(count: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        core = Core.on_folder(Path(folder), Rules(keep_days=1, event_ring_size=0), "serve")
        await core.open()
        await core.store._writer.run(_fill, count)  # type: ignore[attr-defined]  # pyright: ignore
        calm_collector()
        alone = await _due(core, 5, asyncio.Event())
        stop, started = asyncio.Event(), time.monotonic()
        watching = asyncio.ensure_future(_due(core, 3600, stop))
        await core.pruner.tick()
        took = time.monotonic() - started
        stop.set()
        beside = await watching
        left = sum(row.jobs for row in await core.store.counts() if row.state == "succeeded")
        await core.close()
    print(f"pruned {count} jobs in {took:.0f} s, {left} left")
    print("how late a job that falls due is leased (ms)   median     max")
    for name, late in (("alone", alone), ("beside the pruning", beside)):
        print(f"{name:46}{late[len(late) // 2]:7.0f}{late[-1]:8.0f}   ({len(late)} jobs)")
    print(f"wanted: none later than {WANTED_MS} ms")
    return beside[-1] <= WANTED_MS


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)) else 1)

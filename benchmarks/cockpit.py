"""How soon pages begin and end with a million jobs in the database.

    python -m benchmarks.cockpit [JOBS]

Wanted: the first byte of any page within 50 ms, the first time it is asked for, too. The login, which reads nothing, is the peer.
What takes long to count is counted once for all who look, and shown with its age.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core, calm_collector
from oaken_jobs.files import DATABASE
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from oaken_jobs.routing import QueueRule
from oaken_jobs.store.sqlite.driver import connect
from oaken_swarm import cookie
from oaken_swarm.app import App
from oaken_swarm.server import Server

JOBS = 1_000_000
ROUNDS = 12
WANTED_MS = 50
_FILL = """
with recursive c(n) as (select 1 union all select n + 1 from c where n < {count}), d as (
  select n, {now} - 1000 * ({count} - n) at, case
    when n > {count} - 50 then 'running' when n % 10 < 6 then 'succeeded' when n % 10 < 9 then 'queued'
    when n % 20 = 9 then 'failed' else 'cancelled' end s from c)
insert into jobs (workspace, kind, queue, routed_by, state, priority, title, tags, subject, max_attempts, created_at, run_at,
  actor_kind, actor_id, actor_via, attempts, started_at, finished_at, holder, agent, lease_expires, lease_ms, epoch, cost_usd,
  grade, grade_why, grade_version, last_error)
select 'default', 'kind' || (n % 7), 'q' || (n % 5), 'default', s, n % 3 * 50, 'Job number ' || n, '["t' || (n % 50) || '"]',
  'note:' || (n % 9999), 5, at, at, 'user', 'user' || (n % 20), 'http', s <> 'queued', at + 100,
  case when s not in ('queued', 'running') then at + 200 end, case s when 'running' then 'bot' end,
  case when s <> 'queued' then 'bot/' || (n % 30) end, case s when 'running' then {now} + 3600000 end, 60000, 1, 0.001,
  case s when 'succeeded' then 'ok' when 'failed' then 'bad' when 'cancelled' then 'note' end,
  case when s not in ('queued', 'running') then 'so' end, 1, case s when 'failed' then 'boom' end
from d
"""
PAGES = (
    "/login",
    "/",
    "/jobs",
    "/jobs?state=running",
    "/jobs?state=failed&kind=kind3",
    "/jobs?q=nothing-has-this",
    "/jobs?tag=t7&created_before=2020-01-01T00:00",
    "/jobs/bulk?action=requeue&state=failed",
    "/activity/50000",
    "/feed",
    "/feed?grade=warn",
    "/agents",
    "/queues",
    "/schedules",
    "/events",
    "/trace",
    "/tokens",
)


async def _timed(http: httpx2.AsyncClient, path: str) -> tuple[float, float]:
    """Milliseconds to the first byte of a page, and to its last."""
    began = time.perf_counter()
    async with http.stream("GET", path, headers={"Accept": "text/html"}) as answer:
        assert answer.status_code == 200, (path, answer.status_code)
        parts = answer.aiter_raw()
        await anext(parts)
        first = time.perf_counter()
        async for _ in parts:
            pass
    return (first - began) * 1000, (time.perf_counter() - began) * 1000


async def main(count: int) -> None:
    queues = {name: QueueRule(name) for name in ("default", *(f"q{number}" for number in range(5)))}
    with tempfile.TemporaryDirectory(prefix="oaken-bench-", dir=".") as folder:
        core = Core.on_folder(Path(folder), Rules(queues=queues), "serve")
        await core.open()
        began = time.perf_counter()
        database = await connect(Path(folder) / DATABASE)
        await database.run(lambda db: db.execute(_FILL.format(count=count, now=core.clock.now())).fetchall())
        await database.run(lambda db: db.execute("commit") if db.in_transaction else None)
        await database.close()
        print(f"{count:,} jobs, made in {time.perf_counter() - began:.0f} s")
        server = Server(App(core, ServerSettings(port=0)), "127.0.0.1", 0)
        await core.bus.start()
        await server.start()
        _, token = await core.tokens.create(Actor("user", "bench", "cli"), "bench", ["admin"])
        secret = await core.sessions.open(token)
        async with httpx2.AsyncClient(
            base_url=server.address, cookies={cookie.name(server.address): secret}, timeout=60, trust_env=False
        ) as http:
            await http.get("/healthz")  # the connection
            await asyncio.sleep(2)  # the templates are made ready
            calm_collector()
            print(f"{'page':48} {'first time':>20} {'then, median':>20} {'most':>8}   (ms to first byte / last)")
            worst = 0.0
            for path in PAGES:
                begun, ended = await _timed(http, path)
                rest = [await _timed(http, path) for _ in range(ROUNDS)]
                firsts, lasts = zip(*rest, strict=True)
                most = max(begun, *firsts)
                worst = max(worst, most)
                then = f"{statistics.median(firsts):.1f} / {statistics.median(lasts):.1f}"
                print(f"{path:48} {begun:9.1f} / {ended:8.1f} {then:>20} {most:8.1f}")
            print(f"slowest first byte {worst:.1f} ms; wanted: {WANTED_MS}")
        await server.stop()
        await core.bus.stop()
        await core.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS))

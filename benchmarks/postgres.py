"""Durable enqueue-lease-complete cycles a second on PostgreSQL, beside two published queues on the same server in the same run.

    python -m benchmarks.postgres [--seconds 3] [--rounds 3] [--held 120] [--only cycles|pair|held]

The server is one of this run's own, with fsync and synchronous_commit on; each figure has a new database. Three comparisons:

cycles  In batches of 100, and with 64 callers of single jobs. PgQueuer and Procrastinate are called with as many connections as suit them
        best, and also run their own workers; the better figure counts. Procrastinate adds jobs by the hundred and fetches them singly.
pair    Two processes with Oaken on one database, and one alone.
held    How long a claim takes under 500 jobs a second while somebody else holds a snapshot open, beside the same without it. What counts
        is the last quarter of the time, when most dead rows are in the way.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import uvloop

from benchmarks.store import PAYLOAD, WHO, batches, cycles
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.requests import NewJobRequest
from tests.postgres import Server, fresh

CALLERS, BATCH = 64, 100
BATCH_CALLERS = 8
"""Suits PgQueuer and Oaken best."""
FETCHERS, WORKER_JOBS = 5, 10
"""Connections, and jobs at once of its worker, that suit Procrastinate best."""
BODY = b'{"text":"hello","n":1}'
WANTED_PAIR = 1.0
WANTED_HELD = 3.0
TICK_SECONDS, TICK_JOBS, TICKS_AT_ONCE = 0.02, 10, 20
"""500 jobs a second, unless so many tens of them are not done."""

WORK: dict[str, Callable[[Core, float], Any]] = {"batches": batches(BATCH_CALLERS), "singles": cycles(CALLERS)}

driver: Any = asyncpg
"""Without types."""

Measure = Callable[[str, float], Awaitable[float]]
"""From the address of an empty database and some seconds to cycles a second."""


@asynccontextmanager
async def open_core(url: str) -> AsyncGenerator[Core]:
    """Oaken on that database."""
    with tempfile.TemporaryDirectory(prefix="oaken-bench-", dir=Path.cwd()) as folder:
        core = Core.on_folder(Path(folder), Rules(), "serve", database=DatabaseSettings(url=url))
        await core.open()
        try:
            yield core
        finally:
            await core.close()


async def _oaken(url: str, seconds: float, what: str) -> float:
    async with open_core(url) as core:
        started = time.perf_counter()
        done = await WORK[what](core, started + seconds)
        return done / (time.perf_counter() - started)


class _Backlog:
    """What a worker has done of what is added for it."""

    def __init__(self) -> None:
        self.done = 0

    async def keep(self, seconds: float, add: Callable[[], Awaitable[Any]]) -> float:
        """Has so much added all the time that the worker never waits; what it does a second."""
        added, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            if added - self.done > 10 * BATCH:
                await asyncio.sleep(0.001)
            else:
                await add()
                added += BATCH
        return self.done / (time.perf_counter() - started)


# PgQueuer: a list of jobs in one call, its own dequeue and log_jobs; its worker.


async def _pgqueuer(url: str) -> tuple[Any, Any]:
    """A pool of connections, and its queries on it, on tables as its documentation has them."""
    from pgqueuer import Queries

    pool = await driver.create_pool(url, min_size=BATCH_CALLERS, max_size=BATCH_CALLERS)
    queries = Queries.from_asyncpg_pool(pool)
    await queries.install()
    await queries.optimize_autovacuum()
    return pool, queries


async def _pgqueuer_calls(url: str, seconds: float, callers: int, batch: int) -> float:
    from pgqueuer.ports.repository import EntrypointExecutionParameter

    pool, queries = await _pgqueuer(url)
    unlimited = {"bench": EntrypointExecutionParameter(concurrency_limit=0)}
    started = time.perf_counter()

    async def caller() -> int:
        me, done = uuid.uuid4(), 0
        while time.perf_counter() < started + seconds:
            await queries.enqueue(["bench"] * batch, [BODY] * batch, [0] * batch)
            jobs = await queries.dequeue(batch, unlimited, me, None, timedelta(seconds=30))
            await queries.log_jobs([(job, "successful", None) for job in jobs])
            done += len(jobs)
        return done

    done = sum(await asyncio.gather(*(caller() for _ in range(callers))))
    rate = done / (time.perf_counter() - started)
    await pool.close()
    return rate


async def _pgqueuer_worker(url: str, seconds: float) -> float:
    from pgqueuer.qm import QueueManager

    pool, queries = await _pgqueuer(url)
    manager: Any = QueueManager(queries)
    backlog = _Backlog()

    async def bench(_: Any) -> None:
        backlog.done += 1

    manager.entrypoint("bench")(bench)
    working = asyncio.create_task(manager.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=1)))
    rate = await backlog.keep(seconds, lambda: queries.enqueue(["bench"] * BATCH, [BODY] * BATCH, [0] * BATCH))
    manager.shutdown.set()
    await working
    await pool.close()
    return rate


# Procrastinate: jobs deferred by the hundred, fetched and finished one by one, for it has no other way; its worker.


@asynccontextmanager
async def _procrastinate(url: str, connections: int, work: Callable[..., Any]) -> AsyncGenerator[tuple[Any, Any]]:
    """Its application, open on its tables, and a task of it."""
    from procrastinate import App, PsycopgConnector

    app: Any = App(connector=PsycopgConnector(conninfo=url, min_size=connections, max_size=connections))
    task = app.task(name="bench")(work)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield app, task


async def _nothing(**_: Any) -> None:
    """A job."""


async def _fetched(app: Any, worker: int, count: int) -> int:
    """Fetches and finishes so many jobs, one after the other; how many there were."""
    from procrastinate.jobs import Status

    done = 0
    for _ in range(count):
        job = await app.job_manager.fetch_job(None, worker)
        if job is not None:
            await app.job_manager.finish_job(job, Status.SUCCEEDED, False)
            done += 1
    return done


async def _procrastinate_batches(url: str, seconds: float) -> float:
    async with _procrastinate(url, FETCHERS, _nothing) as (app, task):
        worker = await app.job_manager.register_worker()
        done, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            await task.batch_defer_async(*[PAYLOAD] * BATCH)
            done += sum(await asyncio.gather(*(_fetched(app, worker, BATCH // FETCHERS) for _ in range(FETCHERS))))
        return done / (time.perf_counter() - started)


async def _procrastinate_singles(url: str, seconds: float) -> float:
    async with _procrastinate(url, FETCHERS, _nothing) as (app, task):
        worker = await app.job_manager.register_worker()
        started = time.perf_counter()

        async def caller() -> int:
            done = 0
            while time.perf_counter() < started + seconds:
                await task.defer_async(**PAYLOAD)
                done += await _fetched(app, worker, 1)
            return done

        done = sum(await asyncio.gather(*(caller() for _ in range(CALLERS))))
        return done / (time.perf_counter() - started)


async def _procrastinate_worker(url: str, seconds: float) -> float:
    backlog = _Backlog()

    async def bench(**_: Any) -> None:
        backlog.done += 1

    async with _procrastinate(url, WORKER_JOBS + 2, bench) as (app, task):
        running = app.run_worker_async(concurrency=WORKER_JOBS, install_signal_handlers=False)
        working = asyncio.create_task(running)
        rate = await backlog.keep(seconds, lambda: task.batch_defer_async(*[PAYLOAD] * BATCH))
        working.cancel()
        await asyncio.wait({working})
        return rate


CASES: dict[str, Measure] = {
    "Oaken, batches": lambda url, seconds: _oaken(url, seconds, "batches"),
    "PgQueuer, batches": lambda url, seconds: _pgqueuer_calls(url, seconds, BATCH_CALLERS, BATCH),
    "PgQueuer, its worker": _pgqueuer_worker,
    "Procrastinate, batches": _procrastinate_batches,
    "Procrastinate, its worker": _procrastinate_worker,
    "Oaken, singles": lambda url, seconds: _oaken(url, seconds, "singles"),
    "PgQueuer, singles": lambda url, seconds: _pgqueuer_calls(url, seconds, CALLERS, 1),
    "Procrastinate, singles": _procrastinate_singles,
}


def _best(figures: dict[str, float], peer: str, *how: str) -> float:
    return max(figures[f"{peer}, {one}"] for one in how)


def _show_cycles(figures: dict[str, float]) -> None:
    print(f"{'':28}{'cycles/s':>10}")
    for name, value in figures.items():
        print(f"{name:28}{value:>10.0f}")
    batches, singles = figures["Oaken, batches"], figures["Oaken, singles"]
    for told, ratio, wanted in (
        ("batches to PgQueuer at its best", batches / _best(figures, "PgQueuer", "batches", "its worker"), 1.1),
        ("batches to Procrastinate", batches / _best(figures, "Procrastinate", "batches", "its worker"), 10.0),
        ("64 callers to Procrastinate's", singles / figures["Procrastinate, singles"], 10.0),
    ):
        print(f"{told:34}{ratio:>6.2f} times (wanted {wanted:.1f})")


# Two processes on one database.


async def _part(url: str, seconds: float, what: str) -> None:
    """What each of several processes does: says that it is ready, begins when it is told to, says how much it did."""
    async with open_core(url) as core:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        started = time.perf_counter()
        done = await WORK[what](core, started + seconds)
        print(done / (time.perf_counter() - started), flush=True)


async def _together(url: str, seconds: float, what: str, count: int) -> float:
    """Cycles a second of so many processes, all told."""
    command = [sys.executable, "-m", "benchmarks.postgres", "--part", url, what, "--seconds", str(seconds)]
    pipe = subprocess.PIPE
    parts = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(count)]
    for part in parts:
        assert part.stdout is not None
        assert await part.stdout.readline() == b"ready\n"
    said = await asyncio.gather(*(part.communicate(b"\n") for part in parts))
    for part in parts:
        if part.returncode != 0:
            raise RuntimeError(f"a process ended with {part.returncode}")
    return sum(float(rate) for rate, _ in said)


PAIRS: dict[str, Measure] = {
    f"{count} with {what}": lambda url, seconds, what=what, count=count: _together(url, seconds, what, count)
    for what in WORK
    for count in (1, 2)
}


def _show_pairs(figures: dict[str, float]) -> None:
    print(f"\n{'processes':28}{'cycles/s':>10}{'of one':>10}{'wanted':>8}")
    for name, value in figures.items():
        alone = figures[f"1 with {name.rpartition(' ')[2]}"]
        print(f"{name:28}{value:>10.0f}{value / alone:>10.2f}{WANTED_PAIR:>8.2f}")


# A snapshot held open.


async def _claims(url: str, seconds: float, held: bool) -> tuple[float, list[float]]:
    """Jobs a second, and the milliseconds of each claim in the last quarter of the time, in order of size."""
    async with open_core(url) as core:
        other = await driver.connect(url)
        if held:
            await other.execute("begin isolation level repeatable read")
            await other.fetchval("select count(*) from pg_class")
        took = await _at_a_pace(core, seconds)
        await other.close()
    return len(took) * TICK_JOBS / seconds, sorted(took[len(took) * 3 // 4 :])


async def _at_a_pace(core: Core, seconds: float) -> list[float]:
    """Adds, claims and completes 500 jobs a second, though the last are not done yet; milliseconds of each claim. Where too many are not
    done there are fewer."""
    took: list[float] = []
    under_way: set[asyncio.Task[None]] = set()

    async def tick() -> None:
        await core.jobs.enqueue_many(WHO, [NewJobRequest(kind="bench", payload=PAYLOAD) for _ in range(TICK_JOBS)])
        began = time.perf_counter()
        leases = await core.jobs.lease(WHO, max=TICK_JOBS)
        took.append((time.perf_counter() - began) * 1000)
        await core.jobs.finish_many(WHO, [core.jobs.complete_op(WHO, one.lease_id, {"ok": True}) for one in leases])

    started = time.perf_counter()
    async with asyncio.TaskGroup() as ticks:
        for n in range(int(seconds / TICK_SECONDS)):
            await asyncio.sleep(max(0, started + n * TICK_SECONDS - time.perf_counter()))
            if len(under_way) < TICKS_AT_ONCE:
                under_way.add(one := ticks.create_task(tick()))
                one.add_done_callback(under_way.discard)
    return took


def _show_held(figures: dict[str, tuple[float, list[float]]]) -> None:
    print(f"\n{'claim of ten, ms':28}{'median':>10}{'p99':>10}{'jobs/s':>10}")
    medians = [statistics.median(took) for _, took in figures.values()]
    lates = [took[int((len(took) - 1) * 0.99)] for _, took in figures.values()]
    for (name, (rate, _)), median, late in zip(figures.items(), medians, lates, strict=True):
        print(f"{name:28}{median:>10.2f}{late:>10.2f}{rate:>10.0f}")
    print(
        f"{'ratio':28}{medians[1] / medians[0]:>10.2f}{lates[1] / lates[0]:>10.2f} (wanted at most {WANTED_HELD:.0f})"
    )


async def _on_new(server: Server, measure: Callable[[str], Awaitable[Any]]) -> Any:
    """What is measured on a new database."""
    async with fresh(server.url) as url:
        return await measure(url)


def _medians(server: Server, cases: dict[str, Measure], seconds: float, rounds: int) -> dict[str, float]:
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):  # in turns, so that a slow moment of the machine hits all alike
        for name, case in cases.items():
            rate = uvloop.run(_on_new(server, lambda url, case=case: case(url, seconds)))
            figures.setdefault(name, []).append(rate)
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each rate is measured (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; the median is shown (default 3)")
    parser.add_argument("--held", type=float, default=120.0, help="seconds that the snapshot is held (default 120)")
    parser.add_argument("--only", choices=("cycles", "pair", "held"), help="one of the comparisons alone")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the peers tell of each job
    calm_collector()
    seconds: float = options.seconds
    if options.part:
        url, what = cast("list[str]", options.part)
        uvloop.run(_part(url, seconds, what))
        return
    with Server() as server:
        server.start()
        if options.only in (None, "cycles"):
            _show_cycles(_medians(server, CASES, seconds, options.rounds))
        if options.only in (None, "pair"):
            _show_pairs(_medians(server, PAIRS, seconds, options.rounds))
        if options.only in (None, "held"):
            cases = {"unhindered": False, "with a snapshot held": True}
            _show_held(
                {
                    name: uvloop.run(_on_new(server, lambda url, held=held: _claims(url, options.held, held)))
                    for name, held in cases.items()
                }
            )


if __name__ == "__main__":
    main()

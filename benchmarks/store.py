"""Durable enqueue-lease-complete cycles a second through the service, as a ratio to a bound measured in the same run.

The bound is a plain loop that writes the same rows, one after the other, on one connection in transactions of 100: no validation,
no callers, no claim. The peers are two published queues on SQLite, with one thread and with 64, and as durable as we are; litequeue
also as it ships, which may lose the last commits at a power cut ("undurable").

    python -m benchmarks.store [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from oaken_jobs.core import Core, calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Activity, Actor, Job, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.sqlite import schema
from oaken_jobs.store.sqlite.driver import Database, connect, create_file

WHO = Principal(Actor("user", "bench", "http"), frozenset({"user", "agent"}))
PAYLOAD: dict[str, Any] = {"text": "hello", "n": 1}
WANTED = {1: None, 8: None, 64: 0.5, 256: 0.7}
WANTED_BATCH = 0.7
WANTED_PEER = 3.0

_JOB_COLUMNS = Job._fields[: Job._fields.index("cancelling")]
_ACTIVITY_COLUMNS = Activity._fields[1 : Activity._fields.index("data")]


def _bound(folder: Path, seconds: float) -> float:
    """Cycles a second of the plain loop."""

    def loop(database: Database) -> float:
        schema.migrate(database, "bound", 0)
        jobs = f"insert into jobs ({', '.join(_JOB_COLUMNS)}) values ({', '.join('?' * len(_JOB_COLUMNS))})"
        activity = f"insert into activity ({', '.join(_ACTIVITY_COLUMNS)}) values ({', '.join('?' * 14)})"
        claim = (
            "update jobs set state = 'running', epoch = 1, attempts = 1, nonce = ?, holder = 'bench', agent = 'bench', "
            "lease_expires = ?, lease_ms = 60000, policy = ?, started_at = ?, invalid_results = 0 where id = ?"
        )
        finish = (
            "update jobs set state = 'succeeded', finished_at = ?, percent = 100, progress_at = ?, nonce = null, holder = null, "
            "lease_expires = null, lease_ms = null, policy = null, reason = null, grade = 'note', grade_why = 'ungraded', "
            "grade_version = 1 where id = ?"
        )
        end = (
            "insert into attempts (job_id, epoch, attempt, agent, holder, nonce, started_at, ended_at, outcome, verb, body_hash, answer) "
            "values (?, 1, 1, 'bench', 'bench', ?, ?, ?, 'succeeded', 'complete', ?, ?)"
        )
        nonce, policy = "0123456789abcdef01234567", '[5,3600,0.2,"requeue"]'
        answer = (
            '{"state":"succeeded","finished_at":1800000000000,"reason":null,"percent":100,"progress_at":1800000000000,'
            '"grade":"note","grade_why":"ungraded","grade_version":1}'
        )
        now = 1_800_000_000_000
        given = {
            "workspace": "default",
            "kind": "bench",
            "queue": "default",
            "routed_by": "default",
            "state": "queued",
            "priority": 100,
            "max_attempts": 5,
            "created_at": now,
            "run_at": now,
            "actor_kind": "user",
            "actor_id": "bench",
            "actor_via": "http",
            "blocked": 0,
        }
        new = [given.get(column) for column in _JOB_COLUMNS[1:]]
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            ids = range(done + 1, done + 101)
            database.execute("begin immediate")
            for job in ids:
                database.execute(jobs, (job, *new))
                database.execute("insert into payloads values (?, ?)", (job, '{"text":"hello","n":1}'))
                row = (
                    now,
                    "job_state_changed",
                    "enqueue",
                    job,
                    None,
                    None,
                    "queued",
                    0,
                    0,
                    None,
                    "user",
                    "bench",
                    "http",
                    "default",
                )
                database.execute(activity, row)
            database.execute("commit")
            database.execute("begin immediate")
            for job in ids:
                database.execute(claim, (nonce, now + 60_000, policy, now, job))
                row = (
                    now,
                    "job_state_changed",
                    "claim",
                    job,
                    None,
                    "queued",
                    "running",
                    1,
                    1,
                    None,
                    "user",
                    "bench",
                    "http",
                    "default",
                )
                database.execute(activity, row)
            database.execute("commit")
            database.execute("begin immediate")
            for job in ids:
                database.execute(finish, (now, now, job))
                database.execute(end, (job, nonce, now, now, nonce, answer))
                database.execute("insert into results values (?, ?)", (job, '{"ok":true}'))
                row = (
                    now,
                    "job_state_changed",
                    "complete",
                    job,
                    None,
                    "running",
                    "succeeded",
                    1,
                    1,
                    None,
                    "user",
                    "bench",
                    "http",
                    "default",
                )
                database.execute(activity, row)
            database.execute("commit")
            done += 100
        return done / (time.perf_counter() - started)

    async def run() -> float:
        create_file(folder / "bound.db")
        connection = await connect(folder / "bound.db")
        try:
            return await connection.run(loop)
        finally:
            await connection.close()

    return asyncio.run(run())


async def _on_core(folder: Path, seconds: float, work: Callable[[Core, float], Any]) -> float:
    core = Core.on_folder(folder, Rules(), "serve")
    await core.open()
    try:
        started = time.perf_counter()
        done = await work(core, started + seconds)
        return done / (time.perf_counter() - started)
    finally:
        await core.close()


def cycles(count: int) -> Callable[[Core, float], Any]:
    """So many callers that enqueue, lease and complete until a moment; how many cycles they did."""

    async def work(core: Core, until: float) -> int:
        async def caller() -> int:
            done = 0
            while time.perf_counter() < until:
                await core.jobs.enqueue(WHO, NewJobRequest(kind="bench", payload=PAYLOAD))
                (lease,) = await core.jobs.lease(WHO)
                await core.jobs.complete(WHO, lease.lease_id, {"ok": True})
                done += 1
            return done

        return sum(await asyncio.gather(*(caller() for _ in range(count))))

    return work


def batches(count: int) -> Callable[[Core, float], Any]:
    """So many callers that enqueue, lease and complete a hundred jobs a call until a moment; how many cycles they did."""

    async def work(core: Core, until: float) -> int:
        async def caller() -> int:
            done = 0
            while time.perf_counter() < until:
                await core.jobs.enqueue_many(WHO, [NewJobRequest(kind="bench", payload=PAYLOAD) for _ in range(100)])
                leases = await core.jobs.lease(WHO, max=100)
                ops = [core.jobs.complete_op(WHO, lease.lease_id, {"ok": True}) for lease in leases]
                await core.jobs.finish_many(WHO, ops)
                done += len(leases)
            return done

        return sum(await asyncio.gather(*(caller() for _ in range(count))))

    return work


def _threads(count: int, seconds: float, cycle: Callable[[], None]) -> float:
    done = [0] * count
    started = time.perf_counter()

    def run(place: int) -> None:
        while time.perf_counter() - started < seconds:
            cycle()
            done[place] += 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started)


def _huey(folder: Path, seconds: float, threads: int) -> float:
    from huey import SqliteHuey  # pyright: ignore

    huey: Any = SqliteHuey(filename=str(folder / f"huey{threads}.db"), fsync=True, timeout=30)

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True}

    task = huey.task()(work)

    def cycle() -> None:
        task(PAYLOAD)
        taken = huey.dequeue()
        if taken is not None:
            huey.execute(taken)

    return _threads(threads, seconds, cycle)


def _litequeue(folder: Path, seconds: float, threads: int, durable: bool) -> float:
    from litequeue import LiteQueue  # pyright: ignore

    opened: Any = LiteQueue
    local: Any = threading.local()
    one_at_a_time = threading.Lock()  # it cannot be opened twice at the same moment

    def cycle() -> None:
        if not hasattr(local, "queue"):
            with one_at_a_time:
                local.queue = opened(str(folder / f"lite{threads}.db"), timeout=30)
            if durable:
                local.queue.conn.execute("pragma synchronous = full")
        local.queue.put('{"text":"hello","n":1}')
        taken = local.queue.pop()
        if taken is not None:
            local.queue.done(taken.message_id)

    return _threads(threads, seconds, cycle)


def _measure(function: Callable[[Path], float]) -> float:
    folder = Path(tempfile.mkdtemp(prefix="oaken-bench-", dir=Path.cwd()))
    try:
        return function(folder)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each figure is measured (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; the median is shown (default 3)")
    options = parser.parse_args()
    seconds: float = options.seconds
    calm_collector()

    figures: dict[str, list[float]] = {}
    cases: dict[str, Callable[[Path], float]] = {"bound": lambda f: _bound(f, seconds)}
    for count in WANTED:
        cases[f"{count} callers"] = lambda f, n=count: uvloop.run(_on_core(f, seconds, cycles(n)))
    cases["batches of 100"] = lambda f: uvloop.run(_on_core(f, seconds, batches(2)))
    for threads in (1, 64):
        cases[f"huey, {threads} threads"] = lambda f, n=threads: _huey(f, seconds, n)
        cases[f"litequeue, {threads} threads"] = lambda f, n=threads: _litequeue(f, seconds, n, True)
        cases[f"(undurable), {threads} threads"] = lambda f, n=threads: _litequeue(f, seconds, n, False)
    for _ in range(options.rounds):  # in turns, so that a slow moment of the machine hits all alike
        for name, case in cases.items():
            figures.setdefault(name, []).append(_measure(case))

    middle = {name: statistics.median(values) for name, values in figures.items()}
    bound = middle["bound"]
    wanted = {f"{n} callers": w for n, w in WANTED.items()} | {"batches of 100": WANTED_BATCH}
    print(f"{'':24}{'cycles/s':>10}{'of the bound':>14}{'wanted':>8}")
    for name, value in middle.items():
        aim = wanted.get(name)
        print(f"{name:24}{value:>10.0f}{value / bound:>14.2f}{'' if aim is None else f'{aim:.1f}':>8}")
    for peer in ("huey", "litequeue"):
        best = max(value for name, value in middle.items() if name.startswith(peer))
        print(f"64 callers are {middle['64 callers'] / best:.1f} times {peer} at its best (wanted {WANTED_PEER:.0f})")
    undurable = max(value for name, value in middle.items() if name.startswith("(undurable)"))
    print(f"and {middle['64 callers'] / undurable:.1f} times litequeue as it ships, without a sync at each commit")


if __name__ == "__main__":
    main()

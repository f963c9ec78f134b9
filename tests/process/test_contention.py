"""Several processes on one file: one winner, nobody starved, nothing lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks import contention
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest

PROCESSES, THREADS = 5, 10
SECONDS = 8
"""How long three processes write at once; the benchmark of the store does the same for a minute."""

spawned = multiprocessing.get_context("spawn")


def principal(name: str) -> Principal:
    return Principal(Actor("user", name, "http"), frozenset({"user", "agent"}))


async def _opened(folder: Path, role: str) -> Core:
    core = Core.on_folder(folder, Rules(), role)
    await core.open()
    return core


def _race(folder: Path, process: int, start: Barrier, results: Any) -> None:
    """Threads of one process that ask for one job at the same moment."""

    def racer(thread: int) -> None:
        async def run() -> None:
            core = await _opened(folder, "serve")
            try:
                await asyncio.to_thread(start.wait, 60)
                leases = await core.jobs.lease(principal(f"racer-{process}-{thread}"))
                results.put([lease.job.id for lease in leases])
            finally:
                await core.close()

        asyncio.run(run())

    threads = [threading.Thread(target=racer, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def test_fifty_threads_and_processes_asking_for_one_job_have_one_winner(tmp_path: Path) -> None:
    core = await _opened(tmp_path, "serve")
    job = (await core.jobs.enqueue(principal("me"), NewJobRequest(kind="work"))).job
    start, results = spawned.Barrier(PROCESSES * THREADS), spawned.Queue()
    processes = [spawned.Process(target=_race, args=(tmp_path, n, start, results)) for n in range(PROCESSES)]
    for process in processes:
        process.start()
    answers = [await asyncio.to_thread(results.get, True, 60) for _ in range(PROCESSES * THREADS)]
    for process in processes:
        await asyncio.to_thread(process.join, 60)
    assert [ids for ids in answers if ids] == [[job.id]]
    await core.close()


async def test_three_processes_writing_to_one_file_are_never_locked_out_and_lose_nothing(tmp_path: Path) -> None:
    answers = await asyncio.to_thread(contention.measure, tmp_path, SECONDS)
    finished = [job for _, _, done in answers for job in done]
    assert len(finished) == len(set(finished)), "finished twice"
    core = await _opened(tmp_path, "serve")
    states = {job.id: job.state for job in await core.store.jobs(finished)}
    assert set(states.values()) == {"succeeded"}
    assert len(states) == len(finished)
    assert await core.store.check() == []
    await core.close()

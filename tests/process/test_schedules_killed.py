"""Ten thousand schedules are due at once, two processes fire them, and processes are killed in the middle of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Principal, Schedule
from oaken_jobs.requests import ScheduleRequest

COUNT = 10_000
ME = Principal(Actor("user", "me", "cli"), frozenset({"user"}))

PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.store.sql import schedules

folder, dies_at = Path(sys.argv[1]), int(sys.argv[2])
fired = 0
original = schedules.fired

def counted(*arguments):
    global fired
    original(*arguments)
    fired += 1
    if fired == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)

schedules.fired = counted

async def main():
    core = Core.on_folder(folder, Rules(), "runner")
    await core.open()
    print("ready", flush=True)
    sys.stdin.readline()
    await core.scheduler.tick()
    await core.close()

asyncio.run(main())
"""


def fires(folder: Path, dies_at: int) -> subprocess.Popen[str]:
    """A process that fires all that is due, or dies in the transaction of so many."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(dies_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(*processes: subprocess.Popen[str]) -> list[int]:
    """Lets them fire at once; how each ended."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ends = [process.wait(60) for process in processes]
    for process in processes:
        process.communicate()
    return ends


@pytest.fixture
async def core(tmp_path: Path) -> Any:
    core = Core.on_folder(tmp_path, Rules(), "cli")
    await core.open()
    yield core
    await core.close()


async def test_each_fires_once_also_when_its_process_is_killed_while_it_moves_them_on(
    core: Core, tmp_path: Path
) -> None:
    request = ScheduleRequest.model_validate({"queue": "default", "kind": "work", "every_seconds": 86_400})
    template = (await core.schedules.put(ME, "s", request)).schedule
    due = template._replace(next_run=core.clock.now() - 1000)
    rows = [due._replace(name=f"s{n}") for n in range(COUNT)]

    def fill(database: Any) -> None:
        places = ", ".join("?" * len(Schedule._fields))
        database.executemany(f"insert into schedules ({', '.join(Schedule._fields)}) values ({places})", rows)

    await core.store._writer.run(fill)  # type: ignore[attr-defined]
    killed = go(fires(tmp_path, 700), fires(tmp_path, 1234))
    assert killed == [-9, -9]
    assert 0 < (await core.store.counts())[0].jobs < COUNT
    assert go(fires(tmp_path, 0), fires(tmp_path, 0)) == [0, 0]
    fired = await core.store._find(  # type: ignore[attr-defined]
        lambda db: db.execute("select count(*), count(distinct dedupe_key) from jobs").fetchone()
    )
    assert tuple(fired) == (COUNT, COUNT)
    after = await core.store.schedules()
    assert sum(one.last_job is not None for one in after) == COUNT
    assert min(one.next_run for one in after) > core.clock.now()

"""Three processes on one data folder write one event log, while they are killed and the log is rotated."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import orjson

from oaken_jobs.config import LogSettings
from oaken_jobs.core import Core
from oaken_jobs.journal import Journal
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest
from tests.contract.world import RULES, until

KILLS = int(os.environ.get("OAKEN_EVENT_LOG_KILLS", "12"))
BYTES = 8_000
ME = Principal(Actor("user", "me", "cli"), frozenset({"user"}))

PROGRAM = f"""
import asyncio, sys
from pathlib import Path
from oaken_jobs.config import LogSettings
from oaken_jobs.core import Core
from oaken_jobs.events import log
from oaken_jobs.kinds import Rules

log.TICK_SECONDS = 0.003

async def main():
    core = Core.on_folder(Path(sys.argv[1]), Rules(), "runner", log=LogSettings(file_max_bytes={BYTES}, file_backups=1000))
    await core.open()
    await core.start_duties()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def writer(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_each_event_stands_once_and_in_order_through_rotations_and_kills(tmp_path: Path) -> None:
    rng = random.Random(7)
    core = Core.on_folder(tmp_path, RULES, "cli", log=LogSettings(events_file=""))
    await core.open()
    journal = Journal(tmp_path / "events.jsonl", BYTES, 1000)
    writers = [writer(tmp_path) for _ in range(3)]
    try:
        for _ in range(KILLS):
            for _ in range(rng.randint(20, 60)):
                await core.jobs.enqueue(ME, NewJobRequest(kind="work"))
            victim = rng.choice(writers)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            writers.remove(victim)
            if len(writers) == 1:
                writers += [writer(tmp_path), writer(tmp_path)]
        head = await core.store.activity_head()
        await until(lambda: (last := journal.last_line()) is not None and int(orjson.loads(last)["id"]) == head)
    finally:
        for one in writers:
            one.kill()
            one.wait()
        await core.close()
    assert [int(orjson.loads(line)["id"]) for line in journal.lines()] == list(range(1, head + 1))
    assert len(os.listdir(tmp_path)) > 8, "it was rotated"

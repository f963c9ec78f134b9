"""Processes killed with SIGKILL at any moment, under load, a hundred times: nothing acknowledged is lost, nothing happens twice.

Victims run from a warm process (`victim.py`), so that a round costs some tenths of a second. After each kill a copy of the files is
judged by another SQLite; the next victim recovers the originals. After some kills a new folder is begun, since what is to be judged grows
with each. `OAKEN_CRASH_KILLS` and `OAKEN_CRASH_SEED` ask for more and others.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from tests.contract import invariants
from tests.process import victim
from tests.process.victim import PERSON, POINTS, RULES, Order

KILLS = int(os.environ.get("OAKEN_CRASH_KILLS", "100"))
KILLS_A_FOLDER = 25
SEED = int(os.environ.get("OAKEN_CRASH_SEED", "1"))
PATIENCE = 60.0
"""Seconds after which something that was waited for is not going to come."""

OUTSIDE, OPENING, BESIDE = "at any moment", "while it opens", "beside another process"
WAYS = (OUTSIDE, OPENING, BESIDE, *POINTS)
TIMES: dict[str | None, tuple[int, int]] = {
    "inside a transaction": (1, 1500),
    "before commit": (1, 150),
    "between commit and reply": (1, 150),
    "between claim and reply": (1, 60),
    "in the sweep": (1, 40),
    "in a bulk requeue": (1, 4),
    None: (1, 1),
}
"""How often a victim may pass its point before it dies there."""


class Told:
    """All that callers of all victims were told."""

    def __init__(self) -> None:
        self.marks: dict[int, str] = {}
        self.results: dict[int, str] = {}
        self.leases: set[tuple[int, int]] = set()
        self.ends: dict[tuple[int, int], str] = {}
        self.did: Counter[tuple[int, str]] = Counter()

    def read(self, path: Path) -> int:
        """Takes in what one victim left; how many lines. A line without its end was not told any more."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for line in lines:
            self._take(json.loads(line))
        return len(lines)

    def _take(self, fact: dict[str, Any]) -> None:
        event, job = fact["event"], fact.get("job", 0)
        assert event != "broken", fact["error"]
        if event == "enqueued":
            assert job not in self.marks, f"job {job} was added twice"
            self.marks[job] = fact["mark"]
            self.did[job, "enqueue"] += 1
        elif event == "coalesced":
            self.did[job, "coalesce"] += 1
        elif event == "leased":
            lease = (job, fact["epoch"])
            assert lease not in self.leases, f"lease {lease} was given twice"
            self.leases.add(lease)
            self.did[job, "claim"] += 1
        elif event == "ended":
            lease = (job, fact["epoch"])
            assert lease not in self.ends, f"lease {lease} ended twice"
            self.ends[lease] = fact["verb"]
            self.did[job, fact["verb"]] += 1
            if fact["verb"] == "complete":
                assert job not in self.results, f"job {job} was finished twice"
                self.results[job] = fact["by"]
        else:
            self.did[job, fact["verb"]] += 1


# What must hold of a database whose processes are gone besides the invariants, on a connection of the standard library's SQLite.


def the_file_is_sound(database: sqlite3.Connection) -> None:
    assert database.execute("pragma integrity_check").fetchall() == [("ok",)]


def nothing_acknowledged_is_lost(database: sqlite3.Connection, told: Told) -> None:
    marks = dict(database.execute("select job_id, body ->> 'mark' from payloads"))
    assert {job: marks.get(job) for job in told.marks} == told.marks
    found = "select r.job_id, r.body ->> 'by' from results r join jobs j on j.id = r.job_id where j.state = 'succeeded'"
    results = dict(database.execute(found))
    assert {job: results.get(job) for job in told.results} == told.results
    ended = {(job, epoch): verb for job, epoch, verb in database.execute("select job_id, epoch, verb from attempts")}
    under_way = set(database.execute("select id, epoch from jobs where state = 'running'"))
    assert told.leases <= ended.keys() | under_way
    assert {lease: ended.get(lease) for lease in told.ends} == told.ends
    did = {(job, verb): count for job, verb, count in database.execute(_DID)}
    assert {key: count for key, count in told.did.items() if did.get(key, 0) < count} == {}


_DID = "select job_id, verb, count(*) from activity where job_id is not null group by job_id, verb"


def nothing_happened_twice(database: sqlite3.Connection) -> None:
    once = "select job_id, count(*) from activity where verb = ? group by job_id having count(*) > 1"
    for verb in ("enqueue", "complete"):
        assert database.execute(once, (verb,)).fetchall() == [], verb
    marks = "select body ->> 'mark' from payloads group by 1 having count(*) > 1"
    assert database.execute(marks).fetchall() == []


def judge(folder: Path, told: Told) -> Counter[str]:
    """Jobs by state, once everything that must hold was found to hold."""
    copy = folder / "copy"
    copy.mkdir(exist_ok=True)
    for name in ("core.db", "core.db-wal"):
        (copy / name).unlink(missing_ok=True)
        if (folder / name).exists():
            shutil.copyfile(folder / name, copy / name)
    (copy / "core.db-shm").unlink(missing_ok=True)
    with closing(sqlite3.connect(copy / "core.db")) as database:
        the_file_is_sound(database)
        if not database.execute("select 1 from sqlite_master where name = 'jobs'").fetchone():
            assert not told.marks
            return Counter()
        nothing_acknowledged_is_lost(database, told)
        nothing_happened_twice(database)
        states = Counter(dict(database.execute("select state, count(*) from jobs group by state").fetchall()))
    invariants.check(copy / "core.db", RULES.caps)
    return states


class Killer:
    """Starts victims and kills them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.lines = 0
        self._round = 0
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["tests.process.victim"])
        self._living: dict[int, tuple[ForkServerProcess, Order]] = {}

    def begin(self, folder: Path) -> None:
        """Goes on in a folder where there is nothing yet."""
        folder.mkdir()
        self.folder = folder
        self.told = Told()

    def start(self, point: str | None = None) -> tuple[ForkServerProcess, Order]:
        self._round += 1
        name = str(self._round)
        nth = self.rng.randint(*TIMES[point])
        small_log = self.rng.random() < 0.5
        told = self.folder / f"told-{name}"
        order = Order(self.folder, told, name, self.rng.randrange(2**32), point, nth, small_log)
        process = self._forks.Process(target=victim.live, args=(order,), daemon=True)
        process.start()
        assert process.pid is not None
        self._living[process.pid] = (process, order)
        return process, order

    def kill(self, process: ForkServerProcess, how: str) -> None:
        process.kill()
        self.dead(process, how)

    def dead(self, process: ForkServerProcess, how: str) -> None:
        """The victim is gone, by SIGKILL and nothing else; takes in what it told."""
        process.join(PATIENCE)
        assert process.pid is not None
        _, order = self._living.pop(process.pid)
        self.lines += self.told.read(order.told)
        assert process.exitcode == -signal.SIGKILL, process.exitcode
        self.kills[how] += 1

    def end(self) -> None:
        for process, _ in self._living.values():
            process.kill()
            process.join(PATIENCE)

    def round(self, how: str) -> None:
        """One kill, or two where a second process goes on beside the first victim."""
        if how == OPENING:
            process, _ = self.start()
            until(lambda: False, self.rng.random() * 0.06)
            self.kill(process, how)
        elif how == OUTSIDE:
            process, order = self.start()
            self._work(process, order, self.rng.randint(1, 400))
            self.kill(process, how)
        elif how == BESIDE:
            first, order = self.start()
            second, other = self.start()
            self._work(first, order, self.rng.randint(1, 150))
            self._work(second, other, 1)
            self.kill(first, how)
            self._work(second, other, _lines(other.told) + self.rng.randint(20, 150))
            self.kill(second, OUTSIDE)
        else:
            process, _ = self.start(how)
            until(lambda: not process.is_alive(), PATIENCE)
            self.dead(process, how)

    def _work(self, process: ForkServerProcess, order: Order, lines: int) -> None:
        def enough() -> bool:
            assert process.is_alive(), f"it died by itself: {order.told.read_text()[-2000:]}"
            return _lines(order.told) >= lines

        assert until(enough, PATIENCE), "it does no work"


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
async def test_processes_killed_at_any_moment_a_hundred_times_lose_nothing_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = Killer(SEED)
    began = time.monotonic()
    states: Counter[str] = Counter()
    results = 0
    order = itertools.cycle([OUTSIDE, OUTSIDE, *WAYS])
    try:
        for number in range(-(-KILLS // KILLS_A_FOLDER)):
            killer.begin(folder := tmp_path / str(number))
            enough = min(KILLS, (number + 1) * KILLS_A_FOLDER)
            found: Counter[str] = Counter()
            for how in itertools.chain([OPENING, OPENING], order):
                killer.round(how)
                found = judge(folder, killer.told)
                if killer.kills.total() >= enough:
                    break
            assert found["succeeded"] >= len(killer.told.results)
            assert {state: count for state, count in (await left_over(folder)).items() if count} == {}
            judge(folder, killer.told)
            states += found
            results += len(killer.told.results)
    finally:
        killer.end()
    seconds = time.monotonic() - began
    assert results > KILLS
    assert killer.kills.keys() == set(WAYS) or len(WAYS) + 4 > KILLS
    with capsys.disabled():
        print(f"\n{killer.kills.total()} kills in {seconds:.0f} s (seed {SEED}): {dict(killer.kills.most_common())}")
        print(f"{killer.lines} acknowledged, {states.total()} jobs {dict(states)}, losses 0, doubles 0")


async def left_over(folder: Path) -> dict[str, int]:
    """Jobs that are not final after everything there was has been taken back, leased and completed, a day later."""
    clock = FakeClock(time.time_ns() // 1_000_000 + 86_400_000)
    core = Core.on_folder(folder, RULES, "serve", clock)
    await core.open()
    try:
        await core.maintenance.tick()
        clock.advance(1)  # past the waits of what was lost
        while leases := await core.jobs.lease(PERSON, max=500, lease_seconds=600):
            ops = [core.jobs.complete_op(PERSON, lease.lease_id, {"by": "the last"}) for lease in leases]
            await core.jobs.finish_many(PERSON, ops)
        counts = await core.store.counts()
        return {c.state: c.jobs for c in counts if c.state in ("queued", "running")}
    finally:
        await core.close()

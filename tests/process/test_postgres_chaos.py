"""Three servers and six workers on one PostgreSQL, processes killed all the time, PostgreSQL itself restarted three times.

What callers were told is held against the database afterwards. `OAKEN_CHAOS_JOBS` and `OAKEN_CHAOS_SEED` ask for more and others.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from oaken_swarm import Client
from tests import postgres
from tests.contract import invariants
from tests.network import free_port
from tests.postgres import Server
from tests.process import commands
from tests.processes import clean_environ

JOBS = int(os.environ.get("OAKEN_CHAOS_JOBS", "1500"))
SEED = int(os.environ.get("OAKEN_CHAOS_SEED", "1"))
SERVERS, HANDS, HANDFUL = 3, 6, 8
RESTARTS = ("fast", "immediate", "kill")
KILL_SECONDS = 2.0
AWAY_SECONDS = 1.0
"""How long PostgreSQL is away in a restart."""
LOAD_SECONDS = 8.0
"""The jobs are added over at least so long."""
BATCH = 20
PATIENCE = 60.0
RULES = {
    "OAKEN_JOBS__RECOVERY_GRACE": "1",
    "OAKEN_JOBS__BACKOFF_BASE": "0.2",
    "OAKEN_JOBS__BACKOFF_MAX": "1",
    "OAKEN_JOBS__MAX_ATTEMPTS": "20",
}


class Fleet:
    """The servers and the workers, each of which is there again soon after it was killed."""

    def __init__(self, folder: Path, url: str, rng: random.Random) -> None:
        self._folder = folder
        self._settings = {**RULES, "OAKEN_DATABASE_URL": url}
        self._rng = rng
        self._ports = [free_port() for _ in range(SERVERS)]
        self._living: dict[str, Process] = {}
        self._coming: list[asyncio.Task[None]] = []
        self._hands = 0
        self.token = ""
        self.kills: Counter[str] = Counter()

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    @property
    def told(self) -> list[Path]:
        return list(self._folder.glob("told-*"))

    async def begin(self) -> None:
        """All servers at once on an empty database, then the workers."""
        await asyncio.gather(*(self._start(f"server {n}") for n in range(SERVERS)))
        self.token = await commands.token(self._folder / "server-0", self._settings, "hand")
        await asyncio.gather(*(self._start(f"worker {n}") for n in range(HANDS)))

    async def kill_one(self) -> None:
        """One of those that live is killed, and begins to come back. None has died by itself."""
        self._none_has_ended()
        name = self._rng.choice(sorted(self._living))
        process = self._living.pop(name)
        process.kill()
        await process.wait()
        self.kills[name.split()[0]] += 1
        self._coming.append(asyncio.create_task(self._start(name)))

    async def whole(self) -> None:
        """All are there."""
        while self._coming:
            await self._coming.pop()
        self._none_has_ended()

    def _none_has_ended(self) -> None:
        for name, process in self._living.items():
            assert process.returncode is None, f"{name} has ended by itself: {self._log(name).read_text()[-3000:]}"

    async def end(self) -> None:
        """Stops the workers, then the servers, as a signal does; all of them end well."""
        for kind in ("worker", "server"):
            ending = {name: process for name, process in self._living.items() if name.startswith(kind)}
            for process in ending.values():
                process.send_signal(signal.SIGTERM)
            for name, process in ending.items():
                await asyncio.wait_for(process.wait(), PATIENCE)
                assert process.returncode == (0 if kind == "server" else -signal.SIGTERM), (name, process.returncode)

    def abandon(self) -> None:
        for coming in self._coming:
            coming.cancel()
        for process in self._living.values():
            if process.returncode is None:
                process.kill()

    def _log(self, name: str) -> Path:
        return commands.log_of(self._folder / name.replace(" ", "-"))

    async def _start(self, name: str) -> None:
        kind, number = name.split()
        begin = self._serve if kind == "server" else self._work
        self._living[name] = await begin(int(number))

    async def _serve(self, number: int) -> Process:
        """A server with a data folder of its own, at the address it had before."""
        return (await commands.serve(self._folder / f"server-{number}", self._settings, self._ports[number]))[0]

    async def _work(self, number: int) -> Process:
        self._hands += 1
        environ = {**clean_environ(), "OAKEN_URL": self.urls[number % SERVERS], "OAKEN_TOKEN": self.token}
        name, told = f"hand-{self._hands}", self._folder / f"told-{self._hands}"
        command = [sys.executable, "-m", "tests.process.hand", name, str(told), str(HANDFUL)]
        with self._log(f"worker {number}").open("ab") as log:
            return await asyncio.create_subprocess_exec(*command, env=environ, stdout=DEVNULL, stderr=log)


class Load:
    """Callers that add jobs and remember which were taken, each at one server."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.taken: dict[int, str] = {}

    async def run(self) -> None:
        share, more = divmod(JOBS, SERVERS)
        async with asyncio.TaskGroup() as callers:
            for n, url in enumerate(self._fleet.urls):
                callers.create_task(self._add(n, url, share + (n < more)))

    async def _add(self, caller: int, url: str, count: int) -> None:
        """Adds so many; whatever happens to servers and database, no call fails."""
        began = time.monotonic()
        async with Client(url, self._fleet.token, tries=30) as client:
            for first in range(0, count, BATCH):
                marks = [f"{caller}-{n}" for n in range(first, min(first + BATCH, count))]
                answer = await client.enqueue_many([{"kind": "work", "payload": {"mark": mark}} for mark in marks])
                for mark, one in zip(marks, answer["jobs"], strict=True):
                    assert "job" in one, one
                    assert one["job"]["id"] not in self.taken
                    self.taken[one["job"]["id"]] = mark
                await asyncio.sleep(began + LOAD_SECONDS * first / count - time.monotonic())


class Probe:
    """Asks the servers all the time while PostgreSQL is away, without trying again, and keeps what they answer."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.answers: list[httpx2.Response] = []

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        asking = [asyncio.create_task(self._ask(url)) for url in self._fleet.urls]
        yield
        for one in asking:
            one.cancel()
        for ended in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended

    async def _ask(self, url: str) -> None:
        headers = {"Authorization": f"Bearer {self._fleet.token}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE) as http:
            while True:
                self.answers.append(await http.get("/v1/jobs/1"))
                self.answers.append(await http.post("/v1/jobs", json={"kind": "probe", "dedupe_key": "probe"}))
                await asyncio.sleep(0.02)


async def chaos(fleet: Fleet, database: Server, load: Load, probe: Probe) -> None:
    """Kills and restarts until all jobs were added and PostgreSQL was restarted as often as it is to be."""
    adding = asyncio.create_task(load.run())
    restarts = list(RESTARTS)
    while not adding.done() or restarts:
        due = time.monotonic() + KILL_SECONDS
        await fleet.kill_one()
        share = len(load.taken) / JOBS
        if restarts and (adding.done() or share > 1 - (len(restarts) - 0.5) / len(RESTARTS)):
            await fleet.whole()  # what begins without a database may say so and end
            await restart(database, restarts.pop(0), probe)
        await asyncio.sleep(due - time.monotonic())
    await adding
    await fleet.whole()


async def restart(database: Server, how: str, probe: Probe) -> None:
    """PostgreSQL is away for a while."""
    async with probe.asking():
        if how == "kill":
            database.kill()
        else:
            database.stop(how)
        await asyncio.sleep(AWAY_SECONDS)
    database.start()


@contextmanager
def opened(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


async def all_end(url: str, seconds: float) -> Counter[str]:
    """Jobs by state, once all of them have ended."""
    deadline = time.monotonic() + seconds
    with opened(url) as database:
        while True:
            found = database.execute("select state, count(*) from jobs where kind = 'work' group by state")
            states = Counter(dict(found.fetchall()))
            if not states["queued"] + states["running"]:
                return states
            assert time.monotonic() < deadline, f"jobs do not end: {dict(states)}"
            await asyncio.sleep(0.1)


def results_told(paths: list[Path]) -> dict[int, str]:
    """By job, whose result was taken. A line without its end was not told any more."""
    told: dict[int, str] = {}
    for path in paths:
        for line in path.read_bytes().split(b"\n")[:-1]:
            fact = json.loads(line)
            assert fact["job"] not in told, f"job {fact['job']} was finished by {told[fact['job']]} and {fact['by']}"
            told[fact["job"]] = fact["by"]
    return told


def judge(url: str, taken: dict[int, str], told: dict[int, str]) -> None:
    """What must hold of the database."""
    with opened(url) as database:
        found = database.execute(
            "select job_id, body::json ->> 'mark' from payloads where body like '%\"mark\"%'"
        ).fetchall()
        assert len(found) == JOBS, "something was added twice, or lost"
        assert dict(found) == taken
        results = dict(
            database.execute(
                "select r.job_id, r.body::json ->> 'by' from results r join jobs j on j.id = r.job_id where j.state = 'succeeded'"
            ).fetchall()
        )
        assert {job: results.get(job) for job in told} == told
        twice = "select job_id from activity where verb = %s group by job_id having count(*) > 1"
        for verb in ("enqueue", "complete"):
            assert database.execute(twice, (verb,)).fetchall() == [], verb
        invariants.check(database)


MISSING = postgres.missing_binaries()


@pytest.mark.skipif(bool(MISSING), reason=str(MISSING))
async def test_servers_workers_and_postgresql_itself_may_die_all_the_time_and_nothing_is_lost_or_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with Server() as database:
        database.start()
        fleet = Fleet(tmp_path, database.url, random.Random(SEED))
        load, probe = Load(fleet), Probe(fleet)
        try:
            await fleet.begin()
            await chaos(fleet, database, load, probe)
            states = await all_end(database.url, PATIENCE + JOBS / 50)
            await fleet.end()
        finally:
            fleet.abandon()
        told = results_told(fleet.told)
        judge(database.url, load.taken, told)
    refused = [answer for answer in probe.answers if answer.status_code >= 500]
    assert {answer.status_code for answer in refused} == {503}
    assert all(float(answer.headers["Retry-After"]) > 0 for answer in refused)
    assert states["failed"] < JOBS / 100
    assert len(told) > JOBS / 2
    with capsys.disabled():
        print(f"\n{JOBS} jobs in {time.monotonic() - began:.0f} s (seed {SEED}): {dict(states)}, losses 0, doubles 0")
        print(
            f"killed {dict(fleet.kills)}, PostgreSQL restarted {len(RESTARTS)} times, {len(refused)} answers 503 meanwhile"
        )

"""Real processes killed with SIGKILL under load: nothing that was acknowledged is lost, nothing is finished twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from oaken_jobs.errors import OakenError
from oaken_swarm import Client

KILLS = 20
CALLERS = 12


def start(data_dir: Path) -> tuple[subprocess.Popen[str], str]:
    """A server on a free port, ready."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OAKEN_")}
    server = subprocess.Popen(
        [sys.executable, "-m", "oaken_app.main", "serve", "--port", "0", "--data-dir", str(data_dir), "--no-runner"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("oaken ready on "), line
    return server, line.removeprefix("oaken ready on ").strip()


class Load:
    """Callers that remember what they were told."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.enqueued: dict[int, str] = {}
        self.finished: dict[int, str] = {}

    async def caller(self, url: str, token: str, mark: str) -> None:
        """Enqueues, leases and completes until the server is gone."""
        async with Client(url, token, tries=1) as client:
            n = 0
            try:
                while True:
                    n += 1
                    payload = {"mark": f"{mark}-{n}", "text": "x" * self.rng.randint(0, 3000)}
                    job = (await client.enqueue("work", payload))["job"]
                    self.enqueued[job["id"]] = payload["mark"]
                    for lease in (await client.lease(max=self.rng.randint(1, 3)))["leases"]:
                        job_id, answer = lease["job"]["id"], f"{mark}-{n}"
                        await client.complete(lease["lease_id"], {"by": answer})
                        assert job_id not in self.finished, "finished twice"
                        self.finished[job_id] = answer
            except OakenError:
                return  # the server was killed


async def token_for(data_dir: Path) -> str:
    """A token made by the command line, before any server ran."""
    arguments = ["token", "create", "load", "--role", "user", "--role", "agent", "--data-dir", str(data_dir)]
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oaken_app.main", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await command.communicate()
    assert command.returncode == 0
    return out.decode().strip()


async def test_a_server_killed_under_load_twenty_times_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    token = await token_for(tmp_path)
    load = Load(seed=1)
    for kill in range(KILLS):
        server, url = start(tmp_path)
        callers = [asyncio.ensure_future(load.caller(url, token, f"{kill}-{n}")) for n in range(CALLERS)]
        before = len(load.finished)
        wanted = load.rng.randint(20, 150)
        while len(load.finished) < before + wanted:
            assert server.poll() is None, "the server died by itself"
            for caller in callers:
                if caller.done():
                    caller.result()
                    raise AssertionError("a caller ended before the kill")
            await asyncio.sleep(0.001)
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()  # type: ignore[union-attr]
        await asyncio.gather(*callers)
    assert len(load.finished) > KILLS * 20
    judge(tmp_path / "core.db", load)


def judge(path: Path, load: Load) -> None:
    """Compares what callers were told with what the file says, read by another SQLite."""
    database = sqlite3.connect(path)
    try:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        states: dict[int, str] = dict(database.execute("select id, state from jobs"))
        payloads: dict[int, Any] = {
            i: orjson.loads(b) for i, b in database.execute("select job_id, body from payloads")
        }
        results: dict[int, Any] = {i: orjson.loads(b) for i, b in database.execute("select job_id, body from results")}
        lost = [i for i, mark in load.enqueued.items() if payloads.get(i, {}).get("mark") != mark]
        assert lost == []
        undone = [i for i, by in load.finished.items() if states.get(i) != "succeeded" or results[i] != {"by": by}]
        assert undone == []
        doubles = database.execute(
            "select job_id from activity where verb = 'complete' group by job_id having count(*) > 1"
        ).fetchall()
        assert doubles == []
        replayed: dict[int, str] = {}
        history = "select job_id, from_state, to_state from activity where job_id is not null order by id"
        for job_id, before, after in database.execute(history):
            assert replayed.get(job_id) == before
            replayed[job_id] = after
        assert replayed == states
    finally:
        database.close()

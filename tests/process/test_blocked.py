"""Worker processes that hang, die and are told to stop in the middle of a job, over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oaken_swarm import JobContext, Worker
from tests.service import Service, eventually

PROGRAM = """
import asyncio, logging, os, sys, time
import httpx2
from oaken_swarm import Worker

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
logging.getLogger("httpx2").setLevel(logging.WARNING)
worker = Worker(os.environ["URL"], "stuck", os.environ["TOKEN"], lease_seconds=1, grace=0)

@worker.handler("work")
async def work(job):
    print("began", job.id, flush=True)
    if job.payload.get("block"):
        time.sleep(job.payload["block"])  # what no handler should do: the loop stands still, and with it every heartbeat
        where = f"{os.environ['URL']}/v1/leases/{job.lease_id}/complete"
        head = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
        told = httpx2.post(where, json={"result": {"by": "stuck"}}, headers=head, trust_env=False)
        print("told", told.status_code, told.json()["code"], flush=True)
    if job.payload.get("wait"):
        await asyncio.Event().wait()
    return {"by": "stuck"}

worker.run()
print("stopped", flush=True)
"""


@asynccontextmanager
async def stuck(server: Service) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process."""
    environment = {**os.environ, "URL": server.url, "TOKEN": await server.token("stuck", "agent")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def says(process: asyncio.subprocess.Process, words: str) -> str:
    """The first line with these words."""
    assert process.stdout is not None
    while line := (await asyncio.wait_for(process.stdout.readline(), 20)).decode():
        if words in line:
            return line
    raise AssertionError(f"it ended without saying {words!r}")


@asynccontextmanager
async def healthy(server: Service) -> AsyncIterator[None]:
    """A worker in the test's own loop."""
    worker = Worker(server.url, "healthy", await server.token("healthy", "agent"), lease_seconds=2)

    @worker.handler("work")
    async def work(job: JobContext) -> dict[str, Any]:
        return {"by": "healthy"}

    task = asyncio.ensure_future(worker.run_async())
    try:
        yield
    finally:
        await worker.stop()
        await task


async def outcomes(server: Service, job_id: int) -> list[tuple[str, str | None]]:
    client = await server.client("ann", "user")
    return [(row["agent"].split("/")[0], row["outcome"]) for row in (await client.attempts(job_id))["attempts"]]


async def test_a_handler_that_blocks_its_loop_for_two_leases_loses_the_job_to_another(server: Service) -> None:
    client = await server.client("ann", "user")
    async with stuck(server) as process:
        job_id = (await client.enqueue("work", {"block": 3}))["job"]["id"]
        await says(process, f"began {job_id}")
        async with healthy(server):
            told = await client.wait(job_id, 20)
        assert (told["job"]["state"], told["job"]["result"]) == ("succeeded", {"by": "healthy"})
        assert await outcomes(server, job_id) == [("stuck", "lost"), ("healthy", "succeeded")]
        assert (await says(process, "told")).split() == ["told", "409", "lease_lost"]
        await says(process, f"lost the lease of job {job_id}")
        assert (await client.result(job_id)) == {"by": "healthy"}
        # The worker that hung goes on with other work.
        again = (await client.enqueue("work"))["job"]["id"]
        assert (await client.wait(again, 20))["job"]["result"] == {"by": "stuck"}


async def test_the_job_of_a_worker_that_was_killed_runs_elsewhere(server: Service) -> None:
    client = await server.client("ann", "user")
    async with stuck(server) as process:
        job_id = (await client.enqueue("work", {"wait": True}))["job"]["id"]
        await says(process, f"began {job_id}")
        process.kill()
    async with healthy(server):
        told = await client.wait(job_id, 20)
    assert told["job"]["result"] == {"by": "healthy"}
    assert await outcomes(server, job_id) == [("stuck", "lost"), ("healthy", "succeeded")]
    assert told["job"]["attempts"] == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_told_to_stop_in_mid_await_gives_its_job_back(server: Service, number: signal.Signals) -> None:
    client = await server.client("ann", "user")
    async with stuck(server) as process:
        job_id = (await client.enqueue("work", {"wait": True}))["job"]["id"]
        await says(process, f"began {job_id}")
        process.send_signal(number)
        await says(process, "stopped")

        async def back() -> bool:
            return (await client.job(job_id))["job"]["state"] == "queued"

        await eventually(back)
    assert await outcomes(server, job_id) == [("stuck", "released")]
    assert (await client.job(job_id))["job"]["attempts"] == 0

"""A server that is cut off from the database, beside one that is not: between hosts, and behind a stretch of network that drops all."""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oaken_jobs.errors import LeaseLost, Unavailable
from oaken_swarm import Client
from tests import hosts, postgres
from tests.contract import invariants
from tests.hosts import Host, Hosts
from tests.network import Link
from tests.postgres import Server
from tests.process import commands
from tests.service import eventually

MISSING = postgres.missing_binaries()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=str(MISSING))

LEASE_SECONDS = 2.0
PATIENCE = 60.0
"""Seconds after which a server that hears nothing from its database says so, at the very latest."""


@dataclass(frozen=True)
class Place:
    """Where two servers run: the one that will be cut off, and the other."""

    database: str
    database_of_first: str
    hosts: tuple[Host | None, Host | None]
    cut: Callable[[], None]
    mend: Callable[[], None]


@asynccontextmanager
async def behind_a_link() -> AsyncIterator[Place]:
    with Server() as database:
        database.start()
        async with Link(database.port) as link:
            yield Place(database.url, link.through(database.url), (None, None), link.drop, link.mend)


@asynccontextmanager
async def between_hosts() -> AsyncIterator[Place]:
    with Hosts() as network:
        there, first, second = (network.add() for _ in range(3))
        with Server(host=there) as database:
            database.start()
            yield Place(
                database.url,
                database.url,
                (first, second),
                lambda: network.part(first, there),
                lambda: network.reunite(first, there),
            )


async def refused(call: Awaitable[Any]) -> None:
    """The call is refused in time as one that could not be carried out, or whose outcome nobody knows."""
    with pytest.raises(Unavailable):
        await asyncio.wait_for(call, PATIENCE)


NO_HOSTS = hosts.missing()


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(behind_a_link, id="behind a link"),
        pytest.param(between_hosts, id="between hosts", marks=pytest.mark.skipif(bool(NO_HOSTS), reason=str(NO_HOSTS))),
    ],
)
async def test_a_server_cut_off_from_its_database_answers_nothing_as_if_it_were_not_and_loses_its_leases_to_another(
    place: Callable[[], AbstractAsyncContextManager[Place]], tmp_path: Path
) -> None:
    processes: list[Process] = []
    async with place() as where:
        try:
            secret = ""
            clients: list[Client] = []
            for n, url in enumerate((where.database_of_first, where.database)):
                folder, settings = (
                    tmp_path / f"data-{n}",
                    {"OAKEN_DATABASE_URL": url, "OAKEN_JOBS__RECOVERY_GRACE": "0"},
                )
                process, address = await commands.serve(folder, settings, host=where.hosts[n])
                processes.append(process)
                secret = secret or await commands.token(folder, settings, "ann")
                clients.append(Client(address, secret, tries=1, timeout=PATIENCE))
            await judge(where, *clients)
            for client in clients:
                await client.aclose()
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()


async def judge(where: Place, first: Client, second: Client) -> None:
    added = await first.enqueue_many([{"kind": "work"}, {"kind": "work"}])
    jobs = [one["job"]["id"] for one in added["jobs"]]
    old = (await first.lease(agent="ann/first", max=2, lease_seconds=LEASE_SECONDS))["leases"]
    assert [lease["job"]["id"] for lease in old] == jobs
    where.cut()
    finishing = asyncio.create_task(refused(first.complete(old[0]["lease_id"], {"by": "first"})))

    async def taken() -> list[Any]:
        """The other server gives both away, once the leases have run out."""
        asked = {"agent": "ann/second", "max": 2, "lease_seconds": PATIENCE, "wait_seconds": 1}
        found.extend((await second.lease(**asked))["leases"])
        return found if len(found) == 2 else []

    found: list[Any] = []
    began = time.monotonic()
    new = await eventually(taken, PATIENCE)
    assert time.monotonic() - began > LEASE_SECONDS / 2
    by_job = {lease["job"]["id"]: lease["lease_id"] for lease in new}
    await second.complete(by_job[jobs[0]], {"by": "second"})
    for call in (first.job(jobs[0]), first.enqueue("work"), first.lease(agent="ann/first"), first.readyz()):
        await refused(call)
    await finishing
    where.mend()

    async def back() -> bool:
        try:
            return bool((await first.job(jobs[0]))["job"])
        except Unavailable:
            return False

    await eventually(back, PATIENCE)
    for lease in old:
        with pytest.raises(LeaseLost):
            await first.complete(lease["lease_id"], {"by": "first"})
    assert (await first.result(jobs[0])) == (await second.result(jobs[0]))
    assert (await second.job(jobs[0]))["job"]["state"] == "succeeded"
    assert (await second.job(jobs[1]))["job"]["state"] == "running"
    await second.complete(by_job[jobs[1]], {"by": "second"})
    with psycopg.connect(where.database, autocommit=True) as database:
        by = database.execute("select body::json ->> 'by' from results where job_id = any(%s)", (jobs,)).fetchall()
        assert by == [("second",), ("second",)]
        invariants.check(database)

"""The PostgreSQL that tests run on: shared and left by nobody, empty for each test, and one of a test's own that dies as told."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests import postgres
from tests.postgres import Server

needs_binaries = pytest.mark.skipif(bool(postgres.missing_binaries()), reason=str(postgres.missing_binaries()))

USER = """
import asyncio, sys
from pathlib import Path
import asyncpg
from tests import postgres

async def ask(url):
    connection = await asyncpg.connect(url)
    print(await connection.fetchval("select pg_postmaster_start_time()::text"), flush=True)
    await connection.close()

with postgres.shared(Path(sys.argv[1])) as url:
    asyncio.run(ask(url))
    sys.stdin.readline()
"""


@pytest.fixture
def own() -> Iterator[Server]:
    with Server() as server:
        server.start()
        yield server


def using(folder: Path) -> subprocess.Popen[str]:
    """A process that uses the server of this folder until it is told to go."""
    environ = {name: value for name, value in os.environ.items() if name != "OAKEN_TEST_DATABASE_URL"}
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=environ,
    )


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def of_port(url: str) -> list[str]:
    """The main process that serves at the port of this address, if there is one."""
    port = url.rsplit(":", 1)[1].split("/", 1)[0]
    return [str(one.pid) for one in psutil.process_iter(["cmdline"]) if f"port={port}" in (one.info["cmdline"] or [])]


@needs_binaries
def test_processes_of_a_run_share_one_server_which_goes_with_the_last_of_them_also_when_they_are_killed(
    tmp_path: Path,
) -> None:
    users = [using(tmp_path) for _ in range(3)]
    try:
        assert len({user.stdout.readline() for user in users if user.stdout}) == 1
        url = (tmp_path / "postgres.url").read_text()
        assert (tmp_path / "postgres.url").stat().st_mode & 0o077 == 0
        users[0].communicate("\n", timeout=20)
        users[1].kill()
        users[1].communicate(timeout=20)
        assert len(of_port(url)) == 1
    finally:
        for user in users:
            user.kill()
            user.communicate(timeout=20)
    until(lambda: not of_port(url))
    until(lambda: not (tmp_path / "postgres.url").exists())
    again = using(tmp_path)
    assert again.stdout is not None
    assert again.stdout.readline()
    assert (tmp_path / "postgres.url").read_text() != url
    again.communicate("\n", timeout=20)


@needs_binaries
@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_server_of_ones_own_goes_with_a_process_that_is_killed() -> None:
    program = "from tests.postgres import Server; s = Server(); s.start(); print(s.url, s.folder, flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert owner.stdout is not None
    url, folder = owner.stdout.readline().split()
    assert len(of_port(url)) == 1
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=20)
    until(lambda: not of_port(url))
    shutil.rmtree(folder)


async def test_each_database_is_new_and_gone_afterwards_though_somebody_is_still_connected(postgres_url: str) -> None:
    async with postgres.fresh(postgres_url) as one, postgres.fresh(postgres_url) as two:
        assert one != two
        connection = await asyncpg.connect(one)
        assert await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0
        await connection.execute("create table t (n bigint)")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(one)
    connection.terminate()


@needs_binaries
@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_what_was_committed_is_there_after_any_end_at_the_same_address(own: Server, how: str) -> None:
    connection = await asyncpg.connect(own.url)
    assert [await connection.fetchval(f"show {name}") for name in ("fsync", "synchronous_commit")] == ["on", "on"]
    await connection.execute("create table t (n bigint)")
    await connection.execute("insert into t values (7)")
    url = own.url
    if how == "kill":
        own.kill()
    else:
        own.stop(how)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetch("select 1")
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(url)
    own.start()
    assert own.url == url
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("select n from t") == 7
    await connection.close()


@needs_binaries
def test_a_server_that_does_not_start_says_why() -> None:
    with Server({"max_connections": "many"}) as server, pytest.raises(RuntimeError, match="max_connections"):
        server.start()


@needs_binaries
async def test_a_stranger_to_the_machine_of_the_tests_gets_no_connection(own: Server) -> None:
    wrong = own.url.replace(own.url.split(":")[2].split("@")[0], "guess")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncio.wait_for(asyncpg.connect(wrong), 10)

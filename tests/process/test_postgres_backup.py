"""A database of Oaken's that was dumped and restored, as the documentation has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import asyncpg
import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from tests import postgres
from tests.contract.world import AGENT, RULES, World
from tests.forks import oaken


def tool(program: str, *arguments: str) -> None:
    binaries = postgres._installed()
    if binaries is None or not (binaries / program).exists():
        pytest.skip(f"there is no {program}")
    subprocess.run([binaries / program, *arguments], check=True, capture_output=True, timeout=60)


async def opened(url: str, folder: Path, clock: FakeClock) -> World:
    core = Core.on_folder(folder, RULES, "serve", clock, database=DatabaseSettings(url=url))
    await core.open()
    return World(core, clock, folder, DatabaseSettings(url=url))


async def test_a_dump_is_restored_without_the_trace_and_goes_on(
    database_url: str, postgres_url: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    before = await opened(database_url, tmp_path, clock)
    done, leased, waiting = [await before.add(payload={"n": number}) for number in range(3)]
    await before.jobs.complete(AGENT, (await before.take()).lease_id, {"n": 1})
    lease = await before.take(lease_seconds=600)
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "insert into trace (id, at, job_id, agent, bytes, body) values ('a', 1, 1, 'a', 1, 'private')"
    )
    await connection.close()
    head = await before.core.store.activity_head()
    await before.close()

    dump = str(tmp_path / "oaken.dump")
    tool("pg_dump", "--format=custom", f"--file={dump}", "--exclude-table-data=trace", database_url)
    async with postgres.fresh(postgres_url) as url:
        tool("pg_restore", f"--dbname={url}", dump)
        after = await opened(url, tmp_path, clock)
        assert [job.state for job in await after.core.store.jobs([done.id, leased.id, waiting.id])] == [
            "succeeded",
            "running",
            "queued",
        ]
        assert after.raw.execute("select count(*) from trace").fetchone() == (0,)
        await after.jobs.complete(AGENT, lease.lease_id, {"n": 2})
        assert (await after.add()).id == waiting.id + 1
        assert [row.verb for row in await after.core.store.activity(head, 10)] == ["complete", "enqueue"]
        await after.close()


def test_oaken_backup_says_what_to_use_instead(database_url: str, tmp_path: Path) -> None:
    said = oaken("backup", str(tmp_path / "copy.db"), data=tmp_path / "data", OAKEN_DATABASE_URL=database_url)
    assert (said.code, "Back it up with pg_dump" in said.err) == (1, True), said.err
    assert not (tmp_path / "copy.db").exists()
    assert ":" not in said.err.partition("//")[2].partition("@")[0], "the password is not told"

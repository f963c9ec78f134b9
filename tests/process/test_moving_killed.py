"""`oaken migrate-store` as a person meets it: killed in the middle, and called again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg

from oaken_jobs.store.postgres import schema
from oaken_jobs.store.postgres.server import Server
from oaken_jobs.store.sqlite.driver import sqlite3
from tests.forks import oaken
from tests.processes import clean_environ

JOBS = 12_000


def fill(folder: Path) -> None:
    """A folder with more jobs than are copied at a time."""
    assert oaken("job", "enqueue", "work", "--payload", '{"n": 0}', data=folder).code == 0
    with closing(sqlite3.connect(folder / "core.db")) as database, database:
        columns = [row[1] for row in database.execute("pragma table_info(jobs)") if row[1] != "id"]
        named = ", ".join(columns)
        numbers = f"with recursive n(i) as (select 2 union all select i + 1 from n where i < {JOBS})"
        database.execute(f"insert into jobs (id, {named}) {numbers} select i, {named} from jobs, n where id = 1")
        database.execute(f"{numbers} insert into payloads select i, '{{\"n\":' || i || '}}' from n")


def count(url: str, statement: str = "select count(*) from jobs") -> int:
    """Zero where there is no such table yet."""
    with psycopg.connect(url) as database:
        try:
            return database.execute(statement).fetchone()[0]  # type: ignore[index]
        except psycopg.errors.UndefinedTable:
            return 0


HOLD = """
create function hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(new.id); return new; end $$;
create trigger hold before insert on jobs for each row when (new.id in (3000, 9000)) execute function hold();
select pg_advisory_lock(3000), pg_advisory_lock(9000);
"""
HELD = "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = %s"


async def migrate(url: str) -> None:
    connection = await Server(url, prepared=True).connect()
    await schema.migrate(connection, "the database")
    await connection.close()


def test_a_move_that_is_killed_goes_on_where_it_was_and_is_whole_in_the_end(tmp_path: Path, database_url: str) -> None:
    folder = tmp_path / "data"
    fill(folder)
    asyncio.run(migrate(database_url))
    killed = []
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute(HOLD)
        for job in (3000, 9000):
            process = subprocess.Popen(
                [sys.executable, "-m", "oaken_app.main", "migrate-store", "--from", str(folder), "--to", database_url],
                env=clean_environ(),
                stderr=subprocess.PIPE,
            )
            deadline = time.monotonic() + 60
            while other.execute(HELD, (job,)).fetchone() == (0,):
                assert time.monotonic() < deadline
                assert process.poll() is None
            process.kill()
            process.communicate()
            other.execute("select pg_advisory_unlock(%s)", (job,))
            killed.append(count(database_url))
        other.execute("drop trigger hold on jobs; drop function hold")
    assert 0 < killed[0] < 3000 < killed[1] < 9000
    half = oaken("job", "list", data=tmp_path / "other", OAKEN_DATABASE_URL=database_url)
    assert (half.code, "half-done copy" in half.err) == (1, True), half.err

    said = oaken("migrate-store", "--json", data=folder, OAKEN_DATABASE_URL=database_url)
    assert (said.code, said.err) == (0, "")
    assert {name: said.json["tables"][name]["rows"] for name in ("jobs", "payloads")} == dict.fromkeys(
        ("jobs", "payloads"), JOBS
    )
    sums = "select count(*) filter (where body = '{\"n\":' || job_id || '}') from payloads"
    assert (count(database_url), count(database_url, sums)) == (JOBS, JOBS - 1), "the first has a blank"
    there = oaken("job", "enqueue", "work", "--json", data=tmp_path / "other", OAKEN_DATABASE_URL=database_url)
    assert json.loads(there.out)["job"]["id"] == JOBS + 1
    assert oaken("job", "status", str(JOBS), "--json", data=folder).json["job"]["payload"] == {"n": JOBS}, (
        "the folder stays"
    )


def test_what_is_missing_or_wrong_is_told_in_a_line(tmp_path: Path, postgres_url: str) -> None:
    said = oaken("migrate-store", data=tmp_path / "none")
    assert (said.code, said.err) == (1, "oaken: Name the database to move to with --to, or in OAKEN_DATABASE_URL.\n")
    said = oaken("migrate-store", "--from", "sqlite:///nowhere/core.db", "--to", postgres_url)
    assert (said.code, said.err) == (
        1,
        "oaken: There is no /nowhere/core.db to move. Name the data folder with --from.\n",
    ), said.err

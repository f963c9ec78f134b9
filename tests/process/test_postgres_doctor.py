"""`oaken doctor` on PostgreSQL: what is wrong with a server is found, also by who may do little."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from oaken_jobs.clock import FakeClock, SystemClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.store.base import Finding
from oaken_jobs.store.postgres import condition
from oaken_jobs.store.postgres.server import Server
from tests import postgres
from tests.forks import oaken

WELL = {
    "server_version": "18.0",
    "server_version_num": "180000",
    "server_encoding": "UTF8",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "track_counts": "on",
    "transaction_read_only": "off",
    "statement_timeout": "0",
}


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """One that nobody else uses, durable, with little room."""
    if reason := postgres.missing_binaries():
        pytest.skip(reason)
    settings = {"autovacuum": "off", "max_connections": "40", "max_prepared_transactions": "3"}
    with postgres.Server({**postgres.DURABLE, **settings}) as found:
        found.start()
        yield found


@pytest.fixture
async def url(server: postgres.Server) -> AsyncIterator[str]:
    """A database with Oaken's tables on that server."""
    async with postgres.fresh(server.url) as found:
        core = Core.on_folder(Path("unused"), Rules(), "cli", database=DatabaseSettings(url=found))
        await core.open()
        await core.close()
        yield found


async def examined(url: str, pool_size: int = 8) -> list[Finding]:
    return await condition.examine(Server(url, prepared=True), SystemClock(), pool_size, recording=True)


async def found(url: str, *words: str, **more: Any) -> Finding:
    """The one finding with these words."""
    findings = await examined(url, **more)
    hits = [one for one in findings if all(word in one.what for word in words)]
    assert len(hits) == 1, findings
    return hits[0]


async def tell(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def test_a_server_that_is_well_is_told_so_and_nothing_of_sqlite(server: postgres.Server, tmp_path: Path) -> None:
    said = oaken("doctor", data=tmp_path, OAKEN_DATABASE_URL=server.url)
    lines = said.out.splitlines()
    assert said.code == 1
    assert [line for line in lines if line.startswith("bad")] == [
        "bad  autovacuum is off: dead rows pile up, and claims slow down; set autovacuum = on"
    ]
    for told in (
        "PostgreSQL ",
        "this machine's clock and the database's agree",
        "no table is full of dead rows",
        "no transaction is open for long",
        "Oaken's user may do what it must",
        "no server, runner or MCP server is at work here",
    ):
        assert told in said.out, said.out
    password = urlsplit(server.url).password
    assert password is not None
    assert password not in said.out
    assert "SQLite" not in said.out
    assert "sound" not in said.out, "nobody has looked at that"
    found = json.loads(oaken("doctor", "--json", data=tmp_path, OAKEN_DATABASE_URL=server.url).out)["findings"]
    assert {one["level"] for one in found} == {"ok", "warn", "bad"}


def test_a_server_that_is_not_there_is_one_finding(tmp_path: Path) -> None:
    said = oaken("doctor", data=tmp_path, OAKEN_DATABASE_URL="postgresql://oaken@127.0.0.1:9/none")
    assert (said.code, said.out.count("\nbad "), "cannot be opened" in said.out) == (1, 1, True), said.out


SETTINGS = [
    ({}, []),
    ({"fsync": "off"}, ["fsync is off: a crash of the machine can ruin the whole database; set fsync = on"]),
    ({"full_page_writes": "off"}, ["full_page_writes is off: "]),
    (
        {"synchronous_commit": "off"},
        ["synchronous_commit is off: a crash of the server loses what was acknowledged last"],
    ),
    ({"synchronous_commit": "local"}, []),
    ({"autovacuum": "off", "track_counts": "off"}, ["autovacuum is off", "track_counts is off"]),
    ({"transaction_read_only": "on"}, ["transactions can only read"]),
    ({"server_encoding": "LATIN1"}, ["keeps text as LATIN1"]),
    ({"statement_timeout": "5000"}, ["statement_timeout is 5 s"]),
    ({"statement_timeout": "600000"}, []),
]


@pytest.mark.parametrize(("changed", "told"), SETTINGS)
def test_settings_that_lose_data_or_surprise_are_told(changed: dict[str, str], told: list[str]) -> None:
    findings = condition.judged(WELL | changed)
    assert len(findings) == len(told)
    for one, words in zip(findings, told, strict=True):
        assert words in one.what


async def test_settings_are_read_as_they_are_for_this_user_and_database(url: str) -> None:
    name = urlsplit(url).path[1:]
    await tell(url, f"alter database {name} set synchronous_commit = off")
    assert (await found(url, "synchronous_commit is off")).level == "bad"


async def test_a_clock_that_is_wrong_is_told_by_how_much(url: str) -> None:
    clock = FakeClock()
    clock.advance(SystemClock().now() / 1000 - clock.now() / 1000 - 300)
    findings = await condition.examine(Server(url, prepared=True), clock, 8, recording=False)
    assert [one.level for one in findings if "clock is 300 s behind the database's" in one.what] == ["warn"]


async def test_processes_that_want_more_connections_than_there_are_are_told(url: str) -> None:
    now = SystemClock().now()
    seen = [now, now, now, now, now - 60_000]
    processes = ", ".join(f"('p{n}', 'serve', {n}, 'host', '1', 1, {at})" for n, at in enumerate(seen))
    await tell(url, f"insert into processes values {processes}")
    told = await found(url, "a process of Oaken's takes up to 13 connections, those at work here 52; there are 37")
    assert (told.level, "lower [database] pool_size" in told.what) == ("warn", True)
    assert (await found(url, "those at work here 28", pool_size=2)).level == "ok"


async def test_dead_rows_and_tables_that_were_never_analysed_are_told(url: str) -> None:
    line = "insert into log_lines (at, level, logger, message, process) select 1, 'info', 'l', 'm', 'p' from generate_series(1, {})"
    await tell(url, line.format(60_000), "delete from log_lines where id <= 30000")
    async with asyncio.timeout(20):
        while not any("dead rows beside" in one.what for one in await examined(url)):
            pass
    dead = await found(url, "log_lines has 30,000 dead rows beside 30,000 living ones, last vacuumed: never")
    assert (dead.level, "run `vacuum log_lines`" in dead.what) == ("warn", True)
    assert (await found(url, "log_lines has", "was never analysed; run `analyze log_lines`")).level == "warn"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any transaction is a long one."""
    monkeypatch.setattr(condition, "LONG_SECONDS", 0)
    monkeypatch.setattr(condition, "OLD", 1)


@pytest.mark.usefixtures("impatient")
async def test_who_holds_a_transaction_open_is_told_also_in_another_database(
    server: postgres.Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await asyncpg.connect(server.url, server_settings={"application_name": "report"})
    try:
        await holder.execute("begin; set transaction isolation level repeatable read; select 1")
        told = await found(url, f"process {holder.get_server_pid()} (oaken, database postgres, report)")
        assert (told.level, "idle in transaction" in told.what) == ("warn", True)
        monkeypatch.setattr(condition, "TOO_LONG_SECONDS", 0)
        assert (await found(url, f"pg_terminate_backend({holder.get_server_pid()})")).level == "bad"
    finally:
        await holder.close()


@pytest.mark.usefixtures("impatient")
async def test_prepared_transactions_and_unused_slots_are_told(server: postgres.Server, url: str) -> None:
    await tell(server.url, "create table if not exists other (n int)")
    await tell(server.url, "begin", "insert into other values (1)", "prepare transaction 'forgotten'")
    await tell(server.url, "select pg_create_physical_replication_slot('lost', true)")
    try:
        told = await found(url, "the prepared transaction forgotten of oaken in postgres")
        assert (told.level, "rollback prepared" in told.what) == ("warn", True)
        assert (await found(url, "nobody uses the replication slot lost")).level == "warn"
    finally:
        await tell(server.url, "rollback prepared 'forgotten'", "select pg_drop_replication_slot('lost')")


@pytest.fixture
async def plain(server: postgres.Server, url: str) -> AsyncIterator[str]:
    """The database for a user who may read its tables, and change most."""
    await tell(
        url,
        "create role plain login password 'plain' connection limit 20",
        "grant select, insert, update, delete on all tables in schema public to plain",
        "grant usage, select on all sequences in schema public to plain",
        "revoke update, delete on jobs from plain",
        "revoke all on sequence job_ids from plain",
        "revoke all on trace from plain",
        "revoke create on schema public from public",
    )
    parts = urlsplit(url)
    yield parts._replace(netloc=f"plain:plain@{parts.hostname}:{parts.port}").geturl()
    await tell(url, "drop owned by plain", "drop role plain")


@pytest.mark.usefixtures("impatient")
async def test_a_user_who_may_do_little_is_told_what_is_missing_and_what_is_not_seen(
    server: postgres.Server, url: str, plain: str
) -> None:
    holder = await asyncpg.connect(server.url)
    try:
        await holder.execute("begin; select pg_current_xact_id()")
        for _ in range(3):
            await tell(url, "select pg_current_xact_id()")
        told = await found(plain, f"process {holder.get_server_pid()} ")
        assert (told.level, "transactions old" in told.what) == ("bad", True)
    finally:
        await holder.close()
    assert (await found(plain, "lacks delete, update on table jobs")).level == "bad"
    assert (await found(plain, "lacks select, usage on sequence job_ids")).level == "bad"
    assert (await found(plain, "there are 20, of which")).level == "ok"
    assert (await found(plain, "grant pg_read_all_stats")).level == "ok"
    assert (await found(plain, "may not change tables")).level == "ok"
    assert (await found(plain, "may not write to the table trace")).level == "warn"
    await tell(url, "grant insert, select (id) on trace to plain")
    assert [one for one in await examined(plain) if "table trace" in one.what] == []
    assert [one for one in await examined(url) if "pg_read_all_stats" in one.what] == []


async def test_a_standby_is_told_to_be_one() -> None:
    if reason := postgres.missing_binaries():
        pytest.skip(reason)
    with postgres.Server() as server:
        server.start()
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        told = await found(server.url, "is a standby, which can only be read")
        assert told.level == "bad"

"""The trace on PostgreSQL: one for all servers, no larger than it may be, and for nobody who has no right to it."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from oaken_jobs.archive import Kept
from oaken_jobs.clock import FakeClock, SystemClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.errors import OakenError, Unavailable
from oaken_jobs.store.postgres import archive as postgres_archive
from oaken_jobs.store.postgres.archive import PostgresArchive
from oaken_jobs.store.postgres.server import Server
from oaken_jobs.trace import Recorder
from tests.contract.test_trace import ADMIN
from tests.contract.world import AGENT, RULES, World, until

PAGE = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text("utf-8")
DAY = 86_400
Make = Callable[..., Any]


@pytest.fixture
async def make(emptied_url: str, tmp_path: Path) -> AsyncIterator[Make]:
    """Opens servers on one database, each with a folder and a recorder of its own."""
    opened: list[World] = []

    async def made(url: str = emptied_url, clock: FakeClock | None = None, **more: Any) -> World:
        clock = clock or FakeClock()
        archive = PostgresArchive(Server(url, prepared=True), **{"most_bytes": 1 << 20, "look_bytes": 1 << 20} | more)
        trace = Recorder(archive, clock, recording=True, keep_days=30)
        database = DatabaseSettings(url=url)
        core = Core.on_folder(tmp_path / str(len(opened)), RULES, "serve", clock, database=database, trace=trace)
        await core.open()
        opened.append(World(core, clock, tmp_path, database))
        return opened[-1]

    yield made
    for world in opened:
        await world.close()


async def read(world: World, **fields: Any) -> list[Any]:
    return (await world.core.traces.list(ADMIN, **fields)).rows


def kept(number: int, size: int = 0, agent: str = "a") -> Kept:
    text = b'{"id":"%016x","job_id":1,"agent":"%s","ts":"x","input":"%s"}' % (number, agent.encode(), b"x" * size)
    return Kept(f"{number:016x}", 1, 1, agent, text)


async def test_what_one_server_recorded_every_server_shows(make: Make) -> None:
    one, other = await make(), await make()
    job = await one.add(payload={"text": "a\u0000b"})
    await other.jobs.complete(AGENT, (await one.take()).lease_id, {"n": 1})
    for world in (one, other):
        assert [row["event"] for row in await read(world, job_id=job.id)] == ["finish", "lease"]
        assert (await read(world))[1]["input"]["payload"] == {"text": "a\u0000b"}


async def test_who_follows_hears_of_every_row_of_every_server_once_and_in_one_order(
    emptied_url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_archive, "FOLLOW_SECONDS", 0.01)
    world = await make()
    archives = [
        PostgresArchive(Server(emptied_url, prepared=True), most_bytes=1 << 20, look_bytes=1 << 20) for _ in range(3)
    ]
    heard: list[list[str]] = [[], []]

    async def follow(number: int) -> None:
        async for rows in archives[number].follow(SystemClock()):
            heard[number] += [row["id"] for row in rows]

    following = [asyncio.create_task(follow(number)) for number in range(2)]
    async with asyncio.timeout(20):
        while not all(heard):
            await archives[2].add([kept(secrets.randbits(60))])
        for _ in range(10):
            await asyncio.gather(
                *(archives[n % 3].add([kept(secrets.randbits(60)) for _ in range(3)]) for n in range(20))
            )
        said = [row[0] for row in world.raw.execute("select id from trace order by n").fetchall()]
        await until(lambda: all(said[-1] in one for one in heard))
    for task in following:
        task.cancel()
    await asyncio.wait(following)
    for archive in archives:
        await archive.close()
    for one in heard:
        assert len(one) >= 600
        assert one == said[-len(one) :]


async def test_a_row_whose_transaction_ends_late_is_not_passed_over(
    emptied_url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_archive, "FOLLOW_SECONDS", 0.01)
    world = await make()
    archive = world.core._trace._archive
    heard: list[str] = []

    async def follow() -> None:
        async for rows in archive.follow(SystemClock()):
            heard.extend(row["id"] for row in rows)

    following = asyncio.create_task(follow())
    async with asyncio.timeout(20):
        while not heard:
            await archive.add([kept(secrets.randbits(60))])
    before = len(world.raw.execute("select id from trace").fetchall())
    late = await asyncpg.connect(emptied_url)
    try:
        await late.execute("begin")
        one, other = kept(1), kept(2)
        await late.execute(postgres_archive._ADD, [one.id], [one.at], [one.job_id], [one.agent], [one.text.decode()])
        adding = asyncio.create_task(archive.add([other]))
        waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
        await until(lambda: other.id in heard or bool(world.raw.execute(waiting).fetchall()))
        await late.execute("commit")
        await adding
        await until(lambda: other.id in heard)
    finally:
        await late.close()
        following.cancel()
        await asyncio.wait([following])
    assert heard[-2:] == [one.id, other.id]
    assert len(world.raw.execute("select id from trace").fetchall()) == before + 2


async def test_rows_that_are_said_twice_are_kept_once(make: Make) -> None:
    archive = (await make()).core._trace._archive
    for _ in range(2):
        await archive.add([kept(1), kept(2)])
    assert [row["id"] for row in (await archive.read(job_id=None, agent=None, before=None, limit=9)).rows] == [
        f"{number:016x}" for number in (2, 1)
    ]


async def test_it_grows_no_larger_than_it_may(make: Make) -> None:
    archive = (await make(most_bytes=10_000, look_bytes=2_000)).core._trace._archive
    for number in range(100):
        await archive.add([kept(number, 500)])
        page = await archive.read(job_id=None, agent=None, before=None, limit=100)
        assert len(page.rows) * 560 < 13_000
    assert page.rows[0]["id"] == f"{99:016x}", "the newest stay"
    assert len(page.rows) > 10


async def test_old_rows_go_however_many_there_are(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_archive, "_OLD", postgres_archive._FORGET.format("at < $1", 3))
    world = await make()
    await world.core._trace._archive.add([kept(number) for number in range(10)])
    await world.add()
    await world.take()
    await world.core.pruner.tick()
    assert [row["event"] for row in await read(world)] == ["lease"]


async def test_a_connection_that_broke_costs_no_row(make: Make) -> None:
    world = await make()
    for _ in range(3):
        world.alter(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and query like '%trace%'"
        )
        await world.add()
        await world.take()
    assert len(await read(world)) == 3


# Rights.


@pytest.fixture
async def users(database_url: str) -> AsyncIterator[dict[str, str]]:
    """The database for the users that the documentation makes, by name."""
    core = Core.on_folder(Path("unused"), RULES, "cli", FakeClock(), database=DatabaseSettings(url=database_url))
    await core.open()
    await core.close()
    mark = f"r{secrets.token_hex(4)}_"
    (block,) = re.findall(r"```sql\n(create role .*?)```", PAGE, re.DOTALL)
    block = block.replace("oaken_", mark).replace("…", "secret")
    block += f"create role {mark}mcp login password 'secret' in role {mark}jobs;"
    names = re.findall(r"create role (\w+)", block)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(block)
        parts = urlsplit(database_url)
        yield {
            name.removeprefix(mark): parts._replace(netloc=f"{name}:secret@{parts.hostname}:{parts.port}").geturl()
            for name in names
        }
        for name in reversed(names):
            await connection.execute(f"drop owned by {name}; drop role {name}")
    finally:
        await connection.close()


async def test_with_the_documented_rights_servers_do_all_and_runners_record_without_reading(
    make: Make, users: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, runner = await make(users["server"]), await make(users["runner"], look_bytes=1)
    job = await server.add(payload={"text": "private"})
    await runner.jobs.complete(AGENT, (await runner.take()).lease_id, {"n": 1})
    await server.core.maintenance.tick()
    assert [row["event"] for row in await read(server, job_id=job.id)] == ["finish", "lease"]
    with pytest.raises(Unavailable, match=r"cannot be read \(permission denied for table trace; docs/postgres\.md"):
        await read(runner)
    runner.clock.advance(40 * DAY)
    server.clock.advance(40 * DAY)
    await runner.core.pruner.tick()
    assert len(await read(server)) == 2, "who may not forget leaves it to others"
    await server.core.pruner.tick()
    assert await read(server) == []
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []


async def test_who_may_neither_read_nor_record_does_all_else(
    make: Make, users: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    world = await make(users["mcp"])
    await world.add(payload={"text": "private"})
    await world.jobs.complete(AGENT, (await world.take()).lease_id, {"n": 1})
    await world.core.pruner.tick()
    (told,) = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert re.search(
        r"1 rows of the trace could not be written to postgresql://.*: permission denied for table trace", told
    )
    assert "secret" not in told


async def test_nobody_else_reads_the_table(make: Make, users: dict[str, str]) -> None:
    world = await make(users["runner"])
    await world.add(payload={"text": "private"})
    await world.take()
    connection = await asyncpg.connect(users["runner"])
    try:
        for statement in (
            "select body from trace",
            "select count(body) from trace",
            "delete from trace",
            "update trace set body = ''",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()
    with pytest.raises(OakenError):
        await read(world)

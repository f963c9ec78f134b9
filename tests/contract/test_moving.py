"""A data folder that moves into PostgreSQL: all is there, and goes on from where it was."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from oaken_jobs import moving, pipeline
from oaken_jobs.clock import FakeClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.errors import ConfigError, Conflict, LeaseLost, NotFound, OakenError, Unauthenticated, Unavailable
from oaken_jobs.files import DATABASE
from oaken_jobs.journal import Journal
from oaken_jobs.model import SYSTEM, Limits, LogRow, Usage
from oaken_jobs.moving import INSTEAD, STAYS, Moved, move
from oaken_jobs.requests import ScheduleRequest
from oaken_jobs.runner import Runner
from oaken_jobs.store.base import JobFilter
from oaken_jobs.store.operations import Audit, Emit, KeepLog, ProcessRow, Register, SetHealth
from oaken_jobs.store.postgres import copying
from oaken_jobs.store.postgres import schema as postgres_schema
from oaken_jobs.store.postgres.archive import PostgresArchive
from oaken_jobs.store.postgres.server import Server
from oaken_jobs.store.sqlite import schema as sqlite_schema
from oaken_jobs.store.sqlite.driver import sqlite3
from tests.contract.world import AGENT, ME, RULES, TWIN, World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """On SQLite, whatever the engine of other tests."""
    clock = FakeClock()
    core = Core.on_folder(tmp_path, RULES, "serve", clock)
    await core.open()
    found = World(core, clock, tmp_path, DatabaseSettings())
    yield found
    await found.close()


@pytest.fixture
async def moved_to(world: World, emptied_url: str) -> AsyncIterator[Any]:
    """Opens the core on the database that was moved to."""
    opened: list[Core] = []

    async def opens() -> World:
        core = Core.on_folder(world.folder, RULES, "serve", world.clock, database=DatabaseSettings(url=emptied_url))
        await core.open()
        opened.append(core)
        return World(core, world.clock, world.folder, DatabaseSettings(url=emptied_url))

    yield opens
    for core in opened:
        await core.close()


def trace_of(world: World) -> Journal:
    return Journal(world.folder / "trace.jsonl", 4_000, 5)


async def moves(world: World, url: str) -> Moved:
    return await move(
        world.folder, trace_of(world), Server(url, prepared=True), world.clock, lambda what, done, rows: None
    )


async def live(world: World) -> dict[str, Any]:
    """Has something happen to every table, and leaves jobs in every state. Says what goes on afterwards."""
    core, jobs = world.core, world.jobs
    _, token = await core.tokens.create(SYSTEM, "agent-1", ["agent"], limits=Limits(max_per_hour=10, queues=("mail",)))
    _, revoked = await core.tokens.create(SYSTEM, "agent-2", ["agent"])
    await core.tokens.revoke(SYSTEM, "agent-2")
    await world.add("intake", payload={"text": "# A text\nof some lines", "source": "a.md"})
    await Runner(jobs, core.follower, world.clock, pipeline.handlers(), 5).drain()
    for lease in await jobs.lease(AGENT, kinds=["embed", "triage"], max=5):
        result = {"model": "m", "vector": [0.5, 1]} if lease.job.kind == "embed" else {"labels": {"topic": "x"}}
        await jobs.complete(AGENT, lease.lease_id, result, Usage({"input_tokens": 3}, 0.1 + 0.2, "m-1"))
    session = await core.sessions.open(token)
    await core.sessions.new_code("agent-1")
    limited = await core.tokens.authenticate(token, "http")
    await jobs.requeue(ME, (await world.add("limited")).id, "mail")
    await jobs.release(limited, (await world.take(limited)).lease_id)
    failed = await world.add("failing", max_attempts=1, title="𝄞 ünïcode \N{ZERO WIDTH JOINER}", tags=["a", "b"])
    await jobs.fail(AGENT, (await world.take(kinds=["failing"])).lease_id, "no")
    await jobs.set_labels(ME, "note:1", {"queue": "mail"}, None)
    document = (await jobs.list(ME, JobFilter(kinds=("store",)), limit=1)).jobs[0].subject
    late = await world.add("late", max_attempts=1)
    lease = await world.take(kinds=["late"], lease_seconds=1)
    await world.tick(3)
    with pytest.raises(LeaseLost):
        await jobs.complete(AGENT, lease.lease_id, {"late": True})
    cancelled = await world.add("cancelled")
    await jobs.cancel(ME, cancelled.id)
    asking = await world.add("asking")
    await jobs.ask(AGENT, (await world.take(kinds=["asking"])).lease_id, "Which one?")
    running = await world.add("running", payload={"deep": ["\u0000", {"n": 2**60}]}, serial_key="one", budget_usd=1.5)
    held = await world.take(TWIN, kinds=["running"], lease_seconds=3600)
    await jobs.heartbeat(TWIN, held.lease_id, percent=40, message="on it", progress=True)
    await world.add("running", serial_key="one")
    parent = await world.add("parent")
    mine = await world.take(kinds=["parent"])
    await world.add("child", AGENT, parent_id=parent.id)
    await jobs.release(AGENT, mine.lease_id, after_children=True)
    await world.add("waiting", dedupe_key="d", idempotency_key="once", priority=700)
    await world.add("tomorrow", delay_seconds=86_400, target="t")
    await core.tasks.add(ME, [running.id], {"said": 1})
    every = ScheduleRequest.model_validate({"queue": "mail", "kind": "tick", "every_seconds": 3600})
    await core.schedules.put(ME, "hourly", every)
    await jobs.set_paused(ME, "closed", True)
    await jobs.flush()
    await jobs.drain(ME, "worker", True)
    await jobs.drain(ME, "agent-1", True)
    await jobs.drain(ME, "worker", False)
    for op in (
        KeepLog([LogRow(0, world.clock.now(), "info", "oaken.x", "a line", "serve 1")]),
        Audit(ME.actor, "trace.read", "allowed", rows=3),
        SetHealth("plug", False, "it is ill", SYSTEM),
        Emit("plug", "happened", '{"n": 1}', SYSTEM),
        Emit("plug", "happened", '{"n": 2}', SYSTEM, failed.id),
    ):
        await core.commit.call(op)
    world.alter(
        "insert into marks values ('activity_forgotten', 2)",
        f"insert into retriage values ('default', '{document}', 5)",
        f"update processes set seen_at = {world.clock.now() - 60_000}",
    )
    return {"token": token, "session": session, "revoked": revoked, "held": held, "late": late, "asking": asking}


async def told(world: World) -> dict[str, Any]:
    """All that can be read, by who reads it."""
    store, now = world.core.store, world.clock.now()
    ids = list(range(await store.last_id() + 1))
    jobs = await store.jobs(ids)
    return {
        "jobs": jobs,
        "payloads": await store.payloads(ids),
        "results": await store.results(ids),
        "attempts": [await store.attempts(id) for id in ids],
        "progress": [await store.progress(id) for id in ids],
        "questions": [await store.questions(id) for id in ids],
        "late": [await store.late_result(id, 1) for id in ids],
        "activity": await store.activity(0, 10_000),
        "forgotten": await store.activity_forgotten(),
        "lists": await store.list_jobs(JobFilter(query="ünï"), None, 50),
        "states": await store.states(JobFilter()),
        "counts": sorted(await store.counts()),
        "depths": sorted(await store.depths(now)),
        "surroundings": await store.surroundings(jobs, now),
        "asking": await store.open_questions(JobFilter(), 50),
        "paused": await store.paused(),
        "agents": await store.agents(),
        "kinds": await store.leased_kinds(),
        "labels": [await store.labels("default", job.subject) for job in jobs if job.subject],
        "tokens": await store.tokens(),
        "leases": await store.leases_of("agent-1", now),
        "sessions": await store.sessions(),
        "finishes": sorted(await store.finishes(0)),
        "audit": await store.audit(None, 100),
        "logs": await store.log_lines(("info",), None, None, 100),
        "schedules": await store.schedules(),
        "documents": await store.documents("default", [job.subject[9:] for job in jobs if job.kind == "store"]),
        "vectors": await store.vectors("default"),
        "held": await store.held("worker"),
        "health": await store.plugin_health(),
    }


async def test_all_that_can_be_read_is_the_same_afterwards(world: World, emptied_url: str, moved_to: Any) -> None:
    await live(world)
    here = {name: world.raw.execute(f"select count(*) from {name}").fetchone()[0] for name in world.tables}
    assert [name for name, rows in here.items() if not rows] == [], "what is empty here proves nothing"
    moved = await moves(world, emptied_url)
    there = await moved_to()
    assert await told(there) == await told(world)
    for name in set(here) - STAYS - {"sqlite_sequence"}:
        assert moved.figures[name].rows == here[name]
        order = ", ".join(str(n + 1) for n in range(len(world.raw.execute(f"select * from {name}").description)))
        columns = ", ".join(row[0] for row in world.raw.execute(f"select name from pragma_table_info('{name}')"))
        rows = [
            sorted(map(repr, one.raw.execute(f"select {columns} from {name}").fetchall())) for one in (world, there)
        ]
        assert rows[0] == rows[1], (name, order)
    assert moved.replaced == []


async def test_everybody_goes_on_where_they_were(world: World, emptied_url: str, moved_to: Any) -> None:
    then = await live(world)
    cursor = world.event_ids[-1]
    last = await world.core.store.last_id()
    await moves(world, emptied_url)
    there = await moved_to()
    jobs = there.jobs
    await jobs.complete(TWIN, then["held"].lease_id, {"done": True})
    assert (await there.take(TWIN, kinds=["running"])).job.serial_key == "one", "the next of the key is offered"
    await jobs.answer(ME, then["asking"].id, "That one")
    assert (await there.take(kinds=["asking"])).answers[0].answer == "That one"
    assert (await jobs.adopt(ME, then["late"].id, 1)).state == "succeeded"
    assert (await there.add("new")).id == last + 1
    again = await there.enqueue("waiting", dedupe_key="d", idempotency_key="once", priority=700)
    assert again.created, "as the first answer said"
    assert not (await there.enqueue("waiting", dedupe_key="d")).created
    assert (await there.core.tokens.authenticate(then["token"], "http")).actor.id == "agent-1"
    assert (await there.core.sessions.find(then["session"])).who.actor.id == "agent-1"
    await there.core.sessions.open(then["token"])
    with pytest.raises(Unauthenticated):
        await there.core.tokens.authenticate(then["revoked"], "http")
    assert (await jobs.ask(AGENT, (await there.take(kinds=["new"])).lease_id, "A question of its own?")).question
    there.clock.advance(3601)
    await there.core.scheduler.tick()
    assert [job.kind for job in (await jobs.list(ME, JobFilter(kinds=("tick",)))).jobs] == ["tick"]
    verbs = [row.verb for row in await there.core.store.activity(cursor, 100)]
    assert (verbs[0], "adopt" in verbs, "answer" in verbs, "fire" in verbs or "enqueue" in verbs) == (
        "complete",
        True,
        True,
        True,
    )


async def test_new_events_come_after_those_of_a_source_with_very_many(
    world: World, emptied_url: str, moved_to: Any
) -> None:
    await world.add()
    world.alter("update activity set id = 1 << 45", "update sqlite_sequence set seq = 1 << 45 where name = 'activity'")
    await moves(world, emptied_url)
    there = await moved_to()
    assert await there.core.store.activity_head() == 1 << 45
    job = await there.add()
    (row,) = await there.core.store.activity(1 << 45, 10)
    assert row.job_id == job.id


async def test_ids_that_were_given_out_are_not_given_again(world: World, emptied_url: str, moved_to: Any) -> None:
    newest = [await world.add() for _ in range(3)][-1]
    await world.jobs.cancel(ME, newest.id)
    await world.jobs.erase(ME, newest.id)
    await moves(world, emptied_url)
    assert (await (await moved_to()).add()).id == newest.id + 1


async def test_an_empty_folder_moves(world: World, emptied_url: str, moved_to: Any) -> None:
    await moves(world, emptied_url)
    assert (await (await moved_to()).add()).id == 1


async def test_tables_and_columns_are_the_same_on_both_engines(world: World, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await postgres_schema.migrate(connection, "here")
        there = {table.name: set(table.columns) for table in await copying.tables(connection)}
    finally:
        await connection.close()
    names = set(world.tables) - {"sqlite_sequence"}
    here = {
        name: {row[0] for row in world.raw.execute(f"select name from pragma_table_info('{name}')")} for name in names
    }
    assert {name: there.get(name) for name in names} == here
    assert set(there) - names == {"trace"}
    assert postgres_schema.latest() == sqlite_schema.latest()


def recorded(world: World, count: int) -> list[str]:
    """Writes so many rows of a trace, and a line that is none; their ids."""
    ids = [f"{number:016x}" for number in range(count)]
    for number, id in enumerate(ids):
        row = {
            "id": id,
            "ts": f"2026-11-30T12:00:00.{number:03}Z",
            "job_id": 1,
            "agent": "a/b",
            "input": "x\0y" * number,
        }
        trace_of(world).append(json.dumps(row).encode() + b"\n")
    trace_of(world).append(b'what is this\n{"id":"x","job_id":1,"agent":"a"}\n')
    return ids


@pytest.mark.usefixtures("small")
async def test_the_trace_comes_along_from_all_its_files(world: World, emptied_url: str) -> None:
    ids = recorded(world, 50)
    assert (world.folder / "trace.jsonl.1").exists()
    await world.add()
    left = 5

    def tell(what: str, done: int, rows: int) -> None:
        nonlocal left
        left -= what == "copying trace"
        if left == 0:
            raise Stopped

    with pytest.raises(Stopped):
        await move(world.folder, trace_of(world), Server(emptied_url, prepared=True), world.clock, tell)
    moved = await moves(world, emptied_url)
    assert moved.figures["trace"].rows == 50
    archive = PostgresArchive(Server(emptied_url, prepared=True), most_bytes=1 << 20, look_bytes=1 << 20)
    page = await archive.read(job_id=1, agent="a", before=None, limit=100)
    await archive.close()
    assert [row["id"] for row in page.rows] == ids[::-1]
    assert page.rows[0]["input"] == "x\0y" * 49
    there = World(world.core, world.clock, world.folder, DatabaseSettings(url=emptied_url))
    assert there.raw.execute("select max(at) - min(at) from trace").fetchall() == [(49,)]
    there.raw.close()


# NUL.


async def test_nul_in_a_text_is_replaced_and_told_and_in_json_it_stays(
    world: World, emptied_url: str, moved_to: Any
) -> None:
    job = await world.add(payload={"text": "a\u0000b"}, title="title")
    with closing(sqlite3.connect(world.folder / DATABASE)) as database, database:
        database.execute("update jobs set title = ?, last_error = ?", ("one\0two", "\0"))
    moved = await moves(world, emptied_url)
    assert moved.replaced == [f"jobs {job.id}: title", f"jobs {job.id}: last_error"]
    there = await moved_to()
    assert (await there.job(job.id)).title == f"one{INSTEAD}two"
    assert await there.core.store.payloads([job.id]) == {job.id: '{"text":"a\\u0000b"}'}


# What is refused.


async def registered(world: World, pid: int) -> None:
    row = ProcessRow("p", "serve", pid, socket.gethostname(), "1", 1, world.clock.now())
    await world.core.commit.call(Register(row))


async def test_a_folder_that_is_at_work_is_refused_and_who_it_is_is_told(world: World, emptied_url: str) -> None:
    await registered(world, os.getpid())
    with pytest.raises(Conflict, match=rf"is at work: serve \(process {os.getpid()} on .*\)\. Stop that first"):
        await moves(world, emptied_url)


async def test_a_process_that_was_killed_keeps_nobody_from_moving(world: World, emptied_url: str) -> None:
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    await registered(world, gone.pid)
    await moves(world, emptied_url)


async def test_a_database_that_is_used_is_refused(world: World, emptied_url: str, moved_to: Any) -> None:
    await world.add()
    await (await moved_to()).add()
    with pytest.raises(Conflict, match="is not empty: there are rows in activity"):
        await moves(world, emptied_url)


async def test_a_copy_that_is_complete_is_not_copied_into_again(world: World, emptied_url: str) -> None:
    await world.add()
    await moves(world, emptied_url)
    with pytest.raises(Conflict, match="is not empty"):
        await moves(world, emptied_url)


class Stopped(Exception):
    pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "ROWS", 7)


async def half(world: World, url: str, batches: int) -> None:
    """Begins to copy, and ends after so many batches."""
    left = batches

    def tell(what: str, done: int, rows: int) -> None:
        nonlocal left
        left -= what.startswith("copying")
        if left < 0:
            raise Stopped

    with pytest.raises(Stopped):
        await move(world.folder, trace_of(world), Server(url, prepared=True), world.clock, tell)


@pytest.mark.usefixtures("small")
async def test_a_half_done_copy_is_opened_by_nobody_and_goes_on_where_it_was(
    world: World, emptied_url: str, moved_to: Any
) -> None:
    await live(world)
    await half(world, emptied_url, 9)
    with pytest.raises(ConfigError, match="is a half-done copy of another store"):
        await moved_to()
    begun: list[tuple[str, int]] = []
    await move(
        world.folder,
        trace_of(world),
        Server(emptied_url, prepared=True),
        world.clock,
        lambda what, done, rows: begun.append((what, done)) if what.startswith("copying") else None,
    )
    assert begun[0][1] > 0 or begun[0][0] != "copying activity", "what was copied is not copied again"
    assert await told(await moved_to()) == await told(world)


@pytest.mark.usefixtures("small")
async def test_a_half_done_copy_is_not_gone_on_with_from_elsewhere(world: World, emptied_url: str) -> None:
    await live(world)
    await half(world, emptied_url, 5)
    await world.add()
    with pytest.raises(Conflict, match="half-done copy of another store, or of this one as it was before"):
        await moves(world, emptied_url)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("begun", [False, True])
async def test_two_at_once_copy_nothing_twice(world: World, emptied_url: str, moved_to: Any, begun: bool) -> None:
    await live(world)
    if begun:
        await half(world, emptied_url, 5)
    ends = await asyncio.gather(*(moves(world, emptied_url) for _ in range(2)), return_exceptions=True)
    wrong = [end for end in ends if not isinstance(end, Moved)]
    assert all(isinstance(end, OakenError) for end in wrong), wrong
    if len(wrong) == 2:
        await moves(world, emptied_url)
    assert await told(await moved_to()) == await told(world)


async def during(world: World, url: str, at: str, act: Any) -> None:
    """Moves, and lets `act` happen when this is told."""
    done = False

    def tell(what: str, place: int, rows: int) -> None:
        nonlocal done
        if what == at and not done:
            done = True
            act()

    await move(world.folder, trace_of(world), Server(url, prepared=True), world.clock, tell)


async def test_a_folder_that_is_written_to_meanwhile_is_not_taken_for_moved(world: World, emptied_url: str) -> None:
    await world.add()
    with pytest.raises(Conflict, match="was written to while it was copied"):
        await during(world, emptied_url, "copying jobs", lambda: world.alter("update jobs set priority = 3"))


async def test_a_write_that_changed_nothing_does_not_matter(world: World, emptied_url: str) -> None:
    await world.add()
    await during(world, emptied_url, "copying jobs", lambda: world.alter("update jobs set priority = priority"))


async def test_a_copy_that_differs_is_not_taken_for_moved(world: World, emptied_url: str, moved_to: Any) -> None:
    await world.add()
    wrong = World(world.core, world.clock, world.folder, DatabaseSettings(url=emptied_url))
    with pytest.raises(Conflict, match=r"payloads in postgresql://.* has 1 rows \(sum .*drop that database"):
        await during(
            world, emptied_url, "checking activity", lambda: wrong.alter("update payloads set body = '{\"n\":1}'")
        )
    with pytest.raises(ConfigError, match="half-done copy"):
        await moved_to()


async def test_schemas_that_differ_are_refused(world: World, emptied_url: str, tmp_path: Path) -> None:
    at = sqlite_schema.latest()
    world.alter(f"pragma user_version = {at - 1}")
    with pytest.raises(
        ConfigError, match=rf"has schema {at - 1}, and this program moves schema {at}\. `oaken doctor` on that"
    ):
        await moves(world, emptied_url)
    world.alter(f"pragma user_version = {at + 1}")
    with pytest.raises(ConfigError, match="Use the newer program"):
        await moves(world, emptied_url)
    world.alter(f"pragma user_version = {at}")


async def test_what_is_not_there_is_told_kindly(world: World, emptied_url: str, tmp_path: Path) -> None:
    nothing = Server(emptied_url, prepared=True)
    with pytest.raises(NotFound, match=r"There is no .*core\.db to move"):
        await move(tmp_path / "none", trace_of(world), nothing, world.clock, lambda *_: None)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "core.db").write_text("no database, but some text that is long enough to be looked at" * 50)
    with pytest.raises(Unavailable, match="cannot be read"):
        await move(tmp_path / "bad", trace_of(world), nothing, world.clock, lambda *_: None)
    with pytest.raises(Unavailable, match="cannot be opened"):
        await move(
            world.folder,
            trace_of(world),
            Server("postgresql://oaken@127.0.0.1:9/none", prepared=True),
            world.clock,
            lambda *_: None,
        )
    with pytest.raises(ConfigError, match="does not exist"):
        await move(
            world.folder, trace_of(world), Server(f"{emptied_url}_none", prepared=True), world.clock, lambda *_: None
        )


async def test_the_folder_stays_as_it_is(world: World, emptied_url: str) -> None:
    await live(world)
    await world.close()
    world._looking = None
    before = (world.folder / DATABASE).read_bytes()
    await moves(world, emptied_url)
    assert (world.folder / DATABASE).read_bytes() == before
    await world.core.store.open()

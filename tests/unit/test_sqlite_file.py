"""The database file: who may read it, which programs may open it, and what a connection is set to."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from oaken_jobs.errors import ConfigError, Unavailable
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.sqlite import SqliteStore, driver, schema
from oaken_jobs.store.sqlite import store as sqlite
from tests.service import eventually

ME = Principal(Actor("user", "me", "cli"), frozenset({"user"}))
AGENT = Principal(Actor("agent", "worker", "http"), frozenset({"agent"}), "a")


async def opened(folder: Path, role: str = "serve", clock: FakeClock | None = None) -> Core:
    core = Core.on_folder(folder, Rules(), role, clock or FakeClock())
    await core.open()
    return core


async def on_file(folder: Path, act: Callable[[driver.Database], Any]) -> Any:
    connection = await driver.connect(folder / "core.db")
    try:
        return await connection.run(act)
    finally:
        await connection.close()


async def test_the_files_and_their_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    core = await opened(folder)
    await core.jobs.enqueue(ME, NewJobRequest(kind="work"))
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert names == {"core.db": 0o600, "core.db-wal": 0o600, "core.db-shm": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await core.close()


async def test_commits_survive_a_power_cut_and_readers_never_block_writers(tmp_path: Path) -> None:
    core = await opened(tmp_path)

    def settings(database: driver.Database) -> dict[str, Any]:
        names = ("journal_mode", "synchronous", "busy_timeout")
        return {name: database.execute(f"pragma {name}").fetchone()[0] for name in names}

    assert await core.store._writer.run(settings) == {  # type: ignore[attr-defined]
        "journal_mode": "wal",
        "synchronous": 2,
        "busy_timeout": 30_000,
    }
    await core.close()


async def test_a_database_of_a_newer_program_is_refused_with_both_numbers(tmp_path: Path) -> None:
    await (await opened(tmp_path)).close()
    await on_file(tmp_path, lambda db: db.execute("pragma user_version = 99").fetchall())
    with pytest.raises(ConfigError, match=rf"newer Oaken \(schema 99; this program knows {schema.latest()}\)"):
        await opened(tmp_path)


async def test_an_older_schema_is_not_migrated_under_a_living_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    core = await opened(tmp_path, clock=clock)
    await core.maintenance.start()
    latest = schema.latest()
    newer = [*schema.migrations(), (schema.latest() + 1, "create table later (x integer) strict;")]
    monkeypatch.setattr(schema, "migrations", lambda: newer)
    with pytest.raises(ConfigError, match=r"an older Oaken has it open: serve \(process \d+ on .*Stop it"):
        await opened(tmp_path, clock=clock)
    await core.close()
    migrated = await opened(tmp_path, clock=clock)
    assert await on_file(tmp_path, schema.current) == latest + 1
    await migrated.close()


async def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await opened(tmp_path)).close()
    broken = [*schema.migrations(), (schema.latest() + 1, "create table later (x integer) strict;\ncreate nonsense;")]
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(Unavailable, match="cannot be opened"):
        await opened(tmp_path)
    monkeypatch.undo()
    await (await opened(tmp_path)).close()


async def test_what_an_older_schema_kept_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = schema.migrations()[:1]
    driver.create_file(tmp_path / "core.db")
    connection = await driver.connect(tmp_path / "core.db")

    def fill(db: driver.Database) -> None:
        monkeypatch.setattr(schema, "migrations", lambda: first)
        schema.migrate(db, "old", 0)
        monkeypatch.undo()
        db.execute(
            "insert into jobs (workspace, kind, queue, routed_by, state, priority, max_attempts, created_at, run_at, actor_kind, "
            "actor_id, actor_via) values ('default', 'work', 'default', 'default', 'queued', 50, 5, 1, 1, 'user', 'me', 'http')"
        )
        db.execute("insert into payloads values (1, '{\"a\":1}')")
        db.execute(
            "insert into jobs (workspace, kind, queue, routed_by, state, priority, max_attempts, created_at, run_at, actor_kind, "
            "actor_id, actor_via, epoch, attempts, nonce, holder, agent, lease_expires, lease_ms, started_at) values ('default', 'other', "
            "'default', 'default', 'running', 50, 5, 1, 1, 'user', 'me', 'http', 2, 2, ?, 'worker', 'worker', ?, 60000, 2)",
            ("0" * 24, 4_000_000_000_000),
        )
        db.execute("insert into payloads values (2, '{}')")
        begun = "insert into attempts (job_id, epoch, attempt, agent, holder, nonce, started_at, ended_at, outcome, error) values "
        db.execute(
            f"{begun} (2, 1, 1, 'b', 'b', 'n', 1, 2, 'failed', 'boom'), (2, 2, 2, 'worker', 'worker', '{'0' * 24}', 2, null, null, null)"
        )
        db.execute("insert into labels values ('note:1', 'human', 'queue', 'mail', 1)")
        db.execute("insert into documents values ('d', 't', 1, 'x', 1)")
        db.execute("insert into document_sources values ('d', 'file', 1)")
        db.execute("insert into embeddings values ('document:d', 'm', '[1.0]', 1)")

    await connection.run(fill)
    await connection.close()
    core = await opened(tmp_path)
    assert await core.jobs.labels(ME, "note:1") == {"human": {"queue": "mail"}, "machine": {}}
    (document,) = await core.jobs.documents(ME, ["d"])
    assert (document.title, document.sources) == ("t", ("file",))
    assert await core.jobs.vectors(ME) == [("document:d", "m", [1.0])]
    (lease,) = await core.jobs.lease(AGENT)
    assert (lease.job.id, lease.payload, lease.job.serial_key) == (1, '{"a":1}', None)
    attempts = [(one.epoch, one.agent, one.outcome) for one in await core.store.attempts(2)]
    assert attempts == [(1, "b", "failed"), (2, "worker", None)]
    await core.jobs.complete(AGENT, f"2-2-{'0' * 24}")
    assert [one.outcome for one in await core.store.attempts(2)] == ["failed", "succeeded"]
    await core.close()


async def test_ten_processes_that_start_at_once_make_the_tables_once(tmp_path: Path) -> None:
    cores = await asyncio.gather(*(opened(tmp_path) for _ in range(10)))
    for core in cores:
        await core.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert len(await cores[0].store.jobs(range(1, 20))) == 10
    for core in cores:
        await core.close()


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\x00" + b"\xff" * 4000])
async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "core.db").write_bytes(content)
    with pytest.raises(Unavailable, match=r"core\.db cannot be opened"):
        await opened(tmp_path)
    assert (tmp_path / "core.db").read_bytes() == content


async def test_a_folder_that_cannot_be_made_is_a_plain_refusal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/data"):
        await opened(tmp_path / "file" / "data")


async def test_a_closed_store_says_so_and_closing_twice_is_fine(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "core.db", Rules(), FakeClock())
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.counts()
    with pytest.raises(Unavailable, match="closed"):
        await store.write([])


async def test_what_another_process_wrote_is_seen_and_not_what_is_remembered(tmp_path: Path) -> None:
    clock = FakeClock()
    one, two = await opened(tmp_path, clock=clock), await opened(tmp_path, clock=clock)
    agent = Principal(Actor("agent", "a", "http"), frozenset({"agent"}))
    job = (await one.jobs.enqueue(ME, NewJobRequest(kind="work"))).job
    (lease,) = await two.jobs.lease(agent)
    assert await one.jobs.lease(agent) == [], "one still remembers the job as queued, and must not believe it"
    await two.jobs.release(agent, lease.lease_id)
    (lease,) = await one.jobs.lease(agent)
    assert (lease.job.id, lease.job.epoch) == (job.id, 2)
    await two.jobs.cancel(ME, job.id)
    assert (await one.jobs.heartbeat(agent, lease.lease_id)).job.cancelling
    await one.close()
    await two.close()


async def test_own_commits_are_not_taken_for_another_processes_and_do_not_hide_them(tmp_path: Path) -> None:
    one, two = await opened(tmp_path), await opened(tmp_path)
    await one.store.changed()
    for _ in range(5):
        await one.jobs.enqueue(ME, NewJobRequest(kind="work"))
        assert not await one.store.changed()
    for _ in range(20):
        await two.jobs.enqueue(ME, NewJobRequest(kind="work"))
        await one.jobs.enqueue(ME, NewJobRequest(kind="work"))
        await eventually(one.store.changed)
        assert not await one.store.changed()
    await one.close()
    await two.close()


async def test_what_another_process_commits_while_it_is_asked_for_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOKED_SECONDS", 0.0)
    one, two = await opened(tmp_path), await opened(tmp_path)
    store: Any = one.store
    run, looked, go_on = store._writer.run, asyncio.Event(), asyncio.Event()

    async def slow(function: Any, *rest: Any) -> Any:
        found = await run(function, *rest)
        if function == store._look:
            looked.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(store._writer, "run", slow)
    await store.changed()
    await one.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert not await store.changed()
    await looked.wait()
    await one.jobs.enqueue(ME, NewJobRequest(kind="work"))
    await two.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert not await store.changed(), "it cannot be known yet"
    go_on.set()
    await eventually(store.changed)
    await one.close()
    await two.close()


async def test_for_a_moment_after_a_transaction_nobody_looks_for_other_processes_but_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await opened(tmp_path), await opened(tmp_path)
    store: Any = one.store
    monkeypatch.setattr(sqlite, "LOOKED_SECONDS", 3600.0)
    monkeypatch.setattr(store._watcher, "run", None)
    await one.jobs.enqueue(ME, NewJobRequest(kind="work"))
    await store.changed()
    await two.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert not await store.changed()
    await one.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert await store.changed()
    assert not await store.changed()
    await one.close()
    await two.close()


async def test_all_who_come_at_one_moment_wait_for_one_reading_of_the_tokens(tmp_path: Path) -> None:
    core = await opened(tmp_path)
    _, token = await core.tokens.create(ME.actor, "bot", ["agent"])
    read, reads = core.store.tokens, 0

    async def counted() -> Any:
        nonlocal reads
        reads += 1
        found = await read()
        if reads % 2:
            core.tokens.forget()  # what was read is old already
        return found

    core.store.tokens = counted  # type: ignore[method-assign]
    for _ in range(3):
        core.tokens.forget()
        reads = 0
        found = await asyncio.gather(*(core.tokens.authenticate(token, "http") for _ in range(50)))
        assert {who.name for who in found} == {"bot"}
        assert reads == 2
    await core.close()


async def test_another_processes_commits_are_noticed_once(tmp_path: Path) -> None:
    one, two = await opened(tmp_path), await opened(tmp_path)
    await one.store.changed()
    assert not await one.store.changed()
    await two.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert await one.store.changed()
    assert not await one.store.changed()
    await one.close()
    await two.close()

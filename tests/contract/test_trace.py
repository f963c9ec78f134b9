"""The trace: what is in it, that it is nowhere else, and that a disk or a database that refuses harms nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oaken_jobs import archive
from oaken_jobs import trace as trace_module
from oaken_jobs.archive import Archive, JournalArchive
from oaken_jobs.clock import FakeClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.errors import Forbidden, InvalidRequest, LeaseLost, OakenError, ResultInvalid, TooLarge
from oaken_jobs.handlers import Handlers
from oaken_jobs.journal import Journal
from oaken_jobs.kinds import Kind, Rules
from oaken_jobs.model import Actor, Principal, Usage
from oaken_jobs.requests import TraceRow
from oaken_jobs.runner import Runner
from oaken_jobs.store.postgres import archive as postgres_archive
from oaken_jobs.store.postgres.archive import PostgresArchive
from oaken_jobs.store.postgres.server import Server
from oaken_jobs.trace import Recorder
from tests.contract.world import AGENT, ME, OTHER, RULES, VIEWER, World

ADMIN = Principal(Actor("user", "boss", "http"), frozenset({"admin"}))
BOUND = Principal(Actor("user", "side", "http"), frozenset({"admin"}), workspace="side")
SECRET = "canary-5f1c"
DAY = 86_400


def archive_of(database: DatabaseSettings, folder: Path, max_bytes: int) -> Archive:
    """As large as six files of `max_bytes`."""
    if database.url is None:
        return JournalArchive(Journal(folder / "trace.jsonl", max_bytes, 5))
    return PostgresArchive(Server(database.url, prepared=True), most_bytes=6 * max_bytes, look_bytes=max_bytes)


class Traced(World):
    """A world with a trace in its folder, or in its database."""

    recording: bool
    max_bytes: int

    def another(self, role: str, rules: Rules | None = None) -> Core:
        archive = archive_of(self.database, self.folder, self.max_bytes)
        trace = Recorder(archive, self.clock, recording=self.recording, keep_days=30)
        return Core.on_folder(
            self.folder, rules or self.jobs.rules, role, self.clock, database=self.database, trace=trace
        )

    @property
    def path(self) -> Path:
        return self.folder / "trace.jsonl"

    def rows(self, **fields: Any) -> list[dict[str, Any]]:
        """Oldest first, those that have these fields."""
        if self.database.url is None:
            lines = list(Journal(self.path, self.max_bytes, 5).lines())
        else:
            lines = [row[0] for row in self.raw.execute("select body from trace order by n").fetchall()]
        found = [json.loads(line) for line in lines]
        return [row for row in found if all(row.get(name) == value for name, value in fields.items())]

    @property
    def home(self) -> str:
        """Where the trace is, as `places` names it."""
        return "trace.jsonl" if self.database.url is None else "trace"

    def places(self, phrase: str) -> set[str]:
        """The files and, on PostgreSQL, the tables that hold a phrase."""
        found = {path.name for path in self.folder.iterdir() if path.is_file() and phrase.encode() in path.read_bytes()}
        if self.database.url is not None:
            said = "select 1 from {} t where t::text like '%{}%' limit 1"
            found |= {table for table in self.tables if self.raw.execute(said.format(table, phrase)).fetchall()}
        return found

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Nobody can write to the trace, and waits until this ends."""
        if self.database.url is None:
            with Journal(self.path, self.max_bytes, 5).lock():
                yield
            return
        with psycopg.connect(self.database.url) as other:
            other.execute("lock table trace in exclusive mode")
            yield
            other.rollback()

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Nobody can write to the trace, and is told so."""
        if self.database.url is None:
            self.path.mkdir()
            yield
            self.path.rmdir()
            return
        self.alter("alter table trace rename to away")
        yield
        self.alter("alter table away rename to trace")


Make = Callable[..., Any]


@pytest.fixture
async def make(database: DatabaseSettings, tmp_path: Path) -> AsyncIterator[Make]:
    """Opens worlds on one folder, recording or not."""
    opened: list[World] = []

    async def made(*, recording: bool = True, max_bytes: int = 1 << 20) -> Traced:
        clock = FakeClock()
        trace = Recorder(archive_of(database, tmp_path, max_bytes), clock, recording=recording, keep_days=30)
        core = Core.on_folder(tmp_path, RULES, "serve", clock, database=database, trace=trace)
        await core.open()
        world = Traced(core, clock, tmp_path, database)
        world.recording, world.max_bytes = recording, max_bytes
        opened.append(world)
        return world

    yield made
    for world in opened:
        await world.close()


@pytest.fixture
async def world(make: Make) -> Traced:
    return await make()


def row(**fields: Any) -> TraceRow:
    return TraceRow.model_validate(fields)


async def audits(world: World) -> list[tuple[str, str, str, int | None]]:
    page = await world.core.audits.list(ADMIN)
    return [(one.actor_id, one.action, one.outcome, one.rows) for one in page.rows][::-1]


async def test_a_lease_and_its_finish_are_recorded_before_the_caller_hears(world: Traced) -> None:
    job = await world.add(payload={"text": "told"}, title="Title", subject="doc:1")
    lease = await world.take()
    [told] = world.rows()
    assert (told["event"], told["job_id"], told["epoch"], told["attempt"]) == ("lease", job.id, 1, 1)
    assert (told["agent"], told["actor"]) == ("worker/a", {"kind": "agent", "id": "worker", "via": "http"})
    assert (told["workspace"], told["kind"], told["queue"]) == ("default", "work", "default")
    assert told["input"] == {"title": "Title", "subject": "doc:1", "payload": {"text": "told"}}
    assert lease.job.nonce not in json.dumps(told)
    await world.jobs.complete(AGENT, lease.lease_id, {"n": 1}, Usage({"input_tokens": 3}, 0.5, "m-1"))
    answered = world.rows()[-1]
    assert (answered["event"], answered["verb"], answered["output"]) == ("finish", "complete", {"n": 1})
    assert (answered["usage"], answered["cost_usd"], answered["model"]) == ({"input_tokens": 3}, 0.5, "m-1")
    assert [answered[name] for name in ("trace_id", "span_id")] == [told[name] for name in ("trace_id", "span_id")]
    assert "error_type" not in answered


async def test_children_and_answers_that_a_lease_carries_are_recorded(world: Traced) -> None:
    parent = await world.add()
    await world.jobs.ask(AGENT, (await world.take()).lease_id, "Which one?")
    await world.jobs.answer(ME, parent.id, "That one")
    lease = await world.take()
    child = await world.add("other", parent_id=parent.id)
    await world.jobs.release(AGENT, lease.lease_id, after_children=True)
    await world.jobs.complete(AGENT, (await world.take()).lease_id, {"child": 1})
    await world.take()
    told = world.rows(event="lease")[-1]["input"]
    assert [(one["id"], one["result"]) for one in told["children"]] == [(child.id, {"child": 1})]
    assert [(one["text"], one["answer"]) for one in told["answers"]] == [("Which one?", "That one")]
    assert [(one["verb"], one.get("output"), one["attempt"]) for one in world.rows(event="finish")] == [
        ("ask", "Which one?", 1),
        ("release", None, 1),
        ("complete", {"child": 1}, 1),
    ]


async def test_an_error_is_recorded_as_the_agent_gave_it(world: Traced) -> None:
    job = await world.add()
    await world.jobs.fail(AGENT, (await world.take()).lease_id, "no: password=hunter2secret")
    [failed] = world.rows(event="finish")
    assert (failed["output"], failed["error_type"]) == ("no: password=hunter2secret", "job_failed")
    assert "hunter2secret" not in ((await world.job(job.id)).last_error or "")


async def test_every_way_to_end_a_lease_is_recorded(world: Traced) -> None:
    jobs = world.jobs
    await world.add()
    await jobs.defer(AGENT, (await world.take()).lease_id, 60)
    job_id = (await world.add()).id
    lease = await world.take()
    await jobs.cancel(ME, job_id)
    await jobs.cancelled(AGENT, lease.lease_id)
    assert [(one["verb"], one["attempt"]) for one in world.rows(event="finish")] == [("defer", 1), ("cancelled", 1)]


async def test_refused_answers_are_recorded_with_why(world: Traced) -> None:
    jobs = world.jobs
    job = await world.add("sum", payload={"n": 1})
    lease = await world.take()
    with pytest.raises(ResultInvalid):
        await jobs.complete(AGENT, lease.lease_id, {"n": "one"})
    await jobs.complete(AGENT, lease.lease_id, {"n": 1})
    with pytest.raises(OakenError):
        await jobs.complete(AGENT, lease.lease_id, {"n": 2})
    with pytest.raises(LeaseLost):
        await jobs.complete(OTHER, lease.lease_id, {"n": 3})
    with pytest.raises(LeaseLost):
        await jobs.complete(OTHER, f"999-1-{'0' * 24}", {"n": 4})
    found = [(one["output"]["n"], one.get("error_type"), one["actor"]["id"]) for one in world.rows(event="finish")]
    assert found == [
        ("one", "result_invalid", "worker"),
        (1, None, "worker"),
        (2, "conflict", "worker"),
        (3, "lease_lost", "other"),
        (4, "lease_lost", "other"),
    ]
    assert [one.get("kind") for one in world.rows(event="finish")] == ["sum"] * 4 + [None]
    assert len({one.get("trace_id") for one in world.rows(job_id=job.id)}) == 1


async def test_many_finishes_in_one_call_have_a_row_each_and_heartbeats_none(world: Traced) -> None:
    for _ in range(3):
        await world.add()
    one, two, three = await world.jobs.lease(AGENT, max=3)
    ops = [
        world.jobs.complete_op(AGENT, one.lease_id, {"n": 1}),
        world.jobs.heartbeat_op(AGENT, two.lease_id),
        world.jobs.complete_op(OTHER, three.lease_id, {"n": 3}),
    ]
    await world.jobs.finish_many(AGENT, ops)
    assert [(row["job_id"], row.get("error_type")) for row in world.rows(event="finish")] == [
        (one.job.id, None),
        (three.job.id, "lease_lost"),
    ]


async def test_a_lease_that_is_given_again_is_no_new_telling_but_a_resumed_one_is(world: Traced) -> None:
    await world.add()
    for _ in range(2):
        await world.take(idempotency_key="k")
    assert len(world.rows()) == 1
    await world.jobs.resume(AGENT)
    assert [row["epoch"] for row in world.rows(event="lease")] == [1, 2]


async def test_a_caller_that_goes_while_its_lease_is_recorded_leaves_no_job_running(world: Traced) -> None:
    job = await world.add()

    async def became(state: str) -> None:
        async with asyncio.timeout(10):
            while (await world.job(job.id)).state != state:
                pass

    with world.held_up():
        call = asyncio.ensure_future(world.jobs.lease(AGENT))
        await became("running")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await became("queued")


async def test_a_holder_adds_rows_inside_its_attempt_which_keeps_the_lease(world: Traced) -> None:
    await world.add()
    lease = await world.take(lease_seconds=10)
    world.clock.advance(8)
    rows = [row(operation="chat", model="m-1", input=[{"any": "json"}], output=None), row(tool="grep", output="found")]
    traced = await world.jobs.trace(AGENT, lease.lease_id, rows)
    assert (traced.recorded, traced.expires_at) == (2, world.clock.now() + 10_000)
    told, first, second = world.rows()
    assert (first["event"], first["input"], second["output"]) == ("agent", [{"any": "json"}], "found")
    assert first["parent_span_id"] == second["parent_span_id"] == told["span_id"]
    assert len({told["span_id"], first["span_id"], second["span_id"]}) == 3
    assert {one["trace_id"] for one in (told, first, second)} == {told["trace_id"]}


async def test_rows_under_a_lost_lease_are_refused_and_not_kept(world: Traced) -> None:
    await world.add()
    lease = await world.take()
    with pytest.raises(LeaseLost):
        await world.jobs.trace(OTHER, lease.lease_id, [row(output=SECRET)])
    await world.jobs.release(AGENT, lease.lease_id)
    with pytest.raises(LeaseLost):
        await world.jobs.trace(AGENT, lease.lease_id, [row(output=SECRET)])
    with pytest.raises(Forbidden):
        await world.jobs.trace(VIEWER, lease.lease_id, [row(output=SECRET)])
    assert SECRET not in str(world.rows())


async def test_rows_over_the_limit_of_a_result_are_refused(world: Traced) -> None:
    await world.restart(max_result_bytes=1000)
    await world.add()
    lease = await world.take()
    with pytest.raises(TooLarge, match="max_result_bytes"):
        await world.jobs.trace(AGENT, lease.lease_id, [row(output="x" * 600), row(output="x" * 600)])


REFUSED_ROWS: list[dict[Any, Any]] = [
    {"usage": {SECRET: "x"}},
    {"usage": {f"{SECRET}\ud800": 1}},
    {"usage": {f"input.{SECRET}": -1}},
    {SECRET: 1},
    {"input": {SECRET: 10**30}},
    {"input": {SECRET: float("nan")}},
    {"input": {f"{SECRET}\ud800": 1}},
    {"input": {(SECRET,): 1}},
    {"output": [SECRET, object()]},
    {"model": SECRET * 100},
    {"started_at": SECRET},
]


@pytest.mark.parametrize("said", REFUSED_ROWS, ids=range(len(REFUSED_ROWS)))
async def test_neither_names_nor_values_of_a_refused_row_get_into_the_jobs_error_or_the_log(
    world: Traced, said: dict[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    handlers = Handlers()

    @handlers.handler("traced")
    async def traced(job: Any) -> None:
        await job.trace(**said)

    job = await world.add("traced", max_attempts=1)
    await Runner(world.core.jobs, world.core.follower, world.clock, handlers, 1).drain()
    error = (await world.job(job.id)).last_error
    assert error is not None
    assert "InvalidRequest: A row for the trace cannot be kept; look at" in error
    assert SECRET not in error
    assert SECRET not in "".join(record.getMessage() + str(record.exc_text) for record in caplog.records)


async def test_handlers_of_a_runner_add_rows(world: Traced) -> None:
    handlers = Handlers()

    @handlers.handler("traced")
    async def traced(job: Any) -> dict[str, Any]:
        await job.trace(model="m-1", input="asked", output="said", started_at="2030-01-31T12:00:00Z")
        with pytest.raises(InvalidRequest, match="cannot be kept"):
            await job.trace()
        with pytest.raises(InvalidRequest) as refused:
            await job.trace(model=f"{SECRET}{'x' * 200}")
        assert "rows.0.model" in str(refused.value)
        assert SECRET not in str(refused.value)
        return {"done": True}

    await world.add("traced")
    await Runner(world.core.jobs, world.core.follower, world.clock, handlers, 1).drain()
    told, said, answered = world.rows()
    assert (told["event"], answered["output"]) == ("lease", {"done": True})
    assert (said["input"], said["output"], said["started_at"]) == ("asked", "said", "2030-01-31T12:00:00.000Z")


@pytest.mark.parametrize("recording", [True, False])
async def test_what_an_agent_adds_is_in_the_trace_where_it_is_on_and_nowhere_else(
    make: Make, recording: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = await make(recording=recording)
    job = await world.add()
    lease = await world.take()
    traced = await world.jobs.trace(AGENT, lease.lease_id, [row(model="m-1", input=SECRET, output={"deep": [SECRET]})])
    assert traced.recorded == int(recording)
    with pytest.raises(LeaseLost):
        await world.jobs.trace(OTHER, f"{job.id}-9-{'0' * 24}", [row(input=SECRET)])
    await world.jobs.complete(AGENT, lease.lease_id)
    await world.core.traces.list(ADMIN)
    await world.restart()
    assert world.places(SECRET) == ({world.home} if recording else set())
    assert SECRET not in caplog.text
    assert world.path.exists() == (recording and world.database.url is None)


async def test_an_errors_secret_is_nowhere_but_in_the_trace(world: Traced, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await world.add()
    await world.jobs.fail(AGENT, (await world.take()).lease_id, f"token={SECRET}-and-more")
    await world.restart()
    assert world.places(SECRET) == {world.home}
    assert SECRET not in caplog.text


@pytest.mark.engine("sqlite")
async def test_the_file_is_the_owners_alone(world: Traced) -> None:
    await world.add()
    await world.take()
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600


async def test_a_disk_that_refuses_fails_nobody_and_is_told_once_a_minute(
    world: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    with world.refused():
        for _ in range(3):
            await world.add(payload={"text": SECRET})
            await world.jobs.complete(AGENT, (await world.take()).lease_id)
        told = [record.getMessage() for record in caplog.records if record.name == "oaken.trace"]
        assert len(told) == 1
        assert "1 rows of the trace could not be written" in told[0]
        assert SECRET not in caplog.text
        world.clock.advance(61)
        await world.add()
        await world.take()
        assert "6 rows of the trace" in caplog.records[-1].getMessage()
    await world.add()
    await world.take()
    assert len(world.rows()) == 1


async def test_a_disk_that_hangs_holds_up_one_call_for_a_moment_and_none_after(
    world: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "WAIT_SECONDS", 0.05)
    with world.held_up():
        await world.add()
        await world.take()  # heard, though its row is not written
        monkeypatch.setattr(trace_module, "WAIT_SECONDS", 3600)
        await world.add()
        await world.take()
        monkeypatch.setattr(trace_module, "WAIT_SECONDS", 10)
    await world.core.close()
    assert len(world.rows()) == 2


async def test_rows_that_are_not_written_at_the_stop_are_counted(
    world: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace_module, "WAIT_SECONDS", 0.05)
    with world.held_up():
        for _ in range(3):  # one is being written, two wait
            await world.add(payload={"text": SECRET})
            await world.take()
        await world.core.close()
    told = [record.getMessage() for record in caplog.records if record.name == "oaken.trace"]
    assert len(told) == 1
    assert "3 rows of the trace could not be written" in told[0]
    assert SECRET not in caplog.text


async def test_rows_beyond_what_may_wait_are_dropped(world: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(trace_module, "WAITING_BYTES", 1)
    with world.held_up():
        for _ in range(3):
            await world.add()
            await world.take()
        monkeypatch.setattr(trace_module, "WAIT_SECONDS", 10)
    await world.core.close()
    assert len(world.rows()) == 1


# Reading.


async def test_an_admin_reads_pages_newest_first_of_a_job_or_an_agent(make: Make) -> None:
    world = await make(max_bytes=2000)  # several files
    for number in range(7):
        await world.add(payload={"n": number})
    leases = [*(await world.jobs.lease(AGENT, max=4)), *(await world.jobs.lease(OTHER, max=3))]
    list_ = world.core.traces.list
    page = await list_(ADMIN, limit=5)
    rest = await list_(ADMIN, limit=5, cursor=page.next_cursor)
    assert [one["input"]["payload"]["n"] for one in page.rows + rest.rows] == [6, 5, 4, 3, 2, 1, 0]
    assert (len(page.rows), rest.next_cursor) == (5, None)
    [found] = (await list_(ADMIN, job_id=leases[2].job.id)).rows
    assert found["job_id"] == leases[2].job.id
    for agent, count in (("worker", 4), ("worker/a", 4), ("worker/b", 0), ("other", 3), ("work", 0)):
        assert len((await list_(ADMIN, agent=agent)).rows) == count


async def test_a_page_is_bounded_by_size_too(world: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (archive, postgres_archive):
        monkeypatch.setattr(module, "PAGE_BYTES", 1)
    for _ in range(2):
        await world.add()
        await world.take()
    page = await world.core.traces.list(ADMIN)
    assert len(page.rows) == 1
    rest = await world.core.traces.list(ADMIN, cursor=page.next_cursor)
    assert (len(rest.rows), rest.next_cursor) == (1, None)


async def test_every_read_leaves_an_audit_row_also_a_refused_one(world: Traced) -> None:
    job = await world.add()
    await world.take()
    await world.core.traces.list(ADMIN, job_id=job.id)
    for who in (ME, VIEWER, AGENT, BOUND):
        with pytest.raises(Forbidden):
            await world.core.traces.list(who, agent="worker")
    assert await audits(world) == [
        ("boss", "trace.read", "allowed", 1),
        *((who, "trace.read", "refused", None) for who in ("me", "viewer", "worker", "side")),
    ]
    rows = (await world.core.audits.list(ADMIN)).rows
    assert (rows[-1].job_id, rows[-1].agent, rows[0].job_id, rows[0].agent) == (job.id, None, None, "worker")


async def test_nothing_is_shown_where_the_audit_cannot_be_written(world: Traced) -> None:
    await world.add()
    await world.take()
    await world.core.close()
    with pytest.raises(OakenError):
        await world.core.traces.list(ADMIN)


@pytest.mark.parametrize("fields", [{"agent": "a b"}, {"agent": "x" * 300}, {"cursor": "zz"}, {"cursor": '{"id":1}'}])
async def test_filters_that_name_nothing_are_refused_and_leave_an_audit_row(
    world: Traced, fields: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest):
        await world.core.traces.list(ADMIN, **fields)
    with pytest.raises(Forbidden):
        await world.core.traces.list(ME, **fields)
    assert await audits(world) == [(who, "trace.read", "refused", None) for who in ("boss", "me")]
    assert {row.agent for row in (await world.core.audits.list(ADMIN)).rows} == {None}


async def test_the_audit_is_for_admins_and_comes_in_pages(world: Traced) -> None:
    for _ in range(5):
        await world.core.traces.list(ADMIN)
    page = await world.core.audits.list(ADMIN, limit=3)
    rest = await world.core.audits.list(ADMIN, limit=3, cursor=page.next_cursor)
    assert [one.id for one in page.rows + rest.rows] == [5, 4, 3, 2, 1]
    assert rest.next_cursor is None
    with pytest.raises(Forbidden):
        await world.core.audits.list(VIEWER)
    with pytest.raises(InvalidRequest):
        await world.core.audits.list(ADMIN, cursor="nonsense")


# Forgetting.


@pytest.mark.parametrize("recording", [True, False])
async def test_rows_are_forgotten_when_they_are_old_also_after_the_trace_was_turned_off(
    make: Make, recording: bool
) -> None:
    world = await make()
    await world.add(payload={"text": "old"})
    await world.jobs.complete(AGENT, (await world.take()).lease_id)
    world.clock.advance(20 * DAY)
    await world.add(payload={"text": "new"})
    await world.take()
    await world.core.close()
    later = await make(recording=recording)
    later.clock.advance(31 * DAY)
    await later.core.pruner.tick()
    assert [one["input"]["payload"]["text"] for one in later.rows()] == ["new"]


async def test_audit_rows_have_a_retention_of_their_own(world: Traced) -> None:
    await world.restart(audit_keep_days=100)
    await world.core.traces.list(ADMIN)
    world.clock.advance(60 * DAY)
    await world.core.traces.list(ADMIN)
    world.clock.advance(39 * DAY)
    await world.core.pruner.tick()
    assert len(await audits(world)) == 2
    world.clock.advance(2 * DAY)
    await world.core.pruner.tick()
    assert len(await audits(world)) == 1


async def test_a_row_names_the_plugin_whose_kind_it_is_about_and_is_told_to_streams_that_ask(world: Traced) -> None:
    await world.restart(kinds={"note": Kind("note", plugin="notes")})
    await world.core.bus.start()
    with world.core.bus.stream(10, ["trace_row"]) as asked, world.core.bus.stream(10) as others:
        await world.add("note", payload={"text": SECRET})
        lease = await world.take()
        await world.jobs.trace(AGENT, lease.lease_id, [row(tool="search", input=SECRET)])
        await world.jobs.complete(AGENT, lease.lease_id, {})
        await world.core.bus.stop()
        told = [one.row for one in await asked.take()]
        assert SECRET not in repr(await others.take())
    assert [(one["event"], one["plugin"]) for one in told] == [
        ("lease", "notes"),
        ("agent", "notes"),
        ("finish", "notes"),
    ]
    assert [one["plugin"] for one in world.rows()] == ["notes"] * 3

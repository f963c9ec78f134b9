"""Events: the bus, its handlers and streams, and reading them after a cursor."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from oaken_jobs.core import Core
from oaken_jobs.errors import Forbidden, InvalidRequest, Unavailable
from oaken_jobs.events.bus import Missed
from oaken_jobs.events.event import PUBLIC, Event, JobEvent, JobStateChanged, LogLine
from oaken_jobs.model import Actor, Principal
from oaken_jobs.store.sqlite.driver import OperationalError
from tests.contract.world import AGENT, ME, VIEWER, World, until

INSIDE = Principal(Actor("user", "inside", "http"), frozenset({"user"}), workspace="side")
LINE = LogLine(0, "info", "oaken.test", "said in private")


async def heard(stream: Any, count: int) -> list[Any]:
    """The next `count` of a stream."""
    found: list[Any] = []
    while len(found) < count:
        found += await asyncio.wait_for(stream.take(), 10)
    assert len(found) == count
    return found


async def second(world: World) -> Core:
    """Another process on the same database."""
    core = world.another("serve")
    await core.open()
    return core


# Streams.


async def test_a_stream_hears_what_this_process_and_others_do_in_their_order(world: World) -> None:
    await world.core.bus.start()
    other = await second(world)
    with world.core.bus.stream(10) as stream:
        await world.core.follower.ready()
        job = await world.add()
        (lease,) = await other.jobs.lease(AGENT)
        await other.jobs.complete(AGENT, lease.lease_id, {"private": "text"})
        events = await heard(stream, 3)
    assert [(e.verb, e.job_id, e.from_state, e.to_state, e.job_kind) for e in events] == [
        ("enqueue", job.id, None, "queued", "work"),
        ("claim", job.id, "queued", "running", "work"),
        ("complete", job.id, "running", "succeeded", "work"),
    ]
    assert "private" not in repr(events)
    await other.close()


async def test_a_stream_that_nobody_reads_keeps_the_newest_and_says_how_many_it_lost(world: World) -> None:
    await world.core.bus.start()
    with world.core.bus.stream(256) as stream:
        await world.core.follower.ready()
        for at in range(0, 3000, 500):
            await asyncio.gather(*(world.add(title=str(n)) for n in range(at, at + 500)))
        waiting = stream._waiting  # pyright: ignore[reportPrivateUsage]
        await until(lambda: bool(waiting) and waiting[-1].job_id == 3000)
        assert len(waiting) == 256
        lost, *kept = await heard(stream, 257)
    assert lost == Missed(3000 - 256)
    assert [e.id for e in kept] == world.event_ids[-256:]


async def test_a_stream_gets_what_it_asked_for_alone(world: World) -> None:
    await world.core.bus.start()
    bus = world.core.bus
    with (
        bus.stream(10, ["queue_state_changed"]) as queues,
        bus.stream(10, job_id=2) as second_job,
        bus.stream(10, workspace="side") as side,
        bus.stream(10, ["log_line"]) as private,
        bus.stream(10) as public,
    ):
        await world.core.follower.ready()
        bus.tell(LINE)
        await world.add()
        await world.add()
        await world.add(who=INSIDE)
        await world.jobs.set_paused(ME, "mail", True)
        assert [e.name for e in await heard(queues, 1)] == ["mail"]
        assert [e.job_id for e in await heard(second_job, 1)] == [2]
        assert [e.job_id for e in await heard(side, 1)] == [3]
        assert await heard(private, 1) == [LINE]
        assert [e.kind for e in await heard(public, 4)] == ["job_state_changed"] * 3 + ["queue_state_changed"]


async def test_streams_end_with_the_bus_after_what_is_in_them(world: World) -> None:
    await world.core.bus.start()
    with world.core.bus.stream(10, ["log_line"]) as stream:
        world.core.bus.tell(LINE)
        await world.core.bus.stop()
        world.core.bus.tell(LINE)
        assert (await stream.take())[:1] == [LINE]
        assert await stream.take() == []
    with world.core.bus.stream(10) as late:
        assert await late.take() == []


async def test_nobody_listens_once_all_streams_are_left(world: World) -> None:
    await world.core.bus.start()
    with world.core.bus.stream(1), world.core.bus.stream(1):
        assert len(world.core.follower._listeners) == 1  # pyright: ignore[reportPrivateUsage]
    assert not world.core.follower._listeners  # pyright: ignore[reportPrivateUsage]


# Handlers.


async def test_a_handler_gets_every_event_of_its_kinds_however_slow_it_is(world: World) -> None:
    found: list[Event] = []
    go = asyncio.Event()

    async def slow(event: Event) -> None:
        await go.wait()
        found.append(event)

    world.core.bus.handle("slow", ["job_state_changed"], slow)
    await world.core.bus.start()
    await world.jobs.set_paused(ME, "mail", True)
    await asyncio.gather(*(world.add() for _ in range(700)))
    go.set()
    await until(lambda: len(found) == 700)
    assert [e.job_id for e in found if isinstance(e, JobEvent)] == list(range(1, 701))


class Own(BaseException):
    """Of a plugin that derives from the wrong class."""


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt(), Own("no")], ids=repr
)
async def test_a_handler_that_raises_is_logged_and_hurts_neither_itself_nor_others(
    world: World, caplog: pytest.LogCaptureFixture, error: BaseException, waits: bool
) -> None:
    broken: list[int] = []
    well: list[int] = []

    def raises(event: Event) -> None:
        broken.append(event.id)
        raise error

    async def raises_later(event: Event) -> None:
        await asyncio.sleep(0)
        raises(event)

    world.core.bus.handle("broken", [], raises_later if waits else raises)
    world.core.bus.handle("well", [], lambda event: well.append(event.id))
    await world.core.bus.start()
    with caplog.at_level(logging.ERROR):
        await world.add()
        await world.add()
        await until(lambda: len(broken) == len(well) == 2)
    assert "broken: the handler failed on a job_state_changed" in caplog.text


async def test_what_cannot_be_read_for_a_moment_is_heard_later(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("oaken_jobs.activity.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("oaken_jobs.events.bus.AGAIN_SECONDS", 0.01)
    store = world.core.store
    found: list[int] = []
    world.core.bus.handle("handler", [], lambda event: found.append(event.id))
    await world.core.bus.start()
    with world.core.bus.stream(10) as stream:
        await world.core.follower.ready()
        for error in (OperationalError("disk I/O error"), ValueError("broken row")):
            for name in ("changed", "activity", "activity_head"):
                with monkeypatch.context() as broken:

                    async def fails(*_: object, error: Exception = error) -> None:
                        raise error

                    broken.setattr(store, name, fails)
                    await world.add()
                    caplog.clear()
                    await until(lambda: bool(caplog.records))
        assert [one.id for one in await heard(stream, 6)] == world.event_ids
        await until(lambda: found == world.event_ids)


@pytest.mark.engine("sqlite")
async def test_a_look_for_changes_that_fails_is_an_error_of_ours(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(database: object) -> int:
        raise OperationalError("disk I/O error")

    monkeypatch.setattr("oaken_jobs.store.sqlite.store.data_version", fails)
    with pytest.raises(Unavailable, match="disk I/O error"):
        await world.core.store.changed()


async def test_a_handler_hears_at_the_stop_what_it_has_not_heard(world: World) -> None:
    found: list[str] = []
    world.core.bus.handle("late", [], lambda event: found.append(event.verb))
    await world.core.bus.start()
    await world.add()
    await world.core.bus.stop()
    assert found == ["enqueue"]


async def test_a_handler_that_hangs_does_not_keep_the_bus_from_stopping(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("oaken_jobs.events.bus.LAST_SECONDS", 0.05)
    entered = asyncio.Event()

    async def hangs(event: Event) -> None:
        entered.set()
        await asyncio.Event().wait()

    world.core.bus.handle("hangs", [], hangs)
    await world.core.bus.start()
    await world.add()
    await entered.wait()
    await asyncio.wait_for(world.core.bus.stop(), 5)
    assert "events for hangs did not end" in caplog.text


# After a cursor.


async def test_events_after_a_cursor_come_in_pages_without_gap_or_repetition(world: World) -> None:
    first = await world.jobs.events(VIEWER)
    assert first.events == []
    for _ in range(5):
        await world.add()
    cursor, found = first.cursor, []
    while True:
        page = await world.jobs.events(VIEWER, after=cursor, limit=2)
        if not page.events:
            break
        found += page.events
        cursor = page.cursor
    assert [e.job_id for e in found] == [1, 2, 3, 4, 5]
    assert all(isinstance(e, JobStateChanged) for e in found)
    await world.restart()
    assert len((await world.jobs.events(VIEWER, after=first.cursor)).events) == 5


async def test_a_call_waits_for_the_first_event_that_it_wants(world: World) -> None:
    call = asyncio.ensure_future(world.jobs.events(VIEWER, after="0", kinds=["queue_state_changed"], seconds=30))
    await until(lambda: bool(world.core.follower._listeners))
    await world.add()
    await world.jobs.set_paused(ME, "mail", True)
    page = await asyncio.wait_for(call, 10)
    assert [(e.kind, e.name) for e in page.events] == [("queue_state_changed", "mail")]


async def test_a_call_whose_time_is_over_goes_on_behind_what_it_did_not_want(world: World) -> None:
    call = asyncio.ensure_future(world.jobs.events(VIEWER, after="0", kinds=["queue_state_changed"], seconds=30))
    await until(lambda: bool(world.core.follower._listeners))
    await world.add()
    world.clock.advance(30)
    page = await asyncio.wait_for(call, 10)
    assert (page.events, page.resync) == ([], False)
    assert int(page.cursor) >= world.event_ids[0]


async def test_who_asks_for_what_is_forgotten_is_told_to_read_anew(world: World) -> None:
    await world.restart(event_ring_size=3)
    old = await world.jobs.events(VIEWER)
    for _ in range(2):
        job = await world.add()
        await world.jobs.cancel(ME, job.id)
    world.clock.advance(40 * 86_400)
    last = await world.add()
    await world.core.pruner.tick()
    page = await world.jobs.events(VIEWER, after=old.cursor)
    assert page.resync
    assert [e.job_id for e in page.events] == [2, 2, last.id], "the newest three are always there"
    again = await world.jobs.events(VIEWER, after=page.cursor)
    assert (again.events, again.resync) == ([], False)
    within = await world.jobs.events(VIEWER, after=str(world.event_ids[0] - 1))
    assert (len(within.events), within.resync) == (3, False)


async def test_a_cursor_of_another_database_is_told_to_read_anew(world: World) -> None:
    await world.add()
    page = await world.jobs.events(VIEWER, after="9" * 16)
    assert (page.events, page.resync) == ([], True)
    assert int(page.cursor) >= world.event_ids[0]


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "9" * 17, "١"])
async def test_what_is_no_cursor_is_refused(world: World, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="is no cursor of ours"):
        await world.jobs.events(VIEWER, after=cursor)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("job_state_change", "Did you mean job_state_changed"),
        ("log_line", "There are|Did you mean"),
        ("zzz", "There are"),
    ],
)
async def test_what_is_no_kind_of_public_event_is_refused(world: World, kind: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=hint):
        await world.jobs.events(VIEWER, kinds=[kind])


async def test_who_may_not_read_gets_no_events_and_who_is_bound_gets_those_of_its_workspace(world: World) -> None:
    with pytest.raises(Forbidden):
        await world.jobs.events(AGENT)
    await world.add()
    mine = await world.add(who=INSIDE)
    await world.jobs.set_paused(ME, "mail", True)
    assert [e.job_id for e in (await world.jobs.events(INSIDE, after="0")).events] == [mine.id]


async def test_every_kind_of_event_has_a_name_others_may_filter_by(world: World) -> None:
    assert len((await world.jobs.events(VIEWER, after="0", kinds=PUBLIC)).events) == 0


async def test_the_latest_events_come_newest_first_and_go_on_at_their_cursor(world: World) -> None:
    first = await world.add()
    await world.add()
    await world.jobs.cancel(ME, first.id)
    await world.jobs.set_paused(ME, "mail", True)
    found = await world.jobs.latest_events(ME)
    assert [(one.kind, one.verb) for one in found.events] == [
        ("queue_state_changed", "pause"),
        ("job_state_changed", "cancel"),
        ("job_state_changed", "enqueue"),
        ("job_state_changed", "enqueue"),
    ]
    assert (await world.jobs.events(ME, after=found.cursor)).events == []
    await world.add()
    assert len((await world.jobs.events(ME, after=found.cursor)).events) == 1
    of_job = await world.jobs.latest_events(ME, job_id=first.id)
    assert [one.verb for one in of_job.events] == ["cancel", "enqueue"]
    of_kind = await world.jobs.latest_events(ME, kinds=["queue_state_changed"], limit=1)
    assert [one.verb for one in of_kind.events] == ["pause"]
    elsewhere = replace(ME, workspace="elsewhere")
    assert (await world.jobs.latest_events(elsewhere)).events == []

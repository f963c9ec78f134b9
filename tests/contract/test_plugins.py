"""Plugins at work: their schedules, events and health on the real store, on a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oaken_jobs import views
from oaken_jobs.errors import NotFound, Unavailable
from oaken_jobs.events.event import Event
from oaken_jobs.health import HealthLoop
from oaken_jobs.model import Activity
from oaken_jobs.plugin import Plugin
from oaken_jobs.plugins import AtWork, Loaded
from oaken_jobs.requests import ScheduleRequest
from tests.contract.world import ME, World, until

DAY = 86_400


def at_work(world: World, *plugins: Plugin) -> AtWork:
    loaded = Loaded(world.jobs.rules, list(plugins))
    return AtWork(loaded, world.core.schedules, world.core.bus, world.core.commit, world.clock)


def notes(every_seconds: float = 7 * DAY, *names: str) -> Plugin:
    plugin = Plugin("notes")
    for name in names or ("weekly",):
        plugin.schedule(name, kind="work", queue="mail", every_seconds=every_seconds)
    return plugin


async def rows(world: World, event: str) -> list[Activity]:
    return [row for row in await world.core.store.activity(0, 1000) if row.event == event]


async def schedules(world: World) -> dict[str, int]:
    return {one.name: one.next_run for one in await world.core.schedules.list(ME)}


# Schedules.


async def test_a_plugins_schedule_is_its_own_and_put_by_the_system(world: World) -> None:
    work = at_work(world, notes())
    await work.start()
    (found,) = await world.core.schedules.list(ME)
    assert (found.name, found.owner, found.queue) == ("notes.weekly", "notes", "mail")
    assert (found.actor_kind, found.actor_id) == ("system", "notes")
    await work.stop()


async def test_a_schedule_keeps_its_next_run_through_starts_and_counts_anew_when_it_is_changed(world: World) -> None:
    for _ in range(8):
        await at_work(world, notes()).start()
        world.clock.advance(DAY)
        await world.core.scheduler.tick()
    assert (await world.core.store.counts())[0].jobs == 1
    await at_work(world, notes(60)).start()
    assert await schedules(world) == {"notes.weekly": world.clock.now() + 60_000}


async def test_schedules_of_plugins_that_are_gone_or_declare_them_no_more_are_removed_and_peoples_stay(
    world: World,
) -> None:
    other = Plugin("other")
    other.schedule("hourly", kind="work", every_seconds=3600)
    request = ScheduleRequest.model_validate({"queue": "mail", "kind": "work", "every_seconds": 60})
    await world.core.schedules.put(ME, "mine", request)
    await at_work(world, notes(60, "a", "b"), other).start()
    assert set(await schedules(world)) == {"mine", "notes.a", "notes.b", "other.hourly"}
    await at_work(world, notes(60, "b")).start()
    assert set(await schedules(world)) == {"mine", "notes.b"}
    await at_work(world).start()
    assert set(await schedules(world)) == {"mine"}


async def test_two_processes_may_start_at_once(world: World) -> None:
    await at_work(world, notes(60, *(f"s{n}" for n in range(20)))).start()
    await asyncio.gather(*(at_work(world, notes(60, "s1", "new")).start() for _ in range(3)))
    assert set(await schedules(world)) == {"notes.s1", "notes.new"}


# Events.


def indexer() -> Plugin:
    plugin = Plugin("notes")
    plugin.event("reindexed", "count", "seconds", "model", "whole")
    return plugin


async def test_a_listener_hears_what_happens_while_its_plugin_is_at_work_and_its_own_events_too(world: World) -> None:
    plugin = indexer()
    heard: list[tuple[str, int | None]] = []

    @plugin.on("job_state_changed", "notes.reindexed")
    def listen(event: Event) -> None:
        heard.append((event.kind, event.job_id))

    work = at_work(world, plugin)
    await world.core.bus.start()
    await work.start()
    job = await world.add()
    await world.jobs.set_paused(ME, "mail", True)
    await plugin.emit("reindexed", job_id=job.id, **FIELDS)
    await world.core.bus.stop()
    assert heard == [("job_state_changed", job.id), ("notes.reindexed", job.id)]
    await work.stop()


FIELDS: dict[str, Any] = {"count": 3, "seconds": 1.5, "model": "m/a-1", "whole": True}


async def test_an_event_is_a_row_of_the_activity_about_its_job_and_in_its_workspace(world: World) -> None:
    plugin = indexer()
    await at_work(world, plugin).start()
    job = await world.add(workspace="side")
    await plugin.emit("reindexed", job_id=job.id, **FIELDS)
    row = (await world.jobs.activity(ME, job.id))[-1]
    shown = views.event(row)
    assert (shown["kind"], shown["data"]) == (
        "notes.reindexed",
        {
            "verb": "emit",
            "job_id": job.id,
            "name": "notes",
            "workspace": "side",
            "fields": FIELDS,
            "actor": {"kind": "system", "id": "notes", "via": "worker"},
        },
    )


async def test_an_event_without_a_job_is_in_the_workspace_named_or_in_none(world: World) -> None:
    plugin = indexer()
    await at_work(world, plugin).start()
    await plugin.emit("reindexed", workspace="side", **FIELDS)
    await plugin.emit("reindexed", **FIELDS)
    assert [(row.job_id, row.workspace) for row in await rows(world, "notes.reindexed")] == [
        (None, "side"),
        (None, None),
    ]


async def test_an_event_about_a_job_that_is_not_there_is_refused_and_writes_nothing(world: World) -> None:
    plugin = indexer()
    await at_work(world, plugin).start()
    with pytest.raises(NotFound, match="no job 77"):
        await plugin.emit("reindexed", job_id=77, **FIELDS)
    assert await rows(world, "notes.reindexed") == []


async def test_a_plugin_that_has_stopped_emits_nothing_more(world: World) -> None:
    plugin = indexer()
    work = at_work(world, plugin)
    await work.start()
    await work.stop()
    with pytest.raises(Unavailable, match="not at work"):
        await plugin.emit("reindexed", **FIELDS)


async def test_a_jobs_events_are_forgotten_with_it_and_others_by_their_age(world: World) -> None:
    await world.restart(keep_days=1, event_ring_size=0)
    plugin = indexer()
    await at_work(world, plugin).start()
    job = await world.add()
    await plugin.emit("reindexed", job_id=job.id, **FIELDS)
    await plugin.emit("reindexed", **FIELDS)
    await world.jobs.cancel(ME, job.id)
    world.clock.advance(2 * DAY)
    await world.core.pruner.tick()
    assert await rows(world, "notes.reindexed") == []


# Health.


class Patient:
    """A plugin whose health a test decides."""

    def __init__(self, world: World) -> None:
        self.says: Callable[[], Any] = lambda: None
        self.looks = 0
        self.hang = asyncio.Event()
        self.hang.set()
        self.plugin = Plugin("notes")

        @self.plugin.health(every_seconds=30)
        async def check() -> str | None:
            self.looks += 1
            await self.hang.wait()
            return self.says()

        assert self.plugin.health_check is not None
        self.loop = HealthLoop(self.plugin, self.plugin.health_check, world.core.commit, world.clock)
        self.world = world

    async def look(self) -> tuple[bool, str | None]:
        """How it is, when it is time to look."""
        self.world.clock.advance(30)
        await self.loop.tick()
        (row,) = await self.world.core.store.plugin_health()
        return row.healthy, row.reason


def raising(error: BaseException) -> Callable[[], Any]:
    def raises() -> None:
        raise error

    return raises


async def passes(world: World, condition: Callable[[], bool]) -> None:
    """Lets time pass, a second at a time, until the condition holds."""
    for _ in range(100):
        for _ in range(20):
            await asyncio.sleep(0)
        if condition():
            return
        world.clock.advance(1)
    raise AssertionError("it never came true")


async def changes(world: World) -> list[tuple[str | None, str | None]]:
    return [(row.from_state, row.to_state) for row in await rows(world, "plugin_health_changed")]


async def test_a_change_of_health_is_an_event_and_a_look_that_finds_the_same_is_none(world: World) -> None:
    patient = Patient(world)
    assert await patient.look() == (True, None)
    assert await patient.look() == (True, None)
    patient.says = lambda: "the index is gone"
    assert await patient.look() == (False, "the index is gone")
    patient.says = lambda: "the disk is full"
    assert await patient.look() == (False, "the disk is full")
    patient.says = lambda: None
    assert await patient.look() == (True, None)
    assert await changes(world) == [(None, "healthy"), ("healthy", "unhealthy"), ("unhealthy", "healthy")]
    row = (await rows(world, "plugin_health_changed"))[-1]
    assert (row.verb, row.name, row.actor_kind, row.actor_id) == ("health", "notes", "system", "notes")
    assert "disk" not in str(await world.core.store.activity(0, 100))


class Own(BaseException):
    """Of a plugin that derives from the wrong class."""


UNWELL: list[tuple[Callable[[], Any], str]] = [
    (raising(ConnectionError("refused")), "ConnectionError: refused"),
    (raising(SystemExit(2)), "SystemExit: 2"),
    (raising(Own("odd")), "Own: odd"),
    (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    (raising(asyncio.CancelledError()), "its check was cancelled"),
    (lambda: "", "it gives no reason"),
    (lambda: "two\nlines", "two lines"),
    (lambda: "password=hunter2hunter2 does not work", "password=[redacted] does not work"),
    (lambda: "x" * 600, "x" * 499 + "…"),
]


@pytest.mark.parametrize(("says", "reason"), UNWELL, ids=range(len(UNWELL)))
async def test_whatever_a_check_raises_or_says_is_the_reason_without_its_secrets(
    world: World, says: Callable[[], Any], reason: str
) -> None:
    patient = Patient(world)
    patient.says = says
    assert await patient.look() == (False, reason)
    patient.says = lambda: None
    assert await patient.look() == (True, None)


async def test_a_check_that_hangs_is_unwell_and_holds_up_nobody(world: World) -> None:
    patient, other = Patient(world), Patient(world)
    other.loop.plugin = "other"
    patient.hang.clear()
    looking = asyncio.ensure_future(patient.loop.tick())
    await until(lambda: patient.looks == 1)
    world.clock.advance(30)
    await other.loop.tick()
    assert other.looks == 1
    await looking
    found = {row.plugin: (row.healthy, row.reason) for row in await world.core.store.plugin_health()}
    assert found == {"notes": (False, "did not answer within 10 s"), "other": (True, None)}


async def test_health_is_looked_at_soon_after_the_start(world: World) -> None:
    patient = Patient(world)
    work = at_work(world, patient.plugin)
    await work.start()
    begun = world.clock.monotonic()
    await passes(world, lambda: patient.looks == 1)
    assert world.clock.monotonic() - begun <= 2
    await work.stop()


async def test_health_is_looked_at_again_when_it_is_due_and_not_before(world: World) -> None:
    patient = Patient(world)
    for seconds, looks in ((0, 1), (29, 1), (1, 2), (1, 2), (60, 3)):
        world.clock.advance(seconds)
        await patient.loop.tick()
        assert patient.looks == looks


async def test_a_stop_ends_a_check_that_hangs_and_writes_nothing_of_it(world: World) -> None:
    patient = Patient(world)
    work = at_work(world, patient.plugin)
    patient.hang.clear()
    await work.start()
    await passes(world, lambda: patient.looks == 1)
    await work.stop()  # the clock stands still: nothing but the stop has ended it
    assert await world.core.store.plugin_health() == []


async def test_the_health_of_plugins_that_are_gone_is_forgotten(world: World) -> None:
    patient = Patient(world)
    await patient.look()
    await at_work(world, patient.plugin).start()
    assert len(await world.core.store.plugin_health()) == 1
    await at_work(world).start()
    assert await world.core.store.plugin_health() == []

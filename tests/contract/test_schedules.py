"""Schedules: what they enqueue and when, whatever was missed, whoever fires them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from oaken_jobs import cron
from oaken_jobs.errors import Forbidden, InvalidRequest, NotFound, PayloadInvalid
from oaken_jobs.model import Job, Schedule
from oaken_jobs.requests import ScheduleRequest
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, VIEWER, World

INSIDE = replace(ME, workspace="side")


async def put(world: World, name: str = "s", who: Any = ME, **fields: Any) -> Any:
    body = {"queue": "mail", "kind": "work", "every_seconds": 60, **fields}
    if "cron" in fields:
        del body["every_seconds"]
    return await world.core.schedules.put(who, name, ScheduleRequest.model_validate(body))


async def fired(world: World) -> list[Job]:
    """The jobs there are, oldest first."""
    return [*reversed((await world.jobs.list(ME, JobFilter(), limit=500)).jobs)]


async def schedule(world: World, name: str = "s") -> Schedule:
    return await world.core.schedules.get(ME, name)


async def test_a_schedule_enqueues_its_job_when_it_is_due_and_not_before(world: World) -> None:
    added = (await put(world, payload={"n": 1}, priority=7)).schedule
    assert added.next_run == world.clock.now() + 60_000
    world.clock.advance(59)
    await world.core.scheduler.tick()
    assert await fired(world) == []
    world.clock.advance(1)
    await world.core.scheduler.tick()
    await world.core.scheduler.tick()
    (job,) = await fired(world)
    assert (job.queue, job.routed_by, job.kind, job.priority, job.run_at) == (
        "mail",
        "schedule",
        "work",
        7,
        world.clock.now(),
    )
    assert (job.actor_kind, job.actor_id, job.actor_via) == ("system", "s", "schedule")
    assert (await world.take()).payload == '{"n":1}'
    after = await schedule(world)
    assert (after.next_run, after.last_run, after.last_job) == (world.clock.now() + 60_000, world.clock.now(), job.id)
    rows = await world.core.store.activity(0, 100)
    assert [(row.event, row.name) for row in rows if row.event == "schedule_fired"] == [("schedule_fired", "s")]


async def test_runs_that_were_missed_are_one_run_and_an_interval_keeps_its_phase(world: World) -> None:
    begun = world.clock.now()
    await put(world)
    world.clock.advance(3 * 60 + 17)
    await world.core.scheduler.tick()
    assert len(await fired(world)) == 1
    assert (await schedule(world)).next_run == begun + 4 * 60_000


async def test_a_cron_schedule_runs_by_its_zone(world: World) -> None:
    added = (await put(world, cron="30 6 * * *", timezone="Asia/Tokyo")).schedule
    assert (added.cron, added.next_run % 86_400_000) == ("30 6 * * *", (21 * 60 + 30) * 60_000)


async def test_a_schedule_put_again_unchanged_keeps_its_next_run_and_changed_counts_anew(world: World) -> None:
    first = await put(world)
    world.clock.advance(30)
    again = await put(world)
    assert (again.changed, again.schedule) == (False, first.schedule)
    changed = await put(world, every_seconds=90)
    assert (changed.changed, changed.schedule.next_run) == (True, world.clock.now() + 90_000)
    assert changed.schedule.created_at == first.schedule.created_at


async def test_a_schedule_outlives_restarts_in_less_time_than_its_interval(world: World) -> None:
    await put(world, every_seconds=7 * 86_400)
    for _ in range(8):
        world.clock.advance(86_400)
        await world.restart()
        await put(world, every_seconds=7 * 86_400)
        await world.core.scheduler.tick()
    assert len(await fired(world)) == 1


async def test_run_now_leaves_the_next_run_alone(world: World) -> None:
    before = (await put(world)).schedule.next_run
    job = await world.core.schedules.run(ME, "s")
    assert (job.queue, job.actor_id, job.dedupe_key) == ("mail", "me", None)
    after = await schedule(world)
    assert (after.next_run, after.last_job) == (before, job.id)
    assert (await world.core.schedules.run(ME, "s")).id != job.id


async def test_a_slot_is_fired_once_by_two_that_fire_at_once(world: World, tmp_path: Any) -> None:
    for n in range(30):
        await put(world, f"s{n}")
    other = world.another("serve")
    await other.open()
    for _ in range(3):
        world.clock.advance(60)
        await asyncio.gather(world.core.scheduler.tick(), other.scheduler.tick())
    await other.close()
    keys = [job.dedupe_key for job in await fired(world)]
    assert (len(keys), len(set(keys))) == (90, 90)


async def test_ten_thousand_schedules_due_at_once_fire_once_each_and_are_spread_where_they_are_late(
    world: World,
) -> None:
    await put(world)
    columns = ", ".join(Schedule._fields)
    copied = columns.replace("name", "'many-' || n", 1)
    numbers = "with recursive c(n) as (select 0 union all select n + 1 from c where n < 9999)"
    world.alter(f"insert into schedules ({columns}) {numbers} select {copied} from schedules, c")
    world.clock.advance(60)
    await world.core.scheduler.tick()
    assert (await world.core.store.counts())[0].jobs == 10_001
    assert await _run_ats(world) == {world.clock.now()}
    world.clock.advance(3600)
    await world.core.scheduler.tick()
    assert (await world.core.store.counts())[0].jobs == 20_002
    late = [at - world.clock.now() for at in await _run_ats(world) if at >= world.clock.now()]
    assert min(late) >= 0
    assert max(late) < 60_000
    assert len(late) > 5000


async def _run_ats(world: World) -> set[int]:
    return {row[0] for row in world.raw.execute("select run_at from jobs").fetchall()}


async def test_a_job_that_still_waits_does_not_keep_the_next_slot_from_its_own(world: World) -> None:
    await put(world)
    for _ in range(3):
        world.clock.advance(60)
        await world.core.scheduler.tick()
    assert len(await fired(world)) == 3


async def test_a_removed_schedule_fires_no_more_and_its_jobs_stay(world: World) -> None:
    await put(world)
    world.clock.advance(60)
    await world.core.scheduler.tick()
    await world.core.schedules.remove(ME, "s")
    world.clock.advance(600)
    await world.core.scheduler.tick()
    assert len(await fired(world)) == 1
    for call in (
        world.core.schedules.get(ME, "s"),
        world.core.schedules.run(ME, "s"),
        world.core.schedules.remove(ME, "s"),
    ):
        with pytest.raises(NotFound, match="no schedule 's'"):
            await call


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"queue": "nowhere"}, "queue 'nowhere' is not configured"),
        ({"cron": "0 0 30 2 *"}, "such a date never comes"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "no such zone"),
    ],
)
async def test_a_schedule_that_could_never_run_is_refused(world: World, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        await put(world, **fields)


async def test_a_payload_that_does_not_fit_its_kind_is_refused(world: World) -> None:
    with pytest.raises(PayloadInvalid, match="/n breaks"):
        await put(world, kind="sum", payload={"n": "x"})
    await put(world, kind="sum", payload={"n": 1})
    world.clock.advance(60)
    await world.core.scheduler.tick()
    assert (await world.take()).payload == '{"n":1}'


async def test_schedules_are_each_workspaces_own(world: World) -> None:
    await put(world, who=INSIDE)
    with pytest.raises(NotFound):
        await schedule(world)
    assert [one.workspace for one in await world.core.schedules.list(INSIDE)] == ["side"]
    assert len(await world.core.schedules.list(ME)) == 1
    with pytest.raises(Forbidden):
        await put(world, who=INSIDE, workspace="default")
    world.clock.advance(60)
    await world.core.scheduler.tick()
    assert [job.workspace for job in await fired(world)] == ["side"]


async def test_who_may_only_read_or_work_changes_no_schedule(world: World) -> None:
    for who in (VIEWER, AGENT):
        with pytest.raises(Forbidden):
            await put(world, who=who)


YEAR = 365 * 86_400


@pytest.mark.parametrize(
    "fields",
    [{"every_seconds": 60}, {"every_seconds": 86_400}, {"cron": "*/5 * * * *"}, {"cron": "0 3 1 1 *"}],
    ids=str,
)
@pytest.mark.parametrize("when", ["while it runs", "before a restart", "when it is put"])
async def test_a_clock_that_was_a_year_ahead_for_a_moment_keeps_no_schedule_away(
    world: World, fields: dict[str, Any], when: str
) -> None:
    async def wrong() -> None:
        world.clock.jump(YEAR)
        if when == "when it is put":
            await put(world, **fields)
        await world.core.scheduler.tick()
        world.clock.jump(-YEAR)

    if when != "when it is put":
        await put(world, **fields)
    await wrong()
    if when == "before a restart":
        await world.restart()
    world.clock.advance(60)
    await world.core.scheduler.tick()
    found, now = await schedule(world), world.clock.now()
    assert now < found.next_run == cron.next_after(found, now)
    assert found.every_ms is None or found.next_run - now <= found.every_ms
    world.clock.advance((found.next_run - now) / 1000)
    await world.core.scheduler.tick()
    assert (await schedule(world)).last_run == found.next_run


async def test_a_clock_that_is_set_back_a_little_runs_no_slot_twice(world: World) -> None:
    await put(world)
    world.clock.advance(60)
    await world.core.scheduler.tick()
    world.clock.jump(-5)
    for _ in range(4):
        await world.core.scheduler.tick()
        world.clock.advance(1)
    assert len(await fired(world)) == 1

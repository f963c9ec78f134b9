"""Schedules as rows, and what they enqueue when they are due. The jobs are added with the rest of the group."""

from __future__ import annotations

import hashlib

from oaken_jobs import cron
from oaken_jobs.errors import NotFound
from oaken_jobs.model import Actor, NewJob, Schedule
from oaken_jobs.store.operations import Enqueue, Fire, FireOne, PutSchedule, RemoveSchedule
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.unit import SCHEDULE_COLUMNS, Unit

LATE_MS = 10_000
"""A run so much behind its time was missed: no process was there to fire it."""
FEW = 20
"""Late runs that are not worth spreading."""
AHEAD_MS = 60_000
"""A time so far ahead was written by a clock that was wrong. Less than that is a clock that was set a little."""

_SAME = ("queue", "kind", "payload", "priority", "every_ms", "cron", "timezone", "owner")
"""What makes a schedule what it is; one that says the same is unchanged."""
_AHEAD = f"select {SCHEDULE_COLUMNS} from schedules where greatest(anchor, coalesce(last_run, 0)) > ?1"
_DUE = f"select {SCHEDULE_COLUMNS} from schedules where next_run <= ?1 order by next_run, workspace, name limit ?2 for update skip locked"


def put(unit: Unit, op: PutSchedule) -> tuple[Schedule, bool]:
    """Adds or changes a schedule. Unchanged, it keeps its next run."""
    wanted = op.schedule
    old = _find(unit, wanted.workspace, wanted.name)
    if old is not None and all(getattr(old, name) == getattr(wanted, name) for name in _SAME):
        return old, False
    new = wanted._replace(
        anchor=unit.now,
        created_at=old.created_at if old is not None else unit.now,
        last_run=old.last_run if old is not None else None,
        last_job=old.last_job if old is not None else None,
    )
    new = new._replace(next_run=cron.next_after(new, unit.now))
    unit.db.replace("schedules", ("workspace", "name"), Schedule._fields, [new])
    unit.note_other("schedule_changed", "put", new.name, op.actor, new.workspace)
    return new, True


def remove(unit: Unit, op: RemoveSchedule) -> None:
    """Removes a schedule. Raises `NotFound`."""
    _found(unit, op.workspace, op.name)
    unit.db.run("delete from schedules where workspace = ?1 and name = ?2", op.workspace, op.name)
    unit.note_other("schedule_changed", "remove", op.name, op.actor, op.workspace)


def fire_one(unit: Unit, op: FireOne) -> tuple[Schedule, Enqueue]:
    """The job of a schedule, run now besides its times. Raises `NotFound`."""
    schedule = _found(unit, op.workspace, op.name)
    return schedule, _job(schedule, op.actor, key=None)


def fire_due(unit: Unit, op: Fire) -> list[tuple[Schedule, Enqueue]]:
    """The jobs of the schedules that are due, which are moved on. Runs that were missed are one run."""
    _put_right(unit)
    due = [Schedule._make(row) for row in unit.db.all(_DUE, unit.now, op.limit)]
    late = sum(unit.now - one.next_run > LATE_MS for one in due)
    runs: list[tuple[Schedule, Enqueue]] = []
    for schedule in due:
        delay = _share(schedule, op.spread_ms) if late > FEW and unit.now - schedule.next_run > LATE_MS else 0
        actor = Actor("system", schedule.name, "schedule")
        job = _job(schedule, actor, key=f"schedule:{schedule.name}:{schedule.next_run}", delay_ms=delay)
        runs.append((schedule, job))
        unit.db.run(
            "update schedules set next_run = ?1, last_run = ?2 where workspace = ?3 and name = ?4",
            cron.next_after(schedule, unit.now),
            unit.now,
            schedule.workspace,
            schedule.name,
        )
    return runs


def ahead(db: Database, now: int) -> list[Schedule]:
    """Schedules that were made, or have run, at a time that has not come yet."""
    return [Schedule._make(row) for row in db.all(_AHEAD, now + AHEAD_MS)]


def _put_right(unit: Unit) -> None:
    """Gives schedules that a wrong clock has moved too far their next slot from now."""
    for schedule in ahead(unit.db, unit.now):
        next_run = min(schedule.next_run, cron.next_after(schedule, unit.now))
        anchor = next_run - schedule.every_ms if schedule.every_ms is not None else unit.now
        last_run = min(schedule.last_run, unit.now) if schedule.last_run is not None else None
        unit.db.run(
            "update schedules set next_run = ?1, anchor = ?2, last_run = ?3 where workspace = ?4 and name = ?5",
            next_run,
            anchor,
            last_run,
            schedule.workspace,
            schedule.name,
        )


def fired(unit: Unit, schedule: Schedule, job_id: int, actor: Actor) -> None:
    """Remembers which job a run has made."""
    unit.db.run(
        "update schedules set last_job = ?1 where workspace = ?2 and name = ?3",
        job_id,
        schedule.workspace,
        schedule.name,
    )
    unit.note_other("schedule_fired", "fire", schedule.name, actor, schedule.workspace)


def _job(schedule: Schedule, actor: Actor, *, key: str | None, delay_ms: int = 0) -> Enqueue:
    new = NewJob(
        kind=schedule.kind,
        payload=schedule.payload,
        priority=schedule.priority,
        dedupe_key=key,
        delay_ms=delay_ms,
        workspace=schedule.workspace,
    )
    return Enqueue(new, actor, queue=schedule.queue)


def _share(schedule: Schedule, spread_ms: int) -> int:
    """Where in the spread this schedule comes: always the same, and evenly among many."""
    name = f"{schedule.workspace}/{schedule.name}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") % max(spread_ms, 1)


def _find(unit: Unit, workspace: str, name: str) -> Schedule | None:
    row = unit.db.one(
        f"select {SCHEDULE_COLUMNS} from schedules where workspace = ?1 and name = ?2 for update", workspace, name
    )
    return Schedule._make(row) if row else None


def _found(unit: Unit, workspace: str, name: str) -> Schedule:
    found = _find(unit, workspace, name)
    if found is None:
        raise NotFound(f"There is no schedule {name!r} in the workspace {workspace}. See the list of schedules.")
    return found

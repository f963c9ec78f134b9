"""Forgets jobs that ended long ago, a few at a time, with all that belongs to them."""

from __future__ import annotations

from oaken_jobs.store.operations import TASK_MS, Prune
from oaken_jobs.store.sql import finishes
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.reads import FORGOTTEN, activity_behind
from oaken_jobs.store.sql.unit import Unit

OLD_JOBS = """
select id from jobs j where finished_at is not null and finished_at < ?1
  and not exists (select 1 from jobs c where c.parent_id = j.id and c.state in ('queued', 'running'))
order by finished_at limit ?2 for update skip locked"""
"""Jobs that ended before a moment, but for those that children still belong to."""
OLD_ROWS = """
select id from activity a where id > ?1 and id < ?2 and at < ?3 and (job_id is null or not exists (select 1 from jobs where id = a.job_id))
order by id limit ?4"""
"""What was said of queues, tokens, agents, plugins, and of jobs that are gone."""
OF_JOBS = "select id from activity where job_id in ids(?1) and id <= ?2 limit ?3"
OLD_LINES = "delete from log_lines where id in (select id from log_lines where at < ?1 order by at limit ?2 for update skip locked)"
_MARK = (
    "insert into marks values (?1, ?2) on conflict (name) do update set value = greatest(marks.value, excluded.value)"
)

OLD_AUDITS = (
    "delete from audit where id in (select id from audit where at < ?1 order by at limit ?2 for update skip locked)"
)

DUE_TASKS = "select id from tasks where look_at <= ?1 order by look_at limit ?2 for update skip locked"
TASKS = 20
"""Tasks looked at in one transaction: each may have a thousand jobs."""

ROWS = 2_000
"""What belongs to jobs is deleted so many rows at a time, however many a job has: a few milliseconds."""
_MANY = {"progress": "id", "attempts": "job_id, epoch", "questions": "id", "late_results": "job_id, epoch"}
"""Tables with any number of rows for a job, and their keys."""
_BELONGING = ("payloads", "results", *_MANY)


def prune(unit: Unit, op: Prune) -> int:
    """Forgets at most `op.limit` of each sort; how many of the sort of which there were most.

    Of the activity the newest `op.replayable` rows stay, whatever they are about. Jobs with so many rows that they are not through in one
    go lose some of these and stay until the next.
    """
    db = unit.db
    more = 0
    ids = [row[0] for row in db.all(OLD_JOBS, op.before, op.limit)]
    forgotten = list(op.activity)
    if ids:
        said = [row[0] for row in db.all(OF_JOBS, db.array(ids), activity_behind(db, op.replayable), ROWS)]
        forgotten += said
        if _cleared(unit, ids, ROWS - len(said)):
            forget_jobs(unit, ids)
            more = len(ids)
        else:
            more = op.limit
    if forgotten:
        db.run("delete from activity where id in ids(?1)", db.array(forgotten))
        db.run(_MARK, FORGOTTEN, max(forgotten))
    lines = db.run(OLD_LINES, op.log_before, op.limit)
    audits = db.run(OLD_AUDITS, op.audit_before, op.limit)
    finishes.forget(unit, op.before)
    return max(more, len(op.activity), lines, audits, op.limit if _forget_tasks(unit) else 0)


def _forget_tasks(unit: Unit) -> bool:
    """Deletes tasks that are due to be looked at and are over; the others are looked at again later. Whether there may be more."""
    db = unit.db
    due = [row[0] for row in db.all(DUE_TASKS, unit.now, TASKS)]
    if due:
        db.run(db.queries.old_tasks, db.array(due), unit.now - TASK_MS)
        db.run("update tasks set look_at = ?1 where id in texts(?2)", unit.now + TASK_MS, db.array(due))
    return len(due) == TASKS


def _cleared(unit: Unit, ids: list[int], most: int) -> bool:
    """Deletes at most so many rows of what jobs may have any number of; whether there are no more."""
    for table, key in _MANY.items():
        if most > 0:
            found = f"select {key} from {table} where job_id in ids(?1) limit ?2"
            most -= unit.db.run(f"delete from {table} where ({key}) in ({found})", unit.db.array(ids), most)
    return most > 0


def old_activity(db: Database, after: int, before: int, replayable: int, limit: int) -> list[int]:
    """The ids of rows behind `after`, from before a moment and about no job that is there, without the newest `replayable`."""
    newest = int(db.all("select coalesce(max(id), 0) from activity")[0][0])
    end = min(activity_behind(db, replayable) + 1, _first_since(db, before, newest))
    return [row[0] for row in db.all(OLD_ROWS, after, end, before, limit)]


def _first_since(db: Database, moment: int, newest: int) -> int:
    """The id at which rows of that moment or later begin. Times go up with ids, but for clocks that were set; there is no index of them."""
    low, high = 0, newest + 1
    while low < high:
        middle = (low + high) // 2
        row = db.one("select id, at from activity where id >= ?1 order by id limit 1", middle)
        if row is not None and row[1] < moment:
            low = row[0] + 1
        else:
            high = middle
    return low


def forget_jobs(unit: Unit, ids: list[int]) -> None:
    """Deletes jobs with all that belongs to them, but for their activity."""
    gone = unit.db.array(ids)
    for table in _BELONGING:
        unit.db.run(f"delete from {table} where job_id in ids(?1)", gone)
    unit.db.run("delete from jobs where id in ids(?1)", gone)
    for job_id in ids:
        unit.gone(job_id)

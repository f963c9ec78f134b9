"""Forgets jobs that ended long ago, a few at a time, with all that belongs to them."""

from __future__ import annotations

from oaken_jobs.store.base import Prune
from oaken_jobs.store.sqlite.unit import Unit, json_array

OLD_JOBS = """
select id from jobs j where finished_at is not null and finished_at < ?
  and not exists (select 1 from jobs c where c.parent_id = j.id and c.state in ('queued', 'running'))
order by finished_at limit ?"""
"""Jobs that ended before a moment, but for those that children still belong to."""
OLD_ROWS = """
select id from activity a where id <= ? and at < ? and (job_id is null or not exists (select 1 from jobs where id = a.job_id))
order by id limit ?"""
"""What was said of queues, tokens, agents, plugins, and jobs that were erased."""
OF_JOBS = "select id from activity where job_id in (select value from json_each(?)) and id <= ?"
OLD_LINES = "delete from log_lines where id in (select id from log_lines where at < ? order by at limit ?)"
FORGOTTEN = "activity_forgotten"
"""The mark of the newest row of activity that is forgotten."""
_MARK = "insert into marks values (?1, ?2) on conflict do update set value = max(value, ?2)"

OLD_AUDITS = "delete from audit where id in (select id from audit where at < ? order by at limit ?)"

_BELONGING = ("payloads", "results", "attempts", "progress", "questions", "late_results")


def prune(unit: Unit, op: Prune) -> int:
    """Forgets at most `op.limit` of each sort; how many of the sort of which there were most.

    Of the activity the newest `op.replayable` rows stay, whatever they are about.
    """
    db = unit.db
    ids = [row[0] for row in db.execute(OLD_JOBS, (op.before, op.limit)).fetchall()]
    newest = int(db.execute("select coalesce(max(id), 0) from activity").fetchone()[0])
    rows = [row[0] for row in db.execute(OLD_ROWS, (newest - op.replayable, op.before, op.limit)).fetchall()]
    forgotten = list(rows)
    if ids:
        forgotten += [row[0] for row in db.execute(OF_JOBS, (json_array(ids), newest - op.replayable)).fetchall()]
        forget_jobs(unit, ids)
    if forgotten:
        db.execute("delete from activity where id in (select value from json_each(?))", (json_array(forgotten),))
        db.execute(_MARK, (FORGOTTEN, max(forgotten)))
    lines = db.execute(OLD_LINES, (op.log_before, op.limit)).rowcount
    audits = db.execute(OLD_AUDITS, (op.audit_before, op.limit)).rowcount
    return max(len(ids), len(rows), lines, audits)


def forget_jobs(unit: Unit, ids: list[int]) -> None:
    """Deletes jobs with all that belongs to them, but for their activity."""
    gone = json_array(ids)
    for table in _BELONGING:
        unit.db.execute(f"delete from {table} where job_id in (select value from json_each(?))", (gone,))
    unit.db.execute("delete from jobs where id in (select value from json_each(?))", (gone,))
    for job_id in ids:
        unit.gone(job_id)

"""Forgets jobs that ended long ago, a few at a time, with all that belongs to them."""

from __future__ import annotations

from oaken_jobs.store.base import Prune
from oaken_jobs.store.sqlite.unit import Unit, json_array

OLD_JOBS = """
select id from jobs j where finished_at is not null and finished_at < ?
  and not exists (select 1 from jobs c where c.parent_id = j.id and c.state in ('queued', 'running'))
order by finished_at limit ?"""
"""Jobs that ended before a moment, but for those that children still belong to."""
OLD_ROWS = "delete from activity where id in (select id from activity where id <= ? and at < ? and job_id is null order by id limit ?)"
"""What was said of queues, tokens and agents."""

OLD_AUDITS = "delete from audit where id in (select id from audit where at < ? order by at limit ?)"

_OF_JOBS = ("payloads", "results", "attempts", "progress", "questions", "late_results", "activity")


def prune(unit: Unit, op: Prune) -> int:
    """Forgets at most `op.limit` jobs, and as many other rows; how many of the sort of which there were more.

    Of the activity the newest `op.replayable` rows stay, whatever they are about.
    """
    db = unit.db
    ids = [row[0] for row in db.execute(OLD_JOBS, (op.before, op.limit)).fetchall()]
    newest = int(db.execute("select coalesce(max(id), 0) from activity").fetchone()[0])
    if ids:
        gone = json_array(ids)
        for table in _OF_JOBS:
            kept = f" and id <= {newest - op.replayable}" if table == "activity" else ""
            db.execute(f"delete from {table} where job_id in (select value from json_each(?)){kept}", (gone,))
        db.execute("delete from jobs where id in (select value from json_each(?))", (gone,))
        for job_id in ids:
            unit.gone(job_id)
    rows = db.execute(OLD_ROWS, (newest - op.replayable, op.before, op.limit)).rowcount
    audits = db.execute(OLD_AUDITS, (op.audit_before, op.limit)).rowcount
    return max(len(ids), rows, audits)

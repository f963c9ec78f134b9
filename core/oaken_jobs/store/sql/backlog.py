"""Queued jobs by what keeps them waiting, as far as their rows say it."""

from __future__ import annotations

from oaken_jobs.model import FREE
from oaken_jobs.store.base import JobFilter, Waiting
from oaken_jobs.store.sql.claim import IN_LANE
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.reads import Where

_GROUPED = (
    "select j.workspace, j.queue, j.kind, j.priority, j.blocked, j.question is not null, j.run_at > ?0, j.attempts > 0, "
    "count(*), min(j.run_at), min(j.id) from jobs j"
)
_FIRST = f"select id from jobs where {IN_LANE} and run_at = ?5 order by id limit 1"


def backlog(db: Database, where: JobFilter, now: int) -> list[Waiting]:
    """Lanes of queued jobs that wait alike; of each queue the one that has waited longest stands for its lane."""
    found = Where(db, where)
    found.add("j.state = 'queued'")
    select = found.numbered(_GROUPED, now)
    rows = db.all(f"{select}{found} group by 1, 2, 3, 4, 5, 6, 7, 8", *found.values)
    lanes = [
        Waiting(queue, jobs, since, blocked == FREE and not later, sample)
        for _, queue, _, _, blocked, _, later, _, jobs, since, sample in rows
    ]
    oldest: dict[str, int] = {}
    for place, lane in enumerate(lanes):
        if lane.due and (lane.queue not in oldest or lane.since < lanes[oldest[lane.queue]].since):
            oldest[lane.queue] = place
    for place in oldest.values():
        first = db.one(_FIRST, *rows[place][:4], lanes[place].since)
        if first is not None:
            lanes[place] = lanes[place]._replace(sample=first[0])
    return lanes

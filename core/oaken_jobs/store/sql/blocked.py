"""What keeps queued jobs out of the claim's sight, and offers them again: serial keys and children.

Only a job of a free key is offered, and of those that stand behind one another in one lane mostly the first alone. The claim is the
judge: it takes no job while another of its key runs, and blocks those it meets; whoever ends or moves a job of a key offers the first
of each lane again. So a blocked job always has a running one of its key, or an offered one in its lane before it.

Where transactions run beside each other, whoever judges by a key, or changes what others judge by, has taken the key's lock; whoever
looks for the children of a job has locked that job's row, as has whoever ends a child.
"""

from __future__ import annotations

from collections.abc import Iterable

from oaken_jobs.model import CHILDREN, FREE, SERIAL, Job
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.unit import Unit

BEFORE = f"""
select 1 from jobs where state = 'queued' and serial_key is not null and workspace = ?1 and serial_key = ?2 and blocked = {FREE}
  and queue = ?3 and kind = ?4 and priority = ?5 and run_at <= ?6 limit 1"""
"""Whether a job of a key stands before a newcomer of the same lane."""
LIVE_CHILD = "select 1 from jobs where parent_id = ?1 and state in ('queued', 'running') limit 1"

Key = tuple[str, str]
"""Workspace and serial key."""


def lock_name(key: str) -> str:
    """Under which a serial key is locked; keys of all workspaces together, since that of a new child is not known yet."""
    return f"serial {key}"


def has_live_child(unit: Unit, job_id: int) -> bool:
    """Whether a job has a child that has not ended."""
    unit.flush()
    return unit.db.one(LIVE_CHILD, job_id) is not None


def busy(db: Database, keys: Iterable[Key]) -> set[Key]:
    """Those of some keys of which a job runs."""
    wanted = list(keys)
    if not wanted:
        return set()
    return {(row[0], row[1]) for row in db.all(db.queries.busy_keys, *db.columns(wanted, 2))}


def behind(db: Database, job: Job) -> bool:
    """Whether a newcomer that is due would stand behind a running or an offered job of its key."""
    assert job.serial_key is not None
    key = (job.workspace, job.serial_key)
    return bool(busy(db, [key])) or db.one(BEFORE, *key, job.queue, job.kind, job.priority, job.run_at) is not None


def hide(unit: Unit, key: Key, taken: int) -> int:
    """Takes the due jobs of a busy key out of sight, but for the one that was just `taken` (0 for none); how many."""
    found = unit.db.all(unit.db.queries.hide, *key, unit.now, taken)
    for (job_id,) in found:
        unit.changed_below(job_id, {"blocked": SERIAL})
    return len(found)


def offer(unit: Unit, *, parents: bool = True) -> None:
    """Offers what the changes of this transaction have made free. What was changed is written first."""
    unit.flush()
    if unit.parents and parents:
        waiting, unit.parents = unit.parents, set()
        unit.load(waiting)
        for job_id in _childless(unit, [job_id for job_id in waiting if job_id in unit.jobs]):
            job = unit.jobs[job_id]
            if job.state == "queued" and job.blocked == CHILDREN:
                unit.set(job, {"blocked": FREE, "run_at": unit.now})
                unit.touched.add(job.kind)
    if unit.freed:
        freed, unit.freed = unit.freed, set()
        db = unit.db
        db.lock(lock_name(key) for _, key in freed)
        firsts = [row[0] for key in freed - busy(db, freed) for row in db.all(db.queries.firsts_of_key, *key)]
        unit.load(firsts)
        for job_id in firsts:
            job = unit.jobs[job_id]
            if job.state == "queued" and job.blocked == SERIAL:
                unit.set(job, {"blocked": FREE})
                unit.touched.add(job.kind)
    unit.flush()


def _childless(unit: Unit, ids: list[int]) -> list[int]:
    waiting = [job_id for job_id in ids if unit.jobs[job_id].blocked == CHILDREN]
    return [row[0] for row in unit.db.all(unit.db.queries.childless, unit.db.array(waiting))] if waiting else []

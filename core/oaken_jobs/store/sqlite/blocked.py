"""What keeps queued jobs out of the claim's sight, and offers them again: serial keys and children.

Only a job of a free key is offered, and of those that stand behind one another in one lane mostly the first alone. The claim is the
judge: it takes no job while another of its key runs, and blocks those it meets; whoever ends or moves a job of a key offers the first
of each lane again. So a blocked job always has a running one of its key, or an offered one in its lane before it.
"""

from __future__ import annotations

from oaken_jobs.model import CHILDREN, FREE, SERIAL, Job
from oaken_jobs.store.sqlite.driver import Database
from oaken_jobs.store.sqlite.unit import Unit, json_array

BATCH = 1000
"""Jobs of one key that one statement blocks."""

RUNNING_OF_KEY = "select 1 from jobs where state = 'running' and workspace = ? and serial_key = ?"
_OF_KEY = "state = 'queued' and serial_key is not null and workspace = :w and serial_key = :s"
_HIDDEN = f"{_OF_KEY} and blocked = {SERIAL}"
_OFFERED = f"{_OF_KEY} and blocked = {FREE}"

BEFORE = f"""
select 1 from jobs where {_OF_KEY} and blocked = {FREE} and queue = :q and kind = :k and priority = :p and run_at <= :now limit 1"""
"""Whether a job of a key stands before a newcomer of the same lane."""


def _lanes(of_key: str) -> str:
    """The lanes that such jobs of a key are in: a seek for each, however many jobs stand in it."""
    return f"""
with recursive lane(q, k, p) as (
  select * from (select queue, kind, priority from jobs where {of_key} order by queue, kind, priority limit 1)
  union all
  select j.queue, j.kind, j.priority from lane l cross join jobs j where j.id = coalesce(
    (select id from jobs where {of_key} and queue = l.q and kind = l.k and priority > l.p order by queue, kind, priority limit 1),
    (select id from jobs where {of_key} and queue = l.q and kind > l.k order by queue, kind, priority limit 1),
    (select id from jobs where {of_key} and queue > l.q order by queue, kind, priority limit 1))
)"""


FIRSTS_OF_KEY = f"""{_lanes(_HIDDEN)}
select (select id from jobs where {_HIDDEN} and queue = q and kind = k and priority = p order by run_at, id limit 1) from lane"""
"""The first blocked job of a key in each lane."""

HIDE = f"""{_lanes(_OFFERED)}
update jobs set blocked = {SERIAL} where id in (
  select j.id from lane cross join jobs j where j.state = 'queued' and j.serial_key is not null and j.workspace = :w
    and j.serial_key = :s and j.blocked = {FREE} and j.queue = q and j.kind = k and j.priority = p and j.run_at <= :now
    and j.id <> :taken limit {BATCH}) returning id"""
"""The due jobs of a key, but for one."""

CHILDLESS = """
select value from json_each(?) where not exists (
  select 1 from jobs where parent_id = value and state in ('queued', 'running'))"""
"""Those of some jobs that have no child that is not final."""


LIVE_CHILD = "select 1 from jobs where parent_id = ? and state in ('queued', 'running') limit 1"


def has_live_child(unit: Unit, job_id: int) -> bool:
    """Whether a job has a child that has not ended."""
    unit.flush()
    return unit.db.execute(LIVE_CHILD, (job_id,)).fetchone() is not None


def busy(database: Database, workspace: str, key: str) -> bool:
    """Whether a job of the key runs."""
    return database.execute(RUNNING_OF_KEY, (workspace, key)).fetchone() is not None


def behind(database: Database, job: Job) -> bool:
    """Whether a newcomer that is due would stand behind a running or an offered job of its key."""
    assert job.serial_key is not None
    if busy(database, job.workspace, job.serial_key):
        return True
    lane = {"w": job.workspace, "s": job.serial_key, "q": job.queue, "k": job.kind, "p": job.priority}
    return database.execute(BEFORE, {**lane, "now": job.run_at}).fetchone() is not None


def hide(unit: Unit, workspace: str, key: str, taken: int) -> int:
    """Takes the due jobs of a busy key out of sight, but for the one that was just `taken` (0 for none); how many."""
    bound = {"w": workspace, "s": key, "now": unit.now, "taken": taken}
    found = unit.db.execute(HIDE, bound).fetchall()
    for (job_id,) in found:
        unit.changed_below(job_id, {"blocked": SERIAL})
    return len(found)


def offer(unit: Unit, *, parents: bool = True) -> None:
    """Offers what the changes of this transaction have made free. What was changed is written first."""
    unit.flush()
    if unit.parents and parents:
        waiting, unit.parents = unit.parents, set()
        done = [row[0] for row in unit.db.execute(CHILDLESS, (json_array(waiting),)).fetchall()]
        unit.load(done)
        for job_id in done:
            job = unit.jobs.get(job_id)
            if job is not None and job.state == "queued" and job.blocked == CHILDREN:
                unit.set(job, {"blocked": FREE, "run_at": unit.now})
                unit.touched.add(job.kind)
    if unit.freed:
        freed, unit.freed = unit.freed, set()
        firsts: list[int] = []
        for workspace, key in freed:
            if not busy(unit.db, workspace, key):
                bound = {"w": workspace, "s": key}
                firsts += [row[0] for row in unit.db.execute(FIRSTS_OF_KEY, bound).fetchall()]
        unit.load(firsts)
        for job_id in firsts:
            job = unit.jobs[job_id]
            unit.set(job, {"blocked": FREE})
            unit.touched.add(job.kind)
    unit.flush()

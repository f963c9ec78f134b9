"""The named queries in SQLite's words. Lists come as JSON, and what may be many rows goes out as one row of JSON: the driver lets go of the
interpreter's lock at every row (see `rows`)."""

from __future__ import annotations

from oaken_jobs.model import FREE, SERIAL
from oaken_jobs.store.sql.claim import IN_LANE, LANE_ORDER, RUNNABLE
from oaken_jobs.store.sql.database import Queries

_HIDDEN_AT_ONCE = 1000
"""Jobs of one key that one statement blocks."""


def _lanes(within: str, beyond: str) -> str:
    """`within` limits every seek; `beyond` goes on behind a workspace."""
    return f"""
with recursive lane(w, q, k, p, s) as (
  select * from (select workspace, queue, kind, priority, run_at from jobs where {RUNNABLE}{within} {LANE_ORDER} limit 1)
  union all
  select j.workspace, j.queue, j.kind, j.priority, j.run_at from lane l cross join jobs j where j.id = coalesce(
    (select id from jobs where {RUNNABLE} and workspace = l.w and queue = l.q and kind = l.k and priority < l.p {LANE_ORDER} limit 1),
    (select id from jobs where {RUNNABLE} and workspace = l.w and queue = l.q and kind > l.k {LANE_ORDER} limit 1),
    (select id from jobs where {RUNNABLE} and workspace = l.w and queue > l.q {LANE_ORDER} limit 1){beyond})
)
select json_group_array(json_array(w, q, k, p, s)) from lane
where q not in (select queue from queue_state where paused <> 0)
  and (?1 is null or q in (select value from json_each(?1)))
  and (?2 is null or k in (select value from json_each(?2)))
  and (?3 is null or k not in (select value from json_each(?3))) and (?4 is null or w = ?4)"""


_LANE_OF = f"""{RUNNABLE} and workspace = o.value ->> 0 and queue = o.value ->> 1 and kind = o.value ->> 2
  and priority = o.value ->> 3 and run_at >= o.value ->> 4"""

_PASSED = " and id not in (select value from json_each(?{}))"

_OF_KEY = "state = 'queued' and serial_key is not null and workspace = ?1 and serial_key = ?2"
_HIDDEN = f"{_OF_KEY} and blocked = {SERIAL}"
_OFFERED = f"{_OF_KEY} and blocked = {FREE}"


def _lanes_of(key: str) -> str:
    """The lanes that such jobs of a key are in: a seek for each, however many jobs stand in it."""
    return f"""
with recursive lane(q, k, p) as (
  select * from (select queue, kind, priority from jobs where {key} order by queue, kind, priority limit 1)
  union all
  select j.queue, j.kind, j.priority from lane l cross join jobs j where j.id = coalesce(
    (select id from jobs where {key} and queue = l.q and kind = l.k and priority > l.p order by queue, kind, priority limit 1),
    (select id from jobs where {key} and queue = l.q and kind > l.k order by queue, kind, priority limit 1),
    (select id from jobs where {key} and queue > l.q order by queue, kind, priority limit 1))
)"""


QUERIES = Queries(
    lanes=_lanes("", f",\n    (select id from jobs where {RUNNABLE} and workspace > l.w {LANE_ORDER} limit 1)"),
    lanes_within=_lanes(" and workspace = ?4", ", null"),
    head=f"""
select json_group_array(json_array(run_at, id)) from (
  select run_at, id from jobs where {IN_LANE} and run_at <= ?6{_PASSED.format(8)} order by run_at, id limit ?7)""",
    firsts=f"""
select json_group_array(json(coalesce((select json_array(run_at, id) from jobs where {_LANE_OF} and run_at <= ?2{_PASSED.format(3)}
  order by run_at, id limit 1), '[null,null]'))) from json_each(?1) o""",
    # LIMIT cannot be correlated in SQLite, hence the `in`.
    heads=f"""
select json_group_array(json_array(run_at, id, kind)) from (
  select j.run_at, j.id, j.kind from json_each(?1) o cross join jobs j where j.id in (
    select id from jobs where {_LANE_OF} and run_at <= ?2{_PASSED.format(4)} order by run_at, id limit ?3))""",
    next_run=f"""
select min((select run_at from jobs where {_LANE_OF} order by run_at limit 1)) from json_each(?1) o""",
    live_keys="""
select j.workspace, j.dedupe_key, j.id from json_each(?1) o cross join jobs j on j.workspace = o.value ->> 0
  and j.dedupe_key = o.value ->> 1 where j.dedupe_key is not null and j.state in ('queued', 'running')""",
    live_targets="""
select j.workspace, j.kind, j.target, j.id from json_each(?1) o cross join jobs j on j.workspace = o.value ->> 0
  and j.kind = o.value ->> 1 and j.target = o.value ->> 2 where j.target is not null and j.state in ('queued', 'running')""",
    queue_labels="""
select l.workspace, l.subject, l.layer, l.value from json_each(?1) o cross join labels l
  on l.workspace = o.value ->> 0 and l.subject = o.value ->> 1 and l.layer in ('human', 'machine') and l.key = ?2""",
    busy_keys="""
select j.workspace, j.serial_key, j.id, j.agent from json_each(?1) o cross join jobs j
  on j.workspace = o.value ->> 0 and j.serial_key = o.value ->> 1 where j.state = 'running'""",
    firsts_of_key=f"""{_lanes_of(_HIDDEN)}
select (select id from jobs where {_HIDDEN} and queue = q and kind = k and priority = p order by run_at, id limit 1) from lane""",
    hide=f"""{_lanes_of(_OFFERED)}
update jobs set blocked = {SERIAL} where id in (
  select j.id from lane cross join jobs j where j.state = 'queued' and j.serial_key is not null and j.workspace = ?1
    and j.serial_key = ?2 and j.blocked = {FREE} and j.queue = q and j.kind = k and j.priority = p and j.run_at <= ?3
    and j.id <> ?4 limit {_HIDDEN_AT_ONCE}) returning id""",
    childless="""
select value from json_each(?1) where not exists (
  select 1 from jobs where parent_id = value and state in ('queued', 'running'))""",
    children="""
select value, (select count(*) from jobs where parent_id = value and state in ('queued', 'running')),
  (select count(*) from jobs where parent_id = value) from json_each(?1)""",
    at_work="select value from json_each(?1) where exists (select 1 from jobs where state = 'running' and kind = value)",
    task="""
select id, actor_kind, actor_id, workspace, job_ids, said, created_at,
  max(created_at, (select coalesce(max(a.at), 0) from json_each(t.job_ids) o join activity a on a.job_id = o.value))
from tasks t where id = ?1""",
    old_tasks="""
delete from tasks as t where id in (select value from json_each(?1)) and not exists (
  select 1 from json_each(t.job_ids) o join jobs j on j.id = o.value where j.finished_at is null or j.finished_at > ?2)""",
    activity_head="select coalesce(max(id), 0) from activity",
    activity_behind="select max(id) - ?1 from activity",
    tagged="exists (select 1 from json_each(j.tags) where value = ?0)",
    last_job="select seq from sqlite_sequence where name = 'jobs'",
    damage="pragma integrity_check(20)",
)

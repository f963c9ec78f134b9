"""The named queries in PostgreSQL's words. Lists of several columns come as one array a column."""

from __future__ import annotations

from oaken_jobs.model import FREE, SERIAL
from oaken_jobs.store.sql.claim import DRAINED, DUE, IN_LANE, LANE_ORDER, NEXT_EXPIRY, RUNNABLE
from oaken_jobs.store.sql.database import Queries

OUTBOX = 0x6F61
"""The upper 16 bits of the locks that say where the activity may still have gaps; the lower 48 are an id."""
_BOUND = "(((l.classid::bigint << 32) | l.objid::bigint) & ((1::bigint << 48) - 1))"
_OPEN = f"""
(select min({_BOUND}) from pg_locks l where l.locktype = 'advisory' and l.objsubid = 1 and l.classid::bigint >> 16 = {OUTBOX}
  and l.database = (select oid from pg_database where datname = current_database()) and h.id is not null)"""

# A transaction draws the ids of its rows when it holds all that it waited for, so that of two changes of one job the later one has the
# higher id. Ids may become visible in another order than they were drawn in, though; so before its first one each transaction publishes,
# by a lock that all may share, above which id it draws, and nobody reads beyond the lowest of those. The sequence is looked at before the
# locks: who is not seen there yet draws ids above it.
ACTIVITY_HEAD = f"""
with h as materialized (select case when is_called then last_value else 0 end as id from activity_ids)
select least(h.id, {_OPEN}) from h"""
PUBLISH = f"""published as materialized (
  select pg_advisory_xact_lock_shared(({OUTBOX}::bigint << 48) | case when is_called then last_value else 0 end) from activity_ids)"""

HIDDEN_AT_ONCE = 1000
"""Jobs of one key that one statement blocks."""

_OPEN_QUEUE = "q not in (select queue from queue_state where paused <> 0)"
_ONE_LANE = "select workspace, queue, kind, priority, run_at from jobs where"


def _lanes(within: str, beyond: str) -> str:
    """`within` limits every seek; `beyond` goes on behind a workspace."""
    return f"""
with recursive lane(w, q, k, p, s) as (
  ({_ONE_LANE} {RUNNABLE}{within} {LANE_ORDER} limit 1)
  union all
  select n.* from lane l cross join lateral (
    ({_ONE_LANE} {RUNNABLE} and workspace = l.w and queue = l.q and kind = l.k and priority < l.p {LANE_ORDER} limit 1)
    union all
    ({_ONE_LANE} {RUNNABLE} and workspace = l.w and queue = l.q and kind > l.k {LANE_ORDER} limit 1)
    union all
    ({_ONE_LANE} {RUNNABLE} and workspace = l.w and queue > l.q {LANE_ORDER} limit 1){beyond}
    limit 1) n
)
select w, q, k, p, s from lane
where {_OPEN_QUEUE}
  and ($1::text[] is null or q = any($1)) and ($2::text[] is null or k = any($2))
  and ($3::text[] is null or k <> all($3)) and ($4::text is null or w = $4)"""


_LANES_GIVEN = (
    "unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[]) with ordinality o(w, q, k, p, s, n)"
)
_LANE_GIVEN = f"{RUNNABLE} and workspace = o.w and queue = o.q and kind = o.k and priority = o.p and run_at >= o.s"

_OF_KEY = "state = 'queued' and serial_key is not null and workspace = $1 and serial_key = $2"
_HIDDEN = f"{_OF_KEY} and blocked = {SERIAL}"
_ONE_OF_KEY = f"select queue, kind, priority from jobs where {_HIDDEN}"

QUERIES = Queries(
    lanes=_lanes("", f"\n    union all\n    ({_ONE_LANE} {RUNNABLE} and workspace > l.w {LANE_ORDER} limit 1)"),
    lanes_within=_lanes(" and workspace = $4", ""),
    head=f"select run_at, id from jobs where {IN_LANE} and run_at <= ?6 and id <> all(?8::bigint[]) order by run_at, id limit ?7",
    firsts=f"""
select f.run_at, f.id from {_LANES_GIVEN} left join lateral (
  select run_at, id from jobs where {_LANE_GIVEN} and run_at <= $6 and id <> all($7::bigint[]) order by run_at, id limit 1) f on true
order by o.n""",
    heads=f"""
select h.run_at, h.id, h.kind from {_LANES_GIVEN} cross join lateral (
  select run_at, id, kind from jobs where {_LANE_GIVEN} and run_at <= $6 and id <> all($8::bigint[]) order by run_at, id limit $7) h""",
    next_run=f"""
select min(h.run_at) from {_LANES_GIVEN} cross join lateral (
  select run_at from jobs where {_LANE_GIVEN} order by run_at limit 1) h""",
    live_keys="""
select j.workspace, j.dedupe_key, j.id from unnest($1::text[], $2::text[]) o(w, d) join jobs j on j.workspace = o.w
  and j.dedupe_key = o.d where j.dedupe_key is not null and j.state in ('queued', 'running')""",
    live_targets="""
select j.workspace, j.kind, j.target, j.id from unnest($1::text[], $2::text[], $3::text[]) o(w, k, t) join jobs j
  on j.workspace = o.w and j.kind = o.k and j.target = o.t where j.target is not null and j.state in ('queued', 'running')""",
    queue_labels="""
select l.workspace, l.subject, l.layer, l.value from unnest($1::text[], $2::text[]) o(w, s) join labels l
  on l.workspace = o.w and l.subject = o.s and l.layer in ('human', 'machine') and l.key = $3""",
    busy_keys="""
select j.workspace, j.serial_key, j.id, j.agent from unnest($1::text[], $2::text[]) o(w, s) join jobs j
  on j.workspace = o.w and j.serial_key = o.s where j.state = 'running' and j.serial_key is not null""",
    firsts_of_key=f"""
with recursive lane(q, k, p) as (
  ({_ONE_OF_KEY} order by queue, kind, priority limit 1)
  union all
  select n.* from lane l cross join lateral (
    ({_ONE_OF_KEY} and queue = l.q and kind = l.k and priority > l.p order by queue, kind, priority limit 1)
    union all
    ({_ONE_OF_KEY} and queue = l.q and kind > l.k order by queue, kind, priority limit 1)
    union all
    ({_ONE_OF_KEY} and queue > l.q order by queue, kind, priority limit 1)
    limit 1) n
)
select f.id from lane cross join lateral (
  select id from jobs where {_HIDDEN} and queue = lane.q and kind = lane.k and priority = lane.p order by run_at, id limit 1) f""",
    # Rows that another transaction is at are left; the next claim that meets them tries again.
    hide=f"""
with due as (
  select id from jobs where {_OF_KEY} and blocked = {FREE} and run_at <= $3 and id <> $4
  order by queue, kind, priority, run_at, id limit {HIDDEN_AT_ONCE} for update skip locked)
update jobs set blocked = {SERIAL} from due where jobs.id = due.id returning jobs.id""",
    childless="""
select o.id from unnest($1::bigint[]) o(id) where not exists (
  select 1 from jobs where parent_id = o.id and state in ('queued', 'running'))""",
    children="""
select o.id, (select count(*) from jobs where parent_id = o.id and state in ('queued', 'running')),
  (select count(*) from jobs where parent_id = o.id) from unnest($1::bigint[]) o(id)""",
    at_work="select o.k from unnest($1::text[]) o(k) where exists (select 1 from jobs where state = 'running' and kind = o.k)",
    task="""
select id, actor_kind, actor_id, workspace, job_ids, said, created_at, greatest(created_at, (
  select max(a.at) from json_array_elements_text(t.job_ids::json) o join activity a on a.job_id = o::bigint))
from tasks t where id = $1""",
    old_tasks="""
delete from tasks t where id = any($1::text[]) and not exists (
  select 1 from json_array_elements_text(t.job_ids::json) o join jobs j on j.id = o::bigint
  where j.finished_at is null or j.finished_at > $2)""",
    activity_head=ACTIVITY_HEAD,
    activity_behind="select max(id) from (select id from activity order by id desc limit 1 offset $1) r",
    tagged="exists (select 1 from json_array_elements_text(j.tags::json) g where g = ?0)",
    last_job="select case when is_called then last_value else 0 end from job_ids",
    damage="select 'ok'",
)

_MOMENT = "(extract(epoch from clock_timestamp()) * 1000)::bigint, case when is_called then last_value else 0 end"
MOMENT = f"select {_MOMENT} from activity_ids"
"""The time, and the newest id of activity that anybody has drawn."""
NEW_JOB_IDS = "select array(select nextval('job_ids') from generate_series(1, $1))"
COLUMNS = """
select table_name, column_name, data_type
from information_schema.columns where table_schema = current_schema()"""
LOCK_JOBS = "select id, xmin::text::bigint as version from jobs where id = any($1::bigint[]) order by id for update"
"""And the version of each row. Where somebody is at one, this waits; `LOCK_FREE_JOBS` leaves it out."""
LOCK_FREE_JOBS = f"{LOCK_JOBS} skip locked"
TAKE_HEAD = f"{QUERIES.head.replace('run_at, id', 'run_at, id, xmin::text::bigint', 1)} for update skip locked"
"""The head of a lane but for those that somebody is at, with the version of each row."""
RESERVE = f"""
with l as materialized ({LOCK_JOBS}), a as materialized (select array_agg(id) as ids, array_agg(version) as versions from l)
select {_MOMENT}, a.ids, a.versions, array(select nextval('job_ids') from generate_series(1, $2)) from a cross join activity_ids"""
"""Locks these jobs, and only then looks at the clock: time and newest id as in `MOMENT`, ids and versions, and so many ids for new jobs."""
_TOOK = "(extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint"
"""Microseconds that a statement has taken so far. Parts of a `union all` are worked off in their order."""
_END_OF_LANES = f"union all select null, null, null, null, {_TOOK}"
WALK_LANES = f"{QUERIES.lanes} {_END_OF_LANES}"
WALK_LANES_WITHIN = f"{QUERIES.lanes_within} {_END_OF_LANES}"
"""The lanes, and in a last row how long that took."""
LANES_STILL_OPEN = f"select w, q, k, p, s from {_LANES_GIVEN} where {_OPEN_QUEUE}"
TOOK = DRAINED + 1
WALK_DUE = f"{DUE} union all select {TOOK}, {_TOOK}, null"
"""As `DUE`, and how long that took."""
WALK_NEXT_EXPIRY = f"select at, {_TOOK} from ({NEXT_EXPIRY}) e(at)"
VERSION = "select pg_current_xact_id()::text::bigint & 4294967295"
"""That rows get which this transaction writes, as `xmin` has it."""
LOCK = """
select case when o.s then pg_advisory_xact_lock_shared(o.k)::text else pg_advisory_xact_lock(o.k)::text end
from unnest($1::bigint[], $2::bool[]) o(k, s)"""

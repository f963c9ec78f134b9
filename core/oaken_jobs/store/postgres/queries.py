"""The named queries in PostgreSQL's words. Lists of several columns come as one array a column."""

from __future__ import annotations

from oaken_jobs.model import FREE, SERIAL
from oaken_jobs.store.sql.claim import IN_LANE, LANE_ORDER, RUNNABLE
from oaken_jobs.store.sql.database import Queries

ROWS_A_TRANSACTION = 16
"""Bits of an activity's id that number the rows of one transaction; those above are the transaction's."""
BASE = "activity_base"
"""The mark that is added to transactions' numbers: a database that came from another cluster has rows of higher ones."""

_BASE = f"(select coalesce((select value from marks where name = '{BASE}'), 0))"
FIRST_OF_TRANSACTION = f"(({_BASE} + pg_current_xact_id()::text::bigint) << {ROWS_A_TRANSACTION})"
"""The id of the first row of activity that this transaction writes."""
_UNSETTLED = f"(({_BASE} + pg_snapshot_xmin(pg_current_snapshot())::text::bigint) << {ROWS_A_TRANSACTION})"
"""The id from which on there may be rows of transactions that are still under way, anywhere in the cluster."""

HIDDEN_AT_ONCE = 1000
"""Jobs of one key that one statement blocks."""

_ONE_LANE = "select workspace, queue, kind, priority from jobs where"


def _lanes(within: str, beyond: str) -> str:
    """`within` limits every seek; `beyond` goes on behind a workspace."""
    return f"""
with recursive lane(w, q, k, p) as (
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
select w, q, k, p from lane
where q not in (select queue from queue_state where paused <> 0)
  and ($1::text[] is null or q = any($1)) and ($2::text[] is null or k = any($2))
  and ($3::text[] is null or k <> all($3)) and ($4::text is null or w = $4)"""


_LANES_GIVEN = "unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) with ordinality o(w, q, k, p, n)"
_LANE_GIVEN = f"{RUNNABLE} and workspace = o.w and queue = o.q and kind = o.k and priority = o.p"

_OF_KEY = "state = 'queued' and serial_key is not null and workspace = $1 and serial_key = $2"
_HIDDEN = f"{_OF_KEY} and blocked = {SERIAL}"
_ONE_OF_KEY = f"select queue, kind, priority from jobs where {_HIDDEN}"

QUERIES = Queries(
    lanes=_lanes("", f"\n    union all\n    ({_ONE_LANE} {RUNNABLE} and workspace > l.w {LANE_ORDER} limit 1)"),
    lanes_within=_lanes(" and workspace = $4", ""),
    head=f"select run_at, id from jobs where {IN_LANE} and run_at <= ?5 and id <> all(?7::bigint[]) order by run_at, id limit ?6",
    firsts=f"""
select f.run_at, f.id from {_LANES_GIVEN} left join lateral (
  select run_at, id from jobs where {_LANE_GIVEN} and run_at <= $5 and id <> all($6::bigint[]) order by run_at, id limit 1) f on true
order by o.n""",
    heads=f"""
select h.run_at, h.id, h.kind from {_LANES_GIVEN} cross join lateral (
  select run_at, id, kind from jobs where {_LANE_GIVEN} and run_at <= $5 and id <> all($7::bigint[]) order by run_at, id limit $6) h""",
    next_run=f"""
select min(h.run_at) from {_LANES_GIVEN} cross join lateral (
  select run_at from jobs where {_LANE_GIVEN} and run_at > $5 order by run_at limit 1) h""",
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
    activity_head=f"select {_UNSETTLED} - 1",
    settled=f"a.id < {_UNSETTLED}",
    activity_behind="select max(id) from (select id from activity order by id desc limit 1 offset $1) r",
    tagged="exists (select 1 from json_array_elements_text(j.tags::json) g where g = ?0)",
    last_job="select case when is_called then last_value else 0 end from job_ids",
    damage="select x from (values ('')) v(x) where false",
)

NEWEST = f"select max(id) from activity a where a.id < {_UNSETTLED}"
"""The newest row of activity that no row before it can still come to."""
NOW = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"
COLUMNS = """
select table_name, column_name, case data_type when 'bigint' then 'bigint[]' when 'double precision' then 'float8[]' else 'text[]' end
from information_schema.columns where table_schema = current_schema()"""
LOCK = """
select case when o.s then pg_advisory_xact_lock_shared(o.k)::text else pg_advisory_xact_lock(o.k)::text end
from unnest($1::bigint[], $2::bool[]) o(k, s)"""

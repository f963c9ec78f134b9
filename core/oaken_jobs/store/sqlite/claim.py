"""The claim by lanes. A lane is a (workspace, queue, kind, priority); the lanes are found by a loose index scan, one seek each.

Cost follows the number of lanes and of jobs taken, never the number of jobs queued, capped, future or finished. `:queues`, `:kinds`
and `:caps` are JSON or null; LIMIT cannot be correlated in SQLite, hence the `id in (select ... limit :n)`.
"""

from __future__ import annotations

_RUNNABLE = "state = 'queued' and blocked = 0"
_ORDER = "order by workspace, queue, kind, priority desc"

_LANES = f"""
with recursive lane(w, q, k, p) as (
  select * from (select workspace, queue, kind, priority from jobs where {_RUNNABLE} {_ORDER} limit 1)
  union all
  select j.workspace, j.queue, j.kind, j.priority from lane l cross join jobs j where j.id = coalesce(
    (select id from jobs where {_RUNNABLE} and workspace = l.w and queue = l.q and kind = l.k and priority < l.p {_ORDER} limit 1),
    (select id from jobs where {_RUNNABLE} and workspace = l.w and queue = l.q and kind > l.k {_ORDER} limit 1),
    (select id from jobs where {_RUNNABLE} and workspace = l.w and queue > l.q {_ORDER} limit 1),
    (select id from jobs where {_RUNNABLE} and workspace > l.w {_ORDER} limit 1))
), wanted(w, q, k, p) as materialized (
  select w, q, k, p from lane
  where q not in (select queue from queue_state where paused)
    and (:queues is null or q in (select value from json_each(:queues)))
    and (:kinds is null or k in (select value from json_each(:kinds)))
    and (:not_kinds is null or k not in (select value from json_each(:not_kinds)))
)"""

PICK = f"""{_LANES}, room(k, n) as materialized (
  select key, max(0, value - (select count(*) from jobs where state = 'running' and kind = key and lease_expires > :now))
  from json_each(:caps)
), open(w, q, k, p, n) as materialized (
  select w, q, k, p, coalesce((select n from room where room.k = wanted.k), :n) from wanted
), cand as (
  select j.id, j.kind, j.priority, j.run_at, o.n from open o cross join jobs j where o.n > 0 and j.id in (
    select id from jobs where {_RUNNABLE} and workspace = o.w and queue = o.q and kind = o.k and priority = o.p
      and run_at <= :now order by run_at, id limit :n)
)
select json_group_array(id) from (select id from (
  select id, priority, run_at, n, row_number() over (partition by kind order by priority desc, run_at, id) as place from cand
) where place <= n order by priority desc, run_at, id limit :n)"""
"""Ids of the next jobs, in the order they are to be handed out, as one JSON array (see `rows`)."""

NEXT_RUN = f"""{_LANES}
select min((
  select run_at from jobs where {_RUNNABLE} and workspace = w and queue = q and kind = k and priority = p
    and run_at > :now order by run_at limit 1)) from wanted"""
"""When the next job that may be taken falls due (ms), or null."""

EXPIRED = """select id from jobs where state = 'running' and lease_expires <= ? order by lease_expires limit ?"""
NEXT_EXPIRY = "select min(lease_expires) from jobs where state = 'running'"

"""The claim by lanes. A lane is a (workspace, queue, kind, priority); the lanes are found by a loose index scan, one seek each.

Cost follows the number of lanes and of jobs taken, never the number of jobs queued, capped, future or finished. Lists go in and out as
JSON, one row an answer (see `rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from oaken_jobs.store.sqlite.driver import Database

_RUNNABLE = "state = 'queued' and blocked = 0"
_ORDER = "order by workspace, queue, kind, priority desc"
_IN_LANE = f"{_RUNNABLE} and workspace = ? and queue = ? and kind = ? and priority = ?"


def _lanes(within: str, beyond: str) -> str:
    """The lanes a request may take from, as a JSON array of arrays. `within` limits every seek; `beyond` goes on behind a workspace."""
    return f"""
with recursive lane(w, q, k, p) as (
  select * from (select workspace, queue, kind, priority from jobs where {_RUNNABLE}{within} {_ORDER} limit 1)
  union all
  select j.workspace, j.queue, j.kind, j.priority from lane l cross join jobs j where j.id = coalesce(
    (select id from jobs where {_RUNNABLE} and workspace = l.w and queue = l.q and kind = l.k and priority < l.p {_ORDER} limit 1),
    (select id from jobs where {_RUNNABLE} and workspace = l.w and queue = l.q and kind > l.k {_ORDER} limit 1),
    (select id from jobs where {_RUNNABLE} and workspace = l.w and queue > l.q {_ORDER} limit 1){beyond})
)
select json_group_array(json_array(w, q, k, p)) from lane
where q not in (select queue from queue_state where paused)
  and (:queues is null or q in (select value from json_each(:queues)))
  and (:kinds is null or k in (select value from json_each(:kinds)))
  and (:not_kinds is null or k not in (select value from json_each(:not_kinds)))"""


LANES = _lanes("", f",\n    (select id from jobs where {_RUNNABLE} and workspace > l.w {_ORDER} limit 1)")
LANES_WITHIN = _lanes(" and workspace = :within", ", null")
"""The same in one workspace, whatever the others hold."""

HEAD = f"""
select json_group_array(json_array(run_at, id)) from (
  select run_at, id from jobs where {_IN_LANE} and run_at <= ? order by run_at, id limit ?)"""
"""The first jobs of one lane that are due."""

FIRSTS = f"""
select json_group_array(json(coalesce((select json_array(run_at, id) from jobs where {_RUNNABLE} and workspace = o.value ->> 0
  and queue = o.value ->> 1 and kind = o.value ->> 2 and priority = o.value ->> 3 and run_at <= :now
  order by run_at, id limit 1), 'null'))) from json_each(:lanes) o"""
"""The first job of each of several lanes that is due, null where none is, in the order of the lanes."""

HEADS = f"""
select json_group_array(json_array(run_at, id, kind)) from (
  select j.run_at, j.id, j.kind from json_each(:lanes) o cross join jobs j where j.id in (
    select id from jobs where {_RUNNABLE} and workspace = o.value ->> 0 and queue = o.value ->> 1 and kind = o.value ->> 2
      and priority = o.value ->> 3 and run_at <= :now order by run_at, id limit :n))"""
"""The first jobs of each of several lanes that are due. LIMIT cannot be correlated in SQLite, hence the `in`."""

NEXT = f"""
select min((select run_at from jobs where {_RUNNABLE} and workspace = o.value ->> 0 and queue = o.value ->> 1
  and kind = o.value ->> 2 and priority = o.value ->> 3 and run_at > :now order by run_at limit 1)) from json_each(:lanes) o"""
"""When the next job of these lanes falls due (ms), or null."""

RUNNING = "select count(*) from jobs where state = 'running' and kind = ? and lease_expires > ?"
EXPIRED_LEASES = "select id from jobs where state = 'running' and lease_expires <= ? order by lease_expires limit ?"
OVERDUE_STOPS = (
    "select id from jobs where state = 'running' and cancel_deadline is not null and cancel_deadline <= ? "
    "order by cancel_deadline limit ?"
)
EXPIRED_JOBS = "select id from jobs where state = 'queued' and expires_at is not null and expires_at <= ? order by expires_at limit ?"
NEXT_EXPIRY = "select min(lease_expires) from jobs where state = 'running'"


class Lane(NamedTuple):
    workspace: str
    queue: str
    kind: str
    priority: int


def lanes(database: Database, filter: dict[str, str | None]) -> list[Lane]:
    """What a request may take from, highest priority first. `filter` has `queues`, `kinds`, `not_kinds`: JSON arrays or
    None, and `within`, a workspace or None."""
    query = LANES if filter["within"] is None else LANES_WITHIN
    found = orjson.loads(database.execute(query, filter).fetchone()[0])
    return sorted((Lane._make(lane) for lane in found), key=lambda lane: -lane.priority)


def pick(database: Database, open_lanes: Sequence[Lane], count: int, caps: dict[str, int], now: int) -> list[int]:
    """Ids of up to `count` jobs that are due, in the order they are to be handed out; of each capped kind as many as it has room."""
    room: dict[str, int] = {}
    for kind in {lane.kind for lane in open_lanes} & caps.keys():
        running = database.execute(RUNNING, (kind, now)).fetchone()[0]
        room[kind] = max(0, caps[kind] - running)
    taken: list[int] = []
    # Strict priorities: lanes of a lower one are looked at only while there is something left to want.
    for _, alike in groupby(open_lanes, key=lambda lane: lane.priority):
        group = [lane for lane in alike if room.get(lane.kind, 1)]
        want = count - len(taken)
        if len(group) == 1:
            kind = group[0].kind
            limit = min(want, room.get(kind, want))
            heads: list[list[Any]] = orjson.loads(database.execute(HEAD, (*group[0], now, limit)).fetchone()[0])
            taken += [job_id for _, job_id in heads]
            if kind in room:
                room[kind] -= len(heads)
        elif group and (group := _leading(database, group, want, room, now)):
            bound = {"lanes": _text(group), "now": now, "n": want}
            for _, job_id, kind in sorted(orjson.loads(database.execute(HEADS, bound).fetchone()[0])):
                if len(taken) == count:
                    break
                if room.get(kind, 1):
                    taken.append(job_id)
                    if kind in room:
                        room[kind] -= 1
        if len(taken) == count:
            break
    return taken


def _leading(database: Database, group: Sequence[Lane], want: int, room: dict[str, int], now: int) -> list[Lane]:
    """The lanes of one priority that the next `want` jobs can come from: each gives at least its first job, if its kind has
    room, so none behind the first `want` such lanes is needed."""
    firsts = orjson.loads(database.execute(FIRSTS, {"lanes": _text(group), "now": now}).fetchone()[0])
    left = dict(room)
    leading: list[Lane] = []
    for _, lane in sorted((first, lane) for first, lane in zip(firsts, group, strict=True) if first is not None):
        if want == 0:
            break
        leading.append(lane)
        if left.get(lane.kind, 1):
            want -= 1
            if lane.kind in left:
                left[lane.kind] -= 1
    return leading


def next_run(database: Database, open_lanes: Sequence[Lane], now: int) -> int | None:
    """When the next job of these lanes falls due (ms); None when none is in the future."""
    return database.execute(NEXT, {"lanes": _text(open_lanes), "now": now}).fetchone()[0]


def _text(lanes: Sequence[Lane]) -> str:
    return orjson.dumps([tuple(lane) for lane in lanes]).decode()

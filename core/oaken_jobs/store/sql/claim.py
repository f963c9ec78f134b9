"""The claim by lanes. A lane is a (workspace, queue, kind, priority); the lanes are found by a loose index scan, one seek each.

Cost follows the number of lanes and of jobs taken, never the number of jobs queued, capped, future or finished.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import NamedTuple

from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.lane import WIDTH, Filter, Lane

RUNNABLE = "state = 'queued' and blocked = 0"
LANE_ORDER = "order by workspace, queue, kind, priority desc, run_at"
IN_LANE = f"{RUNNABLE} and workspace = ?1 and queue = ?2 and kind = ?3 and priority = ?4 and run_at >= ?5"

RUNNING = "select count(*) from jobs where state = 'running' and kind = ?1 and lease_expires > ?2"
LOST, OVERDUE, EXPIRED, DRAINED = range(4)
DUE = f"""
select * from (
  select {LOST} as what, id, cast(null as text) as agent from jobs where state = 'running' and lease_expires <= ?1 and lease_expires > ?3
  order by lease_expires limit ?2) a
union all select * from (
  select {OVERDUE}, id, null from jobs
  where state = 'running' and cancel_deadline is not null and cancel_deadline <= ?1 and cancel_deadline > ?3
  order by cancel_deadline limit ?2) b
union all select * from (
  select {EXPIRED}, id, null from jobs
  where state = 'queued' and expires_at is not null and expires_at <= ?1 and expires_at > ?3
  order by expires_at limit ?2) c
union all select {DRAINED}, 0, agent from drained"""
"""What time has ended after a moment, so many of each sort, the longest due first: leases, the time a worker had to stop in, and jobs
themselves. And agents, by `name` or `name/instance`, that get nothing new: what every claim asks first, at once."""
NEXT_EXPIRY = "select min(lease_expires) from jobs where state = 'running'"


def lock_name(kind: str) -> str:
    """Under which the places of a kind with a limit are locked."""
    return f"cap {kind}"


class Open(NamedTuple):
    """What a request may take from, highest priority first."""

    lanes: list[Lane]
    looked: bool
    """They were looked for just now; otherwise there may be others."""


def lanes(db: Database, filter: Filter, now: int | None, *, look: bool = False) -> Open:
    """What a request may take from. Without `look` it may be what was found a moment ago. `now` is None before the time is known."""
    found, looked = db.lanes(filter, now, look=look)
    return Open(sorted(map(Lane._make, found), key=lambda lane: -lane.priority), looked)


def pick(
    db: Database, open_lanes: Sequence[Lane], count: int, caps: dict[str, int], now: int, passed: Collection[int] = ()
) -> list[int]:
    """Ids of up to `count` jobs that are due, in the order they are to be handed out; of each capped kind as many as it has room, and
    none of those that are `passed` over."""
    capped = {lane.kind for lane in open_lanes} & caps.keys()
    db.lock(lock_name(kind) for kind in capped)
    room = _room(db, capped, caps, now)
    over = db.array(passed)
    taken: list[int] = []
    # Strict priorities: lanes of a lower one are looked at only while there is something left to want.
    for _, alike in groupby(open_lanes, key=lambda lane: lane.priority):
        group = [lane for lane in alike if room.get(lane.kind, 1)]
        want = count - len(taken)
        if len(group) == 1:
            kind = group[0].kind
            limit = min(want, room.get(kind, want))
            heads = db.head(*group[0], now, limit, over)
            taken += [job_id for _, job_id in sorted(heads)]
            if kind in room:
                room[kind] -= len(heads)
        elif group and (group := _leading(db, group, want, room, now, over)):
            found = db.listed(db.queries.heads, *db.columns(group, WIDTH), now, want, over)
            for _, job_id, kind in sorted(found):
                if len(taken) == count:
                    break
                if room.get(kind, 1):
                    taken.append(job_id)
                    if kind in room:
                        room[kind] -= 1
        if len(taken) == count:
            break
    return taken


def _leading(
    db: Database, group: Sequence[Lane], want: int, room: dict[str, int], now: int, over: object
) -> list[Lane]:
    """The lanes of one priority that the next `want` jobs can come from: each gives at least its first job, if its kind has
    room, so none behind the first `want` such lanes is needed."""
    firsts = db.listed(db.queries.firsts, *db.columns(group, WIDTH), now, over)
    left = dict(room)
    leading: list[Lane] = []
    for _, lane in sorted(
        (tuple(first), lane) for first, lane in zip(firsts, group, strict=True) if first[0] is not None
    ):
        if want == 0:
            break
        leading.append(lane)
        if left.get(lane.kind, 1):
            want -= 1
            if lane.kind in left:
                left[lane.kind] -= 1
    return leading


def next_at(db: Database, found: Open, caps: dict[str, int], now: int, *, due: bool) -> int | None:
    """When the next job falls due (ms) that a request could have of what it may take from; None where there is none. With `due` also one
    that is due already and has room, and so came since."""
    capped = {lane.kind for lane in found.lanes if lane.since <= now} & caps.keys() if due else set[str]()
    room = _room(db, capped, caps, now)

    def may_begin(lane: Lane) -> bool:
        return lane.since > now or (due and room.get(lane.kind, 1) > 0)

    if found.looked:
        return min((lane.since for lane in found.lanes if may_begin(lane)), default=None)
    lanes = [lane if may_begin(lane) else lane._replace(since=now + 1) for lane in found.lanes]
    return db.all(db.queries.next_run, *db.columns(lanes, WIDTH))[0][0]


def _room(db: Database, kinds: Collection[str], caps: dict[str, int], now: int) -> dict[str, int]:
    """How many more jobs of each of these kinds, which all have a limit, may run."""
    return {kind: max(0, caps[kind] - db.all(RUNNING, kind, now)[0][0]) for kind in kinds}

"""What a transaction takes before it begins, where others write at the same time: locks on the names its operations judge by, and the rows
they change, each in one order for all. So two groups do not wait for each other, and what is read afterwards stays as it is.

What cannot be known beforehand is locked when it turns up; where two transactions meet in that, the database ends one, which is run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oaken_jobs.kinds import Rules
from oaken_jobs.store.operations import Begin, Claim, Enqueue, Once, Op, Recover, Requeue, Settle, Want
from oaken_jobs.store.sql import blocked
from oaken_jobs.store.sql.changes import lock_names, named
from oaken_jobs.store.sql.claim import lanes, lock_name
from oaken_jobs.store.sql.lane import Filter
from oaken_jobs.store.sql.unit import Unit

KIN = "select distinct parent_id, serial_key from jobs where id in ids(?1) and (parent_id is not null or serial_key is not null)"
"""What never changes of jobs, and what is to be locked besides them."""


def reserve(unit: Unit, rules: Rules, ops: Sequence[Op]) -> None:
    """Takes what a group of operations needs. Raises what the database raises where it cannot."""
    ids = named(ops)
    requeued = {op.job_id for op in ops if isinstance(op, Requeue)}
    enqueues = [op for op in ops if isinstance(op, Enqueue)]
    names = {blocked.lock_name(op.new.serial_key) for op in enqueues if op.new.serial_key is not None}
    names.update(lock_names((op.new.dedupe_key, op.new.kind, op.new.target) for op in enqueues))
    parents = {op.new.parent_id for op in enqueues if op.new.parent_id is not None}
    for parent_id, serial_key in _kin(unit, ids | requeued):
        if parent_id is not None:
            parents.add(parent_id)
        if serial_key is not None:
            names.add(blocked.lock_name(serial_key))
    wants = [want for op in ops if isinstance(op, Claim) for want in op.wants]
    names.update(f"once {once.holder} {once.key}" for once in _onces(ops, wants))
    names.update(lock_name(kind) for kind in _capped(unit, rules, wants))
    tokens = {f"token {want.holder}" for want in wants if want.by_token}
    if names or tokens:
        unit.db.lock(names, tokens)
    # What is given a grace is changed by one statement, behind the back of what was read.
    rows = () if any(isinstance(op, Recover) for op in ops) else ids | requeued | parents
    unit.reserve(rows, len(enqueues))


def _kin(unit: Unit, ids: set[int]) -> set[tuple[int | None, str | None]]:
    known = {job_id: job for job_id in ids if (job := unit.db.known(job_id)) is not None}
    found = {(job.parent_id, job.serial_key) for job in known.values()}
    if len(known) < len(ids):
        found.update((row[0], row[1]) for row in unit.db.all(KIN, unit.db.array(ids - known.keys())))
    return found


def _onces(ops: Iterable[Op], wants: Iterable[Want]) -> list[Once]:
    said = [op.once for op in ops if isinstance(op, (Enqueue, Begin, Settle))] + [want.once for want in wants]
    return [once for once in said if once is not None]


def _capped(unit: Unit, rules: Rules, wants: Sequence[Want]) -> set[str]:
    """Kinds with a limit that these requests may be given."""
    if not rules.caps:
        return set()
    found: set[str] = set()
    for filter in {want.filter for want in wants}:
        found.update(lane.kind for lane in lanes(unit.db, Filter._make(filter), None).lanes)
    return found & rules.caps.keys()

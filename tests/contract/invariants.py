"""What is true of every database of jobs at every moment between two transactions, whatever happened before, a crash included.

Each function takes an open connection, or the changes of state that `_changes` finds on it, and raises `AssertionError` naming what is
wrong. They read the tables alone and know nothing of the program that wrote them. The ones about history need an activity table from which
nothing was pruned.

`check` runs them all. `connect` opens a database for them: with the SQLite library of the core, because two libraries in one process
that have the same file open drop each other's locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oaken_jobs.store.sqlite.driver import Database, sqlite3

LEGAL: dict[str, set[tuple[str | None, str]]] = {
    "enqueue": {(None, "queued")},
    "coalesce": {("queued", "queued"), ("running", "running")},
    "replace": {("queued", "queued")},
    "claim": {("queued", "running"), ("queued", "failed")},
    "complete": {("running", "succeeded"), ("running", "failed"), ("running", "cancelled")},
    "fail": {("running", "queued"), ("running", "failed"), ("running", "cancelled")},
    "defer": {("running", "queued"), ("running", "cancelled")},
    "release": {("running", "queued"), ("running", "cancelled")},
    "ask": {("running", "queued"), ("running", "cancelled")},
    "answer": {("queued", "queued")},
    "resume": {("running", "running")},
    "cancelled": {("running", "cancelled")},
    "lose": {("running", "queued"), ("running", "failed"), ("running", "cancelled")},
    "overrule": {("running", "cancelled")},
    "expire": {("queued", "cancelled")},
    "adopt": {(state, "succeeded") for state in ("queued", "running", "failed", "cancelled")},
    "cancel": {("queued", "cancelled"), ("running", "running")},
    "edit": {(state, state) for state in ("queued", "running", "succeeded", "failed", "cancelled")},
    "requeue": {(state, "queued") for state in ("queued", "failed", "cancelled")},
}
"""Which verb may take a job from where to where, written down a second time on purpose."""

Change = tuple[int, str, str | None, str, int]
"""Job, verb, state before and after, epoch."""


def connect(path: Path) -> Database:
    """A connection that only reads, for the functions below."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def check(database: Database | Path, caps: Mapping[str, int] | None = None) -> None:
    """All of them. `caps` says how many jobs of a kind may run at once."""
    if isinstance(database, Path):
        connection = connect(database)
        try:
            check(connection, caps)
        finally:
            connection.close()
        return
    at_most_one_holder(database)
    caps_are_kept(database, caps or {})
    one_running_job_a_serial_key(database)
    keys_are_unique_among_the_living(database)
    no_job_is_unreachable(database)
    one_attempt_an_epoch(database)
    results_belong_to_success(database)
    changes = _changes(database)
    history_is_whole(database, changes)
    epochs_never_fall(changes)
    final_states_are_left_by_requeue_or_adoption_alone(changes)


def at_most_one_holder(database: Database) -> None:
    """A running job has one whole lease; no other job has any part of one."""
    _none(
        database,
        "running without a lease",
        "select id from jobs where state = 'running' and (holder is null or nonce is null or agent is null "
        "or lease_expires is null or lease_ms is null)",
    )
    _none(
        database,
        "not running, but with a lease",
        "select id, state from jobs where state != 'running' and (holder is not null or nonce is not null "
        "or lease_expires is not null or lease_ms is not null)",
    )
    _none(
        database,
        "asked to stop, but not running",
        "select id, state from jobs where cancelling != 0 and state != 'running'",
    )


def caps_are_kept(database: Database, caps: Mapping[str, int]) -> None:
    """No more jobs of a capped kind run than may."""
    if not caps:
        return
    running = dict(database.execute("select kind, count(*) from jobs where state = 'running' group by kind").fetchall())
    over = {kind: running[kind] for kind in caps if running.get(kind, 0) > caps[kind]}
    assert not over, f"kinds over their caps: {over}"


def one_running_job_a_serial_key(database: Database) -> None:
    """At most one job of a serial key runs."""
    _none(
        database,
        "serial keys with several running jobs",
        "select workspace, serial_key, min(id), max(id) from jobs where state = 'running' and serial_key is not null "
        "group by workspace, serial_key having count(*) > 1",
    )


def keys_are_unique_among_the_living(database: Database) -> None:
    """No two live jobs have the same dedupe key, nor the same kind and target."""
    _none(
        database,
        "dedupe keys of several live jobs",
        "select workspace, dedupe_key, min(id), max(id) from jobs where state in ('queued', 'running') "
        "and dedupe_key is not null group by workspace, dedupe_key having count(*) > 1",
    )
    _none(
        database,
        "targets of several live jobs",
        "select workspace, kind, target, min(id), max(id) from jobs where state in ('queued', 'running') "
        "and target is not null group by workspace, kind, target having count(*) > 1",
    )


def no_job_is_unreachable(database: Database) -> None:
    """Each queued job is in a lane that claims look at, or something that will end keeps it out: a running job of its serial key, an
    unblocked one of the same key before it in its lane, or children that are not final."""
    _none(database, "blocked, but not queued", "select id, state from jobs where blocked != 0 and state != 'queued'")
    _none(
        database,
        "blocked by a serial key that nobody uses",
        "select id from jobs j where state = 'queued' and blocked = 1 and not exists (select 1 from jobs o where "
        "o.workspace = j.workspace and o.serial_key = j.serial_key and (o.state = 'running' or (o.state = 'queued' "
        "and o.blocked = 0 and o.queue = j.queue and o.kind = j.kind and o.priority = j.priority "
        "and (o.run_at, o.id) < (j.run_at, j.id))))",
    )
    _none(
        database,
        "waits for children that are all final",
        "select id from jobs j where state = 'queued' and blocked = 2 and not exists (select 1 from jobs o "
        "where o.parent_id = j.id and o.state in ('queued', 'running'))",
    )
    _none(database, "blocked by what nobody knows", "select id, blocked from jobs where blocked not in (0, 1, 2)")


def one_attempt_an_epoch(database: Database) -> None:
    """Attempts of a job are numbered by its epochs, without gaps; one that goes on is the last, and in the row of its job alone."""
    _none(
        database,
        "attempts that are not one an epoch",
        "select j.id, j.epoch, count(a.epoch), max(a.epoch) from jobs j left join attempts a on a.job_id = j.id group by j.id "
        "having count(a.epoch) != j.epoch - case when j.state = 'running' then 1 else 0 end "
        "or coalesce(max(a.epoch), 0) != j.epoch - case when j.state = 'running' then 1 else 0 end",
    )
    _none(
        database,
        "running without what tells of its attempt",
        "select id from jobs where state = 'running' and (agent is null or holder is null or nonce is null or started_at is null)",
    )
    _none(
        database,
        "attempts half ended",
        "select job_id, epoch from attempts where ended_at is null or outcome is null",
    )


def results_belong_to_success(database: Database) -> None:
    """A job has a result if it succeeded, and only then; it has a finish time if it is final, and only then."""
    _none(
        database,
        "results without success, or the other way round",
        "select j.id, j.state from jobs j left join results r on r.job_id = j.id where (j.state = 'succeeded') != (r.job_id is not null)",
    )
    _none(
        database,
        "finish times that do not fit the state",
        "select id, state from jobs where (state in ('succeeded', 'failed', 'cancelled')) != (finished_at is not null)",
    )
    _none(
        database,
        "jobs without a payload",
        "select id from jobs where id not in (select job_id from payloads)",
    )


def history_is_whole(database: Database, changes: Sequence[Change]) -> None:
    """Each change of state has its row: played back from the first one, the activity gives each job's present state, each verb does only
    what it may, and the last row carries the present epoch."""
    states: dict[int, str] = {}
    epochs: dict[int, int] = {}
    for job_id, verb, before, after, epoch in changes:
        assert states.get(job_id) == before, f"job {job_id}: {verb} from {before}, but it was {states.get(job_id)}"
        assert (before, after) in LEGAL[verb], f"job {job_id}: {verb} took it from {before} to {after}"
        states[job_id] = after
        epochs[job_id] = epoch
    present = dict(database.execute("select id, state from jobs").fetchall())
    assert states == present, f"played back {_differing(states, present)}"
    present = dict(database.execute("select id, epoch from jobs").fetchall())
    assert epochs == present, f"epochs played back {_differing(epochs, present)}"


def epochs_never_fall(changes: Sequence[Change]) -> None:
    """A job's epoch grows by one at each claim or resumption and at nothing else."""
    epochs: dict[int, int] = {}
    for job_id, verb, _, after, epoch in changes:
        grown = (verb == "claim" and after == "running") or verb == "resume"
        expected = epochs.get(job_id, 0) + grown
        assert epoch == expected, f"job {job_id}: {verb} left epoch {epoch}, not {expected}"
        epochs[job_id] = epoch


def final_states_are_left_by_requeue_or_adoption_alone(changes: Sequence[Change]) -> None:
    """`succeeded` never changes; `failed` and `cancelled` only by requeue or adoption."""
    for job_id, verb, before, after, _ in changes:
        if verb == "edit":
            continue  # moves nothing: see what is legal
        if before == "succeeded":
            raise AssertionError(f"job {job_id} had succeeded; {verb} made it {after}")
        assert before not in ("failed", "cancelled") or verb in ("requeue", "adopt"), (
            f"job {job_id} was {before}; {verb} made it {after}"
        )


def _changes(database: Database) -> list[Change]:
    return database.execute(
        "select job_id, verb, from_state, to_state, epoch from activity where event = 'job_state_changed' order by id"
    ).fetchall()


def _none(database: Database, what: str, query: str) -> None:
    found = database.execute(query).fetchmany(10)
    assert not found, f"{what}: {found}"


def _differing(left: Mapping[int, Any], right: Mapping[int, Any]) -> dict[int, tuple[Any, Any]]:
    """(played back, present) where they differ."""
    return {
        key: (left.get(key), right.get(key)) for key in left.keys() | right.keys() if left.get(key) != right.get(key)
    }

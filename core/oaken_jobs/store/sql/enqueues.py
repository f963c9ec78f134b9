"""What adds jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from oaken_jobs.errors import Conflict, Forbidden, InvalidRequest, NotFound, OakenError
from oaken_jobs.kinds import Rules
from oaken_jobs.model import DEFAULT_WORKSPACE, FREE, PRIORITIES, SERIAL, Enqueued, Job, NewJob
from oaken_jobs.routing import Route, route
from oaken_jobs.store.operations import Enqueue, Reply
from oaken_jobs.store.sql import blocked, once
from oaken_jobs.store.sql.changes import live_keys, live_targets
from oaken_jobs.store.sql.records import queue_labels
from oaken_jobs.store.sql.unit import Unit

_NOTHING: dict[str, Any] = dict.fromkeys(Job._fields) | Job._field_defaults


def _kept(reply: Enqueued) -> str:
    """An answer as it is kept: a few hundred characters, since there may be one for each job of a day."""
    columns = {name: value for name, value in reply.job._asdict().items() if value is not None}
    return orjson.dumps((reply.created, columns)).decode()


class Enqueues:
    """The new jobs of one transaction."""

    def __init__(self, unit: Unit, rules: Rules) -> None:
        self._unit = unit
        self._now = unit.now
        self._rules = rules
        self._labels: dict[tuple[str, str], tuple[str | None, str | None]] = {}
        self._by_key: dict[tuple[str, str], int] = {}
        self._by_target: dict[tuple[str, str, str], int] = {}
        self._before: dict[tuple[Any, ...], bool] = {}
        """By workspace, serial key and lane: whether a job that is due there stands behind another."""
        self._jobs: list[Job] = []
        self._ids: Iterator[int] = iter(())
        self._added: set[int] = set()

    def add(self, ops: list[Enqueue]) -> list[Reply]:
        """Adds jobs in their order, each answered at its place."""
        self._unit.load({op.new.parent_id for op in ops if op.new.parent_id is not None})
        replies: list[Reply] = [None] * len(ops)
        places: list[tuple[int, str]] = []
        for place, op in enumerate(ops):
            try:
                replies[place] = self._recalled(op)
                if replies[place] is None:
                    places.append((place, self._workspace(op)))
            except OakenError as refusal:
                replies[place] = refusal
        self._look_up([(workspace, ops[place].new) for place, workspace in places])
        self._ids = iter(self._unit.db.new_job_ids(len(places)))
        for place, workspace in places:
            op = ops[place]
            try:
                # Once more: an earlier one of this group may have had the same key.
                reply = self._recalled(op) or self._add(op, workspace)
            except OakenError as refusal:
                reply = refusal
            else:
                if op.once is not None and not reply.replayed:
                    once.remember(self._unit, op.once, _kept(reply))
            replies[place] = reply
        if self._jobs:
            self._unit.add(self._jobs)
        return replies

    def _recalled(self, op: Enqueue) -> Enqueued | None:
        """The first answer to a request that is repeated under its idempotency key."""
        answer = once.recall(self._unit, op.once) if op.once is not None else None
        if answer is None:
            return None
        created, columns = orjson.loads(answer)
        return Enqueued(Job(**_NOTHING | columns), created, replayed=True)

    def _workspace(self, op: Enqueue) -> str:
        """Where the job belongs; with its parent. Raises what is wrong with the parent."""
        new = op.new
        if new.parent_id is None:
            return new.workspace or op.within or DEFAULT_WORKSPACE
        parent = self._unit.jobs.get(new.parent_id)
        if parent is None or (op.within is not None and parent.workspace != op.within):
            raise NotFound(
                f"parent_id {new.parent_id}: there is no such job. Leave parent_id out, or name a job that exists."
            )
        if op.held_by is not None and (
            parent.state != "running" or parent.holder != op.held_by or (parent.lease_expires or 0) <= self._now
        ):
            raise Forbidden(
                f"An agent may add children only to a job it holds; job {parent.id} is not held by {op.held_by}. "
                "Lease it first, or use a token that also has the role user."
            )
        if new.workspace is not None and new.workspace != parent.workspace:
            raise InvalidRequest(
                f"workspace {new.workspace!r}: job {parent.id} is in {parent.workspace!r}, and a child belongs to its parent's. "
                "Leave workspace out."
            )
        return parent.workspace

    def _look_up(self, wanted: list[tuple[str, NewJob]]) -> None:
        """Reads what the decisions on these need, in one statement of each sort."""
        self._labels = queue_labels(self._unit, {(w, new.subject) for w, new in wanted if new.subject is not None})
        keys = live_keys(self._unit, {(w, new.dedupe_key) for w, new in wanted if new.dedupe_key is not None})
        targets = live_targets(self._unit, {(w, new.kind, new.target) for w, new in wanted if new.target is not None})
        self._by_key = {(w, key): job_id for (w, key), job_id in keys.items()}
        self._by_target = {(w, kind, target): job_id for (w, kind, target), job_id in targets.items()}
        self._unit.load({*self._by_key.values(), *self._by_target.values()})
        # Where others write at the same time, one may have ended while its row was waited for.
        self._by_key = {key: job_id for key, job_id in self._by_key.items() if self._lives(job_id)}
        self._by_target = {key: job_id for key, job_id in self._by_target.items() if self._lives(job_id)}

    def _lives(self, job_id: int) -> bool:
        return not self._unit.jobs[job_id].final

    def _add(self, op: Enqueue, workspace: str) -> Enqueued:
        new = op.new
        live = self._by_key.get((workspace, new.dedupe_key)) if new.dedupe_key is not None else None
        if live is None and new.target is not None:
            live = self._by_target.get((workspace, new.kind, new.target))
        if live is not None:
            return self._coalesced(op, self._unit.jobs[live])
        human, machine = (
            self._labels.get((workspace, new.subject), (None, None)) if new.subject is not None else (None, None)
        )
        to = (
            Route(op.queue, "schedule") if op.queue is not None else route(new.kind, human, machine, self._rules.queues)
        )
        job = self._job(op, workspace, to)
        if job.serial_key is not None and job.run_at <= self._now:
            job = job._replace(blocked=self._blocked(job))
        self._added.add(job.id)
        if job.blocked == FREE:
            self._unit.touched.add(job.kind)
        self._jobs.append(job)
        if new.dedupe_key is not None:
            self._by_key[(workspace, new.dedupe_key)] = job.id
        if new.target is not None:
            self._by_target[(workspace, new.kind, new.target)] = job.id
        self._unit.jobs[job.id] = job
        self._unit.payloads[job.id] = new.payload
        self._unit.note("job_state_changed", "enqueue", None, job, op.actor)
        return Enqueued(job, True)

    def _blocked(self, job: Job) -> int:
        lane = (job.workspace, job.serial_key, job.queue, job.kind, job.priority)
        behind = self._before.get(lane)
        if behind is None:
            behind = blocked.behind(self._unit.db, job)
        self._before[lane] = True  # whoever comes next in this lane stands behind this one
        return SERIAL if behind else FREE

    def _job(self, op: Enqueue, workspace: str, to: Route) -> Job:
        new = op.new
        run_at = max(new.run_at, self._now) if new.run_at is not None else self._now + new.delay_ms
        expires_at = self._now + new.ttl_ms if new.ttl_ms is not None else new.expires_at
        if expires_at is not None and expires_at <= run_at:
            raise InvalidRequest(
                "It would expire before it may run: expires_at (or ttl_seconds) must lie after run_at (or delay_seconds), and in the "
                "future."
            )
        parent = self._unit.jobs[new.parent_id] if new.parent_id is not None else None
        # By place, in the order of the columns that an enqueue sets: by name it takes twice as long, which batches feel.
        return Job(
            next(self._ids),
            workspace,
            new.kind,
            to.queue,
            to.by,
            "queued",
            new.priority if new.priority is not None else PRIORITIES["ingest"],
            new.title,
            orjson.dumps(new.tags).decode() if new.tags else None,
            new.subject,
            new.target,
            new.dedupe_key,
            new.serial_key,
            new.parent_id,
            new.max_attempts if new.max_attempts is not None else self._rules.attempts_for(new.kind),
            new.budget_usd,
            self._now,
            run_at,
            expires_at,
            *op.actor,
            op.schema_hash,
            FREE,
            op.traceparent or (parent.traceparent if parent is not None else None),
        )

    def _coalesced(self, op: Enqueue, live: Job) -> Enqueued:
        """The job that is live with the same key or target, one caller more."""
        changes: dict[str, Any] = {"coalesced": live.coalesced + 1}
        replaces = op.new.on_duplicate == "replace"
        if replaces and live.kind != op.new.kind:
            raise Conflict(
                f"Job {live.id} is live with the same dedupe_key and is of kind {live.kind!r}; a payload of {op.new.kind!r} cannot "
                "replace its own.",
                job_id=live.id,
            )
        if replaces and op.held_by is not None and (live.actor_kind, live.actor_id) != op.actor[:2]:
            raise Forbidden(f"Job {live.id} was enqueued by {live.actor_id}; an agent replaces its own payloads only.")
        replaces = replaces and live.state == "queued"
        if replaces:
            changes["schema_hash"] = op.schema_hash
            self._unit.payloads[live.id] = op.new.payload
            if live.id not in self._added:  # a new one is written with it
                self._unit.bodies[live.id] = op.new.payload
        after = self._unit.set(live, changes)
        self._unit.note("job_state_changed", "replace" if replaces else "coalesce", live, after, op.actor)
        return Enqueued(after, False, replaced=replaces if op.new.on_duplicate == "replace" else None)

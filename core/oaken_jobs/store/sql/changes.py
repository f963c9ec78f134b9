"""What changes jobs that are there: ends of leases, heartbeats, cancelling, requeueing, answers, and what time does to them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from oaken_jobs import moves
from oaken_jobs.errors import Conflict, Forbidden, InvalidRequest, NotFound, OakenError
from oaken_jobs.kinds import Rules
from oaken_jobs.model import SYSTEM, Actor, Attempt, Effect, Job, SpawnJob, Usage
from oaken_jobs.moves import Finish
from oaken_jobs.routing import Route, route
from oaken_jobs.store.operations import (
    Adopt,
    Answer,
    Beat,
    Beaten,
    Cancel,
    Cancelled,
    Edit,
    Enqueue,
    Erase,
    Reply,
    Requeue,
    RevokeToken,
    Sweep,
)
from oaken_jobs.store.sql import blocked, claim, once
from oaken_jobs.store.sql.prune import forget_jobs
from oaken_jobs.store.sql.records import (
    clear_machine_labels,
    keep,
    queue_labels,
    stored,
    take_retriage,
    token_changed,
    token_named,
    want_retriage,
)
from oaken_jobs.store.sql.unit import ATTEMPT_COLUMNS, Spent, Unit

Change = Finish | Beat | Cancel | Answer | Adopt | Edit | Erase | RevokeToken | Sweep

_ATTEMPT = f"select {ATTEMPT_COLUMNS} from attempts where job_id = ?1 and epoch = ?2"
_LATE = "select body, usage, cost_usd, produced_by from late_results where job_id = ?1 and epoch = ?2"
_SPENT = ("usage", "cost_usd", "produced_by")
_HELD = "select 1 from attempts where job_id = ?1 and holder = ?2"


def named(ops: Iterable[Any]) -> set[int]:
    """Ids of the jobs that these operations name."""
    found: set[int] = set()
    for op in ops:
        if isinstance(op, (Finish, Beat)):
            found.add(op.ref.job_id)
        elif isinstance(op, (Cancel, Answer, Adopt, Edit, Erase)):
            found.add(op.job_id)
    return found


class Changes:
    """The changes of one transaction. `spawned` gathers the jobs that finishes leave behind."""

    def __init__(self, unit: Unit, rules: Rules) -> None:
        self._unit = unit
        self._now = unit.now
        self._rules = rules
        self.spawned: list[Enqueue] = []
        self.drained: frozenset[str] = frozenset()
        """Agents that get nothing new, as `sweep` found them."""

    def make(self, op: Change) -> Reply:
        """Carries out one change of jobs that are loaded. Raises its refusal."""
        if isinstance(op, Finish):
            return self._finish(op)
        if isinstance(op, Beat):
            return self._beat(op)
        if isinstance(op, Cancel):
            return self._cancel(op)
        if isinstance(op, Answer):
            return self._answer(op)
        if isinstance(op, Adopt):
            return self._adopt(op)
        if isinstance(op, Edit):
            return self._edit(op)
        if isinstance(op, Erase):
            return self._erase(op)
        if isinstance(op, RevokeToken):
            return self._revoke(op)
        return max(self.sweep(op.limit), once.forget(self._unit, op.limit))

    # What a holder says.

    def _finish(self, op: Finish) -> Reply:
        job = self._unit.jobs.get(op.ref.job_id)
        if not moves.holds(job, op.ref, op.holder, self._now):
            return self._stale(op, job)
        assert job is not None
        move = moves.finish(job, op, self._now, self._rules, random.random())
        after = self._unit.write(job, move, op.actor)
        if move.outcome is not None:
            said = (op.verb, op.body_hash(), move.answer(after))
            self._unit.end(job, move.outcome, move.error, _spent(op.usage), said)
        if move.outcome == "asked":
            asked = (job.id, job.epoch, job.agent, op.question, self._now)
            self._unit.db.insert("questions", ("job_id", "epoch", "agent", "text", "asked_at"), [asked])
            self._unit.note("question_asked", "ask", after, after, op.actor)
        self._leave(move, after)
        return move.refusal or after

    def _leave(self, move: moves.Move, job: Job) -> None:
        """Writes what a move leaves behind besides the job's own row."""
        if move.result_text is not None:
            self._unit.results[job.id] = move.result_text
        for effect in move.effects:
            self._effect(effect, job)

    def _effect(self, effect: Effect, job: Job) -> None:
        if not isinstance(effect, SpawnJob):
            keep(self._unit, effect, job.workspace)
            return
        if effect.unless_document is not None and stored(self._unit, job.workspace, effect.unless_document):
            return
        if effect.if_retriage is not None and not take_retriage(self._unit, job.workspace, effect.if_retriage):
            return
        kind = self._rules.kinds.get(effect.new.kind)
        schema = kind.payload_schema if kind else None
        new = effect.new._replace(
            parent_id=job.parent_id if job.parent_id is not None else job.id,
            priority=job.priority,
            workspace=job.workspace,
        )
        actor, schema_hash = Actor("system", job.kind, "worker"), schema.hash if schema else None
        self.spawned.append(Enqueue(new, actor, schema_hash, traceparent=job.traceparent))

    def _stale(self, op: Finish, job: Job | None) -> Reply:
        attempt = self._attempt(op.ref.job_id, op.ref.epoch, job)
        again = moves.repeat(attempt, job, op)
        if again is not None:
            return again
        kept = False
        if job is not None and attempt is not None and moves.worth_keeping(job, attempt, op):
            late = (attempt.job_id, attempt.epoch, op.result_text or "{}", *_spent(op.usage))
            kept = self._unit.db.one(_LATE, *late[:2]) is None
            if kept:
                self._unit.db.insert("late_results", ("job_id", "epoch", "body", *_SPENT), [late])
        return moves.lease_lost(job, op.ref, op.holder, self._now, may_read=self._may_read(op, job), kept=kept)

    def _attempt(self, job_id: int, epoch: int, job: Job | None) -> Attempt | None:
        """An attempt, whether it has ended or goes on; `job` as it is, if it is there."""
        if job is not None and job.state == "running" and job.epoch == epoch:
            return Attempt.of(job)
        self._unit.flush()  # an earlier operation of this group may have ended it
        row = self._unit.db.one(_ATTEMPT, job_id, epoch)
        return Attempt._make(row) if row else None

    def _may_read(self, op: Finish | Beat, job: Job | None) -> bool:
        """Whether a caller that does not hold the lease may be told who does: it reads all jobs, enqueued this one, or held it."""
        if op.within is not None and (job is None or job.workspace != op.within):
            return False
        if op.may_read or (job is not None and op.holder == job.holder):
            return True
        if job is None:
            return False
        if job.actor_kind != "system" and job.actor_id == op.holder:
            return True
        return self._unit.db.one(_HELD, job.id, op.holder) is not None

    def _beat(self, op: Beat) -> Reply:
        job = self._unit.jobs.get(op.ref.job_id)
        if not moves.holds(job, op.ref, op.holder, self._now):
            return moves.lease_lost(job, op.ref, op.holder, self._now, may_read=self._may_read(op, job))
        assert job is not None
        lease_ms = op.lease_ms or job.lease_ms or 0
        expires = self._now + lease_ms
        changes: dict[str, Any] = {"lease_expires": expires}
        if lease_ms != job.lease_ms:
            changes["lease_ms"] = lease_ms
        told = op.progress and (op.seq is None or job.progress_seq is None or op.seq > job.progress_seq)
        if told:
            changes["progress_at"] = self._now
            if op.percent is not None:
                changes["percent"] = op.percent
            changes["message"] = op.message if op.message is not None else job.message
            if op.seq is not None:
                changes["progress_seq"] = op.seq
            if job.cancelling:
                changes["cancel_deadline"] = moves.stop_by(self._now, self._rules)
            self._unit.progress.append((job.id, self._now, op.percent, op.message, job.epoch))
        after = self._unit.set(job, changes)
        if told:
            self._unit.note("job_progress", "progress", job, after, op.actor)
        return Beaten(after, expires)

    # What people do.

    def _cancel(self, op: Cancel) -> Reply:
        job = self._unit.known(op.job_id, op.within)
        move = moves.cancel(job, self._now, self._rules)
        if move is None:
            return Cancelled(job, False)
        return Cancelled(self._unit.write(job, move, op.actor), True)

    def _answer(self, op: Answer) -> Reply:
        job = self._unit.known(op.job_id, op.within)
        if op.own and (job.actor_kind, job.actor_id) != op.actor[:2]:
            raise Forbidden(
                f"Job {job.id} asks whoever enqueued it, which is {job.actor_id}; others need the role user to answer.",
                job_id=job.id,
            )
        if op.epoch is not None and op.epoch != job.epoch:
            raise Conflict(f"Job {job.id} no longer asks that question; see what it asks now.", job_id=job.id)
        after = self._unit.write(job, moves.answer(job, self._now), op.actor)
        self._unit.db.run(
            "update questions set answer = ?1, answered_at = ?2, actor_kind = ?3, actor_id = ?4, actor_via = ?5 "
            "where id = (select max(id) from questions where job_id = ?6)",
            op.text,
            self._now,
            *op.actor,
            job.id,
        )
        return after

    def _adopt(self, op: Adopt) -> Reply:
        job = self._unit.known(op.job_id, op.within)
        attempt = self._attempt(job.id, op.epoch, job)
        row = self._unit.db.one(_LATE, job.id, op.epoch)
        if row is None or attempt is None:
            raise NotFound(
                f"Attempt {op.epoch} of job {job.id} left no late result. Its attempts say which did (late_result).",
                job_id=job.id,
            )
        usage = Usage(orjson.loads(row[1]) if row[1] else None, row[2], row[3])
        move = moves.adopt(job, attempt.agent, orjson.loads(row[0]), row[0], usage, self._now, self._rules)
        after = self._unit.write(job, move, op.actor)
        if move.outcome is not None:
            self._unit.end(job, move.outcome)
        self._unit.flush()
        self._unit.db.run(
            "update attempts set outcome = 'adopted', usage = ?1, cost_usd = ?2, produced_by = ?3 where job_id = ?4 and epoch = ?5",
            *row[1:4],
            job.id,
            op.epoch,
        )
        self._leave(move, after)
        return after

    def _edit(self, op: Edit) -> Reply:
        job = self._unit.known(op.job_id, op.within)
        changes = {name: value for name, value in op.changes.items() if getattr(job, name) != value}
        return self._unit.write(job, moves.edit(job, changes), op.actor) if changes else job

    def _erase(self, op: Erase) -> Reply:
        job = self._unit.known(op.job_id, op.within)
        moves.check_erase(job)
        if blocked.has_live_child(self._unit, job.id):
            raise Conflict(f"Job {job.id} has children that have not ended. Erase it when they have.", job_id=job.id)
        self._unit.note("job_state_changed", "erase", job, job, op.actor)
        self._unit.flush()
        forget_jobs(self._unit, [job.id])
        return job

    def _revoke(self, op: RevokeToken) -> Reply:
        token = token_named(self._unit, op.name)
        if token.revoked_at is None:
            token = token._replace(revoked_at=self._now)
            self._unit.db.run("update tokens set revoked_at = ?1 where name = ?2", self._now, op.name)
            self._unit.db.run("delete from token_leases where token = ?1", op.name)
            token_changed(self._unit, "revoke", token, op.actor)
        held = self._unit.db.all("select id from jobs where state = 'running' and holder = ?1", op.name)
        self._unit.load([row[0] for row in held])
        for (job_id,) in held:
            job = self._unit.jobs[job_id]
            if job.state == "running" and job.holder == op.name:
                self._unit.write(job, moves.give_back(job, self._now, self._rules), op.actor)
                self._unit.end(job, "released")
        return token

    # What time does.

    def sweep(self, limit: int) -> int:
        """Takes back expired leases, overrules workers that would not stop, ends jobs that expired: at most `limit` of each."""
        self._unit.flush()
        found: dict[int, list[Any]] = defaultdict(list)
        for what, job_id, agent in self._unit.db.due(self._now, limit):
            found[what].append(agent if what == claim.DRAINED else job_id)
        self.drained = frozenset(found.pop(claim.DRAINED, ()))
        if not found:
            return 0
        # A job whose lease is lost is in the queue again, where its own time may be over.
        expired = found[claim.EXPIRED] + found[claim.LOST]
        return max(self._lose(found[claim.LOST]), self._overrule(found[claim.OVERDUE]), self._expire(expired))

    def _due(self, ids: list[int], due: Callable[[Job], bool]) -> list[Job]:
        """Those that still are as they were found, and that nobody else is at."""
        return [job for job in self._unit.take(ids) if due(job)]

    def _lose(self, ids: list[int]) -> int:
        due = self._due(ids, lambda j: j.state == "running" and (j.lease_expires or 0) <= self._now)
        for job in due:
            move = moves.lose(job, self._now, self._rules, random.random())
            self._unit.write(job, move, SYSTEM)
            self._unit.end(job, "lost", move.error)
        return len(due)

    def _overrule(self, ids: list[int]) -> int:
        due = self._due(ids, lambda j: j.state == "running" and _past(j.cancel_deadline, self._now))
        for job in due:
            move = moves.overrule(job, self._now, self._rules)
            self._unit.write(job, move, SYSTEM)
            self._unit.end(job, "overruled", move.error)
        return len(due)

    def _expire(self, ids: list[int]) -> int:
        due = self._due(ids, lambda j: j.state == "queued" and _past(j.expires_at, self._now))
        for job in due:
            self._unit.write(job, moves.expire(job, self._now, self._rules), SYSTEM)
        return len(due)

    # Requeueing, many at a time.

    def requeue(self, ops: Sequence[Requeue]) -> list[Reply]:
        """Puts jobs back, each answered at its place; of two that share a key the first one asked for wins."""
        self._unit.load({op.job_id for op in ops})
        found = [self._unit.jobs[op.job_id] for op in ops if op.job_id in self._unit.jobs]
        self._unit.db.lock(lock_names((j.dedupe_key, j.kind, j.target) for j in found))
        by_key = live_keys(self._unit, {(j.workspace, j.dedupe_key) for j in found if j.dedupe_key is not None})
        by_target = live_targets(self._unit, {(j.workspace, j.kind, j.target) for j in found if j.target is not None})
        replies: list[Reply] = []
        cleared: list[int] = []
        for op in ops:
            try:
                job = self._unit.known(op.job_id, op.within)
                to = Route(op.queue, "requeue") if op.queue is not None and op.queue != job.queue else None
                move = moves.requeue(job, to, self._now)
                for name, live, key in (
                    ("dedupe_key", by_key, (job.workspace, job.dedupe_key)),
                    ("target", by_target, (job.workspace, job.kind, job.target)),
                ):
                    _free_for(job, name, live.get(key))
                if op.retriage:
                    move.changes.update(self._retriaged(job))
            except OakenError as refusal:
                replies.append(refusal)
                continue
            if job.dedupe_key is not None:
                by_key[(job.workspace, job.dedupe_key)] = job.id
            if job.target is not None:
                by_target[(job.workspace, job.kind, job.target)] = job.id
            replies.append(self._unit.write(job, move, op.actor))
            cleared.append(job.id)
        if cleared:
            self._unit.flush()
            for table in ("results", "progress"):
                self._unit.db.run(f"delete from {table} where job_id in ids(?1)", self._unit.db.array(cleared))
        return replies

    def _retriaged(self, job: Job) -> dict[str, Any]:
        """Clears the machine's labels of what the job is about, and routes it anew by what people say."""
        subject = job.subject
        kind = self._rules.kinds.get(job.kind)
        if subject is None and kind is not None:
            self._unit.load_payloads([job.id])
            subject = kind.subject_of(orjson.loads(self._unit.payloads[job.id]))
            if subject is not None:
                want_retriage(self._unit, job.workspace, subject)
        if subject is None:
            raise InvalidRequest(
                f"Job {job.id} has no subject, so there is nothing to triage again. Requeue it without retriage.",
                job_id=job.id,
            )
        clear_machine_labels(self._unit, job.workspace, subject)
        human, machine = None, None
        if job.subject is not None:
            labels = queue_labels(self._unit, {(job.workspace, job.subject)})
            human, machine = labels.get((job.workspace, job.subject), (None, None))
        to = route(job.kind, human, machine, self._rules.queues)
        return {"queue": to.queue, "routed_by": to.by}

    def settle(self, *, parents: bool = True) -> None:
        """Writes what was changed, and offers what that has made free. Parents only once all jobs of the group are there: the last
        child may have left further ones behind."""
        blocked.offer(self._unit, parents=parents)


def lock_names(jobs: Iterable[tuple[str | None, str, str | None]]) -> list[str]:
    """Under which what may not be twice is locked: of (dedupe key, kind, target), of all workspaces together."""
    names: list[str] = []
    for dedupe_key, kind, target in jobs:
        if dedupe_key is not None:
            names.append(f"dedupe {dedupe_key}")
        if target is not None:
            names.append(f"target {kind} {target}")
    return names


def live_keys(unit: Unit, keys: set[tuple[str, str]]) -> dict[tuple[Any, ...], int]:
    """By (workspace, dedupe key): the job that is live with it."""
    if not keys:
        return {}
    rows = unit.db.all(unit.db.queries.live_keys, *unit.db.columns(keys, 2))
    return {(workspace, key): job_id for workspace, key, job_id in rows}


def live_targets(unit: Unit, targets: set[tuple[str, str, str]]) -> dict[tuple[Any, ...], int]:
    """By (workspace, kind, target): the job that is live with it."""
    if not targets:
        return {}
    rows = unit.db.all(unit.db.queries.live_targets, *unit.db.columns(targets, 3))
    return {(workspace, kind, target): job_id for workspace, kind, target, job_id in rows}


def _past(moment: int | None, now: int) -> bool:
    return moment is not None and moment <= now


def _free_for(job: Job, name: str, other: int | None) -> None:
    if other is not None and other != job.id:
        raise Conflict(
            f"Job {job.id} cannot be requeued: job {other} is live with the same {name}. "
            f"Cancel job {other} first, or leave the work to it.",
            job_id=job.id,
            other=other,
        )


def _spent(usage: Usage | None) -> Spent:
    if usage is None:
        return None, None, None
    return orjson.dumps(usage.usage).decode() if usage.usage is not None else None, usage.cost_usd, usage.produced_by

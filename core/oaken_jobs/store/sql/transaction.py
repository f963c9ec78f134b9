"""One write transaction: works a group of operations off, stage by stage.

Runs on the connection's thread. `Unit` keeps the rows and writes what changed; `Changes`, `Enqueues` and `Claims` do the work; `moves`
decides what becomes of a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from oaken_jobs.errors import OakenError
from oaken_jobs.kinds import Rules
from oaken_jobs.model import CHILDREN, Enqueued, Job, Schedule
from oaken_jobs.moves import Finish
from oaken_jobs.store.operations import (
    AddCode,
    AddSession,
    AddTask,
    AddToken,
    Adopt,
    Answer,
    Audit,
    Beat,
    Begin,
    Cancel,
    Claim,
    Drain,
    Edit,
    Emit,
    EndSession,
    Enqueue,
    Erase,
    Fire,
    FireOne,
    ForgetHealth,
    KeepLabels,
    KeepLog,
    Op,
    Prune,
    PutSchedule,
    Recover,
    Register,
    RemoveSchedule,
    Reply,
    Requeue,
    Resume,
    RevokeToken,
    RotateToken,
    SeeAgents,
    SeeSession,
    SetHealth,
    SetPaused,
    Settle,
    Sweep,
    Unregister,
    UseCode,
    UseTokens,
)
from oaken_jobs.store.sql import finishes, once, schedules, sessions
from oaken_jobs.store.sql.cache import RowCache
from oaken_jobs.store.sql.changes import Changes, named
from oaken_jobs.store.sql.claims import Claims
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.enqueues import Enqueues
from oaken_jobs.store.sql.prune import prune
from oaken_jobs.store.sql.records import administer
from oaken_jobs.store.sql.reserve import reserve
from oaken_jobs.store.sql.unit import Unit

_ADMINISTER, _CHANGE, _REQUEUE, _FIRE, _ENQUEUE, _CLAIM = range(6)
# Operations by the order in which a group is worked off.
_STAGES: dict[type, int] = {
    Recover: _ADMINISTER,
    Register: _ADMINISTER,
    Unregister: _ADMINISTER,
    SeeAgents: _ADMINISTER,
    AddToken: _ADMINISTER,
    RotateToken: _ADMINISTER,
    UseTokens: _ADMINISTER,
    SetPaused: _ADMINISTER,
    KeepLabels: _ADMINISTER,
    AddTask: _ADMINISTER,
    Audit: _ADMINISTER,
    Drain: _ADMINISTER,
    Begin: _ADMINISTER,
    Settle: _ADMINISTER,
    KeepLog: _ADMINISTER,
    SetHealth: _ADMINISTER,
    ForgetHealth: _ADMINISTER,
    Emit: _ADMINISTER,
    Prune: _ADMINISTER,
    PutSchedule: _ADMINISTER,
    RemoveSchedule: _ADMINISTER,
    AddSession: _ADMINISTER,
    SeeSession: _ADMINISTER,
    EndSession: _ADMINISTER,
    AddCode: _ADMINISTER,
    UseCode: _ADMINISTER,
    Sweep: _CHANGE,
    Finish: _CHANGE,
    Beat: _CHANGE,
    Cancel: _CHANGE,
    Answer: _CHANGE,
    Adopt: _CHANGE,
    Edit: _CHANGE,
    Erase: _CHANGE,
    RevokeToken: _CHANGE,
    Requeue: _REQUEUE,
    FireOne: _FIRE,
    Fire: _FIRE,
    Enqueue: _ENQUEUE,
    Resume: _CLAIM,
    Claim: _CLAIM,
}


class Moment(NamedTuple):
    """When a transaction judges."""

    now: int
    """Milliseconds."""
    foreign: bool
    """Another process may have made anything runnable since the last transaction of this one."""


class Transaction:
    """The work on one group between BEGIN and COMMIT. `moment` is called inside it, before anything is judged."""

    def __init__(
        self,
        database: Database,
        moment: Callable[[], Moment],
        rules: Rules,
        leased_kinds: dict[str, int],
        cache: RowCache,
    ) -> None:
        self._unit = Unit(database, rules, cache)
        self._moment = moment
        self._rules = rules
        self._leased_kinds = leased_kinds

    @property
    def leased(self) -> dict[str, int]:
        """Kinds of which it was not known that they were leased just now."""
        return self._claims.leased

    def apply(self, ops: Sequence[Op]) -> list[Reply]:
        """Works the group off. Refusals become replies; anything else raised means the group must be rolled back."""
        replies: list[Reply] = [None] * len(ops)
        stages: list[list[tuple[int, Any]]] = [[] for _ in range(6)]
        for place, op in enumerate(ops):
            stages[_STAGES[type(op)]].append((place, op))
        if self._unit.db.concurrent:
            reserve(self._unit, self._rules, ops)
        # Only now: an expired lease must not look alive because this transaction waited for a lock.
        self._unit.now, self._unit.all_touched = self._moment()
        self._changes = Changes(self._unit, self._rules)
        self._enqueues = Enqueues(self._unit, self._rules)
        self._claims = Claims(self._unit, self._rules, self._changes, self._leased_kinds)
        for place, op in stages[_ADMINISTER]:
            replies[place] = _attempt(self._administer, op)
        if stages[_CHANGE]:
            self._unit.load(named(op for _, op in stages[_CHANGE]))
            for place, op in stages[_CHANGE]:
                replies[place] = _attempt(self._changes.make, op)
            self._changes.settle(parents=False)
        if stages[_REQUEUE]:
            _put(replies, stages[_REQUEUE], self._changes.requeue([op for _, op in stages[_REQUEUE]]))
            self._changes.settle(parents=False)
        runs = self._fire(stages[_FIRE], replies)
        added = stages[_ENQUEUE] + [(-1, op) for op in self._changes.spawned] + [(place, op) for place, _, op in runs]
        if added:
            answers = self._enqueues.add([op for _, op in added])
            _put(replies, added, answers)
            for (_, schedule, op), answer in zip(runs, answers[len(answers) - len(runs) :], strict=True):
                if isinstance(answer, Enqueued):
                    schedules.fired(self._unit, schedule, answer.job.id, op.actor)
        self._changes.settle()
        self._refresh(replies)
        for place, op in stages[_CLAIM]:
            replies[place] = self._claims.claim(op) if isinstance(op, Claim) else self._claims.resume(op)
        self._changes.settle()
        finishes.add(self._unit)
        self._unit.tell()
        return replies

    def _administer(self, op: Any) -> Reply:
        if isinstance(op, PutSchedule):
            return schedules.put(self._unit, op)
        if isinstance(op, Prune):
            return prune(self._unit, op)
        if isinstance(op, RemoveSchedule):
            schedules.remove(self._unit, op)
            return None
        if isinstance(op, AddSession | SeeSession | EndSession | AddCode | UseCode):
            return sessions.apply(self._unit, op)
        if isinstance(op, Begin):
            return once.begin(self._unit, op)
        if isinstance(op, Settle):
            once.settle(self._unit, op)
            return None
        return administer(self._unit, op)

    def _fire(self, asked: list[tuple[int, Any]], replies: list[Reply]) -> list[tuple[int, Schedule, Enqueue]]:
        """The jobs that schedules add in this group, with the place of who asked for one (-1 for nobody)."""
        runs: list[tuple[int, Schedule, Enqueue]] = []
        for place, op in asked:
            if isinstance(op, Fire):
                due = schedules.fire_due(self._unit, op)
                runs += [(-1, schedule, job) for schedule, job in due]
                replies[place] = len(due)
            else:
                try:
                    runs.append((place, *schedules.fire_one(self._unit, op)))
                except OakenError as refusal:
                    replies[place] = refusal
        return runs

    def _refresh(self, replies: list[Reply]) -> None:
        """Jobs that turned out to have nothing to wait for are told as they are now."""
        for place, reply in enumerate(replies):
            job = reply.job if isinstance(reply, Enqueued) and not reply.replayed else reply
            if isinstance(job, Job) and job.blocked == CHILDREN:
                now = self._unit.jobs[job.id]
                job = job.having({"blocked": now.blocked, "run_at": now.run_at})
                replies[place] = reply._replace(job=job) if isinstance(reply, Enqueued) else job

    @property
    def moved(self) -> Counter[tuple[str, str]]:
        """What was done to jobs: by verb, and the state it led to."""
        return self._unit.moved

    @property
    def told(self) -> bool:
        """Whether rows of activity were written."""
        return self._unit.told

    @property
    def now(self) -> int:
        """The time (ms) by which it was judged."""
        return self._unit.now

    @property
    def written(self) -> list[tuple[Job, str | None]]:
        """Jobs whose rows were written, as they are now, each with its payload where that is at hand."""
        jobs, payloads = self._unit.jobs, self._unit.payloads
        return [(jobs[job_id], payloads.get(job_id)) for job_id in self._unit.written if job_id in jobs]

    def committed(self) -> None:
        """Leaves what is now committed to the next transaction."""
        self._unit.committed()


def _attempt(verb: Callable[[Any], Reply], op: Any) -> Reply:
    try:
        return verb(op)
    except OakenError as refusal:
        return refusal


def _put(replies: list[Reply], asked: list[tuple[int, Any]], answers: list[Reply]) -> None:
    """Puts answers in their places; what nobody asked for (-1) has none."""
    for (place, _), answer in zip(asked, answers, strict=True):
        if place >= 0:
            replies[place] = answer

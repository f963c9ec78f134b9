"""The unit of work of one transaction: rows in memory, what changes on them, and how that is written.

A row is read once; operations of a group see what those before them made of it. What changes is gathered and written set by set, one
statement a shape.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from oaken_jobs.errors import NotFound
from oaken_jobs.kinds import Rules
from oaken_jobs.lifecycle import allowed
from oaken_jobs.model import CHILDREN, ENQUEUED, FREE, Activity, Actor, Attempt, Job, Question, Schedule
from oaken_jobs.moves import Move
from oaken_jobs.store.sql.cache import RowCache
from oaken_jobs.store.sql.database import Database

JOB_COLUMNS = ", ".join(f"j.{name}" for name in Job._fields)
_ATTEMPT = Attempt._fields[: Attempt._fields.index("late")]
ATTEMPT_COLUMNS = (
    f"{', '.join(_ATTEMPT)}, "
    "(select 1 from late_results l where l.job_id = attempts.job_id and l.epoch = attempts.epoch)"
)
QUESTION_COLUMNS = ", ".join(Question._fields)
SCHEDULE_COLUMNS = ", ".join(Schedule._fields)

JOBS_BY_ID = f"select {JOB_COLUMNS} from jobs j where j.id in ids(?1)"
PAYLOADS_BY_ID = "select job_id, body from payloads where job_id in ids(?1)"
_JOB = Job._fields[:ENQUEUED]
_ID = ("id",)
_OF_JOB = ("job_id",)
_BODY = ("job_id", "body")
ACTIVITY_WRITTEN = Activity._fields[: Activity._fields.index("job_kind")]
_ACTIVITY = ACTIVITY_WRITTEN[1:]
_PROGRESS = ("job_id", "at", "percent", "message", "epoch")
_TOLD = frozenset(("requeue", "answer", "resume", "edit"))
"""Verbs that are changes although the state may stay what it was."""
_COST = _ATTEMPT.index("cost_usd")


Spent = tuple[str | None, float | None, str | None]
"""Usage as JSON, its cost in dollars, and by which model."""
Said = tuple[str | None, str | None, str | None]
"""Of a finish: its verb, the hash of its body, and what its repeat is answered."""


class Unit:
    """The rows a group of operations works on between BEGIN and COMMIT. `now` (ms) is read inside it, before anything is judged."""

    def __init__(self, database: Database, rules: Rules, cache: RowCache) -> None:
        self.db = database
        self.now = 0
        self.rules = rules
        self._cache = cache
        self.jobs: dict[int, Job] = {}
        self.payloads: dict[int, str] = {}
        """Of jobs added or handed out."""
        self.touched: set[str] = set()
        """Kinds of which a job may have become runnable."""
        self.all_touched = False
        """A job of any kind may have become runnable."""
        self.freed: set[tuple[str, str]] = set()
        """(workspace, serial key) of jobs that may have stood in the way of others of the key."""
        self.left: set[str | None] = set()
        """Holders that have a lease less."""
        self.parents: set[int] = set()
        """Jobs whose children may all be final now."""
        self.changes: dict[int, dict[str, Any]] = {}
        self.ended: list[tuple[Any, ...]] = []
        """Attempts that ended. One that goes on is in its job's own row alone."""
        self.bodies: dict[int, str] = {}
        """Payloads that take the place of others."""
        self.results: dict[int, str] = {}
        self.progress: list[tuple[Any, ...]] = []
        """Steps of trails: (job id, at, percent, message, epoch)."""
        self.activity: list[tuple[Any, ...]] = []
        self.written: set[int] = set()
        """Jobs whose rows this transaction has written."""
        self.told = False
        """Whether rows of activity were written."""
        self.finished: Counter[tuple[str, str]] = Counter()
        """Jobs that ended, by workspace and state."""
        self.spent: dict[str, tuple[int, float]] = {}
        """By workspace: how many attempts said what they cost, and how much."""
        self.moved: Counter[tuple[str, str]] = Counter()
        """What was done to jobs: by verb, and the state it led to."""

    def known(self, job_id: int, within: str | None) -> Job:
        """A job that was loaded. Raises `NotFound`, also for one of another workspace than the caller is bound to."""
        job = self.jobs.get(job_id)
        if job is None or (within is not None and job.workspace != within):
            raise NotFound(f"There is no job {job_id}. See the list of jobs for the ids there are.", job_id=job_id)
        return job

    def add(self, jobs: list[Job]) -> None:
        """Inserts new jobs with their payloads."""
        self.written.update(job.id for job in jobs)
        self.db.insert("jobs", _JOB, [job[:ENQUEUED] for job in jobs])
        self.db.insert("payloads", _BODY, [(job.id, self.payloads[job.id]) for job in jobs])

    def reserve(self, ids: Iterable[int], new: int) -> None:
        """As `load`, before anything else; `new` is how many jobs will be added, as far as is known."""
        for job in self.db.reserve(list(ids), new):
            self.jobs[job.id] = job

    def load(self, ids: Iterable[int]) -> None:
        """Brings these jobs into memory, where they exist. Nobody else changes them until the transaction has ended."""
        self._load(ids, wait=True)

    def take(self, ids: Sequence[int]) -> list[Job]:
        """As `load`, but without those that another transaction is at; what it got, as it is now."""
        self._load(ids, wait=False)
        return [self.jobs[job_id] for job_id in ids if job_id in self.jobs]

    def _load(self, ids: Iterable[int], *, wait: bool) -> None:
        missing: list[int] = []
        for job_id in ids:
            if job_id not in self.jobs:
                cached = self._cache.jobs.get(job_id)
                if cached is not None:
                    self.jobs[job_id] = cached
                else:
                    missing.append(job_id)
        if missing:
            for job in self.db.jobs(missing, wait=wait):
                self.jobs[job.id] = job

    def load_payloads(self, ids: Iterable[int]) -> None:
        """Brings the payloads of jobs that are loaded into memory."""
        missing: list[int] = []
        for job_id in ids:
            if job_id in self.payloads:
                continue
            body = self._cache.payloads.get(job_id)
            if body is not None:
                self.payloads[job_id] = body
            else:
                missing.append(job_id)
        if missing:
            self.payloads.update(self.db.payloads(missing))

    def committed(self) -> None:
        """Leaves what is now committed to the next transaction."""
        self._cache.committed(self.jobs, self.payloads)

    def write(self, before: Job, move: Move, actor: Actor) -> Job:
        """Makes a move: the job as it is afterwards, and the activity row of the change."""
        after = self.set(before, move.changes)
        if after.state != before.state or after.cancelling != before.cancelling or move.verb in _TOLD:
            assert allowed(move.verb, before.state, after.state), (move.verb, before.state, after.state)
            self.note("job_state_changed", move.verb, before, after, actor)
            if after.state == "queued" or (before.state == "running" and self.rules.caps):
                self.touched.add(after.kind)
            if before.state == "running":
                self.left.add(before.holder)
            if after.serial_key is not None and before.blocked == FREE and after.state != "running":
                self.freed.add((after.workspace, after.serial_key))
            if after.final and after.state != before.state:
                self.finished[after.workspace, after.state] += 1
            if after.parent_id is not None and after.final:
                self.parents.add(after.parent_id)
            if after.blocked == CHILDREN:
                self.parents.add(after.id)
        return after

    def end(
        self,
        job: Job,
        outcome: str,
        error: str | None = None,
        usage: Spent = (None, None, None),
        said: Said = (None, None, None),
    ) -> None:
        """Ends the attempt that a job was in until now; `said` where its holder says so."""
        begun = (job.id, job.epoch, job.attempts, job.agent, job.holder, job.nonce, job.started_at)
        self.ended.append((*begun, self.now, outcome, error, *usage, *said))

    def set(self, job: Job, changes: dict[str, Any]) -> Job:
        """Changes columns without a word in the activity."""
        after = job.having(changes)
        self.jobs[job.id] = after
        self.written.add(job.id)
        pending = self.changes.get(job.id)
        self.changes[job.id] = {**pending, **changes} if pending else changes
        return after

    def note(self, event: str, verb: str, before: Job | None, after: Job, actor: Actor) -> None:
        self.moved[(verb, after.state)] += 1
        self.activity.append(
            (
                self.now,
                event,
                verb,
                after.id,
                None,
                before.state if before else None,
                after.state,
                after.epoch,
                after.attempts,
                after.percent if event == "job_progress" else None,
                *actor,
                after.workspace,
                None,
            )
        )

    def note_other(
        self,
        event: str,
        verb: str,
        name: str,
        actor: Actor,
        workspace: str | None = None,
        *,
        states: tuple[str | None, str | None] = (None, None),
        job_id: int | None = None,
        data: str | None = None,
    ) -> None:
        self.activity.append((self.now, event, verb, job_id, name, *states, None, None, None, *actor, workspace, data))

    def flush(self) -> None:
        """Writes what was gathered, so that statements see it."""
        db = self.db
        if self.changes:
            shapes: dict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
            for job_id, changes in self.changes.items():
                shapes[tuple(changes)].append((job_id, *changes.values()))
            for columns, values in shapes.items():
                db.update("jobs", _ID, columns, values)
            self.changes = {}
        if self.ended:
            self._add_costs()
            db.insert("attempts", _ATTEMPT, self.ended)
            self.ended = []
        if self.bodies:
            db.replace("payloads", _OF_JOB, _BODY, list(self.bodies.items()))
            self.bodies = {}
        if self.results:
            db.replace("results", _OF_JOB, _BODY, list(self.results.items()))
            self.results = {}
        if self.progress:
            db.insert("progress", _PROGRESS, self.progress)
            self.progress = []

    def tell(self) -> None:
        """Writes what there is to tell, once and last: where others write at the same time, nobody hears of anything while ids of activity
        are drawn and not committed."""
        if self.activity:
            self.told = True
            self.db.add_activity(_ACTIVITY, self.activity)
            self.activity = []

    def _add_costs(self) -> None:
        for row in self.ended:
            cost = row[_COST]
            if cost is not None:
                workspace = self.jobs[row[0]].workspace
                attempts, spent = self.spent.get(workspace, (0, 0.0))
                self.spent[workspace] = (attempts + 1, spent + cost)

    def forget(self) -> None:
        """Jobs were changed behind the back of what is remembered."""
        self._cache.clear()

    def gone(self, job_id: int) -> None:
        """A statement has deleted a job."""
        self._cache.jobs.pop(job_id, None)
        self.jobs.pop(job_id, None)

    def changed_below(self, job_id: int, changes: dict[str, Any]) -> None:
        """A statement has changed these columns of a job already."""
        self._cache.jobs.pop(job_id, None)
        self.written.add(job_id)
        if job_id in self.jobs:
            self.jobs[job_id] = self.jobs[job_id].having(changes)

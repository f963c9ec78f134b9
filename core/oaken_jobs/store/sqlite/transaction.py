"""One write transaction: reads the rows that a group of operations names, asks `moves` what becomes of them, writes the outcome.

Runs on the connection's thread. `Unit` keeps the rows and writes what changed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from oaken_jobs import moves
from oaken_jobs.errors import Conflict, Forbidden, NotFound, OakenError
from oaken_jobs.kinds import Rules
from oaken_jobs.model import (
    DEFAULT_WORKSPACE,
    PRIORITIES,
    SYSTEM,
    Actor,
    Attempt,
    Effect,
    Enqueued,
    Job,
    Leased,
    SpawnJob,
)
from oaken_jobs.moves import Finish
from oaken_jobs.routing import QUEUE_LABEL, Route, route
from oaken_jobs.store.base import (
    AddToken,
    Beat,
    Beaten,
    Cancel,
    Cancelled,
    Claim,
    Claimed,
    Enqueue,
    KeepLabels,
    Op,
    Recover,
    Register,
    Reply,
    Requeue,
    RevokeToken,
    SeeAgents,
    SetPaused,
    Sweep,
    TokenRow,
    Unregister,
    Want,
)
from oaken_jobs.store.sqlite import claim
from oaken_jobs.store.sqlite.cache import RowCache
from oaken_jobs.store.sqlite.driver import Database
from oaken_jobs.store.sqlite.records import Administration, administer, keep, stored
from oaken_jobs.store.sqlite.unit import ATTEMPT_COLUMNS, Unit, json_array

CLAIM_CHARACTERS = 16 << 20
"""Payload that one claim hands out at most; who wants more asks again."""
_DUE_SWEEPS_IN_CLAIM = 200
"""Expired leases that a claim takes back before it hands out; the sweep does the rest."""
_REFUSALS_IN_CLAIM = 100
"""Jobs whose payload no longer fits that one claim may fail before it gives up filling."""

# Operations by the order in which a group is worked off.
_STAGES: dict[type, int] = {
    Recover: 0,
    Register: 0,
    Unregister: 0,
    SeeAgents: 0,
    AddToken: 0,
    SetPaused: 0,
    KeepLabels: 0,
    Sweep: 1,
    Finish: 1,
    Beat: 1,
    Cancel: 1,
    RevokeToken: 1,
    Requeue: 2,
    Enqueue: 3,
    Claim: 4,
}


class Transaction:
    """The work on one group between BEGIN and COMMIT. `now` was read inside it."""

    def __init__(
        self,
        database: Database,
        now: int,
        rules: Rules,
        known_kinds: set[str],
        cache: RowCache,
        *,
        foreign: bool = False,
    ) -> None:
        """`foreign` says that another process may have made anything runnable since the last transaction of this one."""
        self._unit = Unit(database, now, rules, cache)
        self._unit.all_touched = foreign
        self._now = now
        self._rules = rules
        self._known_kinds = known_kinds
        self.new_kinds: set[str] = set()
        """Kinds leased for the first time: the caller adds them to `known_kinds` once this is committed."""
        self._spawned: list[Enqueue] = []
        self._tokens: dict[str, bool] = {}
        """Whether the token of a holder bars it, for those that were looked at."""
        self._more = False
        """A claim failed unfit jobs and stopped short of what was there."""

    def apply(self, ops: Sequence[Op]) -> list[Reply]:
        """Works the group off. Refusals become replies; anything else raised means the group must be rolled back."""
        replies: list[Reply] = [None] * len(ops)
        stages: list[list[tuple[int, Any]]] = [[], [], [], [], []]
        for place, op in enumerate(ops):
            stages[_STAGES[type(op)]].append((place, op))
        for place, op in stages[0]:
            replies[place] = self._attempt(self._administer, op)
        if stages[1]:
            self._unit.load(_named(op for _, op in stages[1]))
            for place, op in stages[1]:
                replies[place] = self._attempt(self._change, op)
            self._unit.flush()
        for place, op in stages[2]:
            replies[place] = self._attempt(self._requeue, op)
            self._unit.flush()
        enqueues = stages[3] + [(-1, op) for op in self._spawned]
        if enqueues:
            for (place, _), reply in zip(enqueues, self._enqueue([op for _, op in enqueues]), strict=True):
                if place >= 0:
                    replies[place] = reply
            self._unit.flush()
        for place, op in stages[4]:
            replies[place] = self._claim(op)
        self._unit.flush()
        return replies

    def _attempt(self, verb: Any, op: Any) -> Reply:
        try:
            return verb(op)
        except OakenError as refusal:
            return refusal

    def _administer(self, op: Administration) -> Reply:
        return administer(self._unit, op)

    # What changes single jobs.

    def _change(self, op: Finish | Beat | Cancel | Sweep | RevokeToken) -> Reply:
        if isinstance(op, Finish):
            return self._finish(op)
        if isinstance(op, Beat):
            return self._beat(op)
        if isinstance(op, Cancel):
            return self._cancel(op)
        if isinstance(op, RevokeToken):
            return self._revoke(op)
        return self._sweep(op.limit)

    def _finish(self, op: Finish) -> Reply:
        job = self._unit.jobs.get(op.ref.job_id)
        if not moves.holds(job, op.ref, op.holder, self._now):
            return self._stale(op, job)
        assert job is not None
        move = moves.finish(job, op, self._now, self._rules, random.random())
        after = self._unit.write(job, move, op.actor)
        if move.outcome is not None:
            usage = op.usage
            self._unit.ended.append(
                (
                    job.id,
                    job.epoch,
                    self._now,
                    move.outcome,
                    move.error,
                    orjson.dumps(usage.usage).decode() if usage and usage.usage is not None else None,
                    usage.cost_usd if usage else None,
                    usage.produced_by if usage else None,
                    op.verb,
                    op.body_hash(),
                    move.answer(after),
                )
            )
        if move.result_text is not None:
            self._unit.results.append((job.id, move.result_text))
        for effect in move.effects:
            self._leave(effect, after)
        return move.refusal or after

    def _leave(self, effect: Effect, job: Job) -> None:
        if isinstance(effect, SpawnJob):
            if effect.unless_document is not None and stored(self._unit, effect.unless_document):
                return
            parent = job.parent_id if job.parent_id is not None else job.id
            schema = self._rules.kinds[effect.new.kind].payload_schema if effect.new.kind in self._rules.kinds else None
            actor = Actor("system", job.kind, "worker")
            new = effect.new._replace(parent_id=parent, priority=job.priority)
            self._spawned.append(Enqueue(new, actor, schema.hash if schema else None))
        else:
            keep(self._unit, effect)

    def _stale(self, op: Finish, job: Job | None) -> Reply:
        self._unit.flush()  # an earlier operation of this group may have ended the attempt
        row = self._unit.db.execute(
            f"select {ATTEMPT_COLUMNS} from attempts where job_id = ? and epoch = ?", (op.ref.job_id, op.ref.epoch)
        ).fetchone()
        attempt = Attempt._make(row) if row else None
        again = moves.repeat(attempt, job, op)
        if again is not None:
            return again
        return moves.lease_lost(job, op.ref, op.holder, self._now, may_read=self._may_read(op, job))

    def _may_read(self, op: Finish | Beat, job: Job | None) -> bool:
        """Whether a caller that does not hold the lease may be told who does: it reads all jobs, enqueued this one, or held it."""
        if job is None or op.may_read or op.holder == job.holder:
            return True
        if job.actor_kind != "system" and job.actor_id == op.holder:
            return True
        held = "select 1 from attempts where job_id = ? and holder = ?"
        return self._unit.db.execute(held, (job.id, op.holder)).fetchone() is not None

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
        if op.progress:
            changes["progress_at"] = self._now
            if op.percent is not None:
                changes["percent"] = op.percent
            changes["message"] = op.message if op.message is not None else job.message
            self._unit.progress.append((job.id, self._now, op.percent, op.message, job.epoch))
        after = self._unit.set(job, changes)
        if op.progress:
            self._unit.note("job_progress", "progress", job, after, op.actor)
        return Beaten(after, expires)

    def _cancel(self, op: Cancel) -> Reply:
        job = self._unit.known(op.job_id)
        move = moves.cancel(job, self._now, self._rules)
        if move is None:
            return Cancelled(job, False)
        return Cancelled(self._unit.write(job, move, op.actor), True)

    def _sweep(self, limit: int) -> int:
        self._unit.flush()
        ids = [row[0] for row in self._unit.db.execute(claim.EXPIRED, (self._now, limit)).fetchall()]
        if not ids:
            return 0
        self._unit.load(ids)
        for job_id in ids:
            job = self._unit.jobs[job_id]
            move = moves.lose(job, self._now, self._rules, random.random())
            self._unit.write(job, move, SYSTEM)
            self._unit.ended.append(
                (job.id, job.epoch, self._now, "lost", move.error, None, None, None, None, None, None)
            )
        self._unit.flush()
        return len(ids)

    def _requeue(self, op: Requeue) -> Reply:
        self._unit.load([op.job_id])
        job = self._unit.known(op.job_id)
        to = None
        if op.queue is not None and op.queue != job.queue:
            to = Route(op.queue, "requeue")
        move = moves.requeue(job, to, self._now)
        for column, other in (
            ("dedupe_key", self._live_by_key(job.dedupe_key)),
            ("target", self._live_by_target(job.kind, job.target)),
        ):
            if other is not None and other != job.id:
                raise Conflict(
                    f"Job {job.id} cannot be requeued: job {other} is live with the same {column}. "
                    f"Cancel job {other} first, or leave the work to it.",
                    job_id=job.id,
                    other=other,
                )
        after = self._unit.write(job, move, op.actor)
        for table in ("results", "progress"):
            self._unit.db.execute(f"delete from {table} where job_id = ?", (job.id,))
        return after

    def _live_by_key(self, key: str | None) -> int | None:
        if key is None:
            return None
        row = self._unit.db.execute(
            "select id from jobs where workspace = ? and dedupe_key = ? and state in ('queued', 'running')",
            (DEFAULT_WORKSPACE, key),
        ).fetchone()
        return row[0] if row else None

    def _live_by_target(self, kind: str, target: str | None) -> int | None:
        if target is None:
            return None
        row = self._unit.db.execute(
            "select id from jobs where workspace = ? and kind = ? and target = ? and state in ('queued', 'running')",
            (DEFAULT_WORKSPACE, kind, target),
        ).fetchone()
        return row[0] if row else None

    # What adds jobs.

    def _enqueue(self, ops: list[Enqueue]) -> list[Reply]:
        labels = self._queue_labels({op.new.subject for op in ops if op.new.subject is not None})
        self._unit.load({op.new.parent_id for op in ops if op.new.parent_id is not None})
        row = self._unit.db.execute("select seq from sqlite_sequence where name = 'jobs'").fetchone()
        next_id = (row[0] if row else 0) + 1
        jobs: list[Job] = []
        by_key: dict[str, Job] = {}
        by_target: dict[tuple[str, str], Job] = {}
        replies: list[Reply] = []
        for op in ops:
            new = op.new
            try:
                self._check_parent(op)
                live = by_key.get(new.dedupe_key) if new.dedupe_key is not None else None
                if live is None and new.target is not None:
                    live = by_target.get((new.kind, new.target))
                if live is None and (new.dedupe_key is not None or new.target is not None):
                    other = self._live_by_key(new.dedupe_key) or self._live_by_target(new.kind, new.target)
                    if other is not None:
                        self._unit.load([other])
                        live = self._unit.jobs[other]
            except OakenError as refusal:
                replies.append(refusal)
                continue
            if live is not None:
                live = self._unit.jobs[live.id]  # as earlier duplicates of this group left it
                after = self._unit.set(live, {"coalesced": live.coalesced + 1})
                self._unit.note("job_state_changed", "coalesce", live, after, op.actor)
                replies.append(Enqueued(after, False))
                continue
            human, machine = labels.get(new.subject, (None, None)) if new.subject is not None else (None, None)
            queue, by = route(new.kind, human, machine, self._rules.queues)
            job = Job(
                next_id,
                DEFAULT_WORKSPACE,
                new.kind,
                queue,
                by,
                "queued",
                new.priority if new.priority is not None else PRIORITIES["ingest"],
                new.title,
                orjson.dumps(new.tags).decode() if new.tags else None,
                new.subject,
                new.target,
                new.dedupe_key,
                new.parent_id,
                new.max_attempts if new.max_attempts is not None else self._rules.attempts_for(new.kind),
                new.budget_usd,
                self._now,
                max(new.run_at, self._now) if new.run_at is not None else self._now + new.delay_ms,
                op.actor.kind,
                op.actor.id,
                op.actor.via,
                op.schema_hash,
            )
            next_id += 1
            self._unit.touched.add(job.kind)
            jobs.append(job)
            if new.dedupe_key is not None:
                by_key[new.dedupe_key] = job
            if new.target is not None:
                by_target[(new.kind, new.target)] = job
            self._unit.jobs[job.id] = job
            self._unit.payloads[job.id] = new.payload
            self._unit.note("job_state_changed", "enqueue", None, job, op.actor)
            replies.append(Enqueued(job, True))
        if jobs:
            self._unit.add(jobs)
        return replies

    def _check_parent(self, op: Enqueue) -> None:
        parent_id = op.new.parent_id
        if parent_id is None:
            return
        parent = self._unit.jobs.get(parent_id)
        if parent is None:
            raise NotFound(
                f"parent_id {parent_id}: there is no such job. Leave parent_id out, or name a job that exists."
            )
        if op.held_by is not None and (
            parent.state != "running" or parent.holder != op.held_by or (parent.lease_expires or 0) <= self._now
        ):
            raise Forbidden(
                f"An agent may add children only to a job it holds; job {parent_id} is not held by {op.held_by}. "
                "Lease it first, or use a token that also has the role user."
            )

    def _queue_labels(self, subjects: set[str]) -> dict[str, tuple[str | None, str | None]]:
        if not subjects:
            return {}
        found_rows = self._unit.db.execute(
            "select subject, layer, value from labels where key = ? and subject in (select value from json_each(?))",
            (QUEUE_LABEL, json_array(subjects)),
        ).fetchall()
        found: dict[str, tuple[str | None, str | None]] = {}
        for subject, layer, value in found_rows:
            human, machine = found.get(subject, (None, None))
            found[subject] = (value, machine) if layer == "human" else (human, value)
        return found

    # What hands jobs out.

    def _claim(self, op: Claim) -> Claimed:
        self._sweep(_DUE_SWEEPS_IN_CLAIM)
        leases: list[list[Leased] | None] = []
        exhausted: set[Any] = set()
        short: list[Want] = []
        wants = op.wants
        at = 0
        while at < len(wants):
            # Requests with the same filter that stand one behind the other are served by one pick.
            filter = wants[at].filter
            barred = self._barred(wants[at])
            if barred or (not wants[at].fresh and not self._worth_a_pick(wants[at])):
                leases.append(None if barred else [])
                at += 1
                continue
            end = at + 1
            while end < len(wants) and wants[end].filter == filter and not self._barred(wants[end]):
                end += 1
            run = wants[at:end]
            at = end
            total = sum(want.max for want in run)
            ids = [] if filter in exhausted else self._pick(run[0], total)
            if len(ids) < total:
                if filter not in exhausted:
                    short.append(run[0])
                exhausted.add(filter)
            leases.extend(self._hand_out(run, ids))
        if self._more:
            return Claimed(leases, self._now)
        return Claimed(leases, self._next_at(short) if short else None)

    def _barred(self, want: Want) -> bool:
        """Whether the token behind a request was revoked or has expired since the request was let in."""
        barred = self._tokens.get(want.holder)
        if barred is None:
            row = self._unit.db.execute(
                "select revoked_at, expires_at from tokens where name = ?", (want.holder,)
            ).fetchone()
            barred = row is not None and (row[0] is not None or (row[1] is not None and row[1] <= self._now))
            self._tokens[want.holder] = barred
        return barred

    def _worth_a_pick(self, want: Want) -> bool:
        """Whether this group made something runnable that a request asked before might get."""
        if self._unit.all_touched or want.kinds is None:
            return self._unit.all_touched or not self._unit.touched.issubset(want.not_kinds)
        return not self._unit.touched.isdisjoint(want.kinds)

    def _pick(self, want: Want, total: int) -> list[int]:
        ids: list[int] = []
        for _ in range(_REFUSALS_IN_CLAIM):
            lanes = claim.lanes(self._unit.db, _filter(want))
            found = claim.pick(self._unit.db, lanes, total - len(ids), self._rules.caps, self._now)
            self._unit.load_with_payloads(found)
            found = self._within_bounds(found, ids)
            fit = [job_id for job_id in found if not self._refused(self._unit.jobs[job_id])]
            ids += fit
            if len(fit) == len(found):
                break
            self._unit.flush()
            if ids:
                self._more = True
                break  # hand out what there is; what is still wanted is asked for again at once
        return ids

    def _within_bounds(self, found: list[int], ids: list[int]) -> list[int]:
        """As many of the jobs found as one answer may carry; at least one."""
        room = CLAIM_CHARACTERS - sum(len(self._unit.payloads[job_id]) for job_id in ids)
        for count, job_id in enumerate(found):
            room -= len(self._unit.payloads[job_id])
            if room < 0 and (count or ids):
                self._more = True
                return found[:count]
        return found

    def _refused(self, job: Job) -> bool:
        """Whether the job had to be failed because its payload does not fit its kind any more."""
        kind = self._rules.kinds.get(job.kind)
        schema = kind.payload_schema if kind else None
        if schema is None or schema.hash == job.schema_hash:
            return False
        problems = schema.problems(orjson.loads(self._unit.payloads[job.id]))
        if problems:
            self._unit.write(job, moves.refuse_payload(job, problems, self._now, self._rules), SYSTEM)
        return bool(problems)

    def _hand_out(self, run: list[Want], ids: list[int]) -> list[list[Leased]]:
        nonces = moves.new_nonces(len(ids)) if ids else []
        handed: list[list[Leased]] = []
        at = 0
        for want in run:
            mine: list[Leased] = []
            for job_id, nonce in zip(ids[at : at + want.max], nonces[at : at + want.max], strict=True):
                job = self._unit.jobs[job_id]
                lease_ms = want.lease_ms or round(self._rules.lease_for(job.kind) * 1000)
                move = moves.claim(
                    job,
                    agent=want.agent,
                    holder=want.holder,
                    lease_ms=lease_ms,
                    nonce=nonce,
                    now=self._now,
                    rules=self._rules,
                )
                after = self._unit.write(job, move, want.actor)
                self._unit.begun.append(
                    (job_id, after.epoch, after.attempts, want.agent, want.holder, nonce, self._now)
                )
                kind = self._rules.kinds.get(job.kind)
                mine.append(Leased(after, self._unit.payloads[job_id], kind.instructions if kind else None))
                if job.kind not in self._known_kinds and job.kind not in self.new_kinds:
                    self.new_kinds.add(job.kind)
                    self._unit.db.execute(
                        "insert into leased_kinds values (?, ?) on conflict do nothing", (job.kind, self._now)
                    )
            at += want.max
            handed.append(mine)
        self._unit.flush()
        return handed

    def _next_at(self, short: list[Want]) -> int | None:
        times = [claim.next_run(self._unit.db, claim.lanes(self._unit.db, _filter(want)), self._now) for want in short]
        times.append(self._unit.db.execute(claim.NEXT_EXPIRY).fetchone()[0])
        return min((t for t in times if t is not None), default=None)

    def _revoke(self, op: RevokeToken) -> Reply:
        row = self._unit.db.execute("select * from tokens where name = ?", (op.name,)).fetchone()
        if row is None:
            raise NotFound(f"There is no token named {op.name}. See `oaken token list`.")
        token = TokenRow._make(row)
        if token.revoked_at is None:
            token = token._replace(revoked_at=self._now)
            self._unit.db.execute("update tokens set revoked_at = ? where name = ?", (self._now, op.name))
            self._unit.note_other("token_changed", "revoke", op.name, op.actor)
        held = self._unit.db.execute(
            "select id from jobs where state = 'running' and holder = ?", (op.name,)
        ).fetchall()
        self._unit.load([row[0] for row in held])
        for (job_id,) in held:
            job = self._unit.jobs[job_id]
            if job.state == "running" and job.holder == op.name:
                self._unit.write(job, moves.give_back(job, self._now, self._rules), op.actor)
                self._unit.ended.append(
                    (job.id, job.epoch, self._now, "released", None, None, None, None, None, None, None)
                )
        return token

    def committed(self) -> None:
        """Leaves what is now committed to the next transaction."""
        self._unit.committed()


def _named(ops: Iterable[Any]) -> set[int]:
    """Ids of the jobs that these operations name."""
    found: set[int] = set()
    for op in ops:
        if isinstance(op, (Finish, Beat)):
            found.add(op.ref.job_id)
        elif isinstance(op, Cancel):
            found.add(op.job_id)
    return found


def _filter(want: Want) -> dict[str, str | None]:
    return {
        "queues": json_array(want.queues) if want.queues is not None else None,
        "kinds": json_array(want.kinds) if want.kinds is not None else None,
        "not_kinds": json_array(want.not_kinds) if want.not_kinds else None,
    }

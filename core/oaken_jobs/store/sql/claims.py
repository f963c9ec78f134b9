"""What hands jobs out: to lease requests, in their order, and to agents that ask for their own again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from oaken_jobs import moves
from oaken_jobs.errors import OakenError
from oaken_jobs.kinds import Rules
from oaken_jobs.model import FREE, SYSTEM, Child, Job, Leased, Question
from oaken_jobs.store.operations import Claim, Claimed, Resume, Want
from oaken_jobs.store.sql import blocked, claim, once, reads
from oaken_jobs.store.sql.changes import Changes
from oaken_jobs.store.sql.lane import Filter
from oaken_jobs.store.sql.unit import JOB_COLUMNS, QUESTION_COLUMNS, Unit

CLAIM_CHARACTERS = 16 << 20
"""Payload that one claim hands out at most; who wants more asks again."""
CHILDREN_SHOWN = 1000
CHILD_CHARACTERS = 1 << 20
"""Results of children that one lease carries at most, and all leases of an answer four times that; those beyond are read by the
child's id."""
ANSWERS_SHOWN = 20
"""Questions of a job, the latest, that its lease carries."""
_DUE_SWEEPS_IN_CLAIM = 200
"""Expired leases, and jobs, that a claim ends before it hands out; the sweep does the rest."""
_ROUNDS = 100
"""How often one claim looks again because what it found could not be handed out."""
_LOOK = 512
"""Jobs it looks at in one such round."""
_OUT_OF_SIGHT = 5000
"""Jobs of busy keys that one claim puts out of sight; then others get their turn before it goes on."""
_HOUR_MS = 3_600_000
_LEASED_AT_MS = 60_000
"""How exactly it is known when a kind was last leased."""


class Claims:
    """The leases of one transaction. `leased_kinds` says when each kind was last known to be leased (ms)."""

    def __init__(self, unit: Unit, rules: Rules, changes: Changes, leased_kinds: dict[str, int]) -> None:
        self._unit = unit
        self._now = unit.now
        self._rules = rules
        self._changes = changes
        self._leased_kinds = leased_kinds
        self.leased: dict[str, int] = {}
        """Kinds leased now of which that was not known: the caller adds them to `leased_kinds` once this is committed."""
        self._tokens: dict[str, _Token] = {}
        """By holder, for those that were looked at."""
        self._room_at: list[int] = []
        """When those who have leased their fill of the hour may lease again."""
        self._held_up = False
        """Somebody gets nothing for the limits of its token."""
        self._keys: dict[tuple[str, str], int] = {}
        """By (workspace, serial key): the job of it that runs or was just taken; 0 for one that is not known."""
        self._opened: dict[Any, claim.Open] = {}
        """By filter: the lanes that the last pick went by."""
        self._looked = True
        """Lanes were looked for at the last pick; otherwise they were those known."""
        self._busy: set[blocked.Key] = set()
        """Keys of which a job runs, of those that were looked at last."""
        self._elsewhere: set[int] = set()
        """Jobs that other transactions are at."""
        self._out_of_sight = 0
        """Jobs of busy keys that were hidden."""
        self._characters = 0
        """Of payloads that were handed out."""
        self._children_room = 4 * CHILD_CHARACTERS
        """What is left for results of children."""
        self._more = False
        """A claim stopped short of what was there."""

    def claim(self, op: Claim) -> Claimed:
        """Hands out jobs to waiting requests, in their order."""
        self._changes.sweep(_DUE_SWEEPS_IN_CLAIM)
        self._changes.settle()
        leases: list[list[Leased] | OakenError | None] = []
        exhausted: set[Any] = set()
        short: list[Want] = []
        wants = op.wants
        at = 0
        while at < len(wants):
            # Requests with the same filter that stand one behind the other are served by one pick.
            first = wants[at]
            told = self._told(first)
            if told is not None:
                leases.append(told.reply)
                at += 1
                continue
            end = at + 1
            keys = {first.once}
            room = self._room(first)
            while (
                room is None
                and end < len(wants)
                and wants[end].filter == first.filter
                # A repeat that came in the same moment is answered after the first, from what that got.
                and (wants[end].once is None or wants[end].once not in keys)
                and self._told(wants[end]) is None
                and not self._token(wants[end]).limited
            ):
                keys.add(wants[end].once)
                end += 1
            run = wants[at:end]
            at = end
            if room is not None:
                run = [replace(first, max=min(first.max, room))]
            handed: list[list[Leased]] = [[] for _ in run] if first.filter in exhausted else self._serve(run)
            if sum(map(len, handed)) < sum(want.max for want in run):
                if first.filter not in exhausted:
                    short.append(first)
                if self._looked:
                    exhausted.add(first.filter)
            for want, mine in zip(run, handed, strict=True):
                if want.once is not None and mine:
                    names = [(one.job.id, one.job.epoch) for one in mine]
                    once.remember(self._unit, want.once, orjson.dumps(names).decode())
            if self._token(first).max_per_hour is not None and handed[0]:
                self._count(first.holder, len(handed[0]))
            leases.extend(handed)
        if self._more:
            return Claimed(leases, self._now)
        return Claimed(
            leases, self._next_at(short) if short or self._held_up else None, bool(short and self._elsewhere)
        )

    def _told(self, want: Want) -> _Told | None:
        """The answer of a request that is not served from the lanes."""
        if self._token(want).barred:
            return _Told(None)
        if not want.fresh and not self._worth_a_pick(want):
            return _Told([])
        if want.once is not None:
            try:
                answer = once.recall(self._unit, want.once)
            except OakenError as refusal:
                return _Told(refusal)
            if answer is not None:
                return _Told(self._again(want, orjson.loads(answer)) or None)
        drained = self._changes.drained
        if drained and not drained.isdisjoint((want.agent, want.agent.partition("/")[0])):
            return _Told([])
        if self._room(want) == 0:
            self._held_up = True
            return _Told([])
        return None

    def _again(self, want: Want, names: list[tuple[int, int]]) -> list[Leased]:
        """Those of the leases that were given under this key that still live."""
        ids = [job_id for job_id, _ in names]
        self._unit.load(ids)
        self._unit.load_payloads(job_id for job_id in ids if job_id in self._unit.jobs)
        found: list[Leased] = []
        for job_id, epoch in names:
            job = self._unit.jobs.get(job_id)
            if (
                job is not None
                and job.state == "running"
                and job.epoch == epoch
                and job.holder == want.holder
                and (job.lease_expires or 0) > self._now
            ):
                found.append(self._leased(job)._replace(replayed=True))
        return found

    def _token(self, want: Want) -> _Token:
        """What is to be known of the token behind a request, as it is now."""
        if not want.by_token:
            return _NO_TOKEN
        token = self._tokens.get(want.holder)
        if token is None:
            row = self._unit.db.one(
                "select case when revoked_at is not null or expires_at <= ?1 then 1 else 0 end, max_leases, max_per_hour "
                "from tokens where name = ?2",
                self._now,
                want.holder,
            )
            token = self._tokens[want.holder] = _NO_TOKEN if row is None else _Token._make(row)
            if token.limited:  # what it holds is counted now, and nobody else gives it more meanwhile
                self._unit.db.lock([f"limits of {want.holder}"])
        return token

    def _room(self, want: Want) -> int | None:
        """How many leases the token behind a request may get now; None for any number."""
        token = self._token(want)
        if not token.limited:
            return None
        rooms: list[int] = []
        if token.max_leases is not None:
            self._unit.flush()
            live = self._unit.db.all(reads.LIVE_LEASES, want.holder, self._now)[0][0]
            rooms.append(token.max_leases - live)
        if token.max_per_hour is not None:
            taken, oldest = self._unit.db.all(reads.LAST_HOUR, want.holder, self._now)[0]
            rooms.append(token.max_per_hour - taken)
            if rooms[-1] <= 0:
                self._room_at.append(oldest + _HOUR_MS)
        return max(0, min(rooms))

    def _count(self, holder: str, leases: int) -> None:
        """Counts leases against the hour of their token."""
        db = self._unit.db
        db.run("delete from token_leases where token = ?1 and at <= ?2", holder, self._now - _HOUR_MS)
        db.run(
            "insert into token_leases values (?1, ?2, ?3) on conflict (token, at) "
            "do update set leases = token_leases.leases + excluded.leases",
            holder,
            self._now,
            leases,
        )

    def _worth_a_pick(self, want: Want) -> bool:
        """Whether this group made something runnable that a request asked before might get, or room for it."""
        if want.holder in self._unit.left and self._token(want).limited:
            return True
        touched = self._unit.touched
        if self._unit.all_touched or want.kinds is None:
            return self._unit.all_touched or not touched.issubset(want.not_kinds)
        return not touched.isdisjoint(want.kinds)

    def _serve(self, run: list[Want]) -> list[list[Leased]]:
        """What each of some requests with one filter gets."""
        handed: list[list[Leased]] = [[] for _ in run]
        place, depth = 0, 0
        look = False
        for _ in range(_ROUNDS):
            left = sum(want.max for want in run) - sum(map(len, handed))
            if not left:
                return handed
            ids, whole = self._pick(run[0], left, max(left, depth), look)
            nonces = moves.new_nonces(len(ids)) if ids else []
            for job_id, nonce in zip(ids, nonces, strict=True):
                while len(handed[place]) == run[place].max:
                    place += 1
                handed[place].append(self._hand_out(run[place], self._unit.jobs[job_id], nonce))
            self._changes.settle()
            if self._more or (whole and (self._looked or all(handed))):
                return handed
            look |= whole  # nobody goes with nothing because of what was found before
            # Where some cannot be had there are often many: more of them are dealt with in one round.
            depth = min(max(4 * depth, 32), _LOOK)
        self._more = True
        return handed

    def _pick(self, want: Want, left: int, depth: int, look: bool) -> tuple[list[int], bool]:
        """Ids of at most `left` jobs to hand out now, of the first `depth` there are; and whether there is nothing behind them. With `look`
        lanes are looked for, though some may be known."""
        found = claim.lanes(self._unit.db, Filter._make(want.filter), self._now, look=look)
        self._opened[want.filter] = found
        lanes, self._looked = found
        ids = claim.pick(self._unit.db, lanes, depth, self._rules.caps, self._now, self._elsewhere)
        mine = [job.id for job in self._unit.take(ids) if self._takeable(job)]
        self._elsewhere.update(set(ids).difference(mine))
        self._unit.load_payloads(mine)
        self._look_at_keys(mine)
        fit: list[int] = []
        whole = True
        for job_id in self._within_bounds(mine):
            job = self._unit.jobs[job_id]
            # One that cannot be had may have kept its kind's last place from another; so those behind it are not handed out before
            # the next look, but what can be dealt with is.
            if self._ended(job) or self._key_taken(job, whole and len(fit) < left):
                whole = False
            elif whole and len(fit) < left:
                fit.append(job_id)
        return fit, whole and (len(fit) == left or len(fit) == len(ids))

    def _takeable(self, job: Job) -> bool:
        """Whether a job still is as it was found; another transaction may have been first."""
        return job.state == "queued" and job.blocked == FREE and job.run_at <= self._now

    def _look_at_keys(self, ids: list[int]) -> None:
        """Finds out which serial keys of these jobs are busy."""
        jobs = (self._unit.jobs[job_id] for job_id in ids)
        keys = {(job.workspace, job.serial_key) for job in jobs if job.serial_key is not None}
        if keys:
            self._unit.db.lock(blocked.lock_name(key) for _, key in keys)
            self._busy = blocked.busy(self._unit.db, keys)

    def _within_bounds(self, found: list[int]) -> list[int]:
        """As many of the jobs found as one answer may still carry; at least one."""
        room = CLAIM_CHARACTERS - self._characters
        for count, job_id in enumerate(found):
            room -= len(self._unit.payloads[job_id])
            if room < 0 and (count or self._characters):
                self._more = True
                return found[:count]
        return found

    def _ended(self, job: Job) -> bool:
        """Whether the job had to be ended instead: its time is over, or its payload does not fit any more."""
        if job.expires_at is not None and job.expires_at <= self._now:
            self._unit.write(job, moves.expire(job, self._now, self._rules), SYSTEM)
            return True
        return self._refused(job)

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

    def _key_taken(self, job: Job, take: bool) -> bool:
        """Whether the job's serial key is busy; then what waits for it is put out of sight. Otherwise, with `take`, it is this job's
        from now on."""
        if job.serial_key is None:
            return False
        name = (job.workspace, job.serial_key)
        taken = self._keys.get(name)
        if taken is None and name not in self._busy:
            if take:
                self._keys[name] = job.id
            return False
        self._keys.setdefault(name, 0)
        if self._unit.jobs[job.id].blocked == FREE:  # not hidden with another of its key just now
            self._out_of_sight += blocked.hide(self._unit, name, taken or 0)
            self._more |= self._out_of_sight > _OUT_OF_SIGHT
        return True

    def _hand_out(self, want: Want, job: Job, nonce: str) -> Leased:
        lease_ms = want.lease_ms or round(self._rules.lease_for(job.kind, want.usual_seconds) * 1000)
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
        known = self.leased.get(job.kind) or self._leased_kinds.get(job.kind, 0)
        if self._now - known >= _LEASED_AT_MS:
            self.leased[job.kind] = self._now
            self._unit.db.run(
                "insert into leased_kinds values (?1, ?2) on conflict (kind) do update set at = greatest(leased_kinds.at, excluded.at)",
                job.kind,
                self._now,
            )
        return self._leased(after)

    def _leased(self, job: Job) -> Leased:
        kind = self._rules.kinds.get(job.kind)
        lease = Leased(job, self._unit.payloads[job.id], kind.instructions if kind else None)
        self._characters += len(lease.payload)
        if job.joined:
            children, more = self._children(job.id)
            lease = lease._replace(children=children, children_more=more)
        if job.asked:
            lease = lease._replace(answers=self._answers(job.id))
        return lease

    def _children(self, job_id: int) -> tuple[tuple[Child, ...], int]:
        """The first children of a job, and how many more there are."""
        self._unit.flush()
        db = self._unit.db
        rows = db.all(
            f"select {JOB_COLUMNS}, (select length(body) from results where job_id = j.id) from jobs j "
            "where j.parent_id = ?1 order by j.id limit ?2",
            job_id,
            CHILDREN_SHOWN,
        )
        more = 0
        if len(rows) == CHILDREN_SHOWN:
            total = db.all("select count(*) from jobs where parent_id = ?1", job_id)[0][0]
            more = total - CHILDREN_SHOWN
        room = min(CHILD_CHARACTERS, self._children_room)
        shown: list[int] = []
        jobs: list[tuple[Job, bool]] = []
        for *columns, length in rows:
            job = Job._make(columns)
            size = int(length) if length is not None else None
            fits = size is not None and size <= room
            if size is not None and fits:
                room -= size
                self._children_room -= size
                shown.append(job.id)
            jobs.append((job, size is not None and not fits))
        results = reads.bodies(db, "results", shown)
        return tuple(Child(job, results.get(job.id), cut) for job, cut in jobs), more

    def _answers(self, job_id: int) -> tuple[Question, ...]:
        rows = self._unit.db.all(
            f"select {QUESTION_COLUMNS} from questions where job_id = ?1 order by id desc limit ?2",
            job_id,
            ANSWERS_SHOWN,
        )
        return tuple(Question._make(row) for row in reversed(rows))

    def _next_at(self, short: list[Want]) -> int | None:
        db, caps, filters = self._unit.db, self._rules.caps, {want.filter for want in short}
        # Where others write, they have gone on since the lanes were looked at: the job that was seen is had by one, which had added
        # another. Those that somebody is at may be back at any moment; there is a signal of its own for them.
        due = db.concurrent and not self._elsewhere
        if db.concurrent:
            opened = [claim.lanes(db, Filter._make(filter), self._now) for filter in filters]
        else:
            opened = [self._opened[filter]._replace(looked=False) for filter in filters]
        times = [claim.next_at(db, found, caps, self._now, due=due) for found in opened]
        times.append(self._unit.db.next_expiry(self._now))
        times += self._room_at
        return min((t for t in times if t is not None), default=None)

    def _holds(self, op: Resume, job: Job | None) -> bool:
        """Whether a job still is leased to whom it was found for."""
        found = job is not None and job.state == "running" and (job.holder, job.agent) == (op.holder, op.agent)
        return found and job is not None and (job.lease_expires or 0) > self._now

    def resume(self, op: Resume) -> list[Leased]:
        """An agent's own living leases again, each under a new id; those that do not fit into one answer stay as they are."""
        self._unit.flush()
        rows = self._unit.db.all(
            "select id from jobs where state = 'running' and holder = ?1 and agent = ?2 and lease_expires > ?3 order by id",
            op.holder,
            op.agent,
            self._now,
        )
        ids = [row[0] for row in rows]
        self._unit.load(ids)
        ids = [job_id for job_id in ids if self._holds(op, self._unit.jobs.get(job_id))]
        self._unit.load_payloads(ids)
        ids = self._within_bounds(ids)
        found: list[Leased] = []
        nonces = moves.new_nonces(len(ids)) if ids else []
        for job_id, nonce in zip(ids, nonces, strict=True):
            job = self._unit.jobs[job_id]
            move = moves.resume(job, lease_ms=op.lease_ms, nonce=nonce, now=self._now)
            self._unit.end(job, "resumed")
            after = self._unit.write(job, move, op.actor)
            found.append(self._leased(after))
        self._unit.flush()
        return found


class _Token(NamedTuple):
    """Of a token: whether it was revoked or has expired since its request was let in, and its limits."""

    barred: int
    max_leases: int | None
    max_per_hour: int | None

    @property
    def limited(self) -> bool:
        return self.max_leases is not None or self.max_per_hour is not None


_NO_TOKEN = _Token(False, None, None)


class _Told:
    """An answer that is known, None among the possible ones."""

    __slots__ = ("reply",)

    def __init__(self, reply: list[Leased] | OakenError | None) -> None:
        self.reply = reply

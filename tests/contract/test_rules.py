"""The service against the model: arbitrary sequences of everything callers, clocks and crashes can do, compared after each step.

What the service answers must be what the model answers, each job's row must say what the model says of the job, and the invariants must
hold in the database. `OAKEN_EXAMPLES` says how many sequences are tried.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psycopg
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oaken_jobs.clock import FakeClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.errors import OakenError
from oaken_jobs.files import DATABASE
from oaken_jobs.kinds import Kind, Rules, Schema
from oaken_jobs.model import Actor, Job, Leased, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.routing import QueueRule
from oaken_jobs.store.base import JobFilter
from tests import postgres
from tests.contract import invariants
from tests.contract.model import Caller, LeaseOf, Model, ModelJob, ModelKind, Refused, Terms
from tests.contract.world import AGENT, ME, OTHER, TWIN

EXAMPLES = int(os.environ.get("OAKEN_EXAMPLES", "150"))
STEPS = 40
SLOWER = 5
"""So many times fewer are tried where each step is some round trips to a server."""
SHARED_MEMORY = Path("/dev/shm")

NUMBERS = Schema.compile({"properties": {"n": {"type": "integer"}}, "required": ["n"]}, "the machine's schema")
KINDS = {
    "plain": (Kind("plain"), ModelKind()),
    "capped": (Kind("capped", limit=2), ModelKind(limit=2)),
    "fragile": (Kind("fragile", on_lost="fail"), ModelKind(on_lost="fail")),
    "mail": (Kind("mail"), ModelKind("mail")),
    "picky": (Kind("picky", result_schema=NUMBERS), ModelKind(picky=True)),
    "listed": (Kind("listed", retry_delays=(1, 61)), ModelKind(delays=(1_000, 61_000))),
}
RULES = Rules(
    kinds={name: kind for name, (kind, _) in KINDS.items()},
    queues={"default": QueueRule("default"), "mail": QueueRule("mail", kind="mail"), "late": QueueRule("late")},
    backoff_jitter=0.0,
    cancel_grace=40,
)
TERMS = Terms({name: kind for name, (_, kind) in KINDS.items()}, cancel_grace=40_000)
QUEUES = tuple(RULES.queues)


@dataclass(frozen=True)
class Named(Principal):
    """A caller that shows by its name in a failing example."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.agent)


def _named(who: Principal, **more: Any) -> Named:
    return Named(**{f.name: getattr(who, f.name) for f in fields(who)} | more)


BOUND = _named(Principal(Actor("agent", "bound", "http"), frozenset({"agent", "user"}), "x"), workspace="side")
WORKERS = [_named(AGENT), _named(TWIN), _named(OTHER), BOUND]
INSTANCES = [_named(AGENT), _named(TWIN), BOUND]
PEOPLE = [_named(ME)] * 6 + [BOUND]

# What draws stand for. Times in seconds, such that they are exact in milliseconds and as floats.
picks = st.integers(0, 50)
workers = st.sampled_from(WORKERS)
people = st.sampled_from(PEOPLE)
queues = st.sampled_from(QUEUES)
seldom = st.integers(0, 7).map(lambda n: n == 7)
lengths = st.sampled_from([None, None, 5.0, 30.0, 1000.0])


def rarely(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of these, or more often None."""
    return st.sampled_from([None] * 4 * len(values) + [*values])


@dataclass(frozen=True)
class New:
    """A job to enqueue; `parent` picks one of those there are."""

    kind: str = "plain"
    priority: int = 50
    payload: int = 0
    delay: float = 0
    max_attempts: int | None = None
    dedupe_key: str | None = None
    target: str | None = None
    parent: int | None = None
    serial_key: str | None = None
    ttl: float | None = None
    workspace: str | None = None
    on_duplicate: str = "keep"
    key: str | None = None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Only what is not as usual."""
        said = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        printer.text(f"New({', '.join(said)})")


new_jobs = st.builds(
    New,
    kind=st.sampled_from(["plain", *KINDS]),
    priority=st.sampled_from([50, 50, 0, 100]),
    payload=st.integers(0, 3),
    delay=st.sampled_from([0, 0, 0, 0, 0, 1, 10, 400]),
    max_attempts=rarely([1, 2]),
    dedupe_key=rarely(["d1", "d2"]),
    target=rarely(["t1"]),
    parent=st.one_of(st.none(), st.none(), picks),
    serial_key=rarely(["s1", "s2"]),
    ttl=rarely([2.0, 70.0, 1000.0]),
    workspace=rarely(["side"]),
    on_duplicate=st.sampled_from(["keep", "replace"]),
    key=rarely(["e1"]),
)


class Say(NamedTuple):
    """How a holder ends its lease, in the model's words. Times in milliseconds."""

    verb: str
    body: dict[str, Any]


def _say(verb: str, **body: st.SearchStrategy[Any]) -> st.SearchStrategy[Say]:
    return st.builds(Say, st.just(verb), st.fixed_dictionaries(body))


mostly = st.integers(0, 3).map(bool)
says = st.one_of(
    _say("complete", fits=mostly),
    _say("fail", permanent=seldom, delay=st.sampled_from([0, 0, 1_000, 40_000])),
    _say("fail", permanent=st.just(False), delay=st.just(0)),
    _say("defer", delay=st.sampled_from([0, 3_000, 90_000])),
    _say("release", after_children=st.booleans()),
    _say("cancelled"),
    _say("ask", text=st.sampled_from(["why?", "how?"]), delay=st.sampled_from([20_000, 500_000])),
)


class Refusal(NamedTuple):
    code: str


EITHER = {Refusal("not_found"), Refusal("idempotency_conflict")}


class Step(NamedTuple):
    """One call of the service and of the model. `stage` is when a transaction does it, among others of its group."""

    stage: int
    call: Callable[[], Awaitable[Any]]
    model: Callable[[], Any]
    check: Callable[[Any, Any], None]


CHANGE, REQUEUE, ENQUEUE, CLAIM = 1, 2, 3, 4


class Machine(RuleBasedStateMachine):
    """A core on a fake clock, and its model."""

    url: ClassVar[str | None] = None
    """The PostgreSQL database it is on; None for SQLite."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(
            tempfile.mkdtemp(prefix="oaken-rules-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
        )
        if self.url is not None:
            self.run(postgres.empty(self.url))
        self.clock = FakeClock()
        self.model = Model(TERMS, self.clock.now())
        self.lease_ids: dict[LeaseOf, str] = {}
        self.holders: dict[LeaseOf, Principal] = {}
        self.group: list[Step] = []
        self.together = 1
        self.sound = True
        """Nothing differs so far."""
        self._open()
        for who in WORKERS:  # so that each agent is known, and can be drained
            self.run(self.jobs.lease(who))
        self.run(self.jobs.flush())

    def _open(self) -> None:
        database = DatabaseSettings(url=self.url)
        self.core = Core.on_folder(self.folder, RULES, "serve", self.clock, database=database)
        self.run(self.core.open())
        if self.url is None:
            self.database = invariants.connect(self.folder / DATABASE)
        else:
            self.database = psycopg.connect(self.url, autocommit=True)
            self._lose_no_ids()

    def _lose_no_ids(self) -> None:
        """A transaction that is begun again on PostgreSQL has drawn ids for nothing; the model counts none of them."""
        store: Any = self.core.store
        write = store._write

        async def again(*given: Any, **named: Any) -> Any:
            self.database.execute("select setval('job_ids', coalesce(max(id), 1), max(id) is not null) from jobs")
            return await write(*given, **named)

        store._write = again

    def run(self, call: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        try:
            if not self.sound:
                return  # the example has failed already, and what it was by is to be told
            self.flush()
            self.the_service_agrees_with_the_model()
            self._what_is_read_through_the_service_agrees()
        finally:
            self.database.close()
            self.run(self.core.close())
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # One step, or several in one transaction.

    @precondition(lambda self: self.together == 1)
    @rule(count=st.integers(2, 4))
    def the_next_ones_go_into_one_transaction(self, count: int) -> None:
        self.together = count

    def do(
        self,
        stage: int,
        call: Callable[[], Awaitable[Any]],
        model: Callable[[], Any],
        check: Callable[[Any, Any], None],
    ) -> None:
        self.group.append(Step(stage, call, model, check))
        if len(self.group) >= self.together:
            self.flush()

    def alone(
        self, call: Callable[[], Awaitable[Any]], model: Callable[[], Any], check: Callable[[Any, Any], None]
    ) -> None:
        self.flush()
        self.do(CHANGE, call, model, check)

    def flush(self) -> None:
        """Does what was gathered. The order within a group is that of the store: changes, requeues, new jobs, claims."""
        steps, self.group, self.together = self.group, [], 1
        if not steps:
            return
        self.sound = False
        replies = self.run(_all([step.call for step in steps]))
        expected: dict[int, Any] = {}
        for place in sorted(range(len(steps)), key=lambda place: steps[place].stage):
            try:
                expected[place] = steps[place].model()
            except Refused as refused:
                expected[place] = Refusal(refused.code)
        for place, step in enumerate(steps):
            reply, wanted = replies[place], expected[place]
            if isinstance(reply, Refusal) or isinstance(wanted, Refusal):
                # In one transaction all parents are looked for before any key: of two reasons to refuse, either may be told.
                either = len(steps) > 1 and {reply, wanted} == EITHER
                assert reply == wanted or either, f"{reply} is not {wanted}"
            else:
                step.check(reply, wanted)
        self.sound = True

    @property
    def jobs(self) -> Any:
        return self.core.jobs

    # Adding jobs.

    @initialize(who=people, several=st.lists(new_jobs, max_size=8))
    def some_jobs_are_there(self, who: Principal, several: list[New]) -> None:
        self.enqueue_several(who, several)

    @rule(who=people, several=st.lists(new_jobs, min_size=2, max_size=4))
    def enqueue_several(self, who: Principal, several: list[New]) -> None:
        """In one transaction."""
        self.flush()
        self.together = len(several) or 1
        for new in several:
            self.enqueue(who, new)

    @rule(who=people, several=st.lists(new_jobs, min_size=2, max_size=5))
    def enqueue_several_of_one_serial_key(self, who: Principal, several: list[New]) -> None:
        """In several lanes, so that some have to wait for others in their own lane and beside it."""
        self.flush()
        self.together = len(several)
        for new in several:
            self.enqueue(who, New(new.kind, new.priority, new.payload, serial_key="s1"))

    @rule(who=people, new=new_jobs)
    def enqueue(self, who: Principal, new: New) -> None:
        # What the service and the model call the same, then what they do not.
        alike: dict[str, Any] = {
            "max_attempts": new.max_attempts,
            "dedupe_key": new.dedupe_key,
            "target": new.target,
            "serial_key": new.serial_key,
            "idempotency_key": new.key,
            "on_duplicate": new.on_duplicate if new.dedupe_key or new.target else "keep",
        }
        body: dict[str, Any] = {
            "kind": new.kind,
            "priority": new.priority,
            "payload": {"p": new.payload},
            "delay_seconds": float(new.delay),
            "ttl_seconds": new.ttl,
        }
        more: dict[str, Any] = {"delay": _ms(new.delay), "ttl": _ms(new.ttl) if new.ttl is not None else None}
        if new.parent is not None and self.model.jobs:
            body["parent_id"] = more["parent"] = self._job(new.parent)
        elif new.workspace and who.workspace is None:
            alike["workspace"] = new.workspace
        request = NewJobRequest.model_validate(body | alike)
        self.do(
            ENQUEUE,
            lambda: self.jobs.enqueue(who, request),
            lambda: self.model.enqueue(caller(who), new.kind, new.priority, new.payload, **more, **alike),
            self._enqueued,
        )

    def _enqueued(self, reply: Any, expected: tuple[ModelJob, bool, bool]) -> None:
        job, created, replayed = expected
        assert reply.created is created
        assert reply.replayed is replayed
        same(reply.job, job)

    # Handing out.

    @rule(
        who=workers,
        max=st.integers(1, 4),
        lease_seconds=lengths,
        only_queues=rarely([("default",), ("mail",), ("late", "mail")]),
        only_kinds=rarely([("plain",), ("capped", "mail"), ("fragile", "picky")]),
        key=rarely(["l1"]),
    )
    def lease(
        self, who: Principal, max: int, lease_seconds: float | None, only_queues: Any, only_kinds: Any, key: str | None
    ) -> None:
        self.do(
            CLAIM,
            lambda: self.jobs.lease(
                who,
                max=max,
                lease_seconds=lease_seconds,
                queues=only_queues,
                kinds=only_kinds,
                idempotency_key=key,
            ),
            lambda: self.model.lease(
                caller(who),
                max,
                lease_ms=_ms(lease_seconds) if lease_seconds else None,
                queues=only_queues,
                kinds=only_kinds,
                idempotency_key=key,
            ),
            lambda reply, expected: self._leased(who, reply, expected),
        )

    @precondition(lambda self: self.model.claimable(caller(ME), None, None))
    @rule(who=workers, max=st.integers(1, 6), lease_seconds=lengths)
    def lease_whatever_there_is(self, who: Principal, max: int, lease_seconds: float | None) -> None:
        self.lease(who, max, lease_seconds, None, None, None)

    @precondition(lambda self: self.model.claimable(caller(ME), None, None))
    @rule(who=workers)
    def lease_one(self, who: Principal) -> None:
        self.lease(who, 1, None, None, None, None)

    def _leased(self, who: Principal, leases: list[Leased], expected: list[ModelJob]) -> None:
        ids = [lease.job.id for lease in leases]
        assert ids == [job.id for job in expected], f"handed out {ids}, not {[job.id for job in expected]}"
        for lease, job in zip(leases, expected, strict=True):
            same(lease.job, job)
            assert lease.payload == f'{{"p":{job.payload}}}'
            told = [(question.text, question.answer) for question in lease.answers or ()]
            assert told == self.model.questions.get(job.id, []), told
            self._lists_its_children(lease, job)
            note(f"  job {job.id}, epoch {job.epoch}, to {who.agent}")
            self.lease_ids[LeaseOf(job.id, job.epoch)] = lease.lease_id
            self.holders[LeaseOf(job.id, job.epoch)] = who

    def _lists_its_children(self, lease: Any, job: ModelJob) -> None:
        if not job.joined:
            assert lease.children is None
            return
        children = [other.id for other in self.model.jobs.values() if other.parent == job.id]
        assert [child.job.id for child in lease.children] == children

    @precondition(lambda self: self.model.running())
    @rule(who=st.sampled_from(INSTANCES), lease_seconds=lengths)
    def resume(self, who: Principal, lease_seconds: float | None) -> None:
        self.alone(
            lambda: self.jobs.resume(who, lease_seconds=lease_seconds),
            lambda: self.model.resume(caller(who), _ms(lease_seconds) if lease_seconds else None),
            lambda reply, expected: self._leased(who, sorted(reply, key=lambda lease: lease.job.id), expected),
        )

    # What holders say. Mostly of leases that live; sometimes of any that was ever given, by anybody.

    @precondition(lambda self: self.lease_ids)
    @rule(pick=picks, stale=seldom, lease_seconds=lengths, progress=st.booleans())
    def heartbeat(self, pick: int, stale: bool, lease_seconds: float | None, progress: bool) -> None:
        lease, who = self._lease(pick, stale)
        self.do(
            CHANGE,
            lambda: self.jobs.heartbeat(
                who,
                self.lease_ids[lease],
                lease_seconds=lease_seconds,
                progress=progress,
                percent=50 if progress else None,
            ),
            lambda: self.model.beat(
                caller(who), lease, _ms(lease_seconds) if lease_seconds else None, progress=progress
            ),
            lambda reply, expected: same(reply.job, expected),
        )

    @precondition(lambda self: self.lease_ids)
    @rule(pick=picks, stale=seldom, say=says, twice=seldom)
    def end_a_lease(self, pick: int, stale: bool, say: Say, twice: bool) -> None:
        lease, who = self._lease(pick, stale)
        self._finish(who, lease, *say)
        if twice:
            self._finish(who, lease, *say)

    @precondition(lambda self: self.lease_ids)
    @rule(pick=picks, say=says)
    def end_another_lease(self, pick: int, say: Say) -> None:
        self.end_a_lease(pick, False, say, False)

    @precondition(lambda self: any(job.cancelling for job in self.model.running()))
    @rule(pick=picks, say=says, obey=st.booleans())
    def end_a_lease_that_is_asked_to_stop(self, pick: int, say: Say, obey: bool) -> None:
        lease, who = self._lease(pick, False, among=lambda job: job.cancelling)
        self._finish(who, lease, *(Say("cancelled", {}) if obey else say))

    @precondition(lambda self: self._lost_leases())
    @rule(pick=picks, fits=mostly)
    def complete_too_late(self, pick: int, fits: bool) -> None:
        leases = self._lost_leases()
        lease = leases[pick % len(leases)]
        self._finish(self.holders[lease], lease, "complete", {"fits": fits})

    def _lost_leases(self) -> list[LeaseOf]:
        """Leases that were taken from their holders, or have run out."""
        holds = self.model.holds
        return [
            lease
            for lease, attempt in self.model.attempts.items()
            if attempt.verb is None and not holds(lease, attempt.holder)
        ]

    @precondition(lambda self: any(attempt.verb for attempt in self.model.attempts.values()))
    @rule(pick=picks, say=st.one_of(st.none(), says))
    def repeat_a_finish(self, pick: int, say: Say | None) -> None:
        """Word for word, or by another verb or with another body."""
        ended = [lease for lease, attempt in self.model.attempts.items() if attempt.verb]
        lease = ended[pick % len(ended)]
        attempt = self.model.attempts[lease]
        verb, body = say or (attempt.verb or "", attempt.body)
        self._finish(self.holders[lease], lease, verb, body)

    def _finish(self, who: Principal, lease: LeaseOf, verb: str, body: dict[str, Any]) -> None:
        note(f"  {verb} of job {lease.job}, epoch {lease.epoch}, by {who.agent}")
        lease_id = self.lease_ids[lease]
        self.do(
            CHANGE,
            lambda: self.jobs.finish(who, _op(self.jobs, who, lease_id, verb, body)),
            lambda: self.model.finish(caller(who), lease, verb, **body),
            self._finished,
        )

    def _finished(self, reply: Job, expected: ModelJob) -> None:
        """A repeat is told what the finish decided; the rest of the row may have moved on."""
        for name in ("id", "state", "attempts", "epoch", "deferrals", "reason"):
            if name == "reason" and expected.state == "queued":
                continue
            if name == "deferrals" and expected.deferrals == 0:
                continue
            assert getattr(reply, name) == getattr(expected, name), name

    # What others say.

    @precondition(lambda self: self.model.jobs)
    @rule(who=people, pick=picks)
    def cancel(self, who: Principal, pick: int) -> None:
        job_id = self._job(pick)

        def check(reply: Any, expected: tuple[ModelJob, bool]) -> None:
            assert reply.changed is expected[1]
            same(reply.job, expected[0])

        self.do(
            CHANGE,
            lambda: self.jobs.cancel(who, job_id),
            lambda: self.model.cancel(caller(who), job_id),
            check,
        )

    @precondition(lambda self: self.model.running())
    @rule(pick=picks)
    def ask_a_running_job_to_stop(self, pick: int) -> None:
        running = self.model.running()
        self.cancel(ME, running[pick % len(running)].id - 1)

    @precondition(lambda self: self.model.jobs)
    @rule(who=people, pick=picks, queue=rarely(QUEUES))
    def requeue(self, who: Principal, pick: int, queue: str | None) -> None:
        job_id = self._job(pick)
        self.do(
            REQUEUE,
            lambda: self.jobs.requeue(who, job_id, queue),
            lambda: self.model.requeue(caller(who), job_id, queue),
            same,
        )

    @precondition(lambda self: self.model.jobs)
    @rule(who=people, pick=picks, priority=st.sampled_from([10, 50, 100]))
    def edit(self, who: Principal, pick: int, priority: int) -> None:
        job_id = self._job(pick)
        self.do(
            CHANGE,
            lambda: self.jobs.edit(who, job_id, priority=priority),
            lambda: self.model.edit(caller(who), job_id, priority),
            same,
        )

    @precondition(lambda self: self.model.jobs)
    @rule(
        who=people,
        states=st.sampled_from([("failed",), ("cancelled",), ("queued",), ("failed", "cancelled")]),
        queue=rarely(QUEUES),
    )
    def requeue_all(self, who: Principal, states: tuple[str, ...], queue: str | None) -> None:
        def check(reply: Any, expected: tuple[int, int, int]) -> None:
            assert (reply.matched, reply.done, reply.skipped, reply.remaining) == (*expected, 0)

        self.alone(
            lambda: self.jobs.requeue_all(who, JobFilter(states=states), queue=queue),
            lambda: self.model.requeue_all(caller(who), states, queue),
            check,
        )

    @precondition(lambda self: any(self.model.questions.values()))
    @rule(who=people, pick=picks)
    def answer(self, who: Principal, pick: int) -> None:
        asking = [job.id for job in self.model.jobs.values() if job.question is not None]
        job_id = asking[pick % len(asking)] if asking else self._job(pick)
        self.alone(
            lambda: self.jobs.answer(who, job_id, "because"),
            lambda: self.model.answer(caller(who), job_id, "because"),
            same,
        )

    @precondition(lambda self: any(attempt.late for attempt in self.model.attempts.values()))
    @rule(who=people, pick=picks)
    def adopt(self, who: Principal, pick: int) -> None:
        leases = [lease for lease, attempt in self.model.attempts.items() if attempt.late or pick > 45]
        lease = leases[pick % len(leases)]
        self.alone(
            lambda: self.jobs.adopt(who, lease.job, lease.epoch),
            lambda: self.model.adopt(caller(who), lease),
            same,
        )

    @rule(queue=queues, agent=st.sampled_from([None, "worker", "worker/a", "other"]), again=seldom)
    def pause_a_queue_or_drain_an_agent(self, queue: str, agent: str | None, again: bool) -> None:
        """And the other way round; or the same again, which changes nothing."""
        if agent is None:
            paused = (queue in self.model.paused) == again
            self.alone(
                lambda: self.jobs.set_paused(ME, queue, paused),
                lambda: self.model.pause(queue, paused),
                lambda reply, _: _equal(reply.paused, paused),
            )
        else:
            draining = (agent in self.model.drained) == again
            self.alone(
                lambda: self.jobs.drain(ME, agent, draining),
                lambda: self.model.drain(agent, draining),
                _equal,
            )

    # What time and machines do.

    @rule(seconds=st.sampled_from([0, 0.25, 5, 5, 10, 10, 30, 30, 61, 61, 301, 4000]), duties=st.booleans())
    def time_passes(self, seconds: float, duties: bool) -> None:
        """With the duties of the second at its end, or before anybody did them."""
        self.flush()
        self.clock.advance(seconds)
        self.model.advance(_ms(seconds))
        if duties:
            self.alone(self.core.maintenance.tick, self.model.sweep, lambda *_: None)

    @rule(seconds=st.sampled_from([1, 5, 61]))
    def some_time_passes(self, seconds: float) -> None:
        self.time_passes(seconds, True)

    @rule(jump=st.sampled_from([0, 1.5, 3600, -3600, 90_000]), served=st.booleans(), steady=st.booleans())
    def the_clock_jumps_or_the_process_restarts(self, jump: float, served: bool, steady: bool) -> None:
        """Restarts where there is no jump: as a server, whose start gives running leases a grace, or as a process that only uses the
        database. A `steady` one writes every second, and so notices when it stood still."""
        self.flush()
        if jump:
            self.clock.jump(jump)
            self.model.jump(_ms(jump))
            return
        if (
            self.url is not None
        ):  # the row of a process that ended without a word says that it lives, for so does its number
            self.database.execute("delete from processes")
        self.database.close()
        self.run(self.core.close())
        self._open()
        if served:
            self.run(self._serve())
        self.core.store.steady = steady
        self.model.restart(served=served, steady=steady)

    async def _serve(self) -> None:
        await self.core.maintenance.start()
        await self.core.maintenance.stop()

    # What is compared.

    @invariant()
    def the_service_agrees_with_the_model(self) -> None:
        if self.group:
            return
        self.sound = False
        columns = ", ".join(Job._fields)
        rows = [Job._make(row) for row in self.database.execute(f"select {columns} from jobs order by id").fetchall()]
        assert [row.id for row in rows] == list(self.model.jobs)
        for row, job in zip(rows, self.model.jobs.values(), strict=True):
            same(row, job)
        outcomes = {
            LeaseOf(*row[:2]): row[2:]
            for row in self.database.execute(
                "select a.job_id, a.epoch, attempt, holder, agent, outcome, l.body is not null from ("
                "select job_id, epoch, attempt, holder, agent, outcome from attempts union all "
                "select id, epoch, attempts, holder, agent, null from jobs where state = 'running') a "
                "left join late_results l on l.job_id = a.job_id and l.epoch = a.epoch"
            )
        }
        for lease, attempt in self.model.attempts.items():
            said = (attempt.number, attempt.holder, attempt.agent, attempt.outcome, attempt.late)
            assert outcomes[lease] == said, f"attempt {lease}: {outcomes[lease]} is not {said}"
        invariants.check(self.database, RULES.caps)
        if self.url is not None and rows:
            # Ids that were drawn for jobs that came to nothing are lost there; the model has none to lose.
            self.database.execute(f"select setval('job_ids', {rows[-1].id})")
        self.sound = True

    def _what_is_read_through_the_service_agrees(self) -> None:
        for job_id, job in self.model.jobs.items():
            same(self.run(self.jobs.get(ME, job_id)), job)

    def _job(self, pick: int) -> int:
        """A job's id."""
        ids = list(self.model.jobs)
        return ids[pick % len(ids)]

    def _lease(
        self, pick: int, stale: bool, among: Callable[[ModelJob], bool] = lambda job: True
    ) -> tuple[LeaseOf, Principal]:
        """A living lease and its holder. Where `stale`, or where none lives of the jobs `among` which to pick: any lease, by its holder
        or by anybody."""
        holds = self.model.holds
        live = [
            lease
            for lease, who in self.holders.items()
            if holds(lease, who.holder) and among(self.model.jobs[lease.job])
        ]
        if live and not stale:
            lease = live[pick % len(live)]
            return lease, self.holders[lease]
        leases = list(self.lease_ids)
        lease = leases[pick % len(leases)]
        return lease, OTHER if pick % 4 == 3 else self.holders[lease]


def _op(jobs: Any, who: Principal, lease_id: str, verb: str, body: dict[str, Any]) -> Any:
    """The service's word for what a holder says."""
    seconds = body.get("delay", 0) / 1000
    if verb == "complete":
        return jobs.complete_op(who, lease_id, {"n": 1} if body["fits"] else {"n": "one"})
    if verb == "fail":
        return jobs.fail_op(who, lease_id, "boom", permanent=body["permanent"], retry_after=seconds)
    if verb == "defer":
        return jobs.defer_op(who, lease_id, seconds)
    if verb == "release":
        return jobs.release_op(who, lease_id, after_children=body["after_children"])
    if verb == "ask":
        return jobs.ask_op(who, lease_id, body["text"], timeout_seconds=seconds)
    return jobs.cancelled_op(who, lease_id)


async def _all(calls: list[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """What each call answers; they are made at once, so that the store gets one group."""
    return await asyncio.gather(*(_answered(call) for call in calls))


async def _answered(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except OakenError as refusal:
        return Refusal(refusal.code)


def caller(who: Principal) -> Caller:
    return Caller(who.holder, who.agent, who.workspace)


SAME = {
    "workspace": "workspace",
    "kind": "kind",
    "queue": "queue",
    "priority": "priority",
    "state": "state",
    "run_at": "run_at",
    "attempts": "attempts",
    "max_attempts": "max_attempts",
    "epoch": "epoch",
    "lost": "lost",
    "deferrals": "deferrals",
    "coalesced": "coalesced",
    "invalid_results": "misfits",
    "cancelling": "cancelling",
    "reason": "reason",
    "agent": "agent",
    "holder": "holder",
    "lease_expires": "lease_expires",
    "lease_ms": "lease_ms",
    "serial_key": "serial_key",
    "expires_at": "expires_at",
    "cancel_deadline": "cancel_deadline",
    "question": "question",
    "joined": "joined",
}
"""Columns of a job, and what the model calls them."""


def same(row: Job, job: ModelJob) -> None:
    """The row says what the model says."""
    differing = {
        column: (getattr(row, column), getattr(job, name))
        for column, name in SAME.items()
        # When a job that has ended might have run means nothing; in a group it may have ended before that was settled.
        if getattr(row, column) != getattr(job, name) and not (column == "run_at" and row.final)
    }
    assert not differing, f"job {job.id}, (service, model): {differing}"


def _equal(reply: Any, expected: Any) -> None:
    assert reply == expected


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _tried(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        print_blob=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )


def test_the_service_does_what_the_model_says() -> None:
    run_state_machine_as_test(Machine, settings=_tried(EXAMPLES))


def test_on_postgresql_too(oaken_database: str) -> None:
    class OnPostgres(Machine):
        url = oaken_database

    run_state_machine_as_test(OnPostgres, settings=_tried(max(1, EXAMPLES // SLOWER)))

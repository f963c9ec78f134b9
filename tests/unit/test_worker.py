"""The worker loop against a transport in memory and a clock moved by hand. Nothing here sleeps."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from oaken_jobs import spool
from oaken_jobs.clock import FakeClock
from oaken_jobs.errors import (
    Forbidden,
    InvalidRequest,
    LeaseLost,
    OakenError,
    RateLimited,
    ResultInvalid,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from oaken_jobs.handlers import AfterChildren, Ask, Deferred, Handlers, JobContext, PermanentJobError
from oaken_jobs.requests import MAX_SECONDS
from oaken_jobs.spool import LAST_WORDS, LATE_SECONDS
from oaken_jobs.transport import Ask as Asking
from oaken_jobs.transport import Beat, Cancelled, Complete, Defer, Done, Ending, Fail, Release, WorkItem
from oaken_jobs.worker import Worker

LEASE = 60.0
NOTHING = "AfterChildren: all its children are final already, and it has added none"


class Store:
    """A job store in memory that is also the transport to it: leases run out by the clock, endings are fenced."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.waiting: list[WorkItem] = []
        self.live: dict[str, float] = {}
        """Lease id to when it runs out."""
        self.endings: list[Ending] = []
        self.late: list[Ending] = []
        """Refused, the lease being lost."""
        self.batches: list[int] = []
        self.beats: list[str] = []
        self.reports: list[tuple[str, float | None, str | None]] = []
        self.traced: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self.added: list[dict[str, Any]] = []
        self.fail_enqueue: list[Exception] = []
        self.cancelling: set[str] = set()
        self.fail_lease: list[Exception] = []
        self.fail_beat: list[Exception] = []
        self.fail_finish: list[Exception] = []
        self.refuse: dict[str, OakenError] = {}
        self.refuse_any: dict[str, OakenError] = {}
        """Of leases, the answer to the first ending, whatever it is."""
        self.hang_beats = False
        self.closed = 0
        self.most_live = 0
        self.callbacks: list[Callable[[int], None]] = []
        self._arrived = asyncio.Event()
        self._ids = 0

    def add(self, kind: str = "echo", **fields: Any) -> str:
        self._ids += 1
        lease_id = f"{self._ids}-1-x"
        fields = {"lease_seconds": LEASE, "payload": {"n": self._ids}, **fields}
        self.waiting.append(WorkItem(lease_id=lease_id, job_id=self._ids, kind=kind, **fields))
        self._arrived.set()
        return lease_id

    def of(self, lease_id: str) -> list[Ending]:
        return [ending for ending in self.endings if ending.lease_id == lease_id]

    def _fence(self, lease_id: str) -> None:
        if self.live.get(lease_id, -1) <= self.clock.monotonic():
            raise LeaseLost("not current")

    async def lease(
        self,
        *,
        queues: Sequence[str] | None,
        kinds: Sequence[str],
        max: int,
        lease_seconds: float | None,
        wait_seconds: float,
    ) -> list[WorkItem]:
        self.asked.append({"queues": queues, "kinds": list(kinds), "max": max, "wait": wait_seconds})
        if self.fail_lease:
            raise self.fail_lease.pop(0)
        until = self.clock.monotonic() + wait_seconds
        while True:
            taken = [item for item in self.waiting if item.kind in kinds][:max]
            if taken or self.clock.monotonic() >= until:
                break
            self._arrived.clear()
            timer = self.clock.call_later(until - self.clock.monotonic(), self._arrived.set)
            await self._arrived.wait()
            timer.cancel()
        for item in taken:
            self.waiting.remove(item)
            self.live[item.lease_id] = self.clock.monotonic() + item.lease_seconds
        self.most_live = builtin_max(self.most_live, len(self.live))
        return taken

    async def heartbeat(self, lease_id: str) -> Beat:
        if self.hang_beats:
            await asyncio.Event().wait()
        if self.fail_beat:
            raise self.fail_beat.pop(0)
        self._fence(lease_id)
        self.beats.append(lease_id)
        self.live[lease_id] = self.clock.monotonic() + LEASE
        return Beat(lease_id in self.cancelling)

    async def trace(self, lease_id: str, row: dict[str, Any]) -> Beat:
        self.traced.append((lease_id, row))
        return await self.heartbeat(lease_id)

    async def progress(self, lease_id: str, percent: float | None, message: str | None) -> Beat:
        if percent is not None and percent > 100:
            raise InvalidRequest("percent is over 100")
        self._fence(lease_id)
        self.reports.append((lease_id, percent, message))
        self.live[lease_id] = self.clock.monotonic() + LEASE
        return Beat(lease_id in self.cancelling)

    async def finish(self, endings: Sequence[Ending]) -> list[OakenError | None]:
        if self.fail_finish:
            raise self.fail_finish.pop(0)
        self.batches.append(len(endings))
        return [self._finish(ending) for ending in endings]

    def _finish(self, ending: Ending) -> OakenError | None:
        if isinstance(ending, Complete) and ending.lease_id in self.refuse:
            return self.refuse.pop(ending.lease_id)
        if ending.lease_id in self.refuse_any:
            return self.refuse_any.pop(ending.lease_id)
        try:
            self._fence(ending.lease_id)
        except LeaseLost as error:
            self.late.append(ending)
            return error
        self.endings.append(ending)
        del self.live[ending.lease_id]
        return None

    async def enqueue(self, kind: str, payload: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        self.added.append({"kind": kind, "payload": payload, **fields})
        if self.fail_enqueue:
            raise self.fail_enqueue.pop(0)
        return {"job": {"id": 100 + len(self.added)}, "created": True}

    def on_cancel(self, callback: Callable[[int], None]) -> None:
        self.callbacks.append(callback)

    async def aclose(self) -> None:
        self.closed += 1


builtin_max = max


class House:
    """A store, a clock, handlers, and the workers made from them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Store(self.clock)
        self.handlers = Handlers()
        self.workers: list[Worker] = []

    def worker(self, **options: Any) -> Worker:
        worker = Worker(self.store, self.handlers, clock=self.clock, rng=random.Random(7), **options)
        self.workers.append(worker)
        return worker

    async def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Moves the clock in steps, letting everything that a step woke run to where it waits again."""
        left = seconds
        while left > 0:
            await self.settle()
            self.clock.advance(min(step, left))
            left -= step
        await self.settle()

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    for worker in house.workers:
        stop = asyncio.create_task(worker.stop())
        while not stop.done():
            await house.pass_time(10)
        await stop


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0)


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 5)


# How handlers end


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ({"a": 1}, Complete("1-1-x", Done({"a": 1}))),
        (None, Complete("1-1-x", Done({}))),
        (Done({"a": 1}, cost_usd=0.5), Complete("1-1-x", Done({"a": 1}, cost_usd=0.5))),
        (ValueError("no good"), Fail("1-1-x", "ValueError: no good")),
        (ValueError(), Fail("1-1-x", "ValueError")),
        (PermanentJobError("never"), Fail("1-1-x", "PermanentJobError: never", permanent=True)),
        (Deferred(12), Defer("1-1-x", 12)),
        (AfterChildren(), Release("1-1-x", after_children=True)),
        (Ask("Which?"), Asking("1-1-x", "Which?")),
        (Ask("Which?", 60), Asking("1-1-x", "Which?", 60.0)),
        (Ask("half \ud800", 10 * MAX_SECONDS), Asking("1-1-x", "half \ufffd", float(MAX_SECONDS))),
        (asyncio.CancelledError(), Fail("1-1-x", "CancelledError")),
        (SystemExit(3), Fail("1-1-x", "RuntimeError: the handler called exit(3)")),
        (7, Fail("1-1-x", "TypeError: a handler returns a dict, None or Done, not int", permanent=True)),
    ],
)
@pytest.mark.parametrize("form", ["coroutine", "function"])
async def test_how_a_handler_ends_says_how_the_job_ends(
    house: House, outcome: Any, expected: Ending, form: str
) -> None:
    def work(job: JobContext) -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def work_async(job: JobContext) -> Any:
        return work(job)

    house.handlers.handler("echo")(work_async if form == "coroutine" else work)
    lease_id = house.store.add()
    assert await soon(house.worker().drain()) == 1
    assert house.store.of(lease_id) == [expected]


async def test_an_exception_may_ask_for_a_longer_wait(house: House) -> None:
    class Busy(Exception):
        retry_after = 90

    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        raise Busy("later")

    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [Fail(lease_id, "Busy: later", retry_after=90.0)]


def raising(**fields: Any) -> Exception:
    error = ValueError("later")
    vars(error).update(fields)
    return error


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def retry_after(self) -> float:
        raise RuntimeError("no number")


class Bare(Deferred):
    def __init__(self) -> None:
        pass


SECRET = "hunter2"
UNFIT: list[Any] = [
    {"a": float("nan")},
    {"a": [float("inf")]},
    {"a": "\ud800"},
    {"\udfff": 1},
    {"a": 2**80},
    {1: "a"},
    {"a": object()},
    {"a": b"x"},
    {"a": {SECRET}},
    Done([1]),  # type: ignore[arg-type]
    Done(usage={"a": SECRET}),
    Done(usage={"a": 2**80}),
    Done(usage={"a": float("nan")}),
    Done(usage={"a": -1}),
    Done(usage={"a": None}),
    Done(usage=[SECRET]),  # type: ignore[arg-type]
    Done(cost_usd=SECRET),  # type: ignore[arg-type]
    Done(cost_usd=float("nan")),
    Done(cost_usd=float("inf")),
    Done(cost_usd=-5),
    Done(produced_by="\ud800"),
    Done(produced_by=SECRET * 200),
    Done(produced_by=5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("outcome", UNFIT, ids=range(len(UNFIT)))
async def test_an_outcome_that_no_store_can_keep_fails_the_job_and_quotes_nothing(house: House, outcome: Any) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> Any:
        return outcome

    lease_id = house.store.add()
    await soon(house.worker().drain())
    (ending,) = house.store.of(lease_id)
    assert isinstance(ending, Fail)
    assert ending.permanent
    assert "cannot be" in ending.error or "must be a JSON object" in ending.error
    assert SECRET not in ending.error
    ending.error.encode()


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Unreadable(), Fail("1-1-x", "Unreadable: (its text cannot be read: RuntimeError)")),
        (ValueError("a\ud800b\x1b"), Fail("1-1-x", "ValueError: a\ufffdb ")),
        (raising(retry_after=float("inf")), Fail("1-1-x", "ValueError: later", retry_after=MAX_SECONDS)),
        (raising(retry_after=1e12), Fail("1-1-x", "ValueError: later", retry_after=MAX_SECONDS)),
        (raising(retry_after=10**400), Fail("1-1-x", "ValueError: later", retry_after=MAX_SECONDS)),
        (raising(retry_after=float("nan")), Fail("1-1-x", "ValueError: later")),
        (raising(retry_after=-5), Fail("1-1-x", "ValueError: later", retry_after=0.0)),
        (raising(retry_after="x"), Fail("1-1-x", "ValueError: later")),
        (Deferred(float("inf")), Defer("1-1-x", MAX_SECONDS)),
        (Deferred(1e9), Defer("1-1-x", MAX_SECONDS)),
        (Deferred(-1), Defer("1-1-x", 0)),
        (Deferred(float("nan")), Defer("1-1-x", 0)),
        (Bare(), Defer("1-1-x", 0)),
    ],
)
async def test_what_an_exception_says_is_made_to_fit(house: House, outcome: Exception, expected: Ending) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> Any:
        raise outcome

    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [expected]


@pytest.mark.parametrize("outcome", [ValueError("odd"), PermanentJobError("odd"), Deferred(5), {"a": 1}])
async def test_an_ending_that_is_refused_for_what_it_says_becomes_a_failure(house: House, outcome: Any) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    lease_id = house.store.add()
    house.store.refuse_any[lease_id] = InvalidRequest("no")
    await soon(house.worker().drain())
    (ending,) = house.store.of(lease_id)
    assert isinstance(ending, Fail)
    assert ending.permanent
    assert "odd" not in ending.error


async def test_a_result_too_large_is_said_in_bytes(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> Any:
        return {"a": 1}

    lease_id = house.store.add()
    house.store.refuse[lease_id] = TooLarge("big", limit=5, actual=7)
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [Fail(lease_id, "result is 7 bytes, over the limit of 5", permanent=True)]


# What is logged


async def test_what_a_handler_raises_is_logged_with_its_traceback(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> Any:
        raise [ValueError("boom"), PermanentJobError("never"), Deferred(1)][job.id - 1]

    for _ in range(3):
        house.store.add()
    await soon(house.worker().drain())
    boom, never = caplog.records
    assert boom.name == "oaken.worker"
    assert boom.levelname == "WARNING"
    assert boom.getMessage() == "job 1 (echo) failed: ValueError: boom"
    assert boom.exc_info is not None
    assert never.getMessage() == "job 2 (echo) fails for good: PermanentJobError: never"
    assert not never.exc_info


async def test_an_error_of_a_whole_batch_has_one_traceback(house: House, caplog: pytest.LogCaptureFixture) -> None:
    @house.handlers.batch_handler("echo", max=3)
    async def _(jobs: list[JobContext]) -> Any:
        raise ValueError("boom")

    for _ in range(3):
        house.store.add()
    await soon(house.worker().drain())
    assert [record.getMessage() for record in caplog.records] == [
        f"job {n} (echo) failed: ValueError: boom" for n in (1, 2, 3)
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]


async def test_a_plain_function_that_raises_stop_iteration_fails(house: House) -> None:
    @house.handlers.handler("echo")
    def _(job: JobContext) -> None:
        raise StopIteration

    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [Fail(lease_id, "RuntimeError: the handler raised StopIteration")]


async def test_the_job_is_shown_to_the_handler(house: House) -> None:
    seen: list[JobContext] = []

    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        seen.append(job)

    house.store.add(subject="note:1", attempt=2, epoch=3, parent_id=9, instructions="be kind", queue="side")
    await soon(house.worker().drain())
    job = seen[0]
    assert (job.id, job.kind, job.payload, job.subject, job.attempt) == (1, "echo", {"n": 1}, "note:1", 2)
    assert (job.epoch, job.parent_id, job.instructions, job.queue) == (3, 9, "be kind", "side")
    assert (job.lease_id, job.cancelling) == ("1-1-x", False)


@pytest.mark.parametrize("wrong", [("",), (" ",), ("x" * 20_001,), ("Which?", 0), ("Which?", -1)])
def test_a_question_that_cannot_be_asked_is_refused_where_it_is_made(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="a question"):
        Ask(*wrong)


async def test_a_question_of_a_class_of_the_handlers_own_needs_a_text(house: House) -> None:
    class Odd(Ask):
        def __init__(self) -> None: ...

    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        raise Odd

    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [Fail(lease_id, "TypeError: Odd asks without a text", permanent=True)]


async def test_a_handler_sees_its_children_and_answers_or_none_where_it_never_waited(house: House) -> None:
    seen: list[Any] = []

    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        seen.append((job.children, job.answers))

    house.store.add()
    house.store.add(children=[{"id": 7}], answers=[{"text": "Which?", "answer": "That."}])
    await soon(house.worker().drain())
    assert sorted(seen, key=str) == [(None, None), ([{"id": 7}], [{"text": "Which?", "answer": "That."}])]


@pytest.mark.parametrize(
    ("children", "adds", "expected"),
    [
        (None, False, Release("1-1-x", after_children=True)),
        ([{"id": 7, "state": "failed"}, {"id": 8, "state": "running"}], False, Release("1-1-x", after_children=True)),
        ([{"id": 7, "state": "failed"}], True, Release("1-1-x", after_children=True)),
        ([{"id": 7, "state": "failed"}], False, Fail("1-1-x", NOTHING)),
        ([], False, Fail("1-1-x", NOTHING)),
    ],
)
async def test_a_job_does_not_wait_over_and_over_for_children_that_are_final(
    house: House, children: Any, adds: bool, expected: Ending
) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        if adds:
            await job.enqueue("part")
        raise AfterChildren

    lease_id = house.store.add(children=children)
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [expected]


async def test_children_are_added_to_the_job_under_keys_of_their_own_and_tried_again(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> dict[str, Any]:
        told = [await job.enqueue("part", {"n": 1}, title="T", parent_id=99), await job.enqueue("part")]
        return {"ids": [one["job"]["id"] for one in told]}

    lease_id = house.store.add()
    house.store.fail_enqueue = [Unavailable("gone"), Unavailable("gone")]
    worker = house.worker()
    await worker.start()
    await house.pass_time(10)
    first, again, third, second = house.store.added
    assert first == again == third
    assert (first["parent_id"], first["payload"], first["title"]) == (1, {"n": 1}, "T")
    assert (second["parent_id"], second["payload"]) == (1, {})
    assert first["idempotency_key"] != second["idempotency_key"]
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"ids": [103, 104]}))]


async def test_a_child_that_is_refused_is_told_to_the_handler_and_a_key_of_its_own_counts(house: House) -> None:
    caught: list[Exception] = []

    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        try:
            await job.enqueue("a b", idempotency_key="mine")
        except InvalidRequest as error:
            caught.append(error)

    house.store.add()
    house.store.fail_enqueue = [InvalidRequest("kind: must match")]
    await soon(house.worker().drain())
    assert len(caught) == 1
    assert [one["idempotency_key"] for one in house.store.added] == ["mine"]


async def test_a_job_that_is_no_longer_ours_gets_no_children(house: House) -> None:
    told: list[Exception] = []

    @house.handlers.batch_handler("echo", max=2, linger=0)
    async def _(jobs: list[JobContext]) -> list[Any]:
        house.store.live[jobs[0].lease_id] = 0
        await until(lambda: jobs[0]._lease.lost)
        try:
            await jobs[0].enqueue("part")
        except LeaseLost as error:
            told.append(error)
        return [None, None]

    house.store.add()
    house.store.add()
    await house.worker().start()
    await house.pass_time(LEASE)
    await until(lambda: bool(told))
    assert house.store.added == []


async def test_kinds_without_a_handler_are_not_asked_for_and_released_if_they_come(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None: ...

    other = house.store.add("other")
    worker = house.worker()
    assert await soon(worker.drain()) == 0
    assert all(ask["kinds"] == ["echo"] for ask in house.store.asked)

    async def careless(**_: Any) -> list[WorkItem]:
        taken, house.store.waiting = house.store.waiting, []
        house.store.live.update({item.lease_id: LEASE for item in taken})
        return taken

    house.store.lease = careless  # type: ignore[method-assign]
    await soon(worker.drain())
    assert house.store.of(other) == [Release(other)]


async def test_the_last_handler_of_a_kind_counts(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> dict[str, Any]:
        return {"by": "first"}

    @house.handlers.batch_handler("echo")
    async def _(jobs: list[JobContext]) -> list[Any]:
        return [{"by": "second"} for _ in jobs]

    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"by": "second"}))]


async def test_a_worker_without_handlers_says_so(house: House) -> None:
    with pytest.raises(ValueError, match="no handlers"):
        await house.worker().run()


# Beats and lost leases


class Gate:
    """A handler that says when it began, waits to be let through, and remembers being cancelled."""

    def __init__(self, house: House, kind: str = "echo", concurrency: int = 1) -> None:
        self.began = asyncio.Event()
        self.through = asyncio.Event()
        self.cancelled = 0
        self.running = 0
        self.most = 0
        self.jobs: list[JobContext] = []
        house.handlers.handler(kind, concurrency)(self.work)

    async def work(self, job: JobContext) -> dict[str, Any]:
        self.jobs.append(job)
        self.running += 1
        self.most = max(self.most, self.running)
        self.began.set()
        try:
            await self.through.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return {"ok": True}


async def test_a_job_of_three_leases_length_finishes(house: House) -> None:
    gate = Gate(house)
    lease_id = house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    await house.pass_time(3 * LEASE)
    assert 8 <= len(house.store.beats) <= 9
    gate.through.set()
    await until(lambda: bool(house.store.endings))
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"ok": True}))]


async def test_no_beat_after_the_end(house: House) -> None:
    gate = Gate(house)
    house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    gate.through.set()
    await until(lambda: bool(house.store.endings))
    await house.pass_time(2 * LEASE)
    assert house.store.beats == []


async def test_a_lease_refused_at_a_beat_cancels_the_handler_and_writes_nothing(house: House) -> None:
    gate = Gate(house)
    lease_id = house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    del house.store.live[lease_id]
    await house.pass_time(LEASE / 3)
    assert gate.cancelled == 1
    assert house.store.batches == []
    # The worker goes on.
    gate.began.clear()
    gate.through.set()
    after = house.store.add()
    await until(lambda: bool(house.store.of(after)))


async def test_beats_that_fail_are_tried_again_within_the_lease(house: House) -> None:
    gate = Gate(house)
    lease_id = house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    house.store.fail_beat = [Unavailable("down"), RuntimeError("odd"), Unavailable("down")]
    await house.pass_time(2 * LEASE)
    assert not house.store.fail_beat
    gate.through.set()
    await until(lambda: bool(house.store.of(lease_id)))
    assert gate.cancelled == 0


@pytest.mark.parametrize("how", ["refused", "hanging"])
async def test_a_store_out_of_reach_for_a_lease_means_the_lease_is_lost(house: House, how: str) -> None:
    gate = Gate(house)
    house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    house.store.fail_beat = [Unavailable("down")] * 1000 if how == "refused" else []
    house.store.hang_beats = how == "hanging"
    await house.pass_time(LEASE - 1)
    assert gate.cancelled == 0
    await house.pass_time(1)
    assert gate.cancelled == 1
    assert house.store.batches == []


async def test_one_beat_that_hangs_does_not_cost_the_lease(house: House) -> None:
    gate = Gate(house)
    lease_id = house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    house.store.hang_beats = True
    await house.pass_time(LEASE / 3)
    house.store.hang_beats = False
    await house.pass_time(2 * LEASE)
    assert gate.cancelled == 0
    gate.through.set()
    await until(lambda: bool(house.store.of(lease_id)))


async def test_a_handler_that_swallows_a_lost_lease_still_writes_nothing(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> dict[str, Any]:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
        return {"late": True}

    began, ended = asyncio.Event(), asyncio.Event()
    lease_id = house.store.add()
    await house.worker().start()
    await soon(began.wait())
    del house.store.live[lease_id]
    await house.pass_time(LEASE / 3)
    assert ended.is_set()
    assert house.store.batches == []


async def test_a_handler_that_blocks_the_loop_past_its_lease_is_refused_and_the_worker_goes_on(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> dict[str, Any]:
        if job.id == 1:
            # Time passes and no timer of the loop gets a turn: what blocking does.
            vars(house.clock)["_mono"] += 2 * LEASE
        return {}

    first, second = house.store.add(), house.store.add()
    assert await soon(house.worker().drain()) == 2
    assert house.store.of(first) == []
    assert house.store.of(second) == [Complete(second, Done({}))]
    assert "job 1 was not finished: LeaseLost" in caplog.text


# Progress


async def test_progress_is_reported_and_counts_as_a_beat(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        await job.progress(40, "12 of 30")
        began.set()
        await through.wait()

    began, through = asyncio.Event(), asyncio.Event()
    lease_id = house.store.add()
    await house.worker().start()
    await soon(began.wait())
    assert house.store.reports == [(lease_id, 40, "12 of 30")]
    through.set()


async def test_progress_out_of_bounds_is_told_and_one_that_cannot_get_through_is_dropped(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> dict[str, Any]:
        with pytest.raises(InvalidRequest):
            await job.progress(101)
        house.store.progress = down  # type: ignore[method-assign]
        await job.progress(50)
        return {"went": "on"}

    async def down(*_: Any) -> Beat:
        raise Unavailable("down")

    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"went": "on"}))]


async def test_progress_without_a_lease_ends_the_handler_there(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        house.store.live.clear()
        await job.progress(50)
        reached.append(job.id)

    reached: list[int] = []
    house.store.add()
    await soon(house.worker().drain())
    assert reached == []
    assert house.store.batches == []


async def test_a_row_for_the_trace_beats_is_dropped_where_it_cannot_get_through_and_ends_a_handler_without_a_lease(
    house: House,
) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        await job.trace(model="m-1", output="said")
        house.store.fail_beat = [Unavailable("down")]
        await job.trace(output="dropped")
        reached.append("on")
        house.store.live.clear()
        await job.trace(output="nobody's")
        reached.append("too far")

    reached: list[str] = []
    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.traced[0] == (lease_id, {"model": "m-1", "output": "said"})
    assert house.store.beats == [lease_id]
    assert reached == ["on"]


async def test_a_plain_function_reports_from_its_thread(house: House) -> None:
    @house.handlers.handler("echo")
    def _(job: JobContext) -> dict[str, Any]:
        job.report(10, "in a thread")
        return {"thread": threading.current_thread() is not threading.main_thread()}

    lease_id = house.store.add()
    await soon(house.worker().drain())
    assert house.store.reports == [(lease_id, 10, "in a thread")]
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"thread": True}))]


async def test_a_plain_function_may_do_from_its_thread_what_others_await(house: House) -> None:
    @house.handlers.handler("echo")
    def _(job: JobContext) -> dict[str, Any]:
        return job.run(job.enqueue("child", {"n": 1}))

    house.store.add()
    await soon(house.worker().drain())
    assert [(one["kind"], one["payload"]) for one in house.store.added] == [("child", {"n": 1})]


async def test_a_plain_function_is_told_that_its_lease_is_lost(house: House) -> None:
    @house.handlers.handler("echo")
    def _(job: JobContext) -> None:
        house.store.live.clear()
        try:
            job.report(10)
        except LeaseLost:
            told.append(job.id)
            raise

    told: list[int] = []
    house.store.add()
    await soon(house.worker().drain())
    assert told == [1]
    assert house.store.batches == []


# Cancelling


@pytest.mark.parametrize("news", ["beat", "at once"])
async def test_cancel_ends_the_handler_and_the_job(house: House, news: str) -> None:
    gate = Gate(house)
    lease_id = house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    house.store.cancelling.add(lease_id)
    if news == "beat":
        await house.pass_time(LEASE / 3)
    else:
        house.store.callbacks[-1](1)
    await until(lambda: bool(house.store.endings))
    assert gate.cancelled == 1
    assert gate.jobs[0].cancelling
    assert house.store.of(lease_id) == [Cancelled(lease_id)]


async def test_a_result_stands_although_the_job_was_asked_to_stop(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> dict[str, Any]:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return {"asked": job.cancelling}

    began = asyncio.Event()
    lease_id = house.store.add()
    await house.worker().start()
    await soon(began.wait())
    house.store.callbacks[-1](1)
    await until(lambda: bool(house.store.endings))
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"asked": True}))]


async def test_a_plain_function_keeps_its_place_until_it_has_seen_the_cancellation(house: House) -> None:
    @house.handlers.handler("echo")
    def _(job: JobContext) -> dict[str, Any]:
        began.set()
        assert through.wait(5)
        return {"cancelling": job.cancelling}

    began, through = threading.Event(), threading.Event()
    lease_id, after = house.store.add(), house.store.add()
    await house.worker().start()
    await until(began.is_set)
    house.store.callbacks[-1](1)
    await house.settle()
    assert house.store.endings == []
    assert [item.lease_id for item in house.store.waiting] == [after]
    through.set()
    await until(lambda: len(house.store.endings) == 2)
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"cancelling": True}))]


# Room


async def test_concurrency_is_never_exceeded(house: House) -> None:
    wide, narrow = Gate(house, "wide", 3), Gate(house, "narrow", 1)
    for _ in range(6):
        house.store.add("wide")
        house.store.add("narrow")
    await house.worker().start()
    await until(lambda: wide.running == 3 and narrow.running == 1)
    await house.settle()
    assert len(house.store.live) == 4
    wide.through.set()
    narrow.through.set()
    await until(lambda: len(house.store.endings) == 12)
    assert (wide.most, narrow.most) == (3, 1)
    assert house.store.most_live <= 4


async def test_with_slots_all_kinds_share_the_room(house: House) -> None:
    one, two = Gate(house, "one"), Gate(house, "two")
    for _ in range(4):
        house.store.add("one")
        house.store.add("two")
    await house.worker(slots=2, queues=["default"]).start()
    await until(lambda: one.running + two.running == 2)
    await house.settle()
    assert house.store.asked[0] == {"queues": ["default"], "kinds": ["one", "two"], "max": 2, "wait": 20.0}
    assert len(house.store.live) == 2
    one.through.set()
    two.through.set()
    await until(lambda: len(house.store.endings) == 8)
    assert house.store.most_live == 2


async def test_a_free_place_is_asked_for_while_others_are_busy(house: House) -> None:
    gate = Gate(house, concurrency=2)
    house.store.add()
    await house.worker().start()
    await until(lambda: gate.running == 1)
    house.store.add()
    await until(lambda: gate.running == 2)
    assert [ask["max"] for ask in house.store.asked][:2] == [2, 1]


# Batches


async def test_a_batch_waits_a_little_for_more_and_ends_each_job_on_its_own(house: House) -> None:
    @house.handlers.batch_handler("embed", max=6, linger=2.0)
    async def _(jobs: list[JobContext]) -> list[Any]:
        sizes.append(len(jobs))
        return [{"n": 1}, None, ValueError("bad"), PermanentJobError("never"), Deferred(5)]

    sizes: list[int] = []
    ids = [house.store.add("embed"), house.store.add("embed")]
    await house.worker().start()
    await house.pass_time(1, step=0.5)
    ids += [house.store.add("embed") for _ in range(3)]
    await house.settle()
    assert sizes == []
    await house.pass_time(1, step=0.5)
    assert sizes == [5]
    assert house.store.batches == [5]
    assert house.store.endings == [
        Complete(ids[0], Done({"n": 1})),
        Complete(ids[1], Done()),
        Fail(ids[2], "ValueError: bad"),
        Fail(ids[3], "PermanentJobError: never", permanent=True),
        Defer(ids[4], 5),
    ]


async def test_a_full_batch_does_not_wait_and_the_next_one_is_another_call(house: House) -> None:
    @house.handlers.batch_handler("embed", max=3, linger=1000)
    async def _(jobs: list[JobContext]) -> list[Any]:
        sizes.append(len(jobs))
        return [None] * len(jobs)

    sizes: list[int] = []
    ids = [house.store.add("embed") for _ in range(6)]
    await house.worker().start()
    await until(lambda: sizes == [3, 3] and len(house.store.endings) == len(ids))


@pytest.mark.parametrize("returned", [[None], {"not": "a list"}, None])
async def test_outcomes_that_do_not_match_the_jobs_fail_them_all(house: House, returned: Any) -> None:
    @house.handlers.batch_handler("embed")
    async def _(jobs: list[JobContext]) -> Any:
        return returned

    ids = [house.store.add("embed") for _ in range(2)]
    await soon(house.worker().drain())
    assert [type(ending) for lease_id in ids for ending in house.store.of(lease_id)] == [Fail, Fail]


async def test_a_batch_handler_that_raises_fails_them_all(house: House) -> None:
    @house.handlers.batch_handler("embed")
    def _(jobs: list[JobContext]) -> list[Any]:
        raise ValueError("all of them")

    ids = [house.store.add("embed") for _ in range(2)]
    await soon(house.worker().drain())
    assert house.store.endings == [Fail(lease_id, "ValueError: all of them") for lease_id in ids]


async def test_one_job_of_a_batch_is_cancelled_or_lost_and_the_others_finish(house: House) -> None:
    @house.handlers.batch_handler("embed", max=3)
    async def _(jobs: list[JobContext]) -> list[Any]:
        began.set()
        await through.wait()
        return [asyncio.CancelledError() if job.cancelling else {"id": job.id} for job in jobs]

    began, through = asyncio.Event(), asyncio.Event()
    ids = [house.store.add("embed") for _ in range(3)]
    await house.worker().start()
    await soon(began.wait())
    house.store.callbacks[-1](1)
    del house.store.live[ids[1]]
    await house.pass_time(LEASE / 3)
    assert house.store.endings == []
    through.set()
    await until(lambda: len(house.store.endings) == 2)
    assert house.store.endings == [Cancelled(ids[0]), Complete(ids[2], Done({"id": 3}))]


async def test_a_batch_that_nobody_wants_any_more_is_cancelled(house: House) -> None:
    @house.handlers.batch_handler("embed", max=2)
    async def _(jobs: list[JobContext]) -> list[Any]:
        began.set()
        await asyncio.Event().wait()
        return []

    began = asyncio.Event()
    ids = [house.store.add("embed") for _ in range(2)]
    await house.worker().start()
    await soon(began.wait())
    house.store.callbacks[-1](1)
    await house.settle()
    assert house.store.endings == []
    house.store.callbacks[-1](2)
    await until(lambda: len(house.store.endings) == 2)
    assert house.store.endings == [Cancelled(lease_id) for lease_id in ids]


async def test_with_slots_a_batch_takes_one_place(house: House) -> None:
    @house.handlers.batch_handler("embed", max=4)
    async def _(jobs: list[JobContext]) -> list[Any]:
        sizes.append(len(jobs))
        return [None] * len(jobs)

    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None: ...

    sizes: list[int] = []
    ids = [house.store.add("embed") for _ in range(4)]
    assert await soon(house.worker(slots=1).drain()) == 4
    assert sizes == [4]
    assert house.store.endings == [Complete(lease_id, Done()) for lease_id in ids]


# Finishing


async def test_finishing_is_tried_again_while_the_lease_is_live(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    house.store.fail_finish = [Unavailable("down"), RuntimeError("odd"), Unavailable("down")]
    lease_id = house.store.add()
    await house.worker().start()
    await soon(gate.began.wait())
    await house.pass_time(20)
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"ok": True}))]


async def test_a_failure_is_given_up_when_the_lease_has_run_out(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        raise ValueError("no good")

    house.store.fail_finish = [Unavailable("down")] * 1000
    lease_id = house.store.add()
    worker = house.worker()
    await worker.start()
    await house.pass_time(LEASE + 10)
    left = len(house.store.fail_finish)
    await house.pass_time(LEASE)
    assert len(house.store.fail_finish) == left
    assert house.store.of(lease_id) == []
    house.store.fail_finish = []
    after = house.store.add()
    await until(lambda: bool(house.store.of(after)))


async def test_a_result_is_offered_long_after_its_lease_and_then_given_up(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    house.store.fail_finish = [Unavailable("down")] * 10_000
    lease_id = house.store.add()
    await house.worker().start()
    await house.pass_time(3 * LEASE)
    house.store.fail_finish = []
    await house.pass_time(10)
    assert house.store.late == [Complete(lease_id, Done({"ok": True}))]

    house.store.fail_finish = [Unavailable("down")] * 10_000
    house.store.add()
    await house.pass_time(LATE_SECONDS + LEASE + 10, step=10)
    left = len(house.store.fail_finish)
    await house.pass_time(LEASE)
    assert len(house.store.fail_finish) == left


async def test_an_ending_that_waits_for_the_store_holds_up_no_new_work(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    down = True
    finish = house.store.finish

    async def refusing(endings: Sequence[Ending]) -> list[OakenError | None]:
        if down:
            raise Unavailable("down")
        return await finish(endings)

    house.store.finish = refusing  # type: ignore[method-assign]
    ids = [house.store.add() for _ in range(3)]
    worker = house.worker()
    await worker.start()
    await house.pass_time(1)
    assert (house.store.waiting, worker.holds) == ([], 0)
    down = False
    await house.pass_time(5)
    assert sorted(ending.lease_id for ending in house.store.endings) == ids
    assert house.store.batches == [3]


async def test_what_is_kept_is_said_as_soon_as_the_store_answers_a_lease_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "PAUSE_CAP", 10_000.0)
    gate = Gate(house)
    gate.through.set()
    lease_id = house.store.add(lease_seconds=3600)
    house.store.fail_finish = [Unavailable("down")] * 9
    await house.worker().start()
    await house.settle()
    house.store.fail_lease = [Unavailable("down")] * 9
    while house.store.fail_finish:
        await house.pass_time(10)
    house.store.fail_lease = []
    asked = len(house.store.asked)
    while len(house.store.asked) == asked:
        assert house.store.of(lease_id) == []
        await house.pass_time(1)
    await house.pass_time(20)  # of the poll, which is the first answer
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"ok": True}))]


async def test_a_store_that_asks_for_patience_gets_it_for_endings_too(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    lease_id = house.store.add(lease_seconds=3600)
    house.store.fail_finish = [RateLimited("slow", retry_after=100)]
    await house.worker().start()
    await house.pass_time(99)
    assert house.store.of(lease_id) == []
    await house.pass_time(2)
    assert house.store.of(lease_id) == [Complete(lease_id, Done({"ok": True}))]


async def test_one_ending_that_is_never_taken_holds_up_no_other(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    ids = [house.store.add(lease_seconds=3600) for _ in range(3)]
    taken = house.store._finish  # pyright: ignore[reportPrivateUsage]

    def refusing(ending: Ending) -> OakenError | None:
        return Unavailable("odd") if ending.lease_id == ids[0] else taken(ending)

    house.store._finish = refusing  # type: ignore[method-assign]
    house.store.fail_finish = [Unavailable("down")] * 3
    await house.worker().start()
    await house.pass_time(30)
    assert [ending.lease_id for ending in house.store.endings] == ids[1:]


@pytest.mark.parametrize(("bound", "value"), [("MOST_KEPT", 2), ("MOST_BYTES", 25)])
async def test_what_is_kept_is_bounded(
    house: House, bound: str, value: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool, bound, value)
    gate = Gate(house)
    gate.through.set()
    ids = [house.store.add(lease_seconds=3600) for _ in range(3)]
    house.store.fail_finish = [Unavailable("down")] * 3
    await house.worker().start()
    await house.pass_time(30)
    assert [ending.lease_id for ending in house.store.endings] == ids[:2]
    assert "too many others" in caplog.text


async def test_a_stop_says_what_is_kept_and_waits_a_few_seconds_for_a_store_that_is_gone(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    house.store.fail_finish = [Unavailable("gone")] * 1000
    first = house.store.add(lease_seconds=3600)
    worker = house.worker(grace=30)
    await worker.start()
    await house.pass_time(60)
    stop = asyncio.create_task(worker.stop())
    await house.pass_time(LAST_WORDS - 1)
    assert not stop.done()
    await house.pass_time(2)
    await soon(stop)

    house.store.fail_finish = []
    await worker.start()
    await house.settle()
    assert house.store.of(first) == []
    house.store.fail_finish = [Unavailable("gone")] * 2
    second = house.store.add(lease_seconds=3600)
    await house.settle()
    stop = asyncio.create_task(worker.stop())
    await house.pass_time(3)
    await soon(stop)
    assert house.store.of(second) == [Complete(second, Done({"ok": True}))]


async def test_a_result_that_does_not_fit_fails_the_job_for_good_without_its_values(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    lease_id = house.store.add()
    house.store.refuse[lease_id] = ResultInvalid(
        "'secret' is not a number",
        errors=[{"path": "/vector/3", "rule": "type", "message": "'secret' is not a number"}],
        tries_left=2,
    )
    await soon(house.worker().drain())
    assert house.store.of(lease_id) == [Fail(lease_id, "result does not fit: /vector/3 breaks type", permanent=True)]


async def test_a_result_whose_refusal_ended_the_job_is_left_at_that(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    lease_id = house.store.add()
    house.store.refuse[lease_id] = ResultInvalid("the job has ended", tries_left=0)
    await soon(house.worker().drain())
    assert house.store.endings == []
    assert house.store.batches == [1]


# Leasing troubles


async def test_leasing_that_fails_is_tried_again_ever_more_slowly(house: House) -> None:
    gate = Gate(house)
    gate.through.set()
    house.store.fail_lease = [Unavailable("down") for _ in range(9)]
    lease_id = house.store.add()
    await house.worker().start()
    await house.pass_time(3)
    assert 2 <= len(house.store.asked) <= 6
    await house.pass_time(200)
    assert house.store.of(lease_id)


async def test_a_store_that_answers_empty_at_once_is_not_asked_in_a_tight_loop(house: House) -> None:
    async def hasty(**_: Any) -> list[WorkItem]:
        calls.append(house.clock.monotonic())
        return []

    calls: list[float] = []
    Gate(house)
    house.store.lease = hasty  # type: ignore[method-assign]
    await house.worker().start()
    await house.pass_time(20, step=0.25)
    assert 5 <= len(calls) <= 30


async def test_a_lease_call_that_never_returns_is_given_up_and_made_again(house: House) -> None:
    async def stalled(**_: Any) -> list[WorkItem]:
        calls.append(house.clock.monotonic())
        await asyncio.Event().wait()
        return []

    calls: list[float] = []
    Gate(house)
    house.store.lease = stalled  # type: ignore[method-assign]
    await house.worker(wait_seconds=20).start()
    await house.pass_time(52)
    assert len(calls) == 2


async def test_a_worker_that_is_told_to_wait_does(house: House) -> None:
    gate = Gate(house)
    house.store.fail_lease = [RateLimited("too often", retry_after=30)]
    house.store.add()
    await house.worker().start()
    await house.pass_time(29)
    assert not gate.began.is_set()
    await house.pass_time(2)
    await soon(gate.began.wait())


@pytest.mark.parametrize("error", [Unauthenticated("revoked"), Forbidden("not your kind"), InvalidRequest("no such")])
async def test_a_worker_that_is_refused_for_good_ends_with_the_error(house: House, error: OakenError) -> None:
    Gate(house)
    house.store.fail_lease = [error]
    worker = house.worker()
    with pytest.raises(type(error)) as raised:
        await soon(worker.run())
    assert raised.value is error
    assert worker.state == "stopped"


# Stopping


async def test_stop_waits_for_running_handlers_and_beats_on(house: House) -> None:
    gate = Gate(house)
    first, second = house.store.add(), house.store.add()
    worker = house.worker(grace=30)
    await worker.start()
    await soon(gate.began.wait())
    stop = asyncio.create_task(worker.stop())
    await house.pass_time(25)
    assert worker.state == "stopping"
    assert house.store.beats == [first]
    gate.through.set()
    await soon(stop)
    assert worker.state == "stopped"
    assert house.store.endings == [Complete(first, Done({"ok": True}))]
    assert [item.lease_id for item in house.store.waiting] == [second]


async def test_after_the_grace_handlers_are_cancelled_and_their_jobs_released(house: House) -> None:
    gate = Gate(house, concurrency=2)
    ids = [house.store.add(), house.store.add()]
    worker = house.worker(grace=30)
    await worker.start()
    await until(lambda: gate.running == 2)
    stop = asyncio.create_task(worker.stop())
    await house.pass_time(29)
    assert house.store.endings == []
    await house.pass_time(2)
    await soon(stop)
    assert sorted(house.store.endings, key=lambda ending: ending.lease_id) == [Release(ids[0]), Release(ids[1])]
    assert gate.cancelled == 2
    assert house.store.closed == 1


async def test_a_handler_that_breaks_when_cancelled_at_a_stop_is_released_all_the_same(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("broken off") from None

    began = asyncio.Event()
    lease_id = house.store.add()
    worker = house.worker(grace=0)
    await worker.start()
    await soon(began.wait())
    await soon(worker.stop())
    assert house.store.of(lease_id) == [Release(lease_id)]


async def test_a_handler_that_swallows_its_cancellation_keeps_the_stop_pending(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        began.set()
        while not through.is_set():
            try:
                await through.wait()
            except asyncio.CancelledError:
                continue

    began, through = asyncio.Event(), asyncio.Event()
    lease_id = house.store.add()
    worker = house.worker(grace=1)
    await worker.start()
    await soon(began.wait())
    stop = asyncio.create_task(worker.stop())
    await house.pass_time(3 * LEASE)
    assert not stop.done()
    assert house.store.live, "it is still beaten for"
    through.set()
    await soon(stop)
    assert house.store.of(lease_id) == [Complete(lease_id, Done())]


async def test_leases_that_arrive_while_stopping_are_released(house: House) -> None:
    async def late(**_: Any) -> list[WorkItem]:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        house.store.live["1-1-x"] = LEASE
        return [WorkItem("1-1-x", LEASE, 1, "echo", {})]

    asked = asyncio.Event()
    gate = Gate(house)
    house.store.lease = late  # type: ignore[method-assign]
    worker = house.worker()
    await worker.start()
    await soon(asked.wait())
    await soon(worker.stop())
    assert house.store.endings == [Release("1-1-x")]
    assert gate.jobs == []


async def test_leases_that_arrived_in_the_moment_of_the_stop_are_released(house: House) -> None:
    async def instant(**_: Any) -> list[WorkItem]:
        await answer.wait()
        house.store.live["1-1-x"] = LEASE
        return [WorkItem("1-1-x", LEASE, 1, "echo", {})]

    answer = asyncio.Event()
    gate = Gate(house)
    house.store.lease = instant  # type: ignore[method-assign]
    worker = house.worker(grace=0)
    await worker.start()
    await house.settle()
    answer.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await soon(worker.stop())
    assert house.store.live == {}
    assert all(isinstance(ending, Release) for ending in house.store.endings)
    assert gate.running == 0


async def test_a_stop_does_not_wait_for_a_server_that_is_gone(house: House) -> None:
    gate = Gate(house)
    house.store.add(lease_seconds=3600)
    worker = house.worker(grace=10)
    await worker.start()
    await soon(gate.began.wait())
    house.store.fail_finish = [Unavailable("gone")] * 1000
    stop = asyncio.create_task(worker.stop())
    await house.pass_time(20)
    await soon(stop)


async def test_start_and_stop_are_idempotent_also_concurrently(house: House) -> None:
    gate = Gate(house)
    worker = house.worker(grace=5)
    assert worker.state == "stopped"
    await worker.stop()
    await asyncio.gather(worker.start(), worker.start())
    house.store.add()
    await soon(gate.began.wait())
    assert len(house.store.callbacks) == 1
    stops = [asyncio.create_task(worker.stop()) for _ in range(3)]
    await house.settle()
    assert worker.state == "stopping"
    again = asyncio.create_task(worker.start())
    stops[0].cancel()
    await house.settle()
    assert stops[0].cancelled()
    assert not stops[1].done(), "the stop goes on without the caller that went away"
    gate.through.set()
    await soon(asyncio.gather(*stops[1:], again))
    assert worker.state == "running"
    assert house.store.closed == 1
    lease_id = house.store.add()
    await until(lambda: bool(house.store.of(lease_id)))


async def test_cancelling_run_in_mid_await_still_ends_the_lease(house: House) -> None:
    gate = Gate(house)
    lease_id = house.store.add()
    worker = house.worker(grace=0)
    running = asyncio.create_task(worker.run())
    await soon(gate.began.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    assert house.store.of(lease_id) == [Release(lease_id)]
    assert worker.state == "stopped"


def test_a_loop_that_is_torn_down_still_ends_the_lease() -> None:
    async def main() -> House:
        house = House()
        gate = Gate(house)
        house.store.add()
        await house.worker().start()
        await soon(gate.began.wait())
        return house

    # `asyncio.run` cancels every task that is left, in no particular order.
    house = asyncio.run(main())
    assert house.store.endings == [Release("1-1-x")]


def test_a_loop_that_is_torn_down_in_the_midst_of_a_finish_still_ends_the_lease() -> None:
    async def main() -> House:
        house = House()
        Gate(house).through.set()
        finish = house.store.finish

        async def cut_short(endings: Sequence[Ending]) -> list[OakenError | None]:
            house.store.finish = finish  # type: ignore[method-assign]
            sending.set()
            await asyncio.Event().wait()
            return []

        sending = asyncio.Event()
        house.store.finish = cut_short  # type: ignore[method-assign]
        house.store.add()
        await house.worker().start()
        await soon(sending.wait())
        return house

    assert asyncio.run(main()).store.endings == [Complete("1-1-x", Done({"ok": True}))]


async def test_stop_from_within_a_handler(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        await worker.stop()

    lease_id = house.store.add()
    worker = house.worker(grace=0)
    await soon(worker.run())
    assert house.store.of(lease_id) == [Release(lease_id)]


# Draining


async def test_drain_also_does_what_the_jobs_it_did_have_left_behind(house: House) -> None:
    @house.handlers.handler("echo")
    async def _(job: JobContext) -> None:
        if job.id < 5:
            house.store.add()

    house.store.add()
    worker = house.worker()
    assert await soon(worker.drain()) == 5
    assert worker.state == "stopped"
    assert await soon(worker.drain()) == 0


async def test_drain_needs_a_stopped_worker(house: House) -> None:
    Gate(house)
    worker = house.worker()
    await worker.start()
    with pytest.raises(RuntimeError, match="running"):
        await worker.drain()

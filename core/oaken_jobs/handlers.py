"""Handlers: which function does which kind of job, what it is given, and what it may raise."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from oaken_jobs.errors import LeaseLost
from oaken_jobs.held import HeldLease
from oaken_jobs.model import Json
from oaken_jobs.redaction import clean
from oaken_jobs.requests import MAX_QUESTION, MAX_SECONDS
from oaken_jobs.transport import WorkItem

log = logging.getLogger("oaken.worker")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def bounded(seconds: object) -> float | None:
    """Seconds as a store takes them, 0 to `MAX_SECONDS`; None for what is no number."""
    if not isinstance(seconds, (int, float)) or seconds != seconds:
        return None
    return float(min(max(seconds, 0), MAX_SECONDS))


class JobError(Exception):
    """Raised by a handler: the attempt failed, and the text says all there is to say; the log has no traceback."""


class PermanentJobError(Exception):
    """Raised by a handler: trying again would not help. The job fails at once, whatever attempts it has left."""


class Deferred(Exception):
    """Raised by a handler: not now. The job goes back to its queue for `seconds` (a year at most), and the attempt is
    not counted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"deferred for {seconds} s")
        self.seconds = bounded(seconds) or 0.0


class AfterChildren(Exception):
    """Raised by a handler that has enqueued children: the job waits until all of them are final, the attempt not counted.
    Its next lease lists them with their results, as `job.children`. Raised again with nothing new to wait for, the attempt fails.
    """

    def __init__(self) -> None:
        super().__init__("waits for its children")


class Ask(Exception):
    """Raised by a handler: a question to whoever enqueued the job. The job waits for the answer, at most `timeout_seconds` (unless
    given, as the server says), the attempt not counted. Its next lease carries question and answer, as `job.answers`.

    Raises ValueError for a text that is empty or over 4,000 characters, and for a time that is not more than 0.
    """

    def __init__(self, text: str, timeout_seconds: float | None = None) -> None:
        super().__init__("asks a question")
        self.text = clean(text)
        self.timeout_seconds = bounded(timeout_seconds)
        if not self.text.strip() or len(self.text) > MAX_QUESTION:
            raise ValueError(f"a question has 1 to {MAX_QUESTION} characters; this one has {len(self.text.strip())}")
        if self.timeout_seconds == 0:
            raise ValueError(f"a question waits more than 0 seconds for its answer; this one {timeout_seconds}")


class JobContext:
    """The job that a handler is working on.

    `children` is None unless the job has waited for its children, then a list of them with their results; `answers` is None unless
    it has asked, then a list of `{"text", "answer", …}`, oldest first; `answer` is None where none came in time. `traceparent` is the
    W3C's, of the trace that the job belongs to; None where it was enqueued in none.
    """

    def __init__(self, item: WorkItem, lease: HeldLease) -> None:
        self.id = item.job_id
        self.kind = item.kind
        self.payload = item.payload
        self.queue = item.queue
        self.subject = item.subject
        self.attempt = item.attempt
        self.epoch = item.epoch
        self.parent_id = item.parent_id
        self.traceparent = item.traceparent
        self.instructions = item.instructions
        self.children = item.children
        self.answers = item.answers
        self.lease_id = item.lease_id
        self._lease = lease
        self._loop = asyncio.get_running_loop()

    @property
    def cancelling(self) -> bool:
        """Whether the job was asked to stop, as far as this worker knows."""
        return self._lease.cancelling

    async def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Reports how far the job is. Percent is 0 to 100.

        A report that does not get through is dropped. Raises `InvalidRequest` for a percentage out of bounds. If the
        job is no longer ours the handler is cancelled here, a batch only when none of its jobs is wanted any more.
        """
        await self._lease.report(percent, message)

    async def trace(self, **row: Any) -> None:
        """Adds a row to the trace, where one is kept: what a model or a tool was told (`input`) and answered (`output`), any JSON, with
        `operation`, `provider`, `model`, `tool`, `usage`, `cost_usd`, `started_at`, `ended_at` (ISO times).

        A row that does not get through is dropped. Raises `InvalidRequest` and `TooLarge` for one that cannot be kept. If the job is
        no longer ours the handler is cancelled here, as by `progress`.
        """
        await self._lease.trace(row)

    async def enqueue(self, kind: str, payload: Json | None = None, **fields: Any) -> Json:
        """Adds a child of this job: `{"job", "created", "warning"?}`. `fields` are those of `POST /jobs`.

        Tried again while the lease stands. A later attempt of this job runs its handler from the start: an `idempotency_key` or
        a `dedupe_key` of your own keeps it from adding the same child again. Raises what the store refuses.
        """
        return await self._lease.enqueue(kind, {} if payload is None else payload, fields)

    def report(self, percent: float | None = None, message: str | None = None) -> None:
        """`progress` for handlers that are plain functions: `job.run(job.progress(percent, message))`."""
        self.run(self.progress(percent, message))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """For handlers that are plain functions: blocks until one of the calls above is through: `job.run(job.enqueue("embed", …))`.

        Raises `LeaseLost` if the job is no longer ours, since a thread cannot be cancelled.
        """
        answer = asyncio.run_coroutine_threadsafe(call, self._loop).result()
        if self._lease.lost:
            raise LeaseLost(f"job {self.id} is no longer this worker's")
        return answer


@dataclass(frozen=True, slots=True)
class Handler:
    kind: str
    function: Callable[[Any], Any]
    concurrency: int = 1
    batch: int | None = None
    linger: float = 0.0

    async def call(self, jobs: list[JobContext]) -> Any:
        argument = jobs if self.batch is not None else jobs[0]
        if not inspect.iscoroutinefunction(self.function):
            return await self._in_thread(argument)
        try:
            return await self.function(argument)
        except SystemExit as error:
            # Meant for a program of the handler's own; here it would end the worker with all its jobs.
            raise RuntimeError(f"the handler called exit({error.code})") from error

    async def _in_thread(self, argument: Any) -> Any:
        def call() -> Any:
            try:
                return self.function(argument)
            except SystemExit as error:
                raise RuntimeError(f"the handler called exit({error.code})") from error
            except StopIteration as error:
                raise RuntimeError("the handler raised StopIteration") from error  # no future can carry that

        thread = asyncio.ensure_future(asyncio.to_thread(call))
        while not thread.done():
            # A thread cannot be stopped. It keeps its place and its lease until it returns, having looked at
            # `job.cancelling` or not.
            try:
                await asyncio.wait({thread})
            except asyncio.CancelledError:
                continue
        return thread.result()


class Handlers:
    """Which function does which kind of job. The last one registered for a kind counts."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Handler] = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds that have a handler."""
        return list(self._by_kind)

    def handler(self, kind: str, concurrency: int = 1) -> Callable[[F], F]:
        """Registers `async def f(job) -> dict | None | Done`, at most `concurrency` of it at once.

        A plain function runs in a thread.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency of the handler for {kind!r} is {concurrency}; it must be at least 1")

        def register(function: F) -> F:
            self._add(Handler(kind, function, concurrency))
            return function

        return register

    def batch_handler(self, kind: str, max: int = 64, linger: float = 0.05) -> Callable[[F], F]:
        """Registers `async def f(jobs) -> list`: for each job, in order, a dict, None, `Done` or an exception.

        One batch at a time of up to `max` jobs. A batch that is not full waits up to `linger` seconds for more.
        Cancelling one job sets its `cancelling`; the call is cancelled when no job of the batch is wanted any more.
        """
        if max < 1 or linger < 0:
            raise ValueError(f"the batch handler for {kind!r} has max={max}, linger={linger}; they start at 1 and 0")

        def register(function: F) -> F:
            self._add(Handler(kind, function, batch=max, linger=linger))
            return function

        return register

    def take(self, others: Handlers) -> None:
        """Registers all that another registry has."""
        for handler in others._by_kind.values():
            self._add(handler)

    def _add(self, handler: Handler) -> None:
        if handler.kind in self._by_kind:
            log.warning("the handler for %s is replaced by another", handler.kind)
        self._by_kind[handler.kind] = handler

    @property
    def summary(self) -> str:
        """The kinds and their room, for people: `embed (16 a batch), summarise (2 at once)`."""
        return ", ".join(
            f"{h.kind} ({h.batch} a batch)" if h.batch is not None else f"{h.kind} ({h.concurrency} at once)"
            for h in self._by_kind.values()
        )

    def lanes(self, slots: int | None) -> list[Lane]:
        """How the worker shares out its room: a lane for each kind, or with `slots` one lane for them all."""
        if slots is not None:
            return [Lane(dict(self._by_kind), slots)]
        return [Lane({h.kind: h}, h.concurrency) for h in self._by_kind.values()]


class Lane:
    """Kinds that share room. One lease call is under way at a time, so held and asked for never exceed the room."""

    def __init__(self, handlers: dict[str, Handler], room: int) -> None:
        self.handlers = handlers
        self.room = room
        self.running = 0
        self.freed = asyncio.Event()

    @property
    def ask(self) -> int:
        """How many jobs to ask for now. A batch takes one place however many jobs it has."""
        free = self.room - self.running
        if free and len(self.handlers) == 1:
            return next(iter(self.handlers.values())).batch or free
        return free

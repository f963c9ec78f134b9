"""The worker: leases jobs, runs handlers, beats while they run, and finishes. Knows no HTTP and no store.

Everything it says to a job store goes through a `Transport`, so that handlers inside the server and agents on other
machines run by the same rules:

- a handler that returns completes its job; one that raises fails it; `PermanentJobError` fails it for good; `Deferred`
  puts it back for a time
- asked to cancel: the handler is cancelled and the job ends cancelled, unless the handler returned a
  result all the same
- the worker stops: handlers get `grace` seconds, are then cancelled, and their jobs released unharmed
- the lease is lost: the handler is cancelled, and nothing is written
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, cast

from oaken_jobs.clock import Clock, SystemClock, Timer
from oaken_jobs.errors import (
    BadJson,
    Forbidden,
    InvalidRequest,
    LeaseLost,
    NotFound,
    OakenError,
    RateLimited,
    ResultInvalid,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from oaken_jobs.model import Effect, Json

__all__ = [
    "Beat",
    "Cancelled",
    "Complete",
    "Defer",
    "Deferred",
    "Done",
    "Ending",
    "Fail",
    "Handlers",
    "JobContext",
    "PermanentJobError",
    "Release",
    "Transport",
    "WorkItem",
    "Worker",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

CALL_SECONDS = 30.0
"""How long a lease call may take beyond its long poll before it counts as stalled."""
BACKOFF_CAP = 30.0
LAST_WORDS = 5.0
"""How long after the grace a stopping worker still tries to hand its jobs back to a server that does not answer."""
ERROR_CHARS = 2000

_NOT_HELD = (LeaseLost, NotFound, Unauthenticated, Forbidden)
_HOPELESS = (Unauthenticated, Forbidden, InvalidRequest)
"""A lease request refused like this will be refused for ever; the worker ends with the error."""
_UNFIT = (ResultInvalid, BadJson, InvalidRequest, TooLarge)


class PermanentJobError(Exception):
    """Raised by a handler: trying again would not help. The job fails at once, whatever attempts it has left."""


class Deferred(Exception):
    """Raised by a handler: not now. The job goes back to its queue for `seconds`, and the attempt is not counted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"deferred for {seconds} s")
        self.seconds = max(0.0, seconds)


@dataclass(frozen=True, slots=True)
class Done:
    """What a handler returns that has more to say than a result.

    `effects` are written in the transaction of the finish; only handlers inside the server can have any. `usage` and
    `cost_usd` are what the attempt spent (None: unknown), `produced_by` the model that made the result.
    """

    result: Json = field(default_factory=dict[str, Any])
    effects: tuple[Effect, ...] = ()
    usage: Json | None = None
    cost_usd: float | None = None
    produced_by: str | None = None


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A leased job as a transport hands it over. `lease_seconds` is how long the lease lasts from now unless beaten."""

    lease_id: str
    lease_seconds: float
    job_id: int
    kind: str
    payload: Json
    queue: str = "default"
    subject: str | None = None
    attempt: int = 1
    epoch: int = 1
    parent_id: int | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat. `lease_seconds`: how long it lasts from when the call was sent; None: as before."""

    cancelling: bool = False
    lease_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    """The job succeeded."""

    lease_id: str
    done: Done


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed. `retry_after`: wait at least so many seconds before the next."""

    lease_id: str
    error: str
    permanent: bool = False
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """Back to the queue for `seconds`, the attempt not counted."""

    lease_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Release:
    """Back to the queue unharmed, the attempt not counted."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was asked to stop, and did."""

    lease_id: str


Ending = Complete | Fail | Defer | Release | Cancelled


class Transport(Protocol):
    """The way to one job store, for one worker and bound to one agent.

    Refusals are raised as `OakenError`s; a store that cannot be reached, or whose answer is lost, as `Unavailable`.
    Repeating a heartbeat or an ending must be safe. Any call may be cancelled; a cancelled lease call gives back what
    it took, or returns it all the same.
    """

    async def lease(
        self,
        *,
        queues: Sequence[str] | None,
        kinds: Sequence[str],
        max: int,
        lease_seconds: float | None,
        wait_seconds: float,
    ) -> list[WorkItem]:
        """Up to `max` jobs of these kinds, waiting up to `wait_seconds` for the first; empty when none came."""
        ...

    async def heartbeat(self, lease_id: str) -> Beat:
        """Extends the lease from now. Raises `LeaseLost`."""
        ...

    async def progress(self, lease_id: str, percent: float | None, message: str | None) -> Beat:
        """Adds to the job's trail; counts as a heartbeat. Raises `LeaseLost`, `InvalidRequest`."""
        ...

    async def finish(self, endings: Sequence[Ending]) -> list[OakenError | None]:
        """Ends leases, each on its own account; for each its refusal, or None where it was accepted, in order.

        A result that cannot be sent or does not fit is refused with `ResultInvalid`, `BadJson`, `InvalidRequest` or
        `TooLarge`. Raises only where the call as a whole failed.
        """
        ...

    def on_cancel(self, callback: Callable[[int], None]) -> None:
        """Asks to be called, on the loop, with the id of a job that was asked to stop. A transport that learns it from
        heartbeats alone does nothing. Called at each start of the worker; ends with `aclose`."""
        ...

    async def aclose(self) -> None:
        """Called when the worker has stopped. A later call may open everything again."""
        ...


class JobContext:
    """The job that a handler is working on."""

    def __init__(self, item: WorkItem, lease: _Lease) -> None:
        self.id = item.job_id
        self.kind = item.kind
        self.payload = item.payload
        self.queue = item.queue
        self.subject = item.subject
        self.attempt = item.attempt
        self.epoch = item.epoch
        self.parent_id = item.parent_id
        self.instructions = item.instructions
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

    def report(self, percent: float | None = None, message: str | None = None) -> None:
        """`progress` for handlers that are plain functions: blocks until the report is through.

        Raises `LeaseLost` if the job is no longer ours, since a thread cannot be cancelled.
        """
        asyncio.run_coroutine_threadsafe(self.progress(percent, message), self._loop).result()
        if self._lease.lost:
            raise LeaseLost(f"job {self.id} is no longer this worker's")


@dataclass(frozen=True, slots=True)
class _Handler:
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
        self._by_kind: dict[str, _Handler] = {}

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
            self._add(_Handler(kind, function, concurrency))
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
            self._add(_Handler(kind, function, batch=max, linger=linger))
            return function

        return register

    def _add(self, handler: _Handler) -> None:
        if handler.kind in self._by_kind:
            log.warning("the handler for %s is replaced by another", handler.kind)
        self._by_kind[handler.kind] = handler

    def lanes(self, slots: int | None) -> list[_Lane]:
        """How the worker shares out its room: a lane for each kind, or with `slots` one lane for them all."""
        if slots is not None:
            return [_Lane(dict(self._by_kind), slots)]
        return [_Lane({h.kind: h}, h.concurrency) for h in self._by_kind.values()]


class _Lane:
    """Kinds that share room. One lease call is under way at a time, so held and asked for never exceed the room."""

    def __init__(self, handlers: dict[str, _Handler], room: int) -> None:
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


class _Lease:
    """A lease as long as a handler works under it: beats, and knows whether it still stands."""

    def __init__(
        self, item: WorkItem, transport: Transport, clock: Clock, rng: random.Random, changed: Callable[[], None]
    ) -> None:
        self.item = item
        self.cancelling = False
        self.lost = False
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._changed = changed
        self._resting = False
        self._expiry: Timer | None = None
        self._extend(clock.monotonic(), item.lease_seconds)
        self._beats = asyncio.create_task(self._beat())

    @property
    def wanted(self) -> bool:
        return not (self.lost or self.cancelling)

    def ask_to_stop(self) -> None:
        if self.wanted:
            self.cancelling = True
            self._changed()

    async def report(self, percent: float | None, message: str | None) -> None:
        call = self._transport.progress(self.item.lease_id, percent, message)
        try:
            await self._heard(_within(self._clock, self.seconds / 3, call))
        except _NOT_HELD:
            await asyncio.sleep(0)  # where the cancellation of a handler that runs for this lease alone arrives
        except Exception as error:
            if not _passing(error):
                raise
            log.debug("progress of job %d did not get through: %s", self.item.job_id, type(error).__name__)

    def rest(self) -> None:
        """No more beats. What remains of the lease is for finishing."""
        self._resting = True
        self._beats.cancel()
        if self._expiry is not None:
            self._expiry.cancel()

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = True
            log.warning("lost the lease of job %d (%s): %s", self.item.job_id, self.item.kind, why)
            self.rest()
            self._changed()

    def _extend(self, since: float, seconds: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self.seconds = seconds
        self.deadline = since + seconds
        # A timer of its own, so that a beat that hangs cannot hide that the lease ran out.
        left = self.deadline - self._clock.monotonic()
        self._expiry = self._clock.call_later(left, lambda: self._lose("no heartbeat got through in time"))

    async def _heard(self, call: Coroutine[Any, Any, Beat]) -> None:
        sent = self._clock.monotonic()
        try:
            beat = await call
        except _NOT_HELD as error:
            self._lose(error.code)
            raise
        if self._resting:
            return
        self._extend(sent, beat.lease_seconds or self.seconds)
        if beat.cancelling:
            self.ask_to_stop()

    async def _beat(self) -> None:
        failures = 0
        while not self._resting:
            third = self.seconds / 3
            await self._clock.sleep(min(third, _backoff(failures, self._rng)) if failures else third)
            try:
                await self._heard(_within(self._clock, third, self._transport.heartbeat(self.item.lease_id)))
                failures = 0
            except _NOT_HELD:
                return
            except Exception as error:
                failures += 1
                log.warning("heartbeat of job %d failed, trying again: %s", self.item.job_id, _described(error))


class _Run:
    """One call of a handler, for one job or for a batch."""

    def __init__(self, handler: _Handler) -> None:
        self.handler = handler
        self.leases: list[_Lease] = []
        self.stopped = False
        self._call: asyncio.Task[Any] | None = None

    def changed(self) -> None:
        """A lease was lost or its job asked to stop."""
        if self._call is not None and not any(lease.wanted for lease in self.leases):
            self._call.cancel()

    def shut_down(self) -> None:
        """The worker stops and has waited long enough."""
        self.stopped = True
        if self._call is not None:
            self._call.cancel()

    async def outcomes(self) -> list[tuple[_Lease, object]]:
        """Runs the handler; what came out for each lease, an exception being an outcome like any other."""
        asked = [lease for lease in self.leases if lease.wanted and not self.stopped]
        found: dict[str, object] = {lease.item.lease_id: asyncio.CancelledError() for lease in self.leases}
        if asked:
            self._call = asyncio.create_task(self.handler.call([JobContext(lease.item, lease) for lease in asked]))
            while not self._call.done():
                try:
                    await asyncio.wait({self._call})
                except asyncio.CancelledError:
                    # The loop is being torn down. The job is still ended properly.
                    self.shut_down()
            ids = [lease.item.lease_id for lease in asked]
            found.update(zip(ids, self._each(self._call, len(asked)), strict=True))
        return [(lease, found[lease.item.lease_id]) for lease in self.leases]

    def _each(self, call: asyncio.Task[Any], count: int) -> list[object]:
        if call.cancelled():
            return [asyncio.CancelledError()] * count
        error = call.exception()
        if error is not None:
            return [error] * count
        returned: object = call.result()
        if self.handler.batch is None:
            return [returned]
        if isinstance(returned, (list, tuple)):
            outcomes = list(cast("Sequence[object]", returned))
            if len(outcomes) == count:
                return outcomes
            return [ValueError(f"the batch handler returned {len(outcomes)} outcomes for {count} jobs")] * count
        return [TypeError(f"a batch handler returns a list, not {type(returned).__name__}")] * count

    def ending(self, lease: _Lease, outcome: object) -> Ending | None:
        """How a lease ends after this outcome; None where nothing may be written."""
        if lease.lost:
            return None
        lease_id = lease.item.lease_id
        match outcome:
            case Done():
                return Complete(lease_id, outcome)
            case dict():
                return Complete(lease_id, Done(cast(Json, outcome)))
            case None:
                return Complete(lease_id, Done())
            case Deferred():
                return Defer(lease_id, outcome.seconds)
            case PermanentJobError():
                return Fail(lease_id, _described(outcome), permanent=True)
            case asyncio.CancelledError() if lease.cancelling:
                return Cancelled(lease_id)
            case BaseException() if self.stopped and not lease.cancelling:
                return Release(lease_id)
            case BaseException():
                return Fail(lease_id, _described(outcome), retry_after=_asked_wait(outcome))
            case _:
                told = f"TypeError: a handler returns a dict, None or Done, not {type(outcome).__name__}"
                return Fail(lease_id, told, permanent=True)


class Worker:
    """Leases jobs for `handlers` and sees each to its end. One worker, one transport.

    Room: `concurrency` of each handler, or with `slots` so many calls of handlers at once, whatever their kinds.
    Seconds: `lease_seconds` (None: as the kind says), `grace` for running handlers at a stop, `wait_seconds` of a poll.

    A handler that swallows its cancellation, or a plain function that does not return, keeps `stop` pending.
    """

    def __init__(
        self,
        transport: Transport,
        handlers: Handlers,
        *,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
        lease_seconds: float | None = None,
        grace: float = 30.0,
        wait_seconds: float = 20.0,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.state: Literal["stopped", "running", "stopping"] = "stopped"
        self.error: OakenError | None = None
        """What ended the worker, if it was not `stop`."""
        self._transport = transport
        self._handlers = handlers
        self._queues = queues
        self._slots = slots
        self._lease_seconds = lease_seconds
        self._grace = grace
        self._wait_seconds = wait_seconds
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._draining = False
        self._taken = 0
        self._lanes: list[_Lane] = []
        self._loops: list[asyncio.Task[None]] = []
        self._runs: dict[asyncio.Task[None], _Run] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._last_word: float | None = None

    async def start(self) -> None:
        """Begins to take jobs. Nothing happens if it runs already; while it stops, waits for the stop first."""
        while self.state == "stopping":
            await self._ended.wait()
        if self.state == "stopped":
            self._open()
            self._loops = [asyncio.create_task(self._serve(lane)) for lane in self._lanes]

    async def stop(self) -> None:
        """Takes nothing new, gives running handlers `grace` seconds, then cancels them and releases their jobs.

        Returns when all that is done. Every caller waits for the same stop, and one that goes away does not end it.
        """
        if self.state != "stopped":
            await asyncio.shield(self._begin_stop())

    async def run(self) -> None:
        """Runs until stopped. Being cancelled stops it. Raises the error if the server refused this worker for good."""
        await self.start()
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self.error is not None:
            raise self.error

    async def drain(self) -> int:
        """Works until nothing can be leased, then returns how many jobs were taken. For tests, on a stopped worker.

        Does not wait for jobs that are delayed, nor for more jobs to fill a batch.
        """
        if self.state != "stopped":
            raise RuntimeError(f"drain() needs a stopped worker; this one is {self.state}")
        self._open()
        self._draining = True
        before = self._taken
        try:
            while self._stopping is None:
                busy = list(self._runs)
                taken = sum([await self._take(lane, 0) for lane in self._lanes if lane.ask])
                if not taken and not busy:
                    break
                if not taken:
                    await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._draining = False
            await self.stop()
        return self._taken - before

    def _open(self) -> None:
        lanes = self._handlers.lanes(self._slots)
        if not self._handlers.kinds:
            raise ValueError("the worker has no handlers; register one with @handler(kind)")
        self.state = "running"
        self.error = None
        self._last_word = None
        self._ended.clear()
        self._lanes = lanes
        self._transport.on_cancel(self._on_cancel)

    def _begin_stop(self) -> asyncio.Task[None]:
        if self._stopping is None:
            self.state = "stopping"
            self._last_word = self._clock.monotonic() + self._grace + LAST_WORDS
            for loop in self._loops:
                loop.cancel()
            self._stopping = asyncio.create_task(self._shut_down())
        return self._stopping

    async def _shut_down(self) -> None:
        await asyncio.gather(*self._loops, return_exceptions=True)
        await _settled(self._clock, self._grace, list(self._runs))
        if self._runs:
            log.info("%d handlers still run after %g s of grace; cancelling them", len(self._runs), self._grace)
        for run in self._runs.values():
            run.shut_down()
        while self._runs:
            await asyncio.wait(list(self._runs))
        try:
            await self._transport.aclose()
        except Exception:
            log.exception("closing the worker's transport failed")
        self._loops = []
        self._stopping = None
        self.state = "stopped"
        self._ended.set()

    def _give_up(self, error: OakenError) -> None:
        if self.state == "running":
            self.error = error
            log.error("the worker ends, for it was refused: %s", _described(error))
            self._begin_stop()

    def _on_cancel(self, job_id: int) -> None:
        for run in list(self._runs.values()):
            for lease in run.leases:
                if lease.item.job_id == job_id:
                    lease.ask_to_stop()

    async def _serve(self, lane: _Lane) -> None:
        failures = idle = 0
        while True:
            while not lane.ask:
                lane.freed.clear()
                await lane.freed.wait()
            asked = self._clock.monotonic()
            try:
                taken = await self._take(lane, self._wait_seconds)
            except _HOPELESS as error:
                self._give_up(error)
                return
            except Exception as error:
                failures += 1
                wait = max(_backoff(failures, self._rng), _asked_wait(error) or 0)
                log.warning("leasing failed, trying again in %.1f s: %s", wait, _described(error))
                await self._clock.sleep(wait)
                continue
            failures = 0
            # A server that is stopping, or does not wait, answers empty at once; it is not to be asked in a tight loop.
            hasty = not taken and self._clock.monotonic() - asked < min(1.0, self._wait_seconds / 2)
            idle = idle + 1 if hasty else 0
            if idle > 1:
                await self._clock.sleep(_backoff(idle - 1, self._rng, cap=2.0))

    async def _take(self, lane: _Lane, wait_seconds: float) -> int:
        items = await self._lease(list(lane.handlers), lane.ask, wait_seconds)
        groups: dict[str, list[WorkItem]] = {}
        for item in items:
            groups.setdefault(item.kind, []).append(item)
        for kind, group in groups.items():
            handler = lane.handlers.get(kind)
            if handler is None:
                log.warning("%d jobs of kind %s came unasked; releasing them", len(group), kind)
                await self._release(group)
                continue
            size = handler.batch or 1
            for start in range(0, len(group), size):
                self._begin(lane, handler, group[start : start + size])
        return len(items)

    async def _lease(self, kinds: list[str], max: int, wait_seconds: float) -> list[WorkItem]:
        request = self._transport.lease(
            queues=self._queues, kinds=kinds, max=max, lease_seconds=self._lease_seconds, wait_seconds=wait_seconds
        )
        call = asyncio.create_task(request)

        def expire() -> None:
            call.cancel()

        timer = self._clock.call_later(wait_seconds + CALL_SECONDS, expire)
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait({call})
            # The answer may have come in the same moment; what it brought must not stay claimed.
            if not call.cancelled() and call.exception() is None:
                await self._release(call.result())
            raise
        finally:
            timer.cancel()
        if call.cancelled():
            raise Unavailable("no answer to a lease request long after its wait was over")
        return call.result()

    async def _release(self, items: Sequence[WorkItem]) -> None:
        try:
            if items:
                await self._transport.finish([Release(item.lease_id) for item in items])
        except Exception as error:
            log.warning("releasing %d jobs failed; their leases run out instead: %s", len(items), _described(error))

    def _begin(self, lane: _Lane, handler: _Handler, items: Sequence[WorkItem]) -> None:
        run = _Run(handler)
        self._hold(run, items)
        lane.running += 1
        task = asyncio.create_task(self._work(lane, run))
        self._runs[task] = run

        def ended(task: asyncio.Task[None]) -> None:
            self._runs.pop(task, None)
            for lease in run.leases:
                lease.rest()
            lane.running -= 1
            lane.freed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a job could not be seen to its end", exc_info=error)

        task.add_done_callback(ended)

    def _hold(self, run: _Run, items: Sequence[WorkItem]) -> None:
        self._taken += len(items)
        run.leases += [_Lease(item, self._transport, self._clock, self._rng, run.changed) for item in items]

    async def _work(self, lane: _Lane, run: _Run) -> None:
        try:
            await self._fill(run)
        except asyncio.CancelledError:
            run.stopped = True
        outcomes = await run.outcomes()
        endings: list[tuple[_Lease, Ending]] = []
        for lease, outcome in outcomes:
            lease.rest()
            ending = run.ending(lease, outcome)
            if ending is not None:
                endings.append((lease, ending))
        try:
            await self._finish(endings)
        except asyncio.CancelledError:
            # Even when the loop is torn down here the jobs are ended: said once more, which is harmless.
            await self._finish(endings)
            raise

    async def _fill(self, run: _Run) -> None:
        size = run.handler.batch or 1
        until = self._clock.monotonic() + (0 if self._draining else run.handler.linger)
        while len(run.leases) < size and self.state == "running":
            wait = max(0.0, until - self._clock.monotonic())
            try:
                more = await self._lease([run.handler.kind], size - len(run.leases), wait)
            except Exception as error:
                log.debug("a batch of %s could not be filled: %s", run.handler.kind, type(error).__name__)
                return
            if not more:
                return
            self._hold(run, more)

    async def _finish(self, endings: list[tuple[_Lease, Ending]]) -> None:
        """Sends endings until each is accepted or refused, or its lease has run out.

        Each is sent at least once: whether a lease still stands is the server's to say, and it may keep a late result.
        """
        failures = 0
        while endings:
            errors = await self._send(endings)
            again: list[tuple[_Lease, Ending]] = []
            failures += 1
            wait = 0.0
            for (lease, ending), error in zip(endings, errors, strict=True):
                job = lease.item.job_id
                if error is None:
                    continue
                if isinstance(ending, Complete) and isinstance(error, _UNFIT):
                    unfit = _unfit(error)
                    log.warning("the result of job %d was refused: %s", job, unfit)
                    if error.details.get("tries_left") != 0:
                        again.append((lease, Fail(ending.lease_id, unfit, permanent=True)))
                elif _passing(error) and self._clock.monotonic() < self._limit(lease):
                    log.warning("job %d could not be finished yet: %s", job, _described(error))
                    again.append((lease, ending))
                    wait = max(wait, _asked_wait(error) or 0, _backoff(failures, self._rng))
                else:
                    log.warning("job %d was not finished: %s", job, _described(error))
            if wait:
                last = max(self._limit(lease) for lease, _ in again)
                await self._clock.sleep(max(0.0, min(wait, last - self._clock.monotonic())))
            endings = again

    async def _send(self, endings: list[tuple[_Lease, Ending]]) -> Sequence[Exception | None]:
        seconds = max(1.0, min(lease.seconds for lease, _ in endings) / 3)
        try:
            return await _within(self._clock, seconds, self._transport.finish([ending for _, ending in endings]))
        except Exception as error:
            return [error] * len(endings)

    def _limit(self, lease: _Lease) -> float:
        return lease.deadline if self._last_word is None else min(lease.deadline, self._last_word)


def _backoff(failures: int, rng: random.Random, cap: float = BACKOFF_CAP) -> float:
    return min(cap, 0.5 * 2.0 ** min(failures - 1, 16)) * rng.uniform(0.5, 1.0)


def _passing(error: Exception) -> bool:
    """Whether trying again may help: the store cannot be reached, is busy, or something broke that is not a refusal."""
    return not isinstance(error, OakenError) or isinstance(error, RateLimited) or error.status >= 500


def _asked_wait(error: BaseException) -> float | None:
    """Seconds an error asks to be left alone: its `retry_after`, or that among its details."""
    wait: object = getattr(error, "retry_after", None)
    if wait is None and isinstance(error, OakenError):
        wait = error.details.get("retry_after")
    return float(wait) if isinstance(wait, (int, float)) and wait >= 0 else None


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}"[:ERROR_CHARS] if text else type(error).__name__


def _unfit(error: OakenError) -> str:
    """Why a result was refused, in paths and rules: the server's message may quote the result, and this is stored."""
    problems: object = error.details.get("errors")
    told: list[str] = []
    for problem in cast("list[object]", problems) if isinstance(problems, list) else []:
        if isinstance(problem, dict):
            facts = cast(Json, problem)
            told.append(f"{facts.get('path') or facts.get('field') or '/'} breaks {facts.get('rule') or error.code}")
    return f"result does not fit: {'; '.join(told) or error.code}"


async def _within(clock: Clock, seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call, but not for longer than this. Raises `Unavailable` then."""
    task = asyncio.ensure_future(call)
    late = False

    def expire() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = clock.call_later(seconds, expire)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if not late or (current is not None and current.cancelling()):
            raise
        raise Unavailable(f"no answer within {seconds:g} s") from None
    finally:
        timer.cancel()


async def _settled(clock: Clock, seconds: float, tasks: Sequence[Awaitable[Any]]) -> None:
    """Returns when all the tasks are done, or after `seconds`."""
    if not tasks or seconds <= 0:
        return
    pause = asyncio.ensure_future(clock.sleep(seconds))
    done = asyncio.gather(*tasks, return_exceptions=True)
    try:
        await asyncio.wait({pause, done}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pause.cancel()

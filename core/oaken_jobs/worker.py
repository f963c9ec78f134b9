"""The worker: leases jobs, runs handlers, beats while they run, and finishes. Knows no HTTP and no store.

Everything it says to a job store goes through a `Transport`, so that handlers inside the server and agents on other
machines run by the same rules:

- a handler that returns completes its job; one that raises fails it; `PermanentJobError` fails it for good; `Deferred`
  puts it back for a time, `AfterChildren` until its children are final, `Ask` until its question is answered
- asked to cancel: the handler is cancelled and the job ends cancelled, unless the handler returned a
  result all the same
- the worker stops: handlers get `grace` seconds, are then cancelled, and their jobs released unharmed
- the lease is lost: the handler is cancelled, and nothing is written
- the store is away when a job ends: its ending is kept, and said when the store answers again (`spool`)
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, cast

from oaken_jobs.clock import Clock, SystemClock
from oaken_jobs.errors import (
    Forbidden,
    InvalidRequest,
    OakenError,
    Unauthenticated,
    Unavailable,
)
from oaken_jobs.handlers import (
    AfterChildren,
    Ask,
    Deferred,
    Handler,
    Handlers,
    JobContext,
    JobError,
    Lane,
    PermanentJobError,
    bounded,
)
from oaken_jobs.held import HeldLease, backoff, described
from oaken_jobs.loop import Lifecycle
from oaken_jobs.model import FINAL, Json
from oaken_jobs.spool import Spool
from oaken_jobs.transport import Ask as Asking
from oaken_jobs.transport import Cancelled, Complete, Defer, Done, Ending, Fail, Release, Transport, WorkItem, misfit

log = logging.getLogger("oaken.worker")


CALL_SECONDS = 30.0
"""How long a lease call may take beyond its long poll before it counts as stalled."""

_HOPELESS = (Unauthenticated, Forbidden, InvalidRequest)
"""A lease request refused like this will be refused for ever; the worker ends with the error."""


class _Run:
    """One call of a handler, for one job or for a batch."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.leases: list[HeldLease] = []
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

    async def outcomes(self) -> list[tuple[HeldLease, object]]:
        """Runs the handler; what came out for each lease, an exception being an outcome like any other."""
        asked = [lease for lease in self.leases if lease.wanted and not self.stopped]
        found: dict[str, object] = {lease.item.lease_id: asyncio.CancelledError() for lease in self.leases}
        if asked:
            call = self.handler.call([JobContext(lease.item, lease) for lease in asked])
            self._call = self._begun(asked, call)
            while not self._call.done():
                try:
                    await asyncio.wait({self._call})
                except asyncio.CancelledError:
                    # The loop is being torn down. The job is still ended properly.
                    self.shut_down()
            ids = [lease.item.lease_id for lease in asked]
            found.update(zip(ids, self._each(self._call, len(asked)), strict=True))
        return [(lease, found[lease.item.lease_id]) for lease in self.leases]

    def _begun(self, asked: list[HeldLease], call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """The call, inside the span of its job; a call for several belongs into none of theirs."""
        if len(asked) == 1:
            return asked[0].spans.run(call)
        for lease in asked:
            lease.spans.begin()
        return asyncio.create_task(call)

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

    def ending(self, lease: HeldLease, outcome: object) -> Ending | None:
        """How a lease ends after this outcome; None where nothing may be written."""
        if lease.lost:
            return None
        lease_id = lease.item.lease_id
        match outcome:
            case Done():
                return _completed(lease_id, outcome)
            case dict():
                return _completed(lease_id, Done(cast(Json, outcome)))
            case None:
                return Complete(lease_id, Done())
            case Deferred():
                return Defer(lease_id, bounded(_attribute(outcome, "seconds")) or 0.0)
            case AfterChildren():
                return _joining(lease)
            case Ask():
                return _asking(lease_id, outcome)
            case PermanentJobError():
                return Fail(lease_id, described(outcome), permanent=True)
            case asyncio.CancelledError() if lease.cancelling:
                return Cancelled(lease_id)
            case BaseException() if self.stopped and not lease.cancelling:
                return Release(lease_id)
            case BaseException():
                return Fail(lease_id, described(outcome), retry_after=_asked_wait(outcome))
            case _:
                told = f"TypeError: a handler returns a dict, None or Done, not {type(outcome).__name__}"
                return Fail(lease_id, told, permanent=True)


class Worker(Lifecycle):
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
        super().__init__()
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
        self._spool = Spool(transport, self._clock, self._rng)
        self._draining = False
        self._taken = 0
        self._lanes: list[Lane] = []
        self._loops: list[asyncio.Task[None]] = []
        self._runs: dict[asyncio.Task[None], _Run] = {}
        self._ended = asyncio.Event()
        self._raises = False

    @property
    def holds(self) -> int:
        """How many jobs it is working on."""
        return sum(len(run.leases) for run in self._runs.values())

    async def run(self) -> None:
        """Runs until stopped. Being cancelled stops it. Raises the error if the server refused this worker for good."""
        await self.start()
        self._raises = True
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            self._raises = False
        if self.error is not None:
            raise self.error

    async def drain(self) -> int:
        """Works until nothing can be leased, then returns how many jobs were taken. For tests, on a stopped worker.

        Does not wait for jobs that are delayed, nor for more jobs to fill a batch.
        """
        if self.state != "stopped":
            raise RuntimeError(f"drain() needs a stopped worker; this one is {self.state}")
        self._draining = True
        before = self._taken
        try:
            await self.start()
            while self.running:
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

    async def _begin(self) -> None:
        if not self._handlers.kinds:
            raise ValueError("the worker has no handlers; register one with @handler(kind)")
        self.error = None
        self._ended.clear()
        self._lanes = self._handlers.lanes(self._slots)
        self._transport.on_cancel(self._on_cancel)
        self._loops = [] if self._draining else [asyncio.create_task(self._serve(lane)) for lane in self._lanes]

    async def _end(self) -> None:
        """Takes nothing new, gives running handlers `grace` seconds, then cancels them and releases their jobs."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await _settled(self._clock, self._grace, list(self._runs))
        if self._runs:
            log.info("%d handlers still run after %g s of grace; cancelling them", len(self._runs), self._grace)
        for run in self._runs.values():
            run.shut_down()
        while self._runs:
            await asyncio.wait(list(self._runs))
        await self._spool.close()
        try:
            await self._transport.aclose()
        except Exception:
            log.exception("closing the worker's transport failed")
        self._loops = []
        self._ended.set()

    def _give_up(self, error: OakenError) -> None:
        if self.running:
            self.error = error
            level = logging.DEBUG if self._raises else logging.ERROR  # whoever awaits `run` gets it raised
            log.log(level, "the worker ends, for it was refused: %s", described(error))
            self.begin_stop()

    def _on_cancel(self, job_id: int) -> None:
        for run in list(self._runs.values()):
            for lease in run.leases:
                if lease.item.job_id == job_id:
                    lease.ask_to_stop()

    async def _serve(self, lane: Lane) -> None:
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
                wait = max(backoff(failures, self._rng), _asked_wait(error) or 0)
                log.warning("leasing failed, trying again in %.1f s: %s", wait, described(error))
                await self._clock.sleep(wait)
                continue
            if failures:
                self._spool.answered()
            failures = 0
            # A server that is stopping, or does not wait, answers empty at once; it is not to be asked in a tight loop.
            hasty = not taken and self._clock.monotonic() - asked < min(1.0, self._wait_seconds / 2)
            idle = idle + 1 if hasty else 0
            if idle > 1:
                await self._clock.sleep(backoff(idle - 1, self._rng, cap=2.0))

    async def _take(self, lane: Lane, wait_seconds: float) -> int:
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
                self._work_on(lane, handler, group[start : start + size])
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
            log.warning("releasing %d jobs failed; their leases run out instead: %s", len(items), described(error))

    def _work_on(self, lane: Lane, handler: Handler, items: Sequence[WorkItem]) -> None:
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
        run.leases += [HeldLease(item, self._transport, self._clock, self._rng, run.changed) for item in items]

    async def _work(self, lane: Lane, run: _Run) -> None:
        try:
            await self._fill(run)
        except asyncio.CancelledError:
            run.stopped = True
        outcomes = await run.outcomes()
        _tell(run, outcomes)
        endings: list[tuple[HeldLease, Ending]] = []
        for lease, outcome in outcomes:
            lease.rest()
            ending = run.ending(lease, outcome)
            lease.spans.end(failed=isinstance(ending, Fail))
            if ending is not None:
                endings.append((lease, ending))
            else:
                lease.spans.finished(taken=False)
        try:
            await self._spool.send(endings)
        except asyncio.CancelledError:
            # Even when the loop is torn down here the jobs are ended: said once more, which is harmless.
            await self._spool.send(endings)
            raise

    async def _fill(self, run: _Run) -> None:
        size = run.handler.batch or 1
        until = self._clock.monotonic() + (0 if self._draining else run.handler.linger)
        while len(run.leases) < size and self.running:
            wait = max(0.0, until - self._clock.monotonic())
            try:
                more = await self._lease([run.handler.kind], size - len(run.leases), wait)
            except Exception as error:
                log.debug("a batch of %s could not be filled: %s", run.handler.kind, type(error).__name__)
                return
            if not more:
                return
            self._hold(run, more)


def _asked_wait(error: BaseException) -> float | None:
    """Seconds an error asks to be left alone: its `retry_after`, or that among its details."""
    wait = _attribute(error, "retry_after")
    if wait is None and isinstance(error, OakenError):
        wait = error.details.get("retry_after")
    return bounded(wait)


def _attribute(error: BaseException, name: str) -> object:
    """What an exception of somebody else's has under a name; None too where it cannot be read."""
    try:
        return getattr(error, name, None)
    except Exception:
        return None


def _completed(lease_id: str, done: Done) -> Ending:
    told = misfit(done)
    return Complete(lease_id, done) if told is None else Fail(lease_id, told, permanent=True)


def _joining(lease: HeldLease) -> Ending:
    """Waits for children; a job that has nothing to wait for, and says so each time, must not go round for ever."""
    children = lease.item.children
    if children is not None and not lease.added and all(child.get("state") in FINAL for child in children):
        return Fail(lease.item.lease_id, "AfterChildren: all its children are final already, and it has added none")
    return Release(lease.item.lease_id, after_children=True)


def _asking(lease_id: str, outcome: Ask) -> Ending:
    text = _attribute(outcome, "text")
    if not isinstance(text, str):
        return Fail(lease_id, f"TypeError: {type(outcome).__name__} asks without a text", permanent=True)
    return Asking(lease_id, text, bounded(_attribute(outcome, "timeout_seconds")))


def _tell(run: _Run, outcomes: Sequence[tuple[HeldLease, object]]) -> None:
    """Logs what handlers raised: an error of a whole batch with one traceback."""
    told: set[int] = set()
    for lease, outcome in outcomes:
        job, kind = lease.item.job_id, lease.item.kind
        if isinstance(outcome, PermanentJobError):
            log.warning("job %d (%s) fails for good: %s", job, kind, described(outcome))
        elif isinstance(outcome, asyncio.CancelledError) and (run.stopped or not lease.wanted):
            continue
        elif isinstance(outcome, BaseException) and not isinstance(outcome, Deferred | AfterChildren | Ask):
            trace = None if id(outcome) in told or isinstance(outcome, JobError) else outcome
            told.add(id(outcome))
            log.warning("job %d (%s) failed: %s", job, kind, described(outcome), exc_info=trace)


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

"""A process that exists to be killed: a core on a data folder under a mixed load of many callers.

Whatever a caller is told goes into a file of the victim's own, one line of JSON each, before the caller goes on: what stands there was
acknowledged. Where an order names a point, the victim kills itself the `nth` time it gets there; the product knows nothing of that.

    {"event": "enqueued", "job": 7, "mark": "3.2-15"}           the payload has that mark
    {"event": "coalesced", "job": 7}                            a live job had the same dedupe key
    {"event": "leased", "job": 7, "epoch": 2}
    {"event": "ended", "job": 7, "epoch": 2, "verb": "complete", "by": "3.2-16"}
    {"event": "did", "job": 7, "verb": "requeue"}               progress, cancel and requeue
    {"event": "broken", "error": "..."}                         what must never happen
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from oaken_jobs import jobs, moves
from oaken_jobs.core import Core
from oaken_jobs.errors import OakenError, Unavailable
from oaken_jobs.kinds import Kind, Rules
from oaken_jobs.model import Actor, Enqueued, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from oaken_jobs.store.operations import Claim, Claimed, Op, Requeue
from oaken_jobs.store.sqlite.store import SqliteStore

POINTS = (
    "inside a transaction",
    "before commit",
    "between commit and reply",
    "between claim and reply",
    "in the sweep",
    "in a bulk requeue",
)
RULES = Rules(
    kinds={"capped": Kind("capped", limit=3), "fragile": Kind("fragile", on_lost="fail", max_attempts=2)},
    lease_seconds=0.2,
    max_attempts=3,
    backoff_base=0.005,
    backoff_max=0.05,
    recovery_grace=0.05,
)
KINDS = ("work", "work", "work", "capped", "fragile")
PERSON = Principal(Actor("user", "person", "http"), frozenset({"user", "agent"}))
PRODUCERS, WORKERS, MANAGERS = 6, 14, 3


@dataclass(frozen=True)
class Order:
    """What one victim is to do. `point` None: work until somebody else kills it."""

    folder: Path
    told: Path
    name: str
    seed: int
    point: str | None = None
    nth: int = 1
    small_log: bool = False
    """SQLite copies its log into the database all the time, so that kills meet that, too."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def live(order: Order) -> None:
    """Works until killed."""
    gc.freeze()
    logging.disable(logging.WARNING)
    try:
        asyncio.run(Victim(order).run())
    except BaseException:
        Told(order.told).line(event="broken", error=traceback.format_exc())
        raise


class Told:
    """The file of what callers were told."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def line(self, **facts: Any) -> None:
        os.write(self._file, orjson.dumps(facts, option=orjson.OPT_APPEND_NEWLINE))


class Doomed:
    """A database connection that sees each statement first."""

    def __init__(self, database: Any, hit: Callable[[str], None]) -> None:
        self._database = database
        self._hit = hit

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._database, name)
        if name not in ("run", "insert", "replace", "update", "add_activity"):
            return found

        def writes(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            self._hit("inside a transaction")
            return answer

        return writes

    def execute(self, sql: str, *parameters: Any) -> Any:
        if sql == "commit":
            self._hit("before commit")
        return self._database.execute(sql, *parameters)


class Victim:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._left = order.nth
        self._rng = random.Random(order.seed)
        self._told = Told(order.told)
        self._core = Core.on_folder(order.folder, RULES, "serve")
        self._known: list[int] = []
        """Jobs that managers pick from."""
        self._marks = 0
        self._in_bulk = False
        self._doom()

    def _hit(self, point: str) -> None:
        if point == self._order.point:
            self._left -= 1
            if self._left == 0:
                die()

    def _doom(self) -> None:
        """Lays the points at which this process may kill itself around the store's own steps."""
        group, lose, write = SqliteStore._write_group, moves.lose, self._core.store.write
        if hasattr(jobs, "BULK_CHUNK"):
            jobs.BULK_CHUNK = 3  # so that there are chunks to be killed between
        fresh = [self._order.small_log]

        def write_group(store: SqliteStore, database: Any, *rest: Any) -> Any:
            if fresh and fresh.pop():
                database.execute("pragma wal_autocheckpoint = 10").fetchall()
            return group(store, Doomed(database, self._hit), *rest)  # type: ignore[arg-type]

        def lost(*args: Any) -> Any:
            self._hit("in the sweep")
            return lose(*args)

        async def written(ops: Sequence[Op], *more: Any) -> Any:
            replies = await write(ops, *more)
            self._hit("between commit and reply")
            if isinstance(ops[-1], Claim) and isinstance(replies[-1], Claimed) and any(replies[-1].leases):
                self._hit("between claim and reply")
            if self._in_bulk and any(isinstance(op, Requeue) for op in ops):
                self._hit("in a bulk requeue")
            return replies

        SqliteStore._write_group = write_group  # type: ignore[method-assign]
        moves.lose = lost
        self._core.store.write = written  # type: ignore[method-assign]

    async def run(self) -> None:
        await self._core.open()
        await self._core.maintenance.start()
        loops = [self._produce(n) for n in range(PRODUCERS)]
        loops += [self._work(n) for n in range(WORKERS)]
        loops += [self._manage() for _ in range(MANAGERS)]
        loops += [self._manage_in_bulk(), self._sweep()]
        await asyncio.gather(*loops)

    def _mark(self) -> str:
        self._marks += 1
        return f"{self._order.name}-{self._marks}"

    async def _ask(self, call: Any) -> Any:
        """The answer, or None where it was refused, which happens all the time: leases run out, others were first."""
        try:
            return await call
        except Unavailable:
            raise  # nothing here gives a reason for that
        except OakenError:
            return None

    def _request(self, **more: Any) -> NewJobRequest:
        rng = self._rng
        payload = {"mark": self._mark(), "text": "x" * rng.choice((0, 10, 300, 5000))}
        fields: dict[str, Any] = {"kind": rng.choice(KINDS), "payload": payload, "priority": rng.choice((10, 50, 100))}
        if rng.random() < 0.3:
            fields["dedupe_key"] = f"key-{rng.randint(1, 30)}"
        if rng.random() < 0.1:
            fields["delay_seconds"] = rng.random() / 10
        if self._known and rng.random() < 0.2:
            fields["parent_id"] = rng.choice(self._known)
        if "serial_key" in NewJobRequest.model_fields and rng.random() < 0.2:
            fields["serial_key"] = f"serial-{rng.randint(1, 10)}"
        if "ttl_seconds" in NewJobRequest.model_fields and rng.random() < 0.1:
            fields["ttl_seconds"] = rng.random() / 5
        return NewJobRequest.model_validate({**fields, **more})

    def _enqueued(self, request: NewJobRequest, answer: Any) -> None:
        if not isinstance(answer, Enqueued):
            return
        if answer.created:
            self._told.line(event="enqueued", job=answer.job.id, mark=request.payload["mark"])
        else:
            self._told.line(event="coalesced", job=answer.job.id)
        self._known.append(answer.job.id)
        del self._known[:-300]

    async def _produce(self, n: int) -> None:
        while True:
            if n == 0:
                requests = [self._request() for _ in range(self._rng.randint(2, 12))]
                answers = await self._core.jobs.enqueue_many(PERSON, requests)
                for request, answer in zip(requests, answers, strict=True):
                    self._enqueued(request, answer)
            else:
                request = self._request()
                self._enqueued(request, await self._ask(self._core.jobs.enqueue(PERSON, request)))
            await asyncio.sleep(self._rng.random() / 50)

    async def _work(self, n: int) -> None:
        agent = Principal(Actor("agent", f"agent-{n % 5}", "http"), frozenset({"agent"}), f"{self._order.name}-{n}")
        while True:
            leases = await self._core.jobs.lease(
                agent,
                max=self._rng.randint(1, 3),
                lease_seconds=self._rng.choice((0.02, 0.1, 0.3)),
                wait_seconds=self._rng.choice((0, 0.05)),
            )
            for lease in leases:
                self._told.line(event="leased", job=lease.job.id, epoch=lease.job.epoch)
            for lease in leases:
                await self._end(agent, lease)
            await asyncio.sleep(0)

    async def _end(self, agent: Principal, lease: Any) -> None:
        jobs, rng, job, lease_id = self._core.jobs, self._rng, lease.job, lease.lease_id
        if rng.random() < 0.3:
            percent = rng.randint(1, 99)
            if await self._ask(jobs.heartbeat(agent, lease_id, percent=percent, message="at work", progress=True)):
                self._told.line(event="did", job=job.id, verb="progress")
        if rng.random() < 0.1:
            child = self._request(parent_id=job.id)
            self._enqueued(child, await self._ask(jobs.enqueue(agent, child)))
        verb = rng.choices(
            ("complete", "fail", "permanent", "defer", "release", "cancelled", "vanish"), (60, 10, 6, 4, 4, 2, 8)
        )[0]
        by = self._mark()
        calls: dict[str, Callable[[], Any]] = {
            "complete": lambda: jobs.complete(agent, lease_id, {"by": by}),
            "fail": lambda: jobs.fail(agent, lease_id, f"failed by {by}"),
            "permanent": lambda: jobs.fail(agent, lease_id, f"failed by {by}", permanent=True),
            "defer": lambda: jobs.defer(agent, lease_id, rng.random() / 20),
            "release": lambda: jobs.release(agent, lease_id),
            "cancelled": lambda: jobs.cancelled(agent, lease_id),
        }
        if verb == "vanish":
            return  # the sweep will find it
        if await self._ask(calls[verb]()):
            said = "fail" if verb == "permanent" else verb
            self._told.line(event="ended", job=job.id, epoch=job.epoch, verb=said, by=by)

    async def _manage(self) -> None:
        jobs = self._core.jobs
        while True:
            await asyncio.sleep(self._rng.random() / 50)
            if not self._known:
                continue
            job_id = self._rng.choice(self._known)
            if self._rng.random() < 0.5:
                answer = await self._ask(jobs.cancel(PERSON, job_id))
                if answer is not None and answer.changed:
                    self._told.line(event="did", job=job_id, verb="cancel")
            elif await self._ask(jobs.requeue(PERSON, job_id)):
                self._told.line(event="did", job=job_id, verb="requeue")

    async def _manage_in_bulk(self) -> None:
        jobs: Any = self._core.jobs
        where = JobFilter(states=("failed", "cancelled"))
        while True:
            await asyncio.sleep(self._rng.random() / 10)
            self._in_bulk = True
            if hasattr(jobs, "requeue_all"):
                cursor = None
                while True:
                    bulk = await jobs.requeue_all(PERSON, where, cursor=cursor)
                    cursor = bulk.cursor
                    if cursor is None:
                        break
            for job in (await jobs.list(PERSON, where, limit=10)).jobs:
                if await self._ask(jobs.requeue(PERSON, job.id)):
                    self._told.line(event="did", job=job.id, verb="requeue")
            self._in_bulk = False

    async def _sweep(self) -> None:
        while True:
            await self._core.maintenance.tick()
            await asyncio.sleep(0.01)

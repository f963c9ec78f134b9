"""A database that ends transactions, drops connections or does not answer, at each statement of each verb: what can be done again is, once;
where it is not known whether something was done, the caller hears so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
import pytest

from oaken_jobs.errors import Unavailable
from oaken_jobs.store.operations import Sweep
from oaken_jobs.store.postgres import server
from oaken_jobs.store.postgres import store as postgres
from tests.contract import invariants
from tests.contract.statements import watch
from tests.contract.world import AGENT, ME, OTHER, World, until

pytestmark = pytest.mark.engine("postgres")


class Faults:
    """What goes wrong on the connections of a store, once."""

    def __init__(self, world: World) -> None:
        watch(world.core, self._meet)
        self.left: int | None = None
        self.error: Callable[[], BaseException] = TimeoutError
        self.dies = False
        self.at_commit = False
        self.after = False
        """It fails when it has been done."""

    def arm(self, at: int | None, error: Callable[[], BaseException], *, dies: bool, after: bool = False) -> None:
        """The statement at that place fails, or the commit."""
        self.left, self.error, self.dies, self.after = -1 if at is None else at, error, dies, after
        self.at_commit = at is None

    async def _meet(self, connection: Any, statement: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.left is None or statement == "rollback" or (self.at_commit and statement != "commit"):
            return await call()
        self.left -= 1
        if self.left >= 0:
            return await call()
        self.left = None
        if self.after:
            await call()
        if self.dies:
            connection.terminate()
        raise self.error()


ERRORS: dict[str, tuple[Callable[[], BaseException], bool]] = {
    "deadlock": (lambda: asyncpg.DeadlockDetectedError("deadlock detected"), False),
    "serialization": (lambda: asyncpg.SerializationError("could not serialize access"), False),
    "lock timeout": (lambda: asyncpg.LockNotAvailableError("canceling statement due to lock timeout"), False),
    "dropped": (lambda: asyncpg.ConnectionDoesNotExistError("connection was closed"), True),
    "no answer": (TimeoutError, True),
}
Verb = Callable[[World, int, str], Awaitable[Any]]


async def _enqueue(world: World, job_id: int, lease_id: str) -> None:
    await world.add("other", dedupe_key="one")


async def _complete(world: World, job_id: int, lease_id: str) -> None:
    await world.jobs.complete(AGENT, lease_id, {"n": 1})


async def _fail(world: World, job_id: int, lease_id: str) -> None:
    await world.jobs.fail(AGENT, lease_id, "no")


async def _heartbeat(world: World, job_id: int, lease_id: str) -> None:
    await world.jobs.heartbeat(AGENT, lease_id, percent=5, message="on", progress=True)


async def _cancel(world: World, job_id: int, lease_id: str) -> None:
    await world.jobs.cancel(ME, job_id)


async def _lease(world: World, job_id: int, lease_id: str) -> None:
    assert len(await world.jobs.lease(AGENT, kinds=["next"])) == 1


async def _sweep(world: World, job_id: int, lease_id: str) -> None:
    world.clock.advance(1000)
    assert await world.core.commit.call(Sweep()) == 1


VERBS: dict[str, Verb] = {
    "enqueue": _enqueue,
    "lease": _lease,
    "complete": _complete,
    "fail": _fail,
    "progress": _heartbeat,
    "cancel": _cancel,
    "sweep": _sweep,
}
DONE = {
    "enqueue": "enqueue",
    "lease": "claim",
    "complete": "complete",
    "fail": "fail",
    "cancel": "cancel",
    "sweep": "lose",
}
"""The verb that the activity has of each."""


async def _prepared(world: World) -> tuple[int, str]:
    job = await world.add("work")
    lease = await world.take(kinds=["work"])
    await world.add("next")
    return job.id, lease.lease_id


@pytest.mark.parametrize("how", ERRORS)
@pytest.mark.parametrize("verb", VERBS)
async def test_whatever_statement_fails_before_the_commit_it_is_done_once_all_the_same(
    world: World, verb: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres.random, "uniform", lambda low, high: 0.0)
    error, dies = ERRORS[how]
    faults = Faults(world)
    met = True
    at = 0
    while met:
        job_id, lease_id = await _prepared(world)
        before = len(world.raw.execute("select 1 from activity").fetchall())
        faults.arm(at, error, dies=dies)
        try:
            await VERBS[verb](world, job_id, lease_id)
            said = ""
        except Unavailable as refusal:
            said = refusal.message
        met = faults.left is None
        if said:
            assert "outcome of this call is unknown" in said, "only a commit leaves anything unknown"
        else:
            told = world.raw.execute("select verb from activity order by id").fetchall()[before:]
            assert [row[0] for row in told].count(DONE.get(verb, "progress")) == 1
        faults.left = None
        invariants.check(world.raw)
        await _clear(world)
        at += 1
    assert at > 2


async def _clear(world: World) -> None:
    for job_id, state in world.raw.execute("select id, state from jobs").fetchall():
        if state in ("queued", "running"):
            await world.jobs.cancel(ME, job_id)
    world.clock.advance(1000)
    await world.core.commit.call(Sweep())


async def test_who_commits_and_hears_nothing_is_told_that_the_outcome_is_unknown(world: World) -> None:
    faults = Faults(world)
    await world.add()
    faults.arm(None, TimeoutError, dies=True, after=True)
    with pytest.raises(Unavailable, match="outcome of this call is unknown"):
        await world.add("other", idempotency_key="k")
    again = await world.enqueue("other", idempotency_key="k")
    assert again.replayed, "it had been done, and a repeat under its key finds that"


async def test_a_table_that_somebody_holds_is_told_in_time_and_no_loop_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim and a sweep that have something to take meet the lock; those that have nothing need none."""
    monkeypatch.setitem(server.WRITING, "lock_timeout", "20ms")
    await world.restart()
    lost = await world.add()
    await world.take(lease_seconds=1)
    await world.add("spare")
    await world.core.maintenance.start()
    assert world.database.url is not None
    with psycopg.connect(world.database.url) as holder:
        await asyncio.to_thread(holder.execute, "lock table jobs in exclusive mode")
        with pytest.raises(Unavailable, match="lock timeout"):
            await world.add()
        with pytest.raises(Unavailable, match="lock timeout"):
            await world.jobs.lease(OTHER, kinds=["spare"], wait_seconds=60)
        assert (await world.job(lost.id)).state == "running", "reading goes on"
        with caplog.at_level(logging.WARNING, "oaken.maintenance"):
            world.clock.advance(world.jobs.rules.recovery_grace + 1)
            await until(lambda: "maintenance will try again" in caplog.text)
    # Nobody could beat meanwhile, so there is a grace first.
    select = f"select state from jobs where id = {lost.id}"

    def queued() -> bool:
        world.clock.advance(5)
        return world.raw.execute(select).fetchone() == ("queued",)

    await until(queued)


async def test_a_statement_that_hangs_is_given_up_and_the_call_done_on_another_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "STATEMENT_SECONDS", 1.0)
    hung: list[Any] = []

    async def hangs(connection: Any, statement: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if "insert into jobs" in statement and not hung:
            hung.append(connection)
            await connection.fetch("select pg_sleep(60)", timeout=1.0)
        return await call()

    watch(world.core, hangs)
    await world.core.commit.call(Sweep())
    job = await asyncio.wait_for(world.add(), 10)
    assert [row[0] for row in world.raw.execute("select id from jobs order by id").fetchall()][-1] == job.id
    assert hung[0].is_closed(), "what it is at is not known"

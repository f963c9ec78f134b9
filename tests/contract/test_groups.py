"""Group commit: what one caller does to others in the same transaction, which is nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from oaken_jobs import commit, moves
from oaken_jobs.errors import OakenError, Unavailable
from oaken_jobs.model import Enqueued, Job
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, World


class Gate:
    """Holds the store's writes up until it is opened."""

    def __init__(self, world: World) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self.sizes: list[int] = []
        write: Callable[[Any], Any] = world.core.store.write

        async def gated(ops: Any, *more: Any) -> Any:
            self.sizes.append(len(ops))
            self.reached.set()
            await self.opened.wait()
            return await write(ops, *more)

        world.core.store.write = gated  # type: ignore[method-assign]


async def test_calls_that_arrive_during_a_transaction_go_into_the_next_one(world: World) -> None:
    gate = Gate(world)
    first = asyncio.ensure_future(world.add())
    await gate.reached.wait()
    others = [asyncio.ensure_future(world.add()) for _ in range(99)]
    await asyncio.sleep(0)
    gate.opened.set()
    jobs = await asyncio.gather(first, *others)
    assert gate.sizes == [1, 99]
    assert [job.id for job in jobs] == list(range(1, 101))


async def test_calls_that_come_a_turn_of_the_loop_later_go_into_the_same_group(world: World) -> None:
    gate = Gate(world)
    gate.opened.set()

    async def later(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await world.add()

    await asyncio.gather(*(later(turns) for turns in range(5)))
    assert gate.sizes == [5]


@pytest.mark.engine("sqlite")  # which works on one group at a time
async def test_callers_that_take_some_turns_to_ask_again_stay_in_one_group(world: World) -> None:
    gate = Gate(world)
    gate.opened.set()

    async def caller(first: int) -> None:
        for _ in range(first):
            await asyncio.sleep(0)
        for _ in range(6):
            await world.add()
            for _ in range(4):  # its client reads the answer and sends the next call
                await asyncio.sleep(0)

    await asyncio.gather(*(caller(first * 5) for first in range(6)))  # the first of them make groups of their own
    assert gate.sizes.count(6) >= 3, gate.sizes


async def test_a_caller_alone_does_not_wait_long_for_those_of_the_last_group(world: World) -> None:
    gate = Gate(world)
    gate.opened.set()
    await asyncio.gather(*(world.add() for _ in range(20)))
    assert (await world.add()).id == 21
    assert gate.sizes == [20, 1]


async def test_callers_that_never_cease_do_not_hold_up_a_group(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "GATHER_SECONDS", 0.001)
    gate = Gate(world)
    calls: list[asyncio.Future[Job]] = []
    while not gate.reached.is_set():
        calls.append(asyncio.ensure_future(world.add()))
        await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(*calls)
    assert gate.sizes[0] < commit.GROUP


async def test_callers_that_give_up_in_the_middle_of_a_group_harm_nobody(world: World) -> None:
    gate = Gate(world)
    calls = [asyncio.ensure_future(world.add()) for _ in range(10)]
    await gate.reached.wait()
    for call in calls[::2]:
        call.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(a).__name__ for a in answers] == ["CancelledError", "Job"] * 5
    assert (await world.add()).id == 11, "the loop that commits lives on"


async def test_a_caller_that_gives_up_before_its_group_is_put_together_asks_for_nothing(world: World) -> None:
    gate = Gate(world)
    first = asyncio.ensure_future(world.add())
    await gate.reached.wait()
    second = asyncio.ensure_future(world.add())
    await asyncio.sleep(0)
    second.cancel()
    gate.opened.set()
    await first
    await asyncio.gather(second, return_exceptions=True)
    assert len((await world.jobs.list(ME, JobFilter())).jobs) == 1


async def test_refusals_leave_the_rest_of_their_group_alone(world: World) -> None:
    jobs = [await world.add() for _ in range(3)]
    leases = await world.jobs.lease(AGENT, max=3)
    answers = await asyncio.gather(
        world.jobs.complete(AGENT, leases[0].lease_id),
        world.jobs.complete(AGENT, leases[1].lease_id[:-1] + "x"),
        world.jobs.cancel(ME, 999),
        world.add(parent_id=999),
        world.jobs.complete(AGENT, leases[2].lease_id),
        return_exceptions=True,
    )
    assert [isinstance(a, OakenError) for a in answers] == [False, True, True, True, False]
    assert [(await world.job(j.id)).state for j in jobs] == ["succeeded", "running", "succeeded"]


async def test_an_operation_that_breaks_unexpectedly_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        await world.add()
    leases = await world.jobs.lease(AGENT, max=5)
    finish = moves.finish

    def breaks(job: Job, *rest: Any) -> Any:
        if job.id == 3:
            raise RuntimeError("a bug")
        return finish(job, *rest)

    monkeypatch.setattr(moves, "finish", breaks)
    with caplog.at_level(logging.CRITICAL, "oaken.commit"):
        answers = await asyncio.gather(
            *(world.jobs.complete(AGENT, lease.lease_id) for lease in leases), world.enqueue(), return_exceptions=True
        )
    assert [type(a) for a in answers] == [Job, Job, Unavailable, Job, Job, Enqueued]
    assert "a bug" not in str(answers[2])
    ids = [*range(1, 6), answers[-1].job.id]
    states = [(await world.job(job_id)).state for job_id in ids]
    assert states == ["succeeded", "succeeded", "running", "succeeded", "succeeded", "queued"]
    monkeypatch.undo()
    assert (await world.jobs.complete(AGENT, leases[2].lease_id)).state == "succeeded"


async def test_a_store_that_cannot_answer_is_unavailable_and_works_again_afterwards(world: World) -> None:
    write = world.core.store.write

    async def locked(*_: Any) -> Any:
        raise Unavailable("The database cannot answer now: database is locked. Try again in a few seconds.")

    world.core.store.write = locked  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(world.jobs.lease(AGENT, wait_seconds=30))
    answers = await asyncio.gather(world.enqueue(), waiting, return_exceptions=True)
    assert [type(a) for a in answers] == [Unavailable, Unavailable]
    world.core.store.write = write  # type: ignore[method-assign]
    assert (await world.add()).id == 1


async def test_large_calls_are_taken_in_parts_of_one_transaction_each(world: World) -> None:
    gate = Gate(world)
    gate.opened.set()
    await world.jobs.enqueue_many(ME, [NewJobRequest(kind="work")] * 1000)
    assert gate.sizes == [512, 488]


async def test_nothing_is_taken_after_the_close_and_what_was_taken_is_committed(world: World) -> None:
    gate = Gate(world)
    adding = asyncio.ensure_future(world.add())
    await gate.reached.wait()
    closing = asyncio.ensure_future(world.core.commit.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="stopping"):
        await world.add()
    gate.opened.set()
    await closing
    assert (await adding).id == 1


async def _shown(world: World, show: Callable[[Enqueued], Any], kind: str = "work") -> Any:
    return await world.jobs.enqueue_shown(ME, NewJobRequest(kind=kind), show)


async def test_an_answer_is_put_together_before_it_is_durable_and_given_afterwards(world: World) -> None:
    await world.add()  # from here on it is known that nobody ever leased this kind
    write, durable, seen = world.core.store.write, False, []

    async def noted(*asked: Any) -> Any:
        nonlocal durable
        replies = await write(*asked)
        durable = True
        return replies

    def show(enqueued: Enqueued) -> int:
        seen.append(durable)
        return enqueued.job.id

    world.core.store.write = noted  # type: ignore[method-assign]
    assert await _shown(world, show) == 2
    assert durable
    assert seen == [False], "it is put together once, and before"


async def test_of_a_transaction_that_is_rolled_back_nothing_that_was_put_together_is_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tries = world.core.store.write, 0

    async def fails(ops: Any, applied: Any = None) -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:  # what it made up is not what comes of it
            other = await write(ops)
            wrong = other[0]._replace(job=other[0].job._replace(id=99))
            applied([wrong])
            return other
        return await write(ops, applied)

    world.core.store.write = fails  # type: ignore[method-assign]
    assert await _shown(world, lambda enqueued: enqueued.job.id) == 1
    assert await _shown(world, lambda enqueued: enqueued.job.id) == 2

    async def breaks(ops: Any, applied: Any = None) -> Any:
        await write(ops, applied)
        raise Unavailable("The outcome of this call is unknown. Look before you repeat it.")

    world.core.store.write = breaks  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="unknown"):
        await _shown(world, lambda enqueued: enqueued.job.id)


async def test_an_answer_that_cannot_be_put_together_is_its_callers_own_trouble(world: World) -> None:
    def broken(_: Enqueued) -> int:
        raise RuntimeError("broken view")

    good = asyncio.ensure_future(_shown(world, lambda enqueued: enqueued.created))
    bad = asyncio.ensure_future(_shown(world, broken))
    other = asyncio.ensure_future(world.add())
    assert await good
    assert (await other).state == "queued"
    with pytest.raises(RuntimeError, match="broken view"):
        await bad


async def test_what_is_shown_of_a_job_that_was_there_already_is_looked_up_first(world: World) -> None:
    await world.add(dedupe_key="one")
    request = NewJobRequest(kind="work", dedupe_key="one")
    assert await world.jobs.enqueue_shown(ME, request, lambda enqueued: enqueued.created) is False
    warning = await _shown(world, lambda enqueued: enqueued.warning, "never-heard-of")
    assert "No agent has ever leased a job of kind 'never-heard-of'" in warning

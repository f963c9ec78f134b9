"""Handlers inside the process: the same worker loop as outside, over the local transport, on the real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oaken_jobs.errors import InvalidRequest
from oaken_jobs.handlers import AfterChildren, Ask, Deferred, Handlers, JobContext, PermanentJobError
from oaken_jobs.local import LocalTransport
from oaken_jobs.model import Job, KeepSource, NewJob, SpawnJob
from oaken_jobs.runner import Runner, runner_principal
from oaken_jobs.transport import Complete, Defer, Done, Fail
from tests.contract.world import ME, World, until


class Bench:
    """A runner with handlers that tests steer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.handlers = Handlers()
        self.running: list[JobContext] = []
        self.go_on = asyncio.Event()
        self.runner: Runner | None = None

        @self.handlers.handler("wait", concurrency=10)
        async def wait(job: JobContext) -> Any:
            self.running.append(job)
            await self.go_on.wait()
            return job.payload

    async def start(self, grace: float = 5) -> None:
        core = self.world.core
        self.runner = Runner(core.jobs, core.follower, self.world.clock, self.handlers, grace)
        await self.runner.start()

    async def ended(self, job_id: int) -> Job:
        jobs, final = await self.world.jobs.wait(ME, [job_id], 60)
        assert final
        return jobs[0]

    async def state(self, job_id: int, state: str) -> Job:
        """The job once it is in this state; time passes meanwhile."""
        deadline = asyncio.get_running_loop().time() + 10
        while (job := await self.world.job(job_id)).state != state:
            assert asyncio.get_running_loop().time() < deadline, f"job {job_id} is {job.state}"
            self.world.clock.advance(0.05)
            await asyncio.sleep(0.002)
        return job


@pytest.fixture
async def bench(world: World) -> AsyncIterator[Bench]:
    found = Bench(world)
    yield found
    found.go_on.set()
    if found.runner is not None:
        await found.runner.stop()


async def test_a_handler_that_returns_completes_and_its_job_shows_the_runner(bench: Bench) -> None:
    await bench.start()
    job = await bench.world.add("wait", payload={"n": 1})
    await until(lambda: bool(bench.running))
    assert (await bench.world.job(job.id)).agent.startswith("runner/")  # type: ignore[union-attr]
    bench.go_on.set()
    assert (await bench.ended(job.id)).state == "succeeded"
    assert await bench.world.jobs.result(ME, job.id) == '{"n":1}'


ENDS: list[tuple[str, Any, dict[str, Any]]] = [
    ("raises", ValueError("boom"), {"state": "queued", "last_error": "ValueError: boom", "attempts": 1}),
    ("gives up", PermanentJobError("never"), {"state": "failed", "reason": "permanent"}),
    ("defers", Deferred(60), {"state": "queued", "deferrals": 1, "attempts": 0}),
    ("asks", Ask("Which?", 60), {"state": "queued", "attempts": 0, "question": "Which?", "asked": 1}),
    ("exits", SystemExit(3), {"state": "queued", "attempts": 1}),
]


@pytest.mark.parametrize(("what", "error", "expected"), ENDS, ids=[e[0] for e in ENDS])
async def test_what_a_handler_raises_decides(
    bench: Bench, what: str, error: BaseException, expected: dict[str, Any]
) -> None:
    @bench.handlers.handler("act")
    async def act(job: JobContext) -> None:
        raise error

    await bench.start()
    job = await bench.world.add("act")
    deadline = asyncio.get_running_loop().time() + 10
    while True:
        found = await bench.world.job(job.id)
        if found.epoch and found.state != "running":
            break
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.002)
    assert {name: getattr(found, name) for name in expected} == expected


async def test_a_result_that_does_not_fit_fails_an_in_process_job_at_once(bench: Bench) -> None:
    @bench.handlers.handler("sum")
    async def act(job: JobContext) -> dict[str, Any]:
        return {"n": "secret"}

    await bench.start()
    job = await bench.world.add("sum", payload={"n": 1})
    found = await bench.ended(job.id)
    assert (found.state, found.reason, found.attempts) == ("failed", "result_invalid", 1)
    assert "secret" not in (found.last_error or "")


async def test_a_cancelled_job_ends_cancelled_at_once_without_waiting_for_a_heartbeat(bench: Bench) -> None:
    await bench.start()
    job = await bench.world.add("wait")
    await until(lambda: bool(bench.running))
    await bench.world.jobs.cancel(ME, job.id)
    found = await bench.ended(job.id)  # the clock stands still: no heartbeat can have told
    assert (found.state, found.reason) == ("cancelled", "cancelled_by_user")


async def test_a_stop_gives_handlers_their_grace_then_releases_without_counting_the_attempt(bench: Bench) -> None:
    await bench.start(grace=5)
    job = await bench.world.add("wait")
    await until(lambda: bool(bench.running))
    assert bench.runner is not None
    stopping = asyncio.ensure_future(bench.runner.stop())
    passed = 0.0
    while not stopping.done():
        assert passed < 10
        if passed < 4.5:
            assert (await bench.world.job(job.id)).state == "running"
        bench.world.clock.advance(0.25)
        passed += 0.25
        await asyncio.sleep(0.001)
    assert passed >= 5
    found = await bench.world.job(job.id)
    assert (found.state, found.attempts) == ("queued", 0)
    assert [a.outcome for a in await bench.world.attempts(job.id)] == ["released"]


async def test_a_handler_whose_lease_was_lost_is_cancelled_and_writes_nothing(bench: Bench) -> None:
    await bench.start()
    job = await bench.world.add("wait")
    await until(lambda: bool(bench.running))
    store = bench.world.core.store
    write = store.write

    async def deaf(*_: Any) -> Any:
        raise RuntimeError("the database is away")

    store.write = deaf  # type: ignore[method-assign]
    bench.world.clock.advance(61)  # no beat gets through for a whole lease
    await asyncio.sleep(0)
    store.write = write  # type: ignore[method-assign]
    await bench.world.core.maintenance.tick()
    found = await bench.state(job.id, "running")  # taken anew, by the same runner
    assert (found.lost, found.attempts) == (1, 2)
    outcomes = [a.outcome for a in await bench.world.attempts(job.id)]
    assert (outcomes[0], outcomes[-1]) == ("lost", None)
    assert "succeeded" not in outcomes


async def test_a_queue_runs_no_more_than_its_workers_and_only_kinds_with_a_handler(bench: Bench) -> None:
    await bench.start()
    jobs = [await bench.world.add("wait") for _ in range(5)]
    other = await bench.world.add("nobody-does-this", priority=1000)
    await until(lambda: len(bench.running) == 2)  # `default` has two workers
    await bench.world.tick(1)
    states = [j.state for j in await bench.world.core.store.jobs([j.id for j in jobs])]
    assert states == ["running"] * 2 + ["queued"] * 3
    bench.go_on.set()
    for job in jobs:
        assert (await bench.ended(job.id)).state == "succeeded"
    assert (await bench.world.job(other.id)).state == "queued"


async def test_what_a_handler_leaves_behind_is_written_only_if_its_finish_is_accepted(bench: Bench) -> None:
    @bench.handlers.handler("act")
    async def act(job: JobContext) -> Done:
        bench.running.append(job)
        await bench.go_on.wait()
        return Done({}, (KeepSource("d" * 64, "here"), SpawnJob(NewJob("child", "{}"))))

    await bench.start()
    job = await bench.world.add("act", priority=7)
    await until(lambda: bool(bench.running))
    assert await bench.world.jobs.children(ME, job.id) == []
    bench.go_on.set()
    await bench.ended(job.id)
    (child,) = await bench.world.jobs.children(ME, job.id)
    assert (child.kind, child.priority, child.actor_kind, child.actor_id) == ("child", 7, "system", "act")


async def test_progress_of_a_handler_is_on_the_job(bench: Bench) -> None:
    @bench.handlers.handler("act")
    async def act(job: JobContext) -> None:
        await job.progress(40, "12 of 30")
        bench.running.append(job)
        await bench.go_on.wait()

    await bench.start()
    job = await bench.world.add("act")
    await until(lambda: bool(bench.running))
    found = await bench.world.job(job.id)
    assert (found.percent, found.message) == (40, "12 of 30")


ODD: list[Any] = [
    {"n": float("nan")},
    {"n": "\ud800"},
    Done(usage={"a": "x"}),  # type: ignore[dict-item]
    Done(usage={"a": 2**80}),
    Done(cost_usd=float("nan")),
    Done(cost_usd=-5),
    Done(produced_by="\ud800"),
    Done(produced_by="x" * 1000),
    Deferred(float("inf")),
    ValueError("\ud800"),
]


async def test_one_odd_outcome_of_a_batch_does_not_take_the_others_along(bench: Bench) -> None:
    @bench.handlers.batch_handler("many", max=20, linger=0)
    async def many(jobs: list[JobContext]) -> list[Any]:
        return [[*ODD, {"fine": True}][job.payload["n"]] for job in jobs]

    jobs = [await bench.world.add("many", payload={"n": n}, max_attempts=1) for n in range(len(ODD) + 1)]
    await bench.start()
    found = [await bench.state(job.id, "failed") for job in jobs[:-3]]
    assert {job.reason for job in found} == {"permanent"}
    assert (await bench.state(jobs[-3].id, "queued")).deferrals == 1
    assert (await bench.state(jobs[-2].id, "failed")).last_error == "ValueError: \ufffd"
    assert (await bench.ended(jobs[-1].id)).state == "succeeded"


async def test_whatever_goes_wrong_with_one_ending_is_its_own_answer(bench: Bench) -> None:
    core = bench.world.core
    way = LocalTransport(core.jobs, core.follower, runner_principal())
    for _ in range(4):
        await bench.world.add("many")
    items = await way.lease(queues=None, kinds=["many"], max=4, lease_seconds=None, wait_seconds=0)
    first, second, third, fourth = (item.lease_id for item in items)
    told = await way.finish(
        [
            Complete(first, Done({}, produced_by="\ud800")),
            Fail(second, "no", retry_after=float("nan")),
            Defer(third, float("nan")),
            Complete(fourth, Done({"fine": True})),
        ]
    )
    assert told[0] is not None
    assert told[3] is None
    assert (await bench.world.job(items[3].job_id)).state == "succeeded"


async def test_a_handler_inside_the_process_hands_out_parts_and_puts_their_results_together(bench: Bench) -> None:
    @bench.handlers.handler("part")
    async def part(job: JobContext) -> dict[str, Any]:
        return {"n": 2 * job.payload["n"]}

    @bench.handlers.handler("whole")
    async def whole(job: JobContext) -> dict[str, Any]:
        if job.children is None:
            added = [await job.enqueue("part", {"n": n}, priority=7) for n in (1, 2)]
            assert [one["created"] for one in added] == [True, True]
            raise AfterChildren
        return {"sum": sum(child["result"]["n"] for child in job.children)}

    await bench.start()
    job = await bench.world.add("whole", workspace="lab")
    assert (await bench.ended(job.id)).state == "succeeded"
    assert await bench.world.jobs.result(ME, job.id) == '{"sum":6}'
    children = await bench.world.jobs.children(ME, job.id)
    assert [(child.priority, child.workspace, child.actor_id) for child in children] == [(7, "lab", "runner")] * 2


async def test_a_handler_that_waits_for_children_it_does_not_have_is_out_of_attempts_in_the_end(bench: Bench) -> None:
    @bench.handlers.handler("act")
    async def act(job: JobContext) -> None:
        raise AfterChildren

    await bench.start()
    job = await bench.world.add("act", max_attempts=1)
    found = await bench.ended(job.id)
    assert (found.state, found.reason, found.epoch) == ("failed", "out_of_attempts", 2)


async def test_a_handler_inside_the_process_asks_and_is_told(bench: Bench) -> None:
    @bench.handlers.handler("paint")
    async def paint(job: JobContext) -> dict[str, Any]:
        bench.running.append(job)
        if job.answers is None:
            raise Ask("Which colour?")
        with pytest.raises(InvalidRequest, match="colour: unknown field"):
            await job.enqueue("part", colour="blue")
        return {"colour": job.answers[-1]["answer"]}

    await bench.start()
    job = await bench.world.add("paint")
    await until(lambda: bool(bench.running))
    await bench.state(job.id, "queued")
    await bench.world.jobs.answer(ME, job.id, "Blue.")
    assert (await bench.ended(job.id)).state == "succeeded"
    assert await bench.world.jobs.result(ME, job.id) == '{"colour":"Blue."}'

"""The worker of the package, against a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oaken_swarm import AfterChildren, Ask, Client, Deferred, Done, JobContext, PermanentJobError, Worker
from tests.service import Service, eventually, serve


@asynccontextmanager
async def working(server: Service, register: Callable[[Worker], None], **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(server.url, "bot", await server.token("bot", "agent"), **options)
    register(worker)
    task = asyncio.ensure_future(worker.run_async())
    try:
        yield worker
    finally:
        await worker.stop()
        await task


async def ended(client: Client, job_id: int, seconds: float = 10) -> dict[str, Any]:
    told = await client.wait(job_id, seconds)
    assert told["final"], told
    return told["job"]


async def test_a_handler_does_jobs_and_its_errors_are_theirs(server: Service) -> None:
    client = await server.client("ann", "user")

    def register(worker: Worker) -> None:
        @worker.handler("double", concurrency=2)
        async def double(job: JobContext) -> dict[str, Any]:
            await job.progress(50, "halfway")
            if job.payload.get("bad"):
                raise PermanentJobError("cannot")
            return {"n": 2 * job.payload["n"]}

    async with working(server, register):
        good = (await client.enqueue("double", {"n": 21}))["job"]["id"]
        bad = (await client.enqueue("double", {"bad": True}))["job"]["id"]
        done = await ended(client, good)
        assert (done["state"], done["result"]) == ("succeeded", {"n": 42})
        failed = await ended(client, bad)
        assert (failed["state"], failed["reason"]) == ("failed", "permanent")
        assert "cannot" in failed["last_error"]
    assert [row["message"] for row in (await client.progress(good))["progress"]] == ["halfway"]


ODD: list[Any] = [
    {"n": float("nan")},
    {"n": "\ud800"},
    {"n": "x" * 60_000_000},
    Done(usage={"a": "x"}),  # type: ignore[dict-item]
    Done(usage={"a": 2**80}),
    Done(cost_usd="5"),  # type: ignore[arg-type]
    Done(cost_usd=float("nan")),
    Done(produced_by="\ud800"),
    Done(produced_by="x" * 1000),
    ValueError("\ud800"),
]


@pytest.mark.parametrize("batch", [True, False])
async def test_an_outcome_that_cannot_be_sent_ends_its_job_as_failed_and_no_other(server: Service, batch: bool) -> None:
    client = await server.client("ann", "user")

    def register(worker: Worker) -> None:
        if batch:

            @worker.batch_handler("odd", max=20)
            async def many(jobs: list[JobContext]) -> list[Any]:
                return [{"fine": True} if job.payload["n"] is None else ODD[job.payload["n"]] for job in jobs]

        else:

            @worker.handler("odd", concurrency=20)
            async def one(job: JobContext) -> Any:
                if job.payload["n"] is None:
                    return {"fine": True}
                if isinstance(ODD[job.payload["n"]], Exception):
                    raise ODD[job.payload["n"]]
                return ODD[job.payload["n"]]

    told = await client.enqueue_many(
        [{"kind": "odd", "payload": {"n": n}, "max_attempts": 1} for n in [*range(len(ODD)), None]]
    )
    async with working(server, register):
        jobs = [await ended(client, one["job"]["id"]) for one in told["jobs"]]
    assert [job["state"] for job in jobs] == ["failed"] * len(ODD) + ["succeeded"]
    assert {job["lost"] for job in jobs} == {0}
    assert "60000008 bytes, over the limit of 1048576" in jobs[2]["last_error"]


async def test_a_batch_handler_gets_many_jobs_at_once(server: Service) -> None:
    client = await server.client("ann", "user")
    sizes: list[int] = []

    def register(worker: Worker) -> None:
        @worker.batch_handler("many", max=10, linger=0.01)
        async def many(jobs: list[JobContext]) -> list[dict[str, Any]]:
            sizes.append(len(jobs))
            return [{"n": job.payload["n"] + 1} for job in jobs]

    told = await client.enqueue_many([{"kind": "many", "payload": {"n": n}} for n in range(20)])
    ids = [one["job"]["id"] for one in told["jobs"]]
    async with working(server, register):
        assert (await client.wait(ids, 10))["final"] is True
    assert max(sizes) == 10
    assert [(await client.result(job_id))["n"] for job_id in ids] == list(range(1, 21))


async def test_a_deferral_comes_back_without_counting(server: Service) -> None:
    client = await server.client("ann", "user")
    seen: list[int] = []

    def register(worker: Worker) -> None:
        @worker.handler("later")
        async def later(job: JobContext) -> dict[str, Any]:
            seen.append(job.attempt)
            if len(seen) == 1:
                raise Deferred(0)
            return {}

    async with working(server, register):
        job = await ended(client, (await client.enqueue("later"))["job"]["id"])
    assert (seen, job["deferrals"], job["attempts"]) == ([1, 1], 1, 1)


@pytest.mark.parametrize("batch", [True, False])
async def test_a_handler_hands_out_parts_and_puts_their_results_together(server: Service, batch: bool) -> None:
    client = await server.client("ann", "user")

    async def total(job: JobContext) -> dict[str, Any]:
        if job.children is None:
            for n in job.payload["numbers"]:
                await job.enqueue("square", {"n": n}, title=f"square of {n}")
            raise AfterChildren
        return {"sum": sum(child["result"]["n"] for child in job.children)}

    async def outcome(job: JobContext) -> Any:
        try:
            return await total(job)
        except AfterChildren as waits:
            return waits

    def register(worker: Worker) -> None:
        @worker.handler("square", concurrency=5)
        async def square(job: JobContext) -> dict[str, Any]:
            return {"n": job.payload["n"] ** 2}

        if batch:

            @worker.batch_handler("sum", max=5)
            async def sums(jobs: list[JobContext]) -> list[Any]:
                return [await outcome(job) for job in jobs]

        else:
            worker.handler("sum", concurrency=2)(total)

    added = await client.enqueue_many([{"kind": "sum", "payload": {"numbers": list(range(n))}} for n in (4, 3)])
    async with working(server, register):
        jobs = [await ended(client, one["job"]["id"]) for one in added["jobs"]]
    assert [(job["result"], job["attempts"]) for job in jobs] == [({"sum": 14}, 1), ({"sum": 5}, 1)]
    children = (await client.children(jobs[0]["id"]))["jobs"]
    assert [child["title"] for child in children] == [f"square of {n}" for n in (3, 2, 1, 0)]
    assert {child["actor"]["id"] for child in children} == {"bot"}


@pytest.mark.parametrize("batch", [True, False])
async def test_a_handler_asks_and_goes_on_with_the_answer(server: Service, batch: bool) -> None:
    client = await server.client("ann", "user")

    def paint(job: JobContext) -> Any:
        if job.answers is None:
            return Ask("Which colour?", timeout_seconds=600)
        return {"colour": job.answers[-1]["answer"]}

    def register(worker: Worker) -> None:
        if batch:

            @worker.batch_handler("paint", max=5)
            async def many(jobs: list[JobContext]) -> list[Any]:
                return [paint(job) for job in jobs]

        else:

            @worker.handler("paint")
            def one(job: JobContext) -> Any:
                done = paint(job)
                if isinstance(done, Ask):
                    raise done
                return done

    added = await client.enqueue_many([{"kind": "paint"}, {"kind": "paint"}])
    ids = [one["job"]["id"] for one in added["jobs"]]
    async with working(server, register):
        for job_id in ids:

            async def asks(job_id: int = job_id) -> bool:
                return (await client.job(job_id))["job"]["question"] == "Which colour?"

            await eventually(asks)
            await client.answer(job_id, f"Number {job_id}.")
        jobs = [await ended(client, job_id) for job_id in ids]
    assert [job["result"] for job in jobs] == [{"colour": f"Number {job_id}."} for job_id in ids]


async def test_the_example_of_the_readme_asks_splits_its_job_and_puts_it_together(
    server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = re.search(r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)
    assert example is not None
    monkeypatch.setenv("OAKEN_URL", server.url)
    monkeypatch.setenv("OAKEN_TOKEN", await server.token("writer", "agent"))
    names: dict[str, Any] = {}
    code, run, _ = example[1].partition("worker.run()")
    assert run
    exec(code, names)
    worker: Worker = names["worker"]

    @worker.handler("chapter")
    async def chapter(job: JobContext) -> dict[str, Any]:
        if job.payload["title"] == "bad":
            raise PermanentJobError("no")
        return {"text": job.payload["title"].upper()}

    client = await server.client("ann", "user")
    running = asyncio.ensure_future(worker.run_async())
    job_id = (await client.enqueue("report", {"chapters": ["a", "b", "a"]}))["job"]["id"]
    torn_id = (await client.enqueue("report", {"chapters": ["a", "bad"]}))["job"]["id"]

    async def asks() -> bool:
        return len((await client.jobs(asking=True))["jobs"]) == 2

    await eventually(asks)
    await client.answer(job_id, "Ann")
    await client.answer(torn_id, "Ann")
    job, torn = await ended(client, job_id), await ended(client, torn_id)
    await worker.stop()
    await running
    assert job["result"] == {"for": "Ann", "chapters": [{"text": "A"}, {"text": "B"}, {"text": "A"}]}
    assert (torn["state"], torn["last_error"]) == ("failed", "PermanentJobError: without a result: bad")


async def test_a_cancelled_job_is_stopped_by_its_worker(server: Service) -> None:
    client = await server.client("ann", "user")
    begun = asyncio.Event()

    def register(worker: Worker) -> None:
        @worker.handler("long")
        async def long(job: JobContext) -> None:
            begun.set()
            await asyncio.Event().wait()

    async with working(server, register, lease_seconds=1):
        job_id = (await client.enqueue("long"))["job"]["id"]
        await asyncio.wait_for(begun.wait(), 10)
        assert (await client.cancel(job_id))["job"]["cancelling"] is True
        job = await ended(client, job_id)
    assert (job["state"], job["reason"]) == ("cancelled", "cancelled_by_user")


async def test_a_worker_that_stops_gives_its_jobs_back_unharmed(server: Service) -> None:
    client = await server.client("ann", "user")
    begun = asyncio.Event()

    def register(worker: Worker) -> None:
        @worker.handler("long")
        async def long(job: JobContext) -> None:
            begun.set()
            await asyncio.Event().wait()

    async with working(server, register, grace=0):
        job_id = (await client.enqueue("long"))["job"]["id"]
        await asyncio.wait_for(begun.wait(), 10)
    job = (await client.job(job_id))["job"]
    assert (job["state"], job["attempts"]) == ("queued", 0)
    assert [row["outcome"] for row in (await client.attempts(job_id))["attempts"]] == ["released"]


async def test_a_job_longer_than_its_lease_is_kept_by_heartbeats(server: Service) -> None:
    client = await server.client("ann", "user")
    proceed = asyncio.Event()

    def register(worker: Worker) -> None:
        @worker.handler("long")
        async def long(job: JobContext) -> dict[str, Any]:
            await proceed.wait()
            return {}

    async with working(server, register, lease_seconds=1):
        job_id = (await client.enqueue("long"))["job"]["id"]

        async def extended() -> bool:
            job = (await client.job(job_id))["job"]
            return job["state"] == "running" and job["lease"]["expires_at"] > first["lease"]["expires_at"]

        first = await eventually(lambda: _running(client, job_id))
        await eventually(extended)
        proceed.set()
        job = await ended(client, job_id)
    assert (job["state"], job["lost"], job["attempts"]) == ("succeeded", 0, 1)


async def _running(client: Client, job_id: int) -> dict[str, Any] | None:
    job = (await client.job(job_id))["job"]
    return job if job["state"] == "running" else None


async def lapsed(server: Service, job_id: int) -> bool:
    (job,) = await server.core.store.jobs([job_id])
    return (job.lease_expires or 0) < server.core.clock.now()


@pytest.mark.parametrize("late", [False, True])
async def test_a_job_that_ends_while_the_server_is_away_is_finished_when_it_is_back(
    server: Service, late: bool
) -> None:
    client = await server.client("ann", "user", tries=4)
    began, through = asyncio.Event(), asyncio.Event()

    def register(worker: Worker) -> None:
        @worker.handler("slow")
        async def slow(job: JobContext) -> dict[str, Any]:
            began.set()
            await through.wait()
            return {"n": 1}

    async with working(server, register, lease_seconds=1 if late else 60):
        job_id = (await client.enqueue("slow"))["job"]["id"]
        await began.wait()
        await server.server.stop()
        through.set()
        if late:  # as the clock of the server sees it
            await eventually(lambda: lapsed(server, job_id))
        again = await serve(server.core, port=server.port)

        async def told() -> Any:
            if late:
                attempt, *_ = (await client.attempts(job_id))["attempts"]  # it may have been taken again since
                return attempt["late_result"]
            return (await client.job(job_id))["job"]["state"] == "succeeded"

        await eventually(told)
    if late:
        assert await client.late_result(job_id, 1) == {"n": 1}
    else:
        assert (await client.job(job_id))["job"]["lost"] == 0
    await client.aclose()
    await again.close()

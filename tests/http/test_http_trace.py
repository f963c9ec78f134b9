"""Rows for the trace over HTTP, with the trace on and off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.archive import JournalArchive
from oaken_jobs.clock import SystemClock
from oaken_jobs.core import Core
from oaken_jobs.journal import Journal
from oaken_jobs.trace import Recorder
from oaken_swarm import JobContext, LeaseLost, Worker
from tests.service import RULES, Service, problem, serve


@pytest.fixture
async def recording(tmp_path: Path) -> AsyncIterator[Service]:
    """A server that records."""
    clock = SystemClock()
    trace = Recorder(JournalArchive(Journal(tmp_path / "trace.jsonl", 1 << 20, 1)), clock, recording=True, keep_days=30)
    core = Core.on_folder(tmp_path, RULES, "serve", clock, trace=trace)
    await core.open()
    service = await serve(core)
    yield service
    await service.close()
    await core.close()


async def leased(server: Service) -> tuple[Any, dict[str, Any]]:
    client = await server.client()
    await client.enqueue("echo", {"told": 1})
    return client, (await client.lease())["leases"][0]


async def test_a_holders_rows_are_counted_and_keep_the_lease(recording: Service, tmp_path: Path) -> None:
    client, lease = await leased(recording)
    told = await client.trace(lease["lease_id"], [{"model": "m-1", "input": [1], "output": "said"}, {"tool": "grep"}])
    assert (told["recorded"], told["cancelling"]) == (2, False)
    assert told["expires_at"] >= lease["expires_at"]
    rows = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows] == ["lease", "agent", "agent"]
    assert (rows[1]["input"], rows[1]["output"]) == ([1], "said")


async def test_without_a_trace_rows_are_taken_and_none_is_recorded(server: Service) -> None:
    client, lease = await leased(server)
    assert (await client.trace(lease["lease_id"], [{"output": "said"}]))["recorded"] == 0


async def test_nobody_but_the_holder_adds_rows(recording: Service) -> None:
    client, lease = await leased(recording)
    other = await recording.client("bob")
    with pytest.raises(LeaseLost):
        await other.trace(lease["lease_id"], [{"output": "said"}])
    await client.complete(lease["lease_id"])
    with pytest.raises(LeaseLost):
        await client.trace(lease["lease_id"], [{"output": "said"}])


@pytest.mark.parametrize(
    "rows", [[], [{}], [{"input": None}], [{"model": "m"}] * 101, [{"started_at": "noon"}], [{"usage": {"n": -1}}], "x"]
)
async def test_rows_that_say_nothing_or_too_much_are_refused(server: Service, rows: Any) -> None:
    _, lease = await leased(server)
    http = await server.http("ann")
    problem(await http.post(f"/v1/leases/{lease['lease_id']}/trace", json={"rows": rows}), 422, "invalid_request")


async def test_a_batch_adds_rows_each_answered_at_its_place_and_before_the_end(
    recording: Service, tmp_path: Path
) -> None:
    client, lease = await leased(recording)
    await client.enqueue("echo")
    other = await recording.client("bob")
    [his] = (await other.lease())["leases"]
    mine, rows = lease["lease_id"], [{"model": "m-1", "output": "said"}, {"tool": "grep"}]
    told = await client.batch(
        [
            {"op": "trace", "lease_id": mine, "rows": rows},
            {"op": "trace", "lease_id": his["lease_id"], "rows": rows},
            {"op": "trace", "lease_id": mine, "rows": [{"model": "m", "nothing": 1}]},
            {"op": "trace", "lease_id": mine},
            {"op": "trace", "lease_id": mine, "rows": [{"output": "x" * RULES.max_result_bytes}]},
            {"op": "complete", "lease_id": mine, "result": {"done": True}},
            {"op": "trace", "lease_id": mine, "rows": rows},
        ]
    )
    results = told["results"]
    assert [one["status"] for one in results] == [200, 409, 422, 422, 413, 200, 409]
    assert (results[0]["recorded"], results[0]["cancelling"]) == (2, False)
    assert results[0]["expires_at"] >= lease["expires_at"]
    assert "ops.2.rows.0.nothing: unknown field" in results[2]["error"]["detail"]
    assert [results[place]["error"]["code"] for place in (1, 6)] == ["lease_lost", "lease_lost"]
    kept = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    about = [row for row in kept if row["job_id"] == lease["job"]["id"]]
    assert [row["event"] for row in about] == ["lease", "agent", "agent", "finish"]
    assert not [row for row in kept if row["job_id"] == his["job"]["id"] and row["event"] == "agent"]


async def test_a_batch_without_a_trace_takes_rows_and_records_none(server: Service) -> None:
    client, lease = await leased(server)
    [told] = (await client.batch([{"op": "trace", "lease_id": lease["lease_id"], "rows": [{"model": "m"}]}]))["results"]
    assert (told["status"], told["recorded"]) == (200, 0)


async def test_handlers_of_a_worker_add_rows(recording: Service, tmp_path: Path) -> None:
    client = await recording.client("ann", "user")
    worker = Worker(recording.url, "bot", await recording.token("bot", "agent"))

    @worker.handler("traced")
    async def traced(job: JobContext) -> dict[str, Any]:
        await job.trace(operation="chat", output="said")
        return {"done": True}

    job_id = (await client.enqueue("traced", {}))["job"]["id"]
    task = asyncio.ensure_future(worker.run_async())
    assert (await client.wait(job_id, 10))["final"]
    await worker.stop()
    await task
    rows = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [(row["event"], row.get("output")) for row in rows] == [
        ("lease", None),
        ("agent", "said"),
        ("finish", {"done": True}),
    ]
    assert {row["agent"] for row in rows} == {rows[0]["agent"]}

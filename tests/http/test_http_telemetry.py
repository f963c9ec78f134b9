"""One trace over enqueue, wait, run and finish, across HTTP; and the `traceparent` of jobs."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from oaken_jobs import pipeline, spans, telemetry
from oaken_jobs.clock import SystemClock
from oaken_jobs.runner import Runner
from oaken_swarm import JobContext, PermanentJobError, Worker
from tests.http.test_http_worker import ended, working
from tests.service import Service, eventually

SECRET = "hunter2"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = PARENT[3:35]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What Oaken says to an SDK, which is this test's alone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("oaken"))
    return exporter


async def test_one_trace_has_enqueue_wait_run_and_finish(server: Service, exported: InMemorySpanExporter) -> None:
    client = await server.client("ann", "user")
    seen: dict[str, Any] = {}

    def register(worker: Worker) -> None:
        @worker.handler("parent")
        async def parent(job: JobContext) -> dict[str, Any]:
            seen["handed"], seen["inside"] = job.traceparent, telemetry.current()
            seen["child"] = (await job.enqueue("child", {"text": SECRET}))["job"]["id"]
            return {"text": SECRET}

        @worker.handler("child")
        def child(job: JobContext) -> dict[str, Any]:
            seen["in the child"] = (job.traceparent, telemetry.current())
            raise PermanentJobError(SECRET)

    with telemetry._tracer.start_as_current_span("request") as request:
        job_id = (await client.enqueue("parent", {"text": SECRET}, title=SECRET))["job"]["id"]
        outer = telemetry.current()
    async with working(server, register):
        await ended(client, job_id)
        await ended(client, seen["child"])

        async def all_there() -> bool:
            return len(exported.get_finished_spans()) == 7

        await eventually(all_there)
    found = exported.get_finished_spans()
    assert sorted(span.name for span in found) == sorted(["request", *["oaken.wait", "oaken.run", "oaken.finish"] * 2])
    assert {span.context.trace_id for span in found} == {request.get_span_context().trace_id}
    assert seen["handed"] == outer
    of = {name: [span for span in found if span.name == f"oaken.{name}"] for name in ("wait", "run", "finish")}
    mine, childs = (
        {name: next(span for span in of[name] if span.attributes["oaken.job.id"] == which) for name in of}
        for which in (job_id, seen["child"])
    )
    here = request.get_span_context().span_id
    assert {span.parent.span_id for span in mine.values()} == {here}
    assert {span.parent.span_id for span in childs.values()} == {mine["run"].context.span_id}
    assert seen["inside"].split("-")[2] == f"{mine['run'].context.span_id:016x}"
    inside_child = f"{childs['run'].context.span_id:016x}"
    assert seen["in the child"] == (seen["inside"], "-".join([*outer.split("-")[:2], inside_child, outer[-2:]]))
    assert (mine["run"].status.status_code, childs["run"].status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert {span.status.status_code for span in of["finish"]} == {StatusCode.UNSET}
    assert mine["wait"].start_time <= mine["wait"].end_time <= mine["finish"].end_time
    for span in found:
        assert SECRET not in span.to_json()
    assert dict(mine["run"].attributes) == {
        "oaken.job.id": job_id,
        "oaken.job.kind": "parent",
        "oaken.job.queue": "default",
        "oaken.job.attempt": 1,
        "oaken.job.epoch": 1,
    }


async def test_a_traceparent_is_kept_and_handed_out_and_a_wrong_one_is_ignored(server: Service) -> None:
    http = await server.http("ann", "user", "agent")
    for header in (PARENT, "00-xyz", None):
        headers = {} if header is None else {"traceparent": header}
        told = await http.post("/v1/jobs", json={"kind": "echo"}, headers=headers)
        assert told.status_code == 201
        (lease,) = (await http.post("/v1/leases", json={})).json()["leases"]
        assert lease.get("traceparent") == (PARENT if header == PARENT else None)
        await http.post(f"/v1/leases/{lease['lease_id']}/complete", json={})
    told = await http.post("/v1/jobs", json={"jobs": [{"kind": "echo"}] * 2}, headers={"traceparent": PARENT})
    assert [one["status"] for one in told.json()["jobs"]] == [201, 201]
    told = await http.post("/v1/intake", json={"text": "a"}, headers={"traceparent": PARENT})
    assert told.status_code == 201
    jobs = await server.core.store.jobs(list(range(1, 10)))
    assert [job.traceparent for job in jobs] == [PARENT, None, None, PARENT, PARENT, PARENT]
    assert spans.trace_id(jobs[0]) == TRACE
    assert len(spans.trace_id(jobs[1])) == 32


async def test_children_and_what_a_finish_adds_belong_to_the_trace_of_their_job(server: Service) -> None:
    http = await server.http("ann", "user", "agent")
    told = await http.post("/v1/intake", json={"text": "a"}, headers={"traceparent": PARENT})
    await http.post("/v1/jobs", json={"kind": "echo", "parent_id": told.json()["job"]["id"]})
    await Runner(server.core.jobs, server.core.follower, SystemClock(), pipeline.handlers(), 1).drain()
    jobs = await server.core.store.jobs(list(range(1, 10)))
    assert {"intake", "echo", "store", "embed"} <= {job.kind for job in jobs}
    assert {job.traceparent for job in jobs} == {PARENT}


async def test_a_repeat_from_another_trace_is_the_same_request(server: Service) -> None:
    http = await server.http("ann", "user")
    ids = set()
    for trace_id in ("1" * 32, "2" * 32):
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "Idempotency-Key": "k"}
        told = await http.post("/v1/jobs", json={"kind": "echo"}, headers=headers)
        assert told.is_success
        ids.add(told.json()["job"]["id"])
    assert len(ids) == 1

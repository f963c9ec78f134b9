"""Jobs over HTTP: adding, reading, waiting for, cancelling, requeueing."""

from __future__ import annotations

import asyncio

import pytest

from oaken_swarm import Conflict, Forbidden, InvalidRequest, NotFound, PayloadInvalid
from tests.service import Service, problem

JOB_FIELDS = {
    "id",
    "workspace",
    "kind",
    "queue",
    "routed_by",
    "state",
    "cancelling",
    "reason",
    "waits",
    "priority",
    "title",
    "tags",
    "subject",
    "target",
    "dedupe_key",
    "serial_key",
    "parent_id",
    "produced_by",
    "attempts",
    "max_attempts",
    "lost",
    "deferrals",
    "coalesced",
    "created_at",
    "run_at",
    "started_at",
    "finished_at",
    "expires_at",
    "actor",
    "lease",
    "progress",
    "question",
    "last_error",
    "usage",
    "cost_usd",
    "budget_usd",
    "grade",
}


async def test_an_enqueued_job_is_answered_with_201_and_all_its_fields_but_the_bodies(server: Service) -> None:
    http = await server.http()
    response = await http.post("/v1/jobs", json={"kind": "echo", "payload": {"a": 1}, "title": "T", "tags": ["x"]})
    assert response.status_code == 201
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    told = response.json()
    assert told["created"] is True
    assert "No agent has ever leased" in told["warning"]
    job = told["job"]
    assert job.keys() >= JOB_FIELDS
    assert not job.keys() & {"payload", "result"}
    assert (job["kind"], job["state"], job["title"], job["tags"]) == ("echo", "queued", "T", ["x"])
    assert job["actor"] == {"kind": "user", "id": "ann", "via": "http"}
    assert job["priority"] == 100


async def test_a_job_is_read_with_payload_and_result(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo", {"a": [1, {"b": None}]}))["job"]["id"]
    job = (await client.job(job_id))["job"]
    assert job["payload"] == {"a": [1, {"b": None}]}
    assert job["result"] is None


async def test_a_duplicate_is_answered_with_200_and_the_live_job(server: Service) -> None:
    http = await server.http()
    first = await http.post("/v1/jobs", json={"kind": "echo", "dedupe_key": "k"})
    again = await http.post("/v1/jobs", json={"kind": "echo", "dedupe_key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["created"] is False
    assert again.json()["job"]["id"] == first.json()["job"]["id"]
    assert again.json()["job"]["coalesced"] == 1


async def test_many_jobs_are_answered_in_order_each_with_its_status(server: Service) -> None:
    client = await server.client()
    told = await client.enqueue_many(
        [
            {"kind": "echo", "payload": {"n": 1}},
            {"kind": "echo", "payloda": {}},
            {"kind": "checked", "payload": {"n": "x"}},
            {"kind": "echo", "dedupe_key": "k"},
            {"kind": "echo", "dedupe_key": "k"},
            "no object",  # type: ignore[list-item]
        ]
    )
    assert [one["status"] for one in told["jobs"]] == [201, 422, 422, 201, 200, 422]
    assert "did you mean payload?" in told["jobs"][1]["error"]["detail"]
    assert told["jobs"][1]["error"]["detail"].startswith("jobs.1.payloda")
    assert told["jobs"][2]["error"]["code"] == "payload_invalid"
    assert told["jobs"][4]["created"] is False
    assert told["jobs"][0]["job"]["id"] < told["jobs"][3]["job"]["id"]


async def test_more_jobs_than_one_call_takes_are_refused_with_the_limit(server: Service) -> None:
    client = await server.client()
    with pytest.raises(InvalidRequest, match=r"21 jobs in one call; at most 20 .*max_batch"):
        await client.enqueue_many([{"kind": "echo"}] * 21)


async def test_a_payload_that_does_not_fit_its_kind_is_refused_with_path_and_rule(server: Service) -> None:
    client = await server.client()
    with pytest.raises(PayloadInvalid) as caught:
        await client.enqueue("checked", {"n": "x"})
    assert caught.value.details["errors"][0]["path"] == "/n"
    assert caught.value.details["errors"][0]["rule"] == "type"


async def test_an_agent_enqueues_children_of_what_it_holds_and_nothing_else(server: Service) -> None:
    user = await server.client("ann", "user")
    agent = await server.client("bot", "agent")
    parent = (await user.enqueue("echo"))["job"]["id"]
    with pytest.raises(Forbidden, match="children of a job it holds"):
        await agent.enqueue("echo")
    with pytest.raises(Forbidden):
        await agent.enqueue("echo", parent_id=parent)
    await agent.lease(kinds=["echo"])
    child = (await agent.enqueue("echo", parent_id=parent))["job"]
    assert child["parent_id"] == parent
    assert [job["id"] for job in (await agent.children(parent))["jobs"]] == [child["id"]]


async def test_result_is_the_stored_text_itself_and_404_while_there_is_none(server: Service) -> None:
    client = await server.client()
    http = await server.http()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    told = problem(await http.get(f"/v1/jobs/{job_id}/result"), 404, "not_found")
    assert told["state"] == "queued"
    lease = (await client.lease())["leases"][0]
    await client.complete(lease["lease_id"], {"x": [1.5, "é"]})
    response = await http.get(f"/v1/jobs/{job_id}/result")
    assert response.status_code == 200
    assert response.content == '{"x":[1.5,"é"]}'.encode()
    assert await client.result(job_id) == {"x": [1.5, "é"]}


async def test_the_history_of_a_job_tells_attempts_progress_and_activity(server: Service) -> None:
    client = await server.client(instance="a")
    job_id = (await client.enqueue("echo"))["job"]["id"]
    lease = (await client.lease())["leases"][0]
    await client.report(lease["lease_id"], 40, "12 of 30")
    await client.complete(lease["lease_id"], {}, usage={"input_tokens": 3}, cost_usd=0.5, produced_by="model-1")
    [attempt] = (await client.attempts(job_id))["attempts"]
    assert attempt["agent"] == "ann/a"
    assert attempt["outcome"] == "succeeded"
    assert attempt["usage"] == {"input_tokens": 3}
    assert (attempt["cost_usd"], attempt["produced_by"]) == (0.5, "model-1")
    [step] = (await client.progress(job_id))["progress"]
    assert (step["percent"], step["message"], step["epoch"]) == (40, "12 of 30", 1)
    rows = (await client.activity(job_id))["activity"]
    assert [row["data"]["verb"] for row in rows] == ["enqueue", "claim", "progress", "complete"]
    assert rows[-1]["data"]["actor"] == {"kind": "user", "id": "ann", "via": "http"}
    job = (await client.job(job_id))["job"]
    assert (job["state"], job["usage"], job["cost_usd"]) == ("succeeded", {"input_tokens": 3}, 0.5)


async def test_cancel_ends_a_queued_job_and_says_whether_it_changed_anything(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    told = await client.cancel(job_id)
    assert (told["job"]["state"], told["job"]["reason"], told["changed"]) == ("cancelled", "cancelled_by_user", True)
    assert (await client.cancel(job_id))["changed"] is False


async def test_cancel_asks_a_running_job_to_stop_and_its_holder_hears_it(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    assert (await client.heartbeat(lease_id))["cancelling"] is False
    assert (await client.cancel(job_id))["job"]["cancelling"] is True
    assert (await client.heartbeat(lease_id))["cancelling"] is True
    assert (await client.cancelled(lease_id))["job"]["state"] == "cancelled"


async def test_requeue_puts_a_failed_job_back_and_may_name_another_queue(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    with pytest.raises(InvalidRequest, match="not configured"):
        await client.requeue(job_id, "nowhere")
    await client.fail((await client.lease())["leases"][0]["lease_id"], "no", permanent=True)
    job = (await client.requeue(job_id, "slow"))["job"]
    assert (job["state"], job["queue"], job["routed_by"], job["attempts"]) == ("queued", "slow", "requeue", 0)


async def test_requeue_refuses_a_job_that_runs_or_succeeded(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    with pytest.raises(Conflict, match="running"):
        await client.requeue(job_id)
    await client.complete(lease_id)
    with pytest.raises(Conflict, match="succeeded"):
        await client.requeue(job_id)


async def test_wait_answers_when_the_job_ends(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    waiting = asyncio.ensure_future(client.wait(job_id, 30))
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    await client.complete(lease_id, {"x": 1})
    told = await asyncio.wait_for(waiting, 5)
    assert told["final"] is True
    assert told["job"]["result"] == {"x": 1}


async def test_wait_answers_as_things_are_at_the_deadline(server: Service) -> None:
    client = await server.client()
    ids = [(await client.enqueue("echo"))["job"]["id"] for _ in range(2)]
    await client.cancel(ids[0])
    told = await client.wait(ids, 0.05)
    assert told["final"] is False
    assert [job["state"] for job in told["jobs"]] == ["cancelled", "queued"]
    assert (await client.wait(ids, 0))["final"] is False


async def test_wait_for_a_job_that_is_not_there_is_404(server: Service) -> None:
    client = await server.client()
    for seconds in (0, 5):
        with pytest.raises(NotFound):
            await client.wait(99, seconds)
        with pytest.raises(NotFound):
            await client.wait([99], seconds)


async def test_an_agent_reads_what_concerns_it_and_hears_of_nothing_else(server: Service) -> None:
    user = await server.client("ann", "user")
    agent = await server.client("bot", "agent")
    mine, other = [(await user.enqueue("echo"))["job"]["id"] for _ in range(2)]
    await agent.lease(max=1)
    assert (await agent.job(mine))["job"]["id"] == mine
    for read in (agent.job, agent.result, agent.attempts, agent.progress, agent.activity, agent.children, agent.wait):
        with pytest.raises(NotFound):
            await read(other)
    assert [job["id"] for job in (await agent.jobs())["jobs"]] == [mine]


async def test_an_unknown_job_is_404_on_every_route(server: Service) -> None:
    http = await server.http()
    for tail in ("", "/result", "/progress", "/attempts", "/activity", "/children", "/wait?seconds=0"):
        assert problem(await http.get(f"/v1/jobs/99{tail}"), 404, "not_found")["job_id"] == 99
    for tail in ("/cancel", "/requeue"):
        assert problem(await http.post(f"/v1/jobs/99{tail}"), 404, "not_found")["job_id"] == 99

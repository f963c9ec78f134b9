"""Keys, questions, children, late results, many at once and workspaces, as clients meet them over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from oaken_swarm import Client, Conflict, Forbidden, InvalidRequest, LeaseLost, NotFound
from tests.service import ROOT, Service, eventually, problem


async def test_a_repeat_under_an_idempotency_key_is_marked_and_gets_the_first_answer(server: Service) -> None:
    http = await server.http()
    headers = {"Idempotency-Key": "k-1"}
    first = await http.post("/v1/jobs", json={"kind": "echo", "payload": {"n": 1}}, headers=headers)
    await http.post(f"/v1/jobs/{first.json()['job']['id']}/cancel")
    again = await http.post("/v1/jobs", json={"kind": "echo", "payload": {"n": 1}}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["job"] == first.json()["job"]
    other = await http.post("/v1/jobs", json={"kind": "echo", "payload": {"n": 2}}, headers=headers)
    assert "'k-1' was used for another request" in problem(other, 409, "idempotency_conflict")["detail"]


async def test_a_key_in_the_body_does_the_same_and_goes_before_the_header(server: Service) -> None:
    http = await server.http()
    body = {"kind": "echo", "idempotency_key": "mine"}
    first = await http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "a"})
    again = await http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "b"})
    assert (again.json()["job"]["id"], again.headers["idempotency-replayed"]) == (first.json()["job"]["id"], "true")


async def test_an_answer_says_whether_it_was_given_before_and_whether_a_payload_was_replaced(server: Service) -> None:
    client = await server.client()
    first = await client.enqueue("echo", {"n": 1}, dedupe_key="k", idempotency_key="i")
    again = await client.enqueue("echo", {"n": 1}, dedupe_key="k", idempotency_key="i")
    assert ("replayed" in first, again["replayed"]) == (False, True)
    other = await client.enqueue("echo", {"n": 2}, dedupe_key="k", on_duplicate="replace")
    assert (other["created"], other["replaced"]) == (False, True)
    await client.lease()
    late = await client.enqueue("echo", {"n": 3}, dedupe_key="k", on_duplicate="replace")
    assert (late["created"], late["replaced"]) == (False, False)


async def test_many_jobs_under_one_key_are_each_added_once(server: Service) -> None:
    http = await server.http()
    jobs = [{"kind": "echo", "payload": {"n": n}} for n in range(3)]
    headers = {"Idempotency-Key": "k"}
    first = (await http.post("/v1/jobs", json={"jobs": jobs[:2]}, headers=headers)).json()["jobs"]
    again = (await http.post("/v1/jobs", json={"jobs": jobs}, headers=headers)).json()["jobs"]
    assert [one["job"]["id"] for one in again] == [first[0]["job"]["id"], first[1]["job"]["id"], 3]


async def test_a_lease_whose_answer_was_lost_is_got_again_by_the_clients_own_repeat(server: Service) -> None:
    class Losing(httpx2.AsyncHTTPTransport):
        """Loses the first answer to a lease request on its way back."""

        lost = False

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            response = await super().handle_async_request(request)
            if request.url.path == "/v1/leases" and not self.lost:
                self.lost = True
                await response.aread()
                raise httpx2.ReadError("lost")
            return response

    async with Client(server.url, await server.token("ann", "user", "agent"), transport=Losing()) as client:
        job_id = (await client.enqueue("echo"))["job"]["id"]
        [lease] = (await client.lease(max=5))["leases"]
        assert (lease["job"]["id"], lease["job"]["attempts"]) == (job_id, 1)
        assert (await client.complete(lease["lease_id"]))["job"]["state"] == "succeeded"


async def test_a_client_that_leaves_while_it_waits_under_a_key_holds_nothing(server: Service) -> None:
    client, other = await server.client(), await server.client("bob")
    waiting = asyncio.ensure_future(client.lease(wait_seconds=30))
    await eventually(lambda: _true(server.core.dispatch._waiters))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(lambda: _true(not server.core.dispatch._waiters))
    job_id = (await client.enqueue("echo"))["job"]["id"]
    assert [one["job"]["id"] for one in (await other.lease())["leases"]] == [job_id]


async def _true(value: Any) -> bool:
    return bool(value)


async def test_a_question_travels_to_its_answer_and_back(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    [lease] = (await client.lease())["leases"]
    asked = (await client.ask(lease["lease_id"], "Which <b>one</b>?", timeout_seconds=60))["job"]
    assert (asked["state"], asked["question"], asked["attempts"]) == ("queued", "Which <b>one</b>?", 0)
    job = (await client.job(job_id))["job"]
    assert [wait["code"] for wait in job["waits"]] == ["answer"]
    assert [q["text"] for q in (await client.snapshot())["questions"]] == ["Which <b>one</b>?"]
    assert [one["id"] for one in (await client.jobs(asking=True))["jobs"]] == [job_id]
    await client.answer(job_id, "The second.")
    [lease] = (await client.lease())["leases"]
    [told] = lease["answers"]
    assert (told["text"], told["answer"], told["answered_by"]["id"]) == ("Which <b>one</b>?", "The second.", "ann")
    assert (await client.questions(job_id))["questions"] == [told]
    with pytest.raises(Conflict, match="no open question"):
        await client.answer(job_id, "Again")


async def test_a_parent_comes_back_with_its_childrens_results(server: Service) -> None:
    client = await server.client()
    parent = (await client.enqueue("parent"))["job"]["id"]
    [lease] = (await client.lease())["leases"]
    child = (await client.enqueue("child", {"n": 1}, parent_id=parent))["job"]["id"]
    await client.release(lease["lease_id"], after_children=True)
    [wait] = (await client.job(parent))["job"]["waits"]
    assert (wait["code"], wait["text"]) == ("children", "1 of 1 children are not final")
    [lease] = (await client.lease())["leases"]
    await client.complete(lease["lease_id"], {"answer": 42})
    [lease] = (await client.lease())["leases"]
    assert [(c["id"], c["state"], c["result"]) for c in lease["children"]] == [(child, "succeeded", {"answer": 42})]


async def test_an_agent_resumes_its_own_leases_and_the_old_ids_are_worth_nothing(server: Service) -> None:
    client = await server.client(instance="one")
    await client.enqueue("echo", {"n": 1})
    [old] = (await client.lease())["leases"]
    [new] = (await client.resume())["leases"]
    assert (new["job"]["id"], new["job"]["payload"], new["job"]["attempts"]) == (old["job"]["id"], {"n": 1}, 1)
    with pytest.raises(LeaseLost):
        await client.complete(old["lease_id"])
    await client.complete(new["lease_id"])
    nobody = await server.client()
    with pytest.raises(InvalidRequest, match="resume needs an instance"):
        await nobody.resume()


async def test_a_late_result_is_told_kept_and_adopted(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo", max_attempts=1))["job"]["id"]
    [lease] = (await client.lease(lease_seconds=1))["leases"]
    await eventually(lambda: _lost(client, job_id))
    with pytest.raises(LeaseLost, match="may be adopted") as refused:
        await client.complete(lease["lease_id"], {"n": 1})
    assert refused.value.status == 409
    [attempt] = (await client.attempts(job_id))["attempts"]
    assert (attempt["outcome"], attempt["late_result"]) == ("lost", True)
    assert await client.late_result(job_id, attempt["epoch"]) == {"n": 1}
    for epoch in ("2", "0", "x", "9" * 20):
        with pytest.raises(NotFound):
            await client.late_result(job_id, epoch)  # type: ignore[arg-type]
    assert (await client.adopt(job_id, attempt["epoch"]))["job"]["state"] == "succeeded"
    assert await client.result(job_id) == {"n": 1}
    [attempt] = (await client.attempts(job_id))["attempts"]
    assert (attempt["outcome"], attempt["late_result"]) == ("adopted", False)


async def _lost(client: Client, job_id: int) -> bool:
    # Whoever asks for work takes back what ran out.
    await client.lease(kinds=["nothing"], wait_seconds=0.5)
    return (await client.job(job_id))["job"]["state"] == "failed"


async def test_all_that_match_are_counted_requeued_and_cancelled(server: Service) -> None:
    client = await server.client()
    for n in range(3):
        await client.enqueue("echo", {"n": n}, max_attempts=1, tags=["t"])
        [lease] = (await client.lease())["leases"]
        await client.fail(lease["lease_id"], "boom")
    counted = await client.requeue_all({"state": "failed", "tag": "t"}, dry_run=True)
    assert (counted["matched"], counted["done"], counted["remaining"]) == (3, 0, 3)
    done = await client.requeue_all({"state": ["failed"]}, queue="slow")
    assert done == {"matched": 3, "done": 3, "skipped": 0, "remaining": 0, "cursor": None, "up_to": 3}
    assert {job["queue"] for job in (await client.jobs())["jobs"]} == {"slow"}
    assert (await client.cancel_all({"queue": "slow"}))["done"] == 3
    with pytest.raises(InvalidRequest, match="matches every job"):
        await client.cancel_all({})
    with pytest.raises(InvalidRequest, match=r"filter\.stat: unknown field; did you mean state"):
        await client.requeue_all({"stat": "failed"})
    with pytest.raises(InvalidRequest, match="give one of them"):
        await client.requeue_all({"state": "failed"}, queue="slow", retriage=True)


async def test_the_snapshot_counts_and_shows_for_everyone_or_one(server: Service) -> None:
    ann, bob = await server.client("ann"), await server.client("bob")
    await ann.enqueue("a")
    await bob.enqueue("b")
    [lease] = (await ann.lease(kinds=["a"]))["leases"]
    await ann.complete(lease["lease_id"])
    told = await bob.snapshot()
    assert told["counts"] == {"queued": 1, "running": 0, "succeeded": 1, "failed": 0, "cancelled": 0}
    assert ([job["kind"] for job in told["active"]], [job["kind"] for job in told["recent"]]) == (["b"], ["a"])
    assert (await bob.snapshot(actor="ann"))["active"] == []


async def test_an_agent_is_drained_and_let_go_again(server: Service) -> None:
    client, worker = await server.client(), await server.client("worker", "agent", instance="a/b".replace("/", "-"))
    await worker.lease()
    for name in ("worker", "worker/a-b"):
        assert await client.drain(name) == {"agent": name, "draining": True, "changed": True}
        await client.enqueue("echo")
        assert (await worker.lease())["leases"] == []
        assert [row["draining"] for row in (await client.agents())["agents"] if row["name"] == "worker"] == [True]
        await client.drain(name, False)
        assert len((await worker.lease())["leases"]) == 1
    with pytest.raises(NotFound, match="no agent 'ghost'"):
        await client.drain("ghost")


async def test_a_bound_token_lives_in_its_workspace_alone(server: Service) -> None:
    _, secret = await server.core.tokens.create(ROOT, "inside", ["user", "agent"], workspace="side")
    async with Client(server.url, secret) as inside:
        outside = await server.client()
        mine = (await inside.enqueue("echo"))["job"]
        other = (await outside.enqueue("echo"))["job"]
        assert (mine["workspace"], other["workspace"]) == ("side", "default")
        assert (await inside.me())["workspace"] == "side"
        with pytest.raises(NotFound):
            await inside.job(other["id"])
        assert [job["id"] for job in (await inside.jobs())["jobs"]] == [mine["id"]]
        assert [job["id"] for job in (await outside.jobs(workspace="side"))["jobs"]] == [mine["id"]]
        await inside.set_labels("note:1", {"a": "b"})
        assert (await outside.subject("note:1"))["labels"]["human"] == {}
        assert (await outside.subject("note:1", workspace="side"))["labels"]["human"] == {"a": "b"}
        with pytest.raises(Forbidden, match="bound to the workspace side"):
            await inside.pause_queue("default")
        assert len((await inside.lease(max=5))["leases"]) == 1


async def test_reports_under_a_number_are_told_once_also_in_a_heartbeat(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    [lease] = (await client.lease())["leases"]
    for seq in (1, 1, 2):
        await client.report(lease["lease_id"], 10 * seq, seq=seq)
    await client.heartbeat(lease["lease_id"], progress={"percent": 90, "seq": 2})
    assert [row["percent"] for row in (await client.progress(job_id))["progress"]] == [10, 20]


async def test_a_batch_asks_and_releases_after_children(server: Service) -> None:
    client = await server.client()
    for _ in range(2):
        await client.enqueue("echo")
    first, second = (await client.lease(max=2))["leases"]
    answers = await client.batch(
        [
            {"op": "ask", "lease_id": first["lease_id"], "text": "Which?"},
            {"op": "release", "lease_id": second["lease_id"], "after_children": True},
        ]
    )
    assert [one["status"] for one in answers["results"]] == [200, 200]
    assert answers["results"][0]["job"]["question"] == "Which?"

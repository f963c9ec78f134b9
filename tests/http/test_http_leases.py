"""Leases over HTTP: taking, keeping and ending them."""

from __future__ import annotations

import pytest

from oaken_swarm import Conflict, Forbidden, LeaseLost, ResultInvalid
from tests.service import Service, problem


async def test_a_lease_hands_over_the_job_with_payload_and_instructions(server: Service) -> None:
    client = await server.client(instance="one")
    await client.enqueue("checked", {"n": 1})
    [lease] = (await client.lease())["leases"]
    assert lease["instructions"] == "Add them up."
    assert lease["job"]["payload"] == {"n": 1}
    assert lease["job"]["lease"] == {"agent": "ann/one", "expires_at": lease["expires_at"], "epoch": 1}
    assert lease["lease_id"].startswith(f"{lease['job']['id']}-1-")


async def test_no_job_is_an_empty_answer(server: Service) -> None:
    client = await server.client()
    assert await client.lease() == {"leases": []}


async def test_a_lease_request_may_name_queues_kinds_and_a_number(server: Service) -> None:
    client = await server.client()
    for kind in ("a", "a", "b", "c"):
        await client.enqueue(kind)
    assert [one["job"]["kind"] for one in (await client.lease(kinds=["a", "c"], max=5))["leases"]] == ["a", "a", "c"]
    assert (await client.lease(queues=["slow"]))["leases"] == []
    assert [one["job"]["kind"] for one in (await client.lease(queues=["default", "slow"]))["leases"]] == ["b"]


async def test_an_agent_may_use_no_name_but_its_tokens(server: Service) -> None:
    http = await server.http("bot", "agent")
    for agent in ("ann", "ann/x", "bota", "root/bot"):
        told = problem(await http.post("/v1/leases", json={"agent": agent}), 403, "forbidden")
        assert "'bot' or 'bot/INSTANCE'" in told["detail"]
    for agent in ("bot", "bot/host-1"):
        assert (await http.post("/v1/leases", json={"agent": agent})).status_code == 200


async def test_internal_kinds_are_never_leased_by_agents(server: Service) -> None:
    client = await server.client()
    await client.intake("hello")
    with pytest.raises(Forbidden, match="intake"):
        await client.lease(kinds=["intake"])
    assert (await client.lease())["leases"] == []


async def test_a_lease_is_bound_to_its_token(server: Service) -> None:
    ann, bob = await server.client("ann"), await server.client("bob")
    await ann.enqueue("echo")
    lease_id = (await ann.lease())["leases"][0]["lease_id"]
    with pytest.raises(LeaseLost):
        await bob.complete(lease_id)
    with pytest.raises(LeaseLost):
        await bob.heartbeat(lease_id)
    assert (await ann.complete(lease_id))["job"]["state"] == "succeeded"


async def test_a_heartbeat_extends_and_may_carry_progress(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo"))["job"]["id"]
    [lease] = (await client.lease(lease_seconds=10))["leases"]
    told = await client.heartbeat(lease["lease_id"], lease_seconds=600, progress={"percent": 10, "message": "m"})
    assert told["expires_at"] > lease["expires_at"]
    assert told.keys() == {"expires_at", "cancelling"}
    assert (await client.job(job_id))["job"]["progress"]["percent"] == 10


@pytest.mark.parametrize(
    ("verb", "body", "state"),
    [
        ("complete", {"result": {"x": 1}}, "succeeded"),
        ("complete", None, "succeeded"),
        ("fail", {"error": "no"}, "queued"),
        ("fail", {"error": "no", "permanent": True}, "failed"),
        ("defer", {"seconds": 5}, "queued"),
        ("release", {}, "queued"),
        ("release", None, "queued"),
    ],
)
async def test_every_ending_answers_with_the_job_and_its_repeat_the_same(
    server: Service, verb: str, body: dict[str, object] | None, state: str
) -> None:
    client, http = await server.client(), await server.http()
    await client.enqueue("echo")
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    first = await http.post(f"/v1/leases/{lease_id}/{verb}", **({"json": body} if body is not None else {}))
    assert first.status_code == 200, first.text
    assert first.json()["job"]["state"] == state
    assert "payload" not in first.json()["job"]
    again = await http.post(f"/v1/leases/{lease_id}/{verb}", **({"json": body} if body is not None else {}))
    assert again.status_code == 200
    assert again.json()["job"]["state"] == state
    other = await http.post(f"/v1/leases/{lease_id}/{'release' if verb != 'release' else 'complete'}", json={})
    problem(other, 409, "conflict")


async def test_a_job_that_was_not_asked_to_stop_cannot_be_reported_cancelled(server: Service) -> None:
    client = await server.client()
    await client.enqueue("echo")
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    with pytest.raises(Conflict):
        await client.cancelled(lease_id)


async def test_a_result_that_does_not_fit_may_be_corrected_twice(server: Service) -> None:
    client = await server.client()
    await client.enqueue("checked")
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    for left in (2, 1):
        with pytest.raises(ResultInvalid) as caught:
            await client.complete(lease_id, {"x": 1})
        assert caught.value.details["tries_left"] == left
    assert (await client.complete(lease_id, {"sum": 1}))["job"]["state"] == "succeeded"


async def test_what_is_no_lease_id_is_a_lost_lease(server: Service) -> None:
    http = await server.http()
    for lease_id in ("x", "1-1-short", "1-1-" + "0" * 24, "9" * 17 + "-1-" + "0" * 24, "%00", "a%2Fb", "é", "1" * 4000):
        for verb in ("heartbeat", "complete", "release", "cancelled", "progress"):
            told = problem(await http.post(f"/v1/leases/{lease_id}/{verb}", json={}), 409, "lease_lost")
            assert told["detail"].startswith("Lease lost")


async def test_a_batch_answers_each_operation_at_its_place(server: Service) -> None:
    client = await server.client()
    for _ in range(6):
        await client.enqueue("echo")
    ids = [one["lease_id"] for one in (await client.lease(max=6))["leases"]]
    told = await client.batch(
        [
            {"op": "complete", "lease_id": ids[0], "result": {"x": 1}},
            {"op": "fail", "lease_id": ids[1], "error": "no", "permanent": True},
            {"op": "nothing", "lease_id": ids[2]},
            {"op": "defer", "lease_id": ids[2], "seconds": 3},
            {"op": "heartbeat", "lease_id": ids[3]},
            {"op": "progress", "lease_id": ids[3], "percent": 5},
            {"op": "release", "lease_id": "1-1-" + "0" * 24},
            {"op": "complete", "lease_id": ids[4], "resluts": {}},
            {"op": "fail", "lease_id": ids[4]},
            {"op": "cancelled", "lease_id": ids[5]},
            {"op": "release"},
            "x",  # type: ignore[list-item]
        ]
    )
    results = told["results"]
    assert [one["status"] for one in results] == [200, 200, 422, 200, 200, 200, 409, 422, 422, 409, 422, 422]
    assert results[0]["job"]["state"] == "succeeded"
    assert results[1]["job"]["state"] == "failed"
    assert "ops.2.op must be one of complete" in results[2]["error"]["detail"]
    assert results[4]["cancelling"] is False
    assert results[5]["job"]["progress"]["percent"] == 5
    assert results[6]["error"]["code"] == "lease_lost"
    assert "ops.7.resluts: unknown field; did you mean result?" in results[7]["error"]["detail"]


async def test_a_batch_has_a_limit_and_needs_the_right_to_lease(server: Service) -> None:
    http = await server.http()
    told = problem(await http.post("/v1/leases/batch", json={"ops": [{}] * 21}), 422, "invalid_request")
    assert "at most 20 ([jobs] max_batch)" in told["detail"]
    problem(await http.post("/v1/leases/batch", json={"ops": []}), 422, "invalid_request")
    viewer = await server.http("eve", "viewer")
    problem(await viewer.post("/v1/leases/batch", json={"ops": [{"op": "release", "lease_id": "x"}]}), 403, "forbidden")

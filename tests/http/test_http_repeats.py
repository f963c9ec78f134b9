"""Idempotency keys on every call that writes: carried out once, and the first answer again."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from oaken_jobs.errors import Unavailable
from oaken_jobs.store.base import JobFilter
from oaken_jobs.store.operations import Settle
from tests.service import Service, problem

KEY = {"Idempotency-Key": "k-1"}


async def failed_job(server: Service) -> int:
    client = await server.client("bot", "agent", "user")
    job_id = (await client.enqueue("work", max_attempts=1))["job"]["id"]
    (lease,) = (await client.lease())["leases"]
    await client.fail(lease["lease_id"], "no")
    return int(job_id)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs/1/requeue", {}),
        ("POST", "/v1/jobs/1/cancel", {}),
        ("PATCH", "/v1/jobs/1", {"title": "New"}),
        ("DELETE", "/v1/jobs/1", None),
        ("POST", "/v1/requeue", {"filter": {"state": ["failed"]}}),
        ("POST", "/v1/cancel", {"filter": {"state": ["queued"]}}),
        ("PUT", "/v1/schedules/s", {"queue": "default", "kind": "work", "every_seconds": 60}),
        ("POST", "/v1/queues/default/pause", {}),
        ("PUT", "/v1/subjects/s/labels", {"human": {"a": "b"}}),
        ("POST", "/v1/agents/bot/drain", {"drain": True}),
    ],
)
async def test_a_repeat_gets_the_first_answer_and_changes_nothing(
    server: Service, method: str, path: str, body: dict[str, Any] | None
) -> None:
    await failed_job(server)
    http = await server.http()
    first = await http.request(method, path, json=body, headers=KEY)
    assert first.status_code < 300, first.text
    assert "idempotency-replayed" not in first.headers
    before = await server.core.store.activity_head()
    again = await http.request(method, path, json=body, headers=KEY)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert await server.core.store.activity_head() == before


async def test_a_requeue_under_its_key_is_one_although_the_job_has_failed_again(server: Service) -> None:
    job_id = await failed_job(server)
    http = await server.http()
    await http.post(f"/v1/jobs/{job_id}/requeue", json={}, headers=KEY)
    client = await server.client("bot")
    (lease,) = (await client.lease())["leases"]
    await client.fail(lease["lease_id"], "no", permanent=True)
    again = await http.post(f"/v1/jobs/{job_id}/requeue", json={}, headers=KEY)
    assert again.json()["job"]["state"] == "queued", "as it was then"
    assert (await client.job(job_id))["job"]["state"] == "failed"


async def test_the_same_key_for_another_request_is_refused(server: Service) -> None:
    job_id = await failed_job(server)
    http = await server.http()
    await http.post(f"/v1/jobs/{job_id}/requeue", json={}, headers=KEY)
    for method, path, body in (
        ("POST", f"/v1/jobs/{job_id}/requeue", {"queue": "slow"}),
        ("POST", f"/v1/jobs/{job_id}/cancel", {}),
    ):
        problem(await http.request(method, path, json=body, headers=KEY), 409, "idempotency_conflict")


async def test_a_refused_call_leaves_its_key_free(server: Service) -> None:
    http = await server.http()
    problem(await http.post("/v1/jobs/1/requeue", json={}, headers=KEY), 404, "not_found")
    await failed_job(server)
    assert (await http.post("/v1/jobs/1/requeue", json={}, headers=KEY)).status_code == 200


async def test_keys_belong_to_their_caller(server: Service) -> None:
    await failed_job(server)
    for name in ("ann", "bob"):
        answer = await (await server.http(name)).post("/v1/jobs/1/cancel", json={}, headers=KEY)
        assert "idempotency-replayed" not in answer.headers


async def test_a_call_whose_end_is_not_known_is_not_made_twice(
    server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failed_job(server)
    http = await server.http()
    commit, call = server.core.commit, server.core.commit.call

    async def dies(op: Any) -> Any:
        if isinstance(op, Settle):
            raise Unavailable("killed before it could write down the answer")
        return await call(op)

    with monkeypatch.context() as broken:
        broken.setattr(commit, "call", dies)
        problem(await http.post("/v1/jobs/1/requeue", json={}, headers=KEY), 503, "unavailable")
        problem(
            await http.request("PATCH", "/v1/jobs/1", json={"title": "x"}, headers={"Idempotency-Key": "p"}),
            503,
            "unavailable",
        )
    told = problem(await http.post("/v1/jobs/1/requeue", json={}, headers=KEY), 409, "conflict")
    assert "begun and not ended" in told["detail"]
    # One that may be made again simply is.
    answer = await http.request("PATCH", "/v1/jobs/1", json={"title": "x"}, headers={"Idempotency-Key": "p"})
    assert (answer.status_code, answer.json()["job"]["title"]) == (200, "x")


async def test_many_jobs_of_which_the_store_could_not_take_all_are_refused_as_a_whole_and_a_repeat_adds_the_rest(
    server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = await server.http()
    jobs = {"jobs": [{"kind": "work", "payload": {"n": n}} for n in range(3)]}
    commit, call_all = server.core.commit, server.core.commit.call_all

    async def tires(ops: Any, *more: Any) -> Any:
        """Takes what comes before the second."""
        away = Unavailable("it cannot answer now")
        return [*await call_all(ops[:1], *more), *[away] * (len(ops) - 1)]

    async def gone(ops: Any, *_: Any) -> Any:
        return [Unavailable("it cannot answer now")] * len(ops)

    with monkeypatch.context() as broken:
        broken.setattr(commit, "call_all", gone)
        problem(await http.post("/v1/jobs", json=jobs), 503, "unavailable")
        broken.setattr(commit, "call_all", tires)
        answer = await http.post("/v1/jobs", json=jobs, headers=KEY)
        problem(answer, 503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0
    told = (await http.post("/v1/jobs", json=jobs, headers=KEY)).json()["jobs"]
    assert [one["job"]["id"] for one in told] == [1, 2, 3]
    assert await server.core.store.states(JobFilter()) == {"queued": 3}


async def test_of_many_at_once_one_is_carried_out(server: Service) -> None:
    await server.core.schedules.put(*_schedule())
    http = await server.http()
    answers = await asyncio.gather(*(http.post("/v1/schedules/s/run", json={}, headers=KEY) for _ in range(10)))
    assert {answer.status_code for answer in answers} <= {200, 201, 409}
    assert (await server.core.store.last_id()) == 1


async def test_a_token_is_shown_once_also_under_a_key(server: Service) -> None:
    http = await server.http("root", "admin")
    body = {"name": "new", "roles": ["agent"]}
    first = await http.post("/v1/tokens", json=body, headers=KEY)
    secret = first.json()["token"]
    again = await http.post("/v1/tokens", json=body, headers=KEY)
    assert secret not in again.text
    problem(again, 409, "conflict")
    rows = await server.core.store._find(  # type: ignore[attr-defined]
        lambda db: repr(db.all("select * from idempotency"))
    )
    assert secret not in rows


async def test_a_finish_under_a_key_is_answered_again_like_any_repeat(server: Service) -> None:
    client = await server.client()
    http = await server.http()
    await client.enqueue("work")
    (lease,) = (await client.lease())["leases"]
    path = f"/v1/leases/{lease['lease_id']}/complete"
    first = await http.post(path, json={"result": {"n": 1}}, headers=KEY)
    again = await http.post(path, json={"result": {"n": 1}}, headers=KEY)
    assert orjson.loads(first.content) == orjson.loads(again.content)
    assert again.headers["idempotency-replayed"] == "true"


def _schedule() -> Any:
    from oaken_jobs.requests import ScheduleRequest
    from tests.contract.world import ME

    request = ScheduleRequest.model_validate({"queue": "default", "kind": "work", "every_seconds": 60})
    return ME, "s", request

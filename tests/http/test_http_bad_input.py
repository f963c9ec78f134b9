"""Bad input on every route: a refusal that says which field and what is allowed, never a 500."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from oaken_swarm.routes import ROUTES
from tests.service import Service

HUGE: list[Any] = [2**63, 2**64 - 1, -(2**63), 10**18, 1e308, -1e308, -1, 0.5]
ODD: list[Any] = [
    None,
    True,
    False,
    "",
    "x",
    "\u0000",
    "x" * 100_000,
    "\u202e",
    "🏴‍☠️",
    [],
    [[]],
    [None],
    {},
    {"": {}},
    *HUGE,
]

LEASE = "1-1-" + "0" * 24
# A good body for each writing route: bad ones are made of it, a field at a time.
BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/jobs": {
        "kind": "echo",
        "payload": {},
        "subject": "s",
        "target": "t",
        "dedupe_key": "k",
        "on_duplicate": "replace",
        "serial_key": "s",
        "idempotency_key": "i",
        "workspace": "default",
        "ttl_seconds": 5,
        "expires_at": "2031-01-01T00:00:00Z",
        "priority": 5,
        "delay_seconds": 1,
        "run_at": "2030-01-01T00:00:00Z",
        "max_attempts": 1,
        "parent_id": 1,
        "title": "t",
        "tags": ["a"],
        "budget_usd": 1,
    },
    "POST /v1/jobs/{id}/cancel": {},
    "POST /v1/jobs/{id}/requeue": {"queue": "slow", "retriage": False},
    "POST /v1/jobs/{id}/answer": {"text": "yes"},
    "POST /v1/jobs/{id}/adopt": {"epoch": 1},
    "POST /v1/requeue": {
        "filter": {
            "state": "failed",
            "kind": ["echo"],
            "queue": "slow",
            "grade": "bad",
            "actor": "a",
            "agent": "ann/x",
            "subject": "s",
            "tag": "t",
            "parent_id": 1,
            "workspace": "default",
            "asking": True,
            "created_after": "2020-01-01T00:00:00Z",
            "finished_before": "2030-01-01T00:00:00Z",
            "q": "x",
        },
        "queue": "slow",
        "dry_run": True,
    },
    "POST /v1/cancel": {"filter": {"state": "queued"}, "dry_run": True},
    "POST /v1/agents/{name}/drain": {"drain": True},
    "POST /v1/leases": {
        "agent": "ann",
        "queues": ["slow"],
        "kinds": ["echo"],
        "max": 1,
        "lease_seconds": 5,
        "wait_seconds": 0,
        "resume": False,
    },
    "POST /v1/leases/{lease_id}/heartbeat": {"lease_seconds": 5, "progress": {"percent": 5, "message": "m", "seq": 1}},
    "POST /v1/leases/{lease_id}/progress": {"percent": 5, "message": "m", "seq": 1},
    "POST /v1/leases/{lease_id}/trace": {"rows": [{"model": "m", "input": {}, "usage": {"n": 1}, "cost_usd": 1}]},
    "POST /v1/leases/{lease_id}/complete": {"result": {}, "usage": {"n": 1}, "cost_usd": 1, "produced_by": "m"},
    "POST /v1/leases/{lease_id}/fail": {
        "error": "e",
        "permanent": False,
        "retry_after": 1,
        "usage": {"n": 1},
        "cost_usd": 1,
    },
    "POST /v1/leases/{lease_id}/defer": {"seconds": 5},
    "POST /v1/leases/{lease_id}/release": {"after_children": True},
    "POST /v1/leases/{lease_id}/ask": {"text": "why?", "timeout_seconds": 5},
    "POST /v1/leases/{lease_id}/cancelled": {},
    "POST /v1/leases/batch": {"ops": [{"op": "release", "lease_id": LEASE}]},
    "POST /v1/queues/{name}/pause": {},
    "POST /v1/queues/{name}/resume": {},
    "PUT /v1/schedules/{name}": {
        "queue": "slow",
        "kind": "echo",
        "payload": {},
        "priority": 5,
        "cron": "0 6 * * *",
        "timezone": "Europe/Berlin",
        "every_seconds": 60,
        "workspace": "default",
    },
    "POST /v1/schedules/{name}/run": {"workspace": "default"},
    "PUT /v1/subjects/{subject}/labels": {"human": {"k": "v"}, "workspace": "default"},
    "POST /v1/intake": {"text": "t", "title": "t", "source": "s", "workspace": "default"},
    "PATCH /v1/jobs/{id}": {"priority": 1, "title": "t", "tags": ["a"]},
    "POST /v1/tokens": {
        "name": "n",
        "roles": ["user"],
        "kind": "user",
        "workspace": "default",
        "queues": ["slow"],
        "kinds": ["echo"],
        "max_leases": 1,
        "max_per_hour": 1,
        "expires_in": 60,
    },
    "POST /v1/tokens/{name}/rotate": {"expires_in": 60},
}
GOOD_PATH = {"id": "1", "lease_id": LEASE, "name": "slow", "subject": "s"}
ODD_SEGMENTS = [
    "0",
    "-1",
    "%00",
    "%FF",
    "..",
    "%2E%2E%2F%2E%2E",
    "a%20b",
    "x" * 2000,
    "9" * 30,
    "%E2%80%AE",
    "%ED%A0%80",
    "'%22%3B--",
    "1-1-" + "f" * 24,
    "9999999999999999-999999999-" + "f" * 24,
    "%F0%9F%8F%B4",
    "*",
    "~",
]


def filled(path: str, **values: str) -> str:
    for name, value in {**GOOD_PATH, **values}.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def test_every_writing_route_is_in_the_table() -> None:
    assert BODIES.keys() == {f"{route.method} {route.path}" for route in ROUTES if route.has_body}


@pytest.mark.parametrize("route", sorted(BODIES))
async def test_no_value_of_any_field_makes_a_500(server: Service, route: str) -> None:
    http = await server.http("root", "admin")
    await (await server.client("root", "admin")).enqueue("echo")
    method, path = route.split(" ")
    good = BODIES[route]
    bodies: list[Any] = [
        None,
        [],
        "x",
        1,
        True,
        [good],
        {"unknown": 1, **good},
        {"": 1},
        {"\u0000": 1},
        {"x" * 5000: 1},
    ]
    bodies += [{**good, field: value} for field in good for value in ODD]
    bodies += [{**good, field: {"a": value}} for field in good for value in ODD]
    bodies += [{**good, field: [value, value]} for field in good for value in ODD]
    bodies += [{name: value for name, value in good.items() if name != field} for field in good]
    for body in bodies:
        content = orjson.dumps(body)
        response = await http.request(
            method, filled(path), content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code < 500, (content[:200], response.text)
        if response.status_code >= 400:
            told = response.json()
            assert 10 < len(told["detail"]) < 3000, (content[:200], response.text[:500])


@pytest.mark.parametrize("route", sorted(BODIES))
async def test_a_body_that_is_no_object_or_has_an_unknown_field_is_422(server: Service, route: str) -> None:
    http = await server.http("root", "admin")
    method, path = route.split(" ")
    for body in ([], "x", 1, None):
        response = await http.request(
            method, filled(path), content=orjson.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 422, response.text
        assert "must be a JSON object" in response.json()["detail"]
    response = await http.request(method, filled(path), json={**BODIES[route], "unknwon": 1})
    assert response.status_code == 422, response.text
    assert "unknwon: unknown field" in response.json()["detail"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_no_segment_of_a_path_makes_a_500(server: Service, route: Any) -> None:
    http = await server.http("root", "admin")
    names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")]
    body = BODIES.get(f"{route.method} {route.path}")
    for name in names:
        for segment in ODD_SEGMENTS:
            path = filled(route.path, **{name: segment})
            response = await http.request(route.method, path, **({"json": body} if body is not None else {}))
            assert response.status_code < 500, (path, response.text)
            if response.status_code >= 400:
                assert 10 < len(response.json()["detail"]) < 500


@pytest.mark.parametrize(
    ("route", "body", "told"),
    [
        ("POST /v1/jobs", {"kind": 5}, "kind: must be text (got '5')"),
        ("POST /v1/jobs", {"kind": ""}, "kind: must be at least 1"),
        ("POST /v1/jobs", {"kind": "a\u0000"}, "kind: must match"),
        ("POST /v1/jobs", {"kind": "e", "payload": []}, "payload: must be a JSON object (got a list)"),
        (
            "POST /v1/jobs",
            {"kind": "e", "priority": "highest"},
            "priority: must be a whole number from 0 to 1000, or one of user",
        ),
        ("POST /v1/jobs", {"kind": "e", "priority": 1001}, "priority: must be at most 1000"),
        ("POST /v1/jobs", {"kind": "e", "priority": True}, "priority: must be a whole number"),
        ("POST /v1/jobs", {"kind": "e", "priority": -1}, "priority: must be at least 0"),
        ("POST /v1/jobs", {"kind": "e", "delay_seconds": -1}, "delay_seconds: must be at least 0"),
        ("POST /v1/jobs", {"kind": "e", "delay_seconds": 1e300}, "delay_seconds: must be at most"),
        ("POST /v1/jobs", {"kind": "e", "run_at": "tomorrow"}, "run_at: give a time with its zone"),
        ("POST /v1/jobs", {"kind": "e", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "both say when to run"),
        ("POST /v1/jobs", {"kind": "e", "max_attempts": 0}, "max_attempts: must be at least 1"),
        ("POST /v1/jobs", {"kind": "e", "max_attempts": 2**64 - 1}, "max_attempts: must be at most"),
        ("POST /v1/jobs", {"kind": "e", "parent_id": 2**53 + 1}, "parent_id: must be at most"),
        ("POST /v1/jobs", {"kind": "e", "dedupe_key": "a\u0000b"}, "dedupe_key: it holds control characters"),
        ("POST /v1/jobs", {"kind": "e", "title": "x" * 201}, "title: must be at most 200 characters"),
        ("POST /v1/jobs", {"kind": "e", "tags": ["x"] * 21}, "tags: must have at most 20 entries"),
        ("POST /v1/jobs", {"jobs": []}, "jobs: must have at least 1"),
        ("POST /v1/jobs", {"jobs": {}}, "jobs: must be a list"),
        ("POST /v1/jobs", {"jobs": [{}], "kind": "e"}, "kind: unknown field"),
        ("POST /v1/leases", {"max": 0}, "max: must be at least 1"),
        ("POST /v1/leases", {"max": 1001}, "max: must be at most 1000"),
        ("POST /v1/leases", {"kinds": []}, "kinds: must have at least 1"),
        ("POST /v1/leases", {"kinds": "echo"}, "kinds: must be a list"),
        ("POST /v1/leases", {"queues": ["A"]}, "queues.0: must match"),
        ("POST /v1/leases", {"wait_seconds": 61}, "wait_seconds: must be at most 60"),
        ("POST /v1/leases", {"lease_seconds": 0}, "lease_seconds: must be at least 1"),
        ("POST /v1/leases", {"lease_secs": 5}, "lease_secs: unknown field; did you mean lease_seconds?"),
        ("POST /v1/leases", {"agent": "a/b/c"}, "agent: must match"),
        (
            "POST /v1/leases/{lease_id}/heartbeat",
            {"progress": {"percent": 101}},
            "progress.percent: must be at most 100",
        ),
        ("POST /v1/leases/{lease_id}/heartbeat", {"progress": {"percnt": 1}}, "progress.percnt: unknown field"),
        ("POST /v1/leases/{lease_id}/complete", {"result": "done"}, "result: must be a JSON object"),
        ("POST /v1/leases/{lease_id}/complete", {"usage": {"n": "many"}}, "usage.n: must be a number from 0 to 1e15"),
        (
            "POST /v1/leases/{lease_id}/complete",
            {"usage": {"n": 2**64 - 1}},
            "usage.n: must be a number from 0 to 1e15",
        ),
        ("POST /v1/leases/{lease_id}/complete", {"usage": {"n": True}}, "usage.n: must be a number"),
        ("POST /v1/leases/{lease_id}/complete", {"cost_usd": -1}, "cost_usd: must be at least 0"),
        ("POST /v1/leases/{lease_id}/fail", {}, "error: is required"),
        ("POST /v1/leases/{lease_id}/fail", {"error": None}, "error: must be text (got null)"),
        ("POST /v1/leases/{lease_id}/fail", {"error": "e", "permanent": "yes"}, "permanent: must be true or false"),
        ("POST /v1/leases/{lease_id}/defer", {}, "seconds: is required"),
        ("POST /v1/jobs/{id}/requeue", {"queue": "No"}, "queue: must match"),
        ("POST /v1/jobs/{id}/requeue", {"queue": "nowhere"}, "queue 'nowhere' is not configured"),
        ("PUT /v1/subjects/{subject}/labels", {}, "human: is required"),
        ("PUT /v1/subjects/{subject}/labels", {"human": {}}, "human: must have at least 1"),
        ("PUT /v1/subjects/{subject}/labels", {"human": {"a": 1}}, "human.a: must be text"),
        ("PUT /v1/subjects/{subject}/labels", {"machine": {"a": "b"}}, "machine: unknown field"),
        ("POST /v1/intake", {"text": ""}, "text: must be at least 1"),
        ("POST /v1/intake", {"text": 5}, "text: must be text"),
    ],
)
async def test_a_refusal_names_the_field_and_what_is_allowed(server: Service, route: str, body: Any, told: str) -> None:
    http = await server.http("root", "admin")
    method, path = route.split(" ")
    response = await http.request(method, filled(path), json=body)
    assert response.status_code == 422, response.text
    assert told in response.json()["detail"]


async def test_a_very_long_error_of_an_agent_is_taken_and_cut(server: Service) -> None:
    client = await server.client()
    await client.enqueue("echo")
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    job = (await client.fail(lease_id, "🏴‍☠️ password=hunter2 \u0000" * 10_000))["job"]
    assert len(job["last_error"]) <= 500
    assert "hunter2" not in job["last_error"]


async def test_usage_sums_stay_numbers_over_many_attempts(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo", max_attempts=10))["job"]["id"]
    for _ in range(5):
        lease_id = (await client.lease())["leases"][0]["lease_id"]
        await client.fail(lease_id, "e", usage={"n": 10**15, "f": 1e15}, cost_usd=1e9)
        await client.requeue(job_id)
    assert (await client.job(job_id))["job"]["usage"] == {"n": 5 * 10**15, "f": 5e15}

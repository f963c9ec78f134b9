"""Each role on each route."""

from __future__ import annotations

from typing import Any

import pytest

from oaken_jobs.model import ROLES
from oaken_swarm.routes import ROUTES
from tests.service import Service

LEASE = "1-1-" + "0" * 24
READ, ALL = {"viewer", "user", "admin"}, {"viewer", "user", "agent", "admin"}
MANAGE, WORK, ENQUEUE = {"user", "admin"}, {"agent", "admin"}, {"user", "admin"}
MAY: dict[str, set[str]] = {
    "POST /v1/jobs": ENQUEUE,  # an agent only children of what it holds
    "GET /v1/jobs": ALL,
    "GET /v1/jobs/wait": READ,
    "GET /v1/jobs/{id}": READ,
    "PATCH /v1/jobs/{id}": MANAGE,
    "DELETE /v1/jobs/{id}": MANAGE,
    "GET /v1/jobs/{id}/result": READ,
    "GET /v1/jobs/{id}/progress": READ,
    "GET /v1/jobs/{id}/attempts": READ,
    "GET /v1/jobs/{id}/attempts/{epoch}/result": READ,
    "GET /v1/jobs/{id}/activity": READ,
    "GET /v1/jobs/{id}/children": READ,
    "GET /v1/jobs/{id}/wait": READ,
    "POST /v1/jobs/{id}/cancel": MANAGE,
    "GET /v1/jobs/{id}/questions": READ,
    "POST /v1/jobs/{id}/requeue": MANAGE,
    "POST /v1/jobs/{id}/answer": ENQUEUE,  # an agent only those of jobs that it enqueued
    "POST /v1/jobs/{id}/adopt": MANAGE,
    "POST /v1/requeue": MANAGE,
    "POST /v1/cancel": MANAGE,
    "POST /v1/leases": WORK,
    "POST /v1/leases/{lease_id}/heartbeat": WORK,
    "POST /v1/leases/{lease_id}/progress": WORK,
    "POST /v1/leases/{lease_id}/trace": WORK,
    "POST /v1/leases/{lease_id}/complete": WORK,
    "POST /v1/leases/{lease_id}/fail": WORK,
    "POST /v1/leases/{lease_id}/defer": WORK,
    "POST /v1/leases/{lease_id}/release": WORK,
    "POST /v1/leases/{lease_id}/ask": WORK,
    "POST /v1/leases/{lease_id}/cancelled": WORK,
    "POST /v1/leases/batch": WORK,
    "GET /v1/queues": ALL,
    "POST /v1/queues/{name}/pause": MANAGE,
    "POST /v1/queues/{name}/resume": MANAGE,
    "GET /v1/schedules": READ,
    "GET /v1/schedules/{name}": READ,
    "PUT /v1/schedules/{name}": MANAGE,
    "DELETE /v1/schedules/{name}": MANAGE,
    "POST /v1/schedules/{name}/run": MANAGE,
    "GET /v1/subjects/{subject}": READ,
    "PUT /v1/subjects/{subject}/labels": MANAGE,
    "POST /v1/intake": ENQUEUE,
    "GET /v1/snapshot": ALL,
    "GET /v1/agents": ALL,
    "POST /v1/agents/{name}/drain": MANAGE,
    "GET /v1/kinds": ALL,
    "GET /v1/me": ALL,
    "GET /v1/meta": ALL,
    "GET /v1/tokens": {"admin"},
    "POST /v1/tokens": {"admin"},
    "POST /v1/tokens/{name}/rotate": {"admin"},
    "DELETE /v1/tokens/{name}": {"admin"},
    "GET /v1/events": READ,
    "GET /v1/events/wait": READ,
    "GET /v1/trace": {"admin"},
    "GET /v1/trace/stream": {"admin"},
    "GET /v1/audit": {"admin"},
    "GET /v1/logs": {"admin"},
    "GET /openapi.json": ALL,
    "GET /docs": ALL,
    "GET /metrics": ALL,
    "GET /healthz": ALL,
    "GET /readyz": ALL,
}
BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/jobs": {"kind": "echo"},
    "PATCH /v1/jobs/{id}": {"title": "t"},
    "POST /v1/jobs/{id}/answer": {"text": "yes"},
    "POST /v1/jobs/{id}/adopt": {"epoch": 1},
    "POST /v1/requeue": {"filter": {"state": "failed"}},
    "POST /v1/cancel": {"filter": {"kind": "nothing"}},
    "POST /v1/leases/{lease_id}/ask": {"text": "why?"},
    "POST /v1/leases/{lease_id}/trace": {"rows": [{"model": "m"}]},
    "POST /v1/leases/{lease_id}/fail": {"error": "e"},
    "POST /v1/leases/{lease_id}/defer": {"seconds": 1},
    "POST /v1/leases/batch": {"ops": [{"op": "release", "lease_id": LEASE}]},
    "PUT /v1/schedules/{name}": {"queue": "slow", "kind": "echo", "every_seconds": 60},
    "PUT /v1/subjects/{subject}/labels": {"human": {"a": "b"}},
    "POST /v1/intake": {"text": "hello"},
    "POST /v1/tokens": {"name": "new", "roles": ["user"]},
}


def test_every_route_is_in_the_table() -> None:
    assert MAY.keys() == {f"{route.method} {route.path}" for route in ROUTES}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_do_what_the_table_says_and_nothing_else(server: Service, role: str) -> None:
    root = await server.client("root", "admin")
    await root.enqueue("echo")
    await server.token("victim", "user")
    http = await server.http("caller", role)
    for name, allowed in MAY.items():
        method, path = name.split(" ")
        for old, new in (
            ("{id}", "1"),
            ("{lease_id}", LEASE),
            ("{name}", "slow"),
            ("{subject}", "s"),
            ("{epoch}", "1"),
        ):
            path = path.replace(old, new)
        path = path.replace("/v1/tokens/slow", "/v1/tokens/victim")
        if path == "/v1/jobs/wait":
            path += "?ids=1&seconds=0"
        elif path.endswith("/wait"):
            path += "?seconds=0"
        body = BODIES.get(name)
        async with http.stream(method, path, **({"json": body} if body is not None else {})) as response:
            if "event-stream" not in response.headers.get("content-type", ""):
                await response.aread()
        # A job that has nothing to do with an agent is not there for it.
        hidden = role == "agent" and path.startswith("/v1/jobs/") and (method == "GET" or path.endswith("/answer"))
        if role in allowed:
            assert response.status_code in (200, 201, 204, 404, 409), (name, response.text)
        else:
            assert response.status_code == (404 if hidden else 403), (name, response.text)
            if not hidden:
                assert "caller" in response.json()["detail"]
                assert "token" in response.json()["detail"]


async def test_a_role_that_may_not_is_refused_before_its_body_is_read(server: Service) -> None:
    token = await server.token("none", "viewer")
    for name, allowed in MAY.items():
        method, path = name.split(" ")
        if method in ("POST", "PUT") and "viewer" not in allowed:
            # Neither its type nor its end ever come.
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 99\r\n\r\n"
            status, body = await server.raw(head.encode() + b"{")
            assert (status, b"forbidden" in body) == (403, True), name


async def test_a_refusal_of_a_role_changes_nothing(server: Service) -> None:
    root = await server.client("root", "admin")
    job_id = (await root.enqueue("echo"))["job"]["id"]
    viewer = await server.http("eve", "viewer")
    for path in (f"/v1/jobs/{job_id}/cancel", "/v1/queues/default/pause", "/v1/leases"):
        assert (await viewer.post(path)).status_code == 403
    assert (await root.job(job_id))["job"]["state"] == "queued"
    assert (await root.queues())["queues"][0]["paused"] is False
    assert [row["data"]["verb"] for row in (await root.activity(job_id))["activity"]] == ["enqueue"]

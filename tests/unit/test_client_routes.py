"""The client has a method for every route, and the blocking one has every method of the client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from oaken_swarm import Client, SyncClient
from oaken_swarm.paths import Paths
from oaken_swarm.routes import ROUTES

URL = "http://oaken.test"
NO_CALL = {"/docs", "/.well-known/oauth-protected-resource/{door}"}
"""For people."""

CALLS: dict[str, list[Callable[[Client], Any]]] = {
    "enqueue": [lambda c: c.enqueue("echo")],
    "enqueue_many": [lambda c: c.enqueue_many([{"kind": "echo"}])],
    "job": [lambda c: c.job(1)],
    "jobs": [lambda c: c.jobs()],
    "all_jobs": [lambda c: anext(c.all_jobs(), None)],
    "result": [lambda c: c.result(1)],
    "attempts": [lambda c: c.attempts(1)],
    "progress": [lambda c: c.progress(1)],
    "activity": [lambda c: c.activity(1)],
    "children": [lambda c: c.children(1)],
    "wait": [lambda c: c.wait(1), lambda c: c.wait([1, 2])],
    "cancel": [lambda c: c.cancel(1)],
    "edit": [lambda c: c.edit(1, title="t")],
    "erase": [lambda c: c.erase(1)],
    "requeue": [lambda c: c.requeue(1)],
    "requeue_all": [lambda c: c.requeue_all({"state": "failed"})],
    "cancel_all": [lambda c: c.cancel_all({"kind": "echo"})],
    "answer": [lambda c: c.answer(1, "yes")],
    "questions": [lambda c: c.questions(1)],
    "adopt": [lambda c: c.adopt(1, 2)],
    "late_result": [lambda c: c.late_result(1, 2)],
    "snapshot": [lambda c: c.snapshot()],
    "events": [lambda c: c.events()],
    "follow": [lambda c: anext(c.follow("1"))],
    "follow_trace": [lambda c: anext(c.follow_trace())],
    "trace_rows": [lambda c: c.trace_rows()],
    "audit": [lambda c: c.audit()],
    "logs": [lambda c: c.logs()],
    "intake": [lambda c: c.intake("text")],
    "upload": [lambda c: c.upload(__file__)],
    "lease": [lambda c: c.lease()],
    "resume": [lambda c: c.resume(agent="a/b")],
    "heartbeat": [lambda c: c.heartbeat("1-1-x")],
    "complete": [lambda c: c.complete("1-1-x")],
    "fail": [lambda c: c.fail("1-1-x", "no")],
    "defer": [lambda c: c.defer("1-1-x", 1)],
    "release": [lambda c: c.release("1-1-x")],
    "ask": [lambda c: c.ask("1-1-x", "why?")],
    "cancelled": [lambda c: c.cancelled("1-1-x")],
    "report": [lambda c: c.report("1-1-x", 5)],
    "trace": [lambda c: c.trace("1-1-x", [{"model": "m"}])],
    "batch": [lambda c: c.batch([{"op": "release", "lease_id": "1-1-x"}])],
    "queues": [lambda c: c.queues()],
    "pause_queue": [lambda c: c.pause_queue("q")],
    "resume_queue": [lambda c: c.resume_queue("q")],
    "schedules": [lambda c: c.schedules()],
    "schedule": [lambda c: c.schedule("s")],
    "put_schedule": [lambda c: c.put_schedule("s", "q", "echo", every_seconds=60)],
    "remove_schedule": [lambda c: c.remove_schedule("s")],
    "run_schedule": [lambda c: c.run_schedule("s")],
    "subject": [lambda c: c.subject("note:1")],
    "set_labels": [lambda c: c.set_labels("note:1", {"a": "b"})],
    "agents": [lambda c: c.agents()],
    "drain": [lambda c: c.drain("a/b")],
    "kinds": [lambda c: c.kinds()],
    "me": [lambda c: c.me()],
    "meta": [lambda c: c.meta()],
    "healthz": [lambda c: c.healthz()],
    "readyz": [lambda c: c.readyz()],
    "openapi": [lambda c: c.openapi()],
    "metrics": [lambda c: c.metrics()],
    "create_token": [lambda c: c.create_token("a", ["agent"])],
    "rotate_token": [lambda c: c.rotate_token("a")],
    "tokens": [lambda c: c.tokens()],
    "revoke_token": [lambda c: c.revoke_token("a")],
}
ANSWER: dict[str, Any] = {"jobs": [], "leases": [], "cursor": "7", "name": "a"}
STREAM = b'id: 8\nevent: resync\ndata: {"cursor": "8"}\n\n'


def calls_of(cls: type) -> set[str]:
    def calls(member: Any) -> bool:
        return inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)

    return {name for name, member in vars(cls).items() if name[0] != "_" and name != "aclose" and calls(member)}


async def test_every_route_has_a_method_and_every_method_a_route() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        route = paths.find(request.method, request.url.raw_path.decode().partition("?")[0]).route
        assert route is not None
        reached.add((route.method, route.path))
        return httpx2.Response(200, content=STREAM) if route.streams else httpx2.Response(200, json=ANSWER)

    paths = Paths(ROUTES)
    reached: set[tuple[str, str]] = set()
    assert calls_of(Client) == set(CALLS)
    async with Client(URL, "t", transport=httpx2.MockTransport(answer)) as client:
        for call in (one for several in CALLS.values() for one in several):
            await call(client)
    assert reached == {(route.method, route.path) for route in ROUTES if route.path not in NO_CALL}


def test_the_blocking_client_has_the_same_calls_under_the_same_names() -> None:
    for name in calls_of(Client):
        twin, method = vars(SyncClient)[name], vars(Client)[name]
        assert twin.__wrapped__ is method
        assert inspect.isgeneratorfunction(twin) == inspect.isasyncgenfunction(method)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_method_says_what_it_does(name: str) -> None:
    assert len(vars(Client)[name].__doc__ or "") > 15

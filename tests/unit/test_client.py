"""What the client makes of answers and of their absence, against answers that each test scripts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import orjson
import pytest

from oaken_jobs import errors
from oaken_jobs.clock import FakeClock
from oaken_jobs.errors import (
    BadJson,
    ConfigError,
    InvalidRequest,
    LeaseLost,
    OakenError,
    RateLimited,
    ResultInvalid,
    TooLarge,
    Unavailable,
)
from oaken_jobs.model import SetLabels
from oaken_jobs.transport import Beat, Cancelled, Complete, Defer, Done, Ending, Fail, Release
from oaken_swarm import Client, Worker
from oaken_swarm.transport import HttpTransport

URL = "http://oaken.test:8787"


class QuickClock(FakeClock):
    """A clock that is moved by whoever sleeps, and remembers for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


class Server:
    """Gives scripted answers in order, the last one for ever, and remembers what was asked."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []
        self.clock = QuickClock()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **options: Any) -> Client:
        return Client(
            URL, "secret", transport=httpx2.MockTransport(self), clock=self.clock, rng=random.Random(1), **options
        )

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(request.method, request.url.raw_path.decode()) for request in self.requests]

    def body(self, index: int = -1) -> Any:
        return orjson.loads(self.requests[index].content)


def ok(body: Any = None, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, json={"job": {"id": 1}} if body is None else body)


def problem(code: str, status: int, headers: dict[str, str] | None = None, **more: Any) -> httpx2.Response:
    body = {"type": "about:blank", "title": "T", "status": status, "detail": "what was wrong", "code": code, **more}
    return httpx2.Response(
        status, content=orjson.dumps(body), headers={"Content-Type": "application/problem+json", **(headers or {})}
    )


# Errors

CODES = sorted(
    (cls.code, cls.status)
    for cls in OakenError.__subclasses__()
    if cls.__module__ == errors.__name__ and cls.code != "config"
)


@pytest.mark.parametrize(("code", "status"), CODES)
async def test_each_code_becomes_its_class(code: str, status: int) -> None:
    async with Server(problem(code, status, field="kind")).client(tries=1) as client:
        with pytest.raises(OakenError) as raised:
            await client.enqueue("echo")
    error = raised.value
    assert type(error).code == code
    assert (error.code, error.status, error.message, error.details) == (
        code,
        status,
        "what was wrong",
        {"field": "kind"},
    )


async def test_a_code_of_a_later_version_keeps_its_name_and_takes_the_class_of_its_status() -> None:
    async with Server(problem("too_shiny", 422)).client() as client:
        with pytest.raises(InvalidRequest) as raised:
            await client.job(1)
    assert (raised.value.code, raised.value.status) == ("too_shiny", 422)


async def test_members_that_are_named_like_arguments_are_details() -> None:
    answer = problem("result_invalid", 422, message="m", self="s", errors=[{"path": "/a", "rule": "type"}])
    async with Server(answer).client() as client:
        with pytest.raises(ResultInvalid) as raised:
            await client.complete("1-1-x", {"a": 1})
    assert raised.value.details == {"message": "m", "self": "s", "errors": [{"path": "/a", "rule": "type"}]}


@pytest.mark.parametrize(
    ("answer", "cls", "status"),
    [
        (httpx2.Response(502, html="<h1>Bad Gateway</h1>"), Unavailable, 502),
        (httpx2.Response(500, text="boom"), OakenError, 500),
        (httpx2.Response(404, json=["not", "a", "problem"]), errors.NotFound, 404),
        (httpx2.Response(401), errors.Unauthenticated, 401),
    ],
)
async def test_answers_that_are_no_problem_are_read_kindly(
    answer: httpx2.Response, cls: type[OakenError], status: int
) -> None:
    async with Server(answer).client(tries=1) as client:
        with pytest.raises(cls) as raised:
            await client.job(1)
    assert raised.value.status == status
    assert "oaken.test" in raised.value.message


@pytest.mark.parametrize("answer", [httpx2.Response(200, html="<p>hello</p>"), httpx2.Response(200, json=[1])])
async def test_a_success_that_is_no_json_object_is_no_success(answer: httpx2.Response) -> None:
    async with Server(answer).client() as client:
        with pytest.raises(OakenError, match="Is that an Oaken server"):
            await client.job(1)


async def test_an_empty_success_is_an_empty_object() -> None:
    async with Server(httpx2.Response(204)).client() as client:
        assert await client.revoke_token("worker") == {}


async def test_what_is_no_json_is_refused_before_it_is_sent() -> None:
    server = Server(ok())
    async with server.client() as client:
        with pytest.raises(BadJson):
            await client.enqueue("echo", {"when": object()})
    assert server.requests == []


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        "\ud800",
        2**64,
        uuid.UUID(int=7),
        datetime(2030, 1, 1, tzinfo=UTC),
        {1: 2},
        b"x",
        {1},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "call",
    [
        lambda c, value: c.enqueue("echo", {"odd": [value]}),
        lambda c, value: c.enqueue("echo", odd=value),
        lambda c, value: c.enqueue_many([{"kind": "echo", "payload": {"odd": value}}]),
        lambda c, value: c.complete("1-1-x", {"odd": value}),
        lambda c, value: c.complete("1-1-x", usage={"odd": value}),
        lambda c, value: c.batch([{"op": "complete", "lease_id": "1-1-x", "result": {"odd": value}}]),
    ],
    ids=["payload", "field", "many", "result", "usage", "batch"],
)
async def test_what_readers_of_json_cannot_keep_is_refused_with_its_path_in_every_body(
    value: Any, call: Callable[[Client, Any], Any]
) -> None:
    server = Server(ok())
    async with server.client() as client:
        with pytest.raises(BadJson) as raised:
            await call(client, value)
    assert "odd" in raised.value.details["path"]
    assert server.requests == []


@pytest.mark.parametrize("body", [[], 0, ""])
async def test_what_is_no_object_is_sent_as_it_is_and_never_as_an_empty_one(body: Any) -> None:
    server = Server(ok())
    async with server.client() as client:
        await client.enqueue("echo", body)
        await client.complete("1-1-x", body)
    assert (server.body(0)["payload"], server.body(1)["result"]) == (body, body)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.wait(1, float("nan")),
        lambda c: c.wait(1, float("inf")),
        lambda c: c.jobs(q="\ud800"),
        lambda c: c.subject("\ud800"),
        lambda c: c.release("\ud800"),
    ],
)
async def test_what_no_address_can_hold_is_refused(call: Call) -> None:
    server = Server(ok())
    async with server.client() as client:
        with pytest.raises(InvalidRequest):
            await call(client)
    assert server.requests == []


@pytest.mark.parametrize("token", ["é", "a b", "a\nb", "\udcff"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="OAKEN_TOKEN"):
        Client(URL, token)


async def test_a_call_without_a_token_says_where_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OAKEN_TOKEN", raising=False)
    server = Server(problem("unauthenticated", 401))
    async with Client(URL, transport=httpx2.MockTransport(server)) as client:
        with pytest.raises(errors.Unauthenticated, match="set OAKEN_TOKEN or pass token="):
            await client.me()


# Tries

REFUSED = httpx2.ConnectError("refused")
LOST = httpx2.ReadError("lost")
SILENT = httpx2.ReadTimeout("silent")

Call = Callable[[Client], Any]

HARMLESS: dict[str, Call] = {
    "job": lambda c: c.job(1),
    "heartbeat": lambda c: c.heartbeat("1-1-x"),
    "complete": lambda c: c.complete("1-1-x", {}),
    "fail": lambda c: c.fail("1-1-x", "no"),
    "defer": lambda c: c.defer("1-1-x", 5),
    "release": lambda c: c.release("1-1-x"),
    "cancelled": lambda c: c.cancelled("1-1-x"),
    "cancel": lambda c: c.cancel(1),
    "pause": lambda c: c.pause_queue("default"),
    "labels": lambda c: c.set_labels("note:1", {"queue": "side"}),
    "resume": lambda c: c.resume(agent="me/a"),
    "ask": lambda c: c.ask("1-1-x", "why?"),
    "report with its number": lambda c: c.report("1-1-x", 5, seq=1),
    "cancel all": lambda c: c.cancel_all({"kind": "echo"}),
    "drain": lambda c: c.drain("worker"),
    "batch of endings": lambda c: c.batch([{"op": "complete", "lease_id": "1-1-x"}]),
}
KEYED: dict[str, Call] = {
    "enqueue": lambda c: c.enqueue("echo", {}),
    "many": lambda c: c.enqueue_many([{"kind": "echo", "dedupe_key": "k"}, {"kind": "echo"}]),
    "intake": lambda c: c.intake("text"),
    "lease": lambda c: c.lease(),
    "erase": lambda c: c.erase(1),
    "remove schedule": lambda c: c.remove_schedule("nightly"),
    "run schedule": lambda c: c.run_schedule("nightly"),
    "rotate": lambda c: c.rotate_token("worker"),
    "requeue": lambda c: c.requeue(1),
    "requeue all": lambda c: c.requeue_all({"state": "failed"}),
    "answer": lambda c: c.answer(1, "yes"),
    "adopt": lambda c: c.adopt(1, 1),
    "report": lambda c: c.report("1-1-x", 5),
    "trace": lambda c: c.trace("1-1-x", [{"model": "m"}]),
    "heartbeat with progress": lambda c: c.heartbeat("1-1-x", progress={"percent": 1}),
    "batch with progress": lambda c: c.batch([{"op": "progress", "lease_id": "1-1-x"}]),
    "token": lambda c: c.create_token("worker", ["agent"]),
}


@pytest.mark.parametrize("call", [*HARMLESS.values(), *KEYED.values()], ids=[*HARMLESS, *KEYED])
@pytest.mark.parametrize("failure", [REFUSED, LOST, SILENT, problem("unavailable", 503), problem("rate_limited", 429)])
async def test_every_call_is_made_again_where_that_may_help(call: Call, failure: Any) -> None:
    server = Server(failure, failure, ok())
    async with server.client() as client:
        await call(client)
    assert len(server.requests) == 3
    assert len(server.clock.slept) == 2
    assert 0.125 <= server.clock.slept[0] <= 0.25 <= server.clock.slept[1] <= 0.5


@pytest.mark.parametrize("call", KEYED.values(), ids=KEYED.keys())
async def test_a_call_whose_repeat_does_something_more_carries_one_key_and_the_next_call_another(call: Call) -> None:
    server = Server(LOST, ok(), ok())
    async with server.client() as client:
        await call(client)
        await call(client)
    first, again, other = (request.headers["Idempotency-Key"] for request in server.requests)
    assert first == again != other


@pytest.mark.parametrize("call", HARMLESS.values(), ids=HARMLESS.keys())
async def test_a_call_whose_repeat_is_harmless_costs_no_key(call: Call) -> None:
    server = Server(ok())
    async with server.client() as client:
        await call(client)
    assert "Idempotency-Key" not in server.requests[0].headers


async def test_a_call_that_is_made_once_needs_no_key() -> None:
    server = Server(ok({"leases": []}))
    async with server.client(tries=1) as client:
        await client.lease()
    assert "Idempotency-Key" not in server.requests[0].headers


async def test_a_repeat_that_comes_while_the_first_call_is_still_under_way_is_made_again() -> None:
    busy = problem("conflict", 409, retry_after=1)
    server = Server(LOST, busy, ok())
    async with server.client() as client:
        await client.requeue(1)
    assert len(server.requests) == 3
    assert 1 < server.clock.slept[1] <= 1.5


@pytest.mark.parametrize("failure", [LOST, SILENT])
async def test_a_call_that_is_lost_for_good_says_that_its_outcome_is_unknown(failure: Exception) -> None:
    server = Server(failure)
    async with server.client(tries=2) as client:
        with pytest.raises(Unavailable, match="unknown") as raised:
            await client.answer(1, "yes")
    assert len(server.requests) == 2
    assert raised.value.details == {"url": URL, "sent": True}


async def test_tries_are_bounded_and_the_last_error_says_where_and_what_to_do() -> None:
    server = Server(REFUSED)
    async with server.client(tries=3) as client:
        with pytest.raises(Unavailable) as raised:
            await client.job(1)
    assert len(server.requests) == 3
    assert URL in raised.value.message
    assert "oaken serve" in raised.value.message
    assert raised.value.details["sent"] is False


@pytest.mark.parametrize("code", ["lease_lost", "conflict", "not_found", "forbidden"])
async def test_refusals_are_not_repeated(code: str) -> None:
    server = Server(problem(code, errors.error_class(code).status), ok())
    async with server.client() as client:
        with pytest.raises(errors.error_class(code)):
            await client.heartbeat("1-1-x")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Sun, 06 Nov 2044 08:49:47 GMT", "Date": "Sun, 06 Nov 2044 08:49:37 GMT"}, 10),
        ({"Retry-After": "soon"}, 0),
    ],
)
async def test_retry_after_is_honoured(headers: dict[str, str], seconds: float) -> None:
    server = Server(problem("unavailable", 503, headers), ok())
    async with server.client() as client:
        await client.job(1)
    assert seconds < server.clock.slept[0] <= seconds + 0.25


async def test_a_server_that_wants_to_be_left_alone_for_long_is() -> None:
    server = Server(problem("rate_limited", 429, {"Retry-After": "3600"}), ok())
    async with server.client() as client:
        with pytest.raises(RateLimited) as raised:
            await client.job(1)
    assert raised.value.details == {"retry_after": 3600.0}
    assert len(server.requests) == 1


# What is sent


async def test_calls_are_said_in_http() -> None:
    server = Server(ok({"name": "me", "jobs": [], "leases": []}))
    async with server.client() as client:
        await client.enqueue("echo", {"a": 1}, subject="note:1")
        await client.jobs(state=["queued", "running"], full=True, kind=None, limit=5)
        await client.wait(7, 1.5)
        await client.wait([1, 2])
        await client.subject("note:1/ä")
        await client.healthz()
        await client.queues(all=True)
        await client.requeue(3, queue="side")
        await client.result(3)
    assert server.asked == [
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs?state=queued%2Crunning&full=1&limit=5"),
        ("GET", "/v1/jobs/7/wait?seconds=1.5"),
        ("GET", "/v1/jobs/wait?ids=1%2C2&seconds=30"),
        ("GET", "/v1/subjects/note%3A1%2F%C3%A4"),
        ("GET", "/healthz"),
        ("GET", "/v1/queues?all=1"),
        ("POST", "/v1/jobs/3/requeue"),
        ("GET", "/v1/jobs/3/result"),
    ]
    assert server.body(0) == {"kind": "echo", "payload": {"a": 1}, "subject": "note:1"}
    assert server.body(7) == {"queue": "side"}
    assert server.requests[0].headers["Authorization"] == "Bearer secret"
    assert server.requests[0].headers["Content-Type"] == "application/json"


async def test_a_wait_has_its_own_time_on_top() -> None:
    server = Server(ok({"leases": []}))
    async with server.client(timeout=10) as client:
        await client.lease(wait_seconds=20)
        await client.heartbeat("1-1-x")
    timeouts = [request.extensions["timeout"] for request in server.requests]
    assert [timeout["read"] for timeout in timeouts] == [30, 10]
    assert [timeout["connect"] for timeout in timeouts] == [10, 10]


async def test_all_jobs_follows_the_cursor() -> None:
    server = Server(
        ok({"jobs": [{"id": 3}, {"id": 2}], "next_cursor": "c1"}), ok({"jobs": [{"id": 1}], "next_cursor": None})
    )
    async with server.client() as client:
        assert [job["id"] async for job in client.all_jobs(kind="echo")] == [3, 2, 1]
    assert server.asked == [("GET", "/v1/jobs?kind=echo"), ("GET", "/v1/jobs?kind=echo&cursor=c1")]


async def test_an_instance_is_named_under_the_tokens_own_name_asked_for_once() -> None:
    server = Server(ok({"name": "embedder"}), ok({"leases": []}))
    async with server.client(instance="host-a") as client:
        await client.lease(kinds=["embed"])
        await client.lease(kinds=["embed"])
    assert [path for _, path in server.asked] == ["/v1/me", "/v1/leases", "/v1/leases"]
    assert server.body() == {"agent": "embedder/host-a", "kinds": ["embed"], "max": 1, "wait_seconds": 0}


async def test_address_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAKEN_URL", "https://jobs.example.org/oaken/v1/")
    monkeypatch.setenv("OAKEN_TOKEN", "from-env")
    server = Server(ok())
    async with Client(transport=httpx2.MockTransport(server)) as client:
        await client.job(1)
    assert str(server.requests[0].url) == "https://jobs.example.org/oaken/v1/jobs/1"
    assert server.requests[0].headers["Authorization"] == "Bearer from-env"
    monkeypatch.delenv("OAKEN_URL")
    assert Client().url == "http://127.0.0.1:8787"


@pytest.mark.parametrize(
    "url", ["localhost:8787", "ftp://host", "http://", "/v1", "http://[::1", "http://127.0.0.1:99999", "http://a:b"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="should look like"):
        Client(url)


async def test_a_closed_client_opens_again() -> None:
    client = Server(ok()).client()
    await client.job(1)
    await client.aclose()
    await client.aclose()
    await client.job(1)
    await client.aclose()


# The worker's transport over it

LEASE = {
    "lease_id": "5-3-x",
    "expires_at": "2030-01-01T00:01:30.500Z",
    "instructions": "be kind",
    "job": {
        "id": 5,
        "kind": "embed",
        "queue": "embed",
        "subject": "note:1",
        "attempts": 2,
        "parent_id": 4,
        "payload": {"a": 1},
        "started_at": "2030-01-01T00:00:00.500Z",
        "lease": {"epoch": 3},
    },
}


def transport(server: Server) -> HttpTransport:
    return HttpTransport(server.client(tries=1), "embedder/host-a")


async def test_a_lease_becomes_an_item_whose_length_needs_no_common_clock() -> None:
    server = Server(ok({"leases": [LEASE]}))
    way = transport(server)
    (item,) = await way.lease(queues=None, kinds=["embed"], max=2, lease_seconds=None, wait_seconds=20)
    assert (item.lease_id, item.lease_seconds, item.job_id, item.kind, item.queue) == ("5-3-x", 90, 5, "embed", "embed")
    assert (item.attempt, item.epoch, item.parent_id, item.subject) == (2, 3, 4, "note:1")
    assert (item.payload, item.instructions) == ({"a": 1}, "be kind")
    assert server.body() == {"agent": "embedder/host-a", "kinds": ["embed"], "max": 2, "wait_seconds": 20}
    await way.aclose()


async def test_beats_and_reports_tell_of_a_cancellation() -> None:
    server = Server(
        ok({"expires_at": "2030-01-01T00:00:00.000Z", "cancelling": True}), ok({"job": {"id": 5, "cancelling": True}})
    )
    way = transport(server)
    assert await way.heartbeat("5-3-x") == Beat(cancelling=True)
    assert await way.progress("5-3-x", 10, None) == Beat(cancelling=True)
    assert server.body() == {"percent": 10}
    await way.aclose()


ENDINGS: list[tuple[Ending, str, dict[str, Any]]] = [
    (Complete("1-1-x", Done({"a": 1}, produced_by="m")), "complete", {"result": {"a": 1}, "produced_by": "m"}),
    (Complete("1-1-x", Done()), "complete", {"result": {}}),
    (Fail("1-1-x", "no", permanent=True), "fail", {"error": "no", "permanent": True}),
    (Fail("1-1-x", "no", retry_after=9), "fail", {"error": "no", "retry_after": 9}),
    (Defer("1-1-x", 5), "defer", {"seconds": 5}),
    (Release("1-1-x"), "release", {}),
    (Cancelled("1-1-x"), "cancelled", {}),
]


@pytest.mark.parametrize(("ending", "verb", "body"), ENDINGS)
async def test_each_ending_alone_and_in_a_batch_says_the_same(ending: Ending, verb: str, body: dict[str, Any]) -> None:
    server = Server(ok(), ok({"results": [{"job": {}, "status": 200}, {"job": {}, "status": 200}]}))
    way = transport(server)
    assert await way.finish([ending]) == [None]
    assert server.asked == [("POST", f"/v1/leases/1-1-x/{verb}")]
    assert server.body() == body
    assert await way.finish([ending, Release("2-1-x")]) == [None, None]
    assert server.body()["ops"][0] == {"op": verb, "lease_id": "1-1-x", **body}
    await way.aclose()


async def test_a_batch_of_endings_has_an_answer_for_each() -> None:
    lost = {"type": "about:blank", "title": "T", "status": 409, "detail": "not current", "code": "lease_lost"}
    server = Server(ok({"results": [{"error": lost, "status": 409}, {"job": {}, "status": 200}]}))
    way = transport(server)
    effects = (SetLabels("note:1", "machine", {"queue": "side"}),)
    told = await way.finish([Release("1-1-x"), Complete("2-1-x", Done({}, effects)), Release("3-1-x")])
    assert isinstance(told[0], LeaseLost)
    assert isinstance(told[1], InvalidRequest)
    assert told[2] is None
    assert [op["lease_id"] for op in server.body()["ops"]] == ["1-1-x", "3-1-x"]
    await way.aclose()


async def test_one_ending_that_cannot_be_sent_does_not_take_the_others_along() -> None:
    server = Server(ok())
    way = transport(server)
    told = await way.finish([Complete("1-1-x", Done({"bad": object()})), Complete("2-1-x", Done({"good": 1}))])
    assert isinstance(told[0], BadJson)
    assert told[1] is None
    assert server.asked == [("POST", "/v1/leases/2-1-x/complete")]
    await way.aclose()


async def test_a_batch_too_large_is_sent_one_by_one() -> None:
    server = Server(problem("too_large", 413), ok())
    way = transport(server)
    assert await way.finish([Release("1-1-x"), Release("2-1-x")]) == [None, None]
    assert [path for _, path in server.asked] == [
        "/v1/leases/batch",
        "/v1/leases/1-1-x/release",
        "/v1/leases/2-1-x/release",
    ]
    await way.aclose()


async def test_a_result_over_the_servers_limit_is_refused_here_and_the_limit_asked_for_once() -> None:
    server = Server(
        ok({"limits": {"max_result_bytes": 2_000_000}}), ok(), ok({"results": [{"job": {}, "status": 200}]})
    )
    way = transport(server)
    large = [Complete(f"{n}-1-x", Done({"a": "x" * size})) for n, size in ((1, 3_000_000), (2, 1_500_000), (3, 5))]
    told = await way.finish(large)
    assert isinstance(told[0], TooLarge)
    assert told[0].details == {"limit": 2_000_000, "actual": 3_000_008}
    assert told[1:] == [None, None]
    assert [path for _, path in server.asked] == ["/v1/meta", "/v1/leases/2-1-x/complete", "/v1/leases/batch"]
    assert isinstance((await way.finish(large[:1]))[0], TooLarge)
    assert len(server.requests) == 3
    await way.aclose()


async def test_a_result_that_no_server_takes_is_refused_where_the_limit_cannot_be_asked_for() -> None:
    server = Server(httpx2.ConnectError("refused"))
    way = transport(server)
    (told,) = await way.finish([Complete("1-1-x", Done({"a": "x" * (17 << 20)}))])
    assert isinstance(told, TooLarge)
    await way.aclose()


async def test_a_batch_is_sent_in_parts_of_bounded_size() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        ops = orjson.loads(request.content)["ops"]
        sizes.append(len(request.content))
        return ok({"results": [{"job": {}, "status": 200}] * len(ops)})

    sizes: list[int] = []
    way = HttpTransport(Client(URL, "secret", tries=1, transport=httpx2.MockTransport(answer)), "bot")
    endings = [Complete(f"{n}-1-x", Done({"a": "x" * 300_000})) for n in range(10)]
    assert await way.finish(endings) == [None] * 10
    assert len(sizes) == 4
    assert max(sizes) < 1_100_000
    await way.aclose()


# The worker


def run_worker(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OAKEN_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


REFUSED_WORKER = """
import httpx2
from oaken_swarm import Client, Worker
worker = Worker(ARGUMENTS)
@worker.handler("embed")
async def embed(job): pass
worker.run()
"""
ANSWERING = (
    'agent="a", client=Client("http://oaken.test", "t", transport=httpx2.MockTransport(lambda _: httpx2.Response({})))'
)


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        ('agent="a"', {}, "set OAKEN_TOKEN or pass token="),
        ('agent="a"', {"OAKEN_TOKEN": "é"}, "OAKEN_TOKEN"),
        ('agent="a"', {"OAKEN_TOKEN": "t", "OAKEN_URL": "http://[::1"}, "should look like"),
        ('"127.0.0.1:8787", "a", "t"', {}, "should look like"),
        (ANSWERING.format(401), {}, "oaken.test answered 401"),
        (ANSWERING.format(403), {}, "oaken.test answered 403"),
        (ANSWERING.format(422), {}, "oaken.test answered 422"),
    ],
)
def test_a_worker_that_cannot_do_its_work_says_why_in_one_line_and_exits_with_1(
    arguments: str, environment: dict[str, str], told: str
) -> None:
    done = run_worker(REFUSED_WORKER.replace("ARGUMENTS", arguments), **environment)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if " works on " not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("oaken worker: ")
    assert told in lines[0]


async def test_on_a_loop_of_its_owners_a_worker_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OAKEN_TOKEN", raising=False)
    with pytest.raises(errors.Unauthenticated, match="OAKEN_TOKEN"):
        await Worker(URL, "a").run_async()
    with pytest.raises(ConfigError, match="should look like"):
        await Worker("nowhere", "a", "t").run_async()


def test_a_worker_has_an_instance_of_its_own() -> None:
    one, two = Worker(URL, agent="embedder"), Worker(URL, agent="embedder")
    assert one.agent.startswith("embedder/")
    assert one.agent != two.agent
    assert Worker(URL, agent="embedder", instance="host-a").agent == "embedder/host-a"
    with pytest.raises(ValueError, match="agent"):
        Worker(URL)


async def test_a_worker_leases_does_and_finishes_over_http() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.url.path, orjson.loads(request.content)))
        if request.url.path == "/v1/leases":
            return ok({"leases": [LEASE]}) if len(asked) == 1 else problem("unauthenticated", 401)
        return ok()

    asked: list[tuple[str, Any]] = []
    client = Client(URL, "secret", tries=1, transport=httpx2.MockTransport(answer))
    worker = Worker(agent="embedder", instance="host-a", client=client)

    @worker.handler("embed")
    async def _(job: Any) -> dict[str, Any]:
        return {"seen": job.payload}

    with pytest.raises(errors.Unauthenticated):
        await worker.run_async()
    assert asked[1] == ("/v1/leases/5-3-x/complete", {"result": {"seen": {"a": 1}}})


SIGNALLED = """
import asyncio, sys
import httpx2
from oaken_swarm import Client, Worker

def answer(request):
    if request.url.path == "/v1/leases":
        return httpx2.Response(200, json={"leases": [LEASE]})
    print(request.url.path, flush=True)
    return httpx2.Response(200, json={"job": {"id": 5}})

client = Client("http://oaken.test", transport=httpx2.MockTransport(answer))
worker = Worker(agent="embedder", client=client, grace=GRACE)

@worker.handler("embed")
async def embed(job):
    print("began", flush=True)
    await asyncio.Event().wait()

worker.run()
print("stopped", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order_and_a_second_one_at_once(number: signal.Signals) -> None:
    def start(grace: int) -> subprocess.Popen[str]:
        program = SIGNALLED.replace("[LEASE]", repr([LEASE])).replace("GRACE", str(grace))
        return subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    with start(grace=0) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "began\n"
        worker.send_signal(number)
        assert worker.stdout.read() == "/v1/leases/5-3-x/release\nstopped\n"
        assert worker.stderr is not None
        said = [line.split("INFO ")[1] for line in worker.stderr.read().splitlines() if "INFO" in line]
    assert worker.returncode == 0
    assert said[0].startswith("embedder/")
    assert said[0].endswith(" works on embed (1 at once) for http://oaken.test")
    assert said[1] == "stopping: waiting up to 0 s for 1 job; Ctrl-C again leaves at once"
    assert said[-1] == "stopped"

    with start(grace=600) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "began\n"
        while worker.poll() is None:
            worker.send_signal(number)
        assert worker.stdout.read() == ""
    assert worker.returncode == -number

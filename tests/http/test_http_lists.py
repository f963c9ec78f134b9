"""Lists of jobs: filters, pages, and queries read as strictly as bodies."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from oaken_jobs import views
from oaken_swarm import InvalidRequest
from oaken_swarm.routes import jobs as job_routes
from tests.service import Service, problem


async def test_a_list_is_newest_first_without_bodies(server: Service) -> None:
    client = await server.client()
    ids = [(await client.enqueue("echo", {"n": n}))["job"]["id"] for n in range(3)]
    told = await client.jobs()
    assert [job["id"] for job in told["jobs"]] == ids[::-1]
    assert told["next_cursor"] is None
    assert not told["jobs"][0].keys() & {"payload", "result"}


async def test_a_full_list_has_payloads_and_results(server: Service) -> None:
    client = await server.client()
    await client.enqueue("echo", {"n": 1})
    await client.complete((await client.lease())["leases"][0]["lease_id"], {"m": 2})
    [job] = (await client.jobs(full=True))["jobs"]
    assert (job["payload"], job["result"]) == ({"n": 1}, {"m": 2})


async def test_pages_follow_one_another_without_gap_or_repetition(server: Service) -> None:
    client = await server.client()
    ids = [(await client.enqueue("echo"))["job"]["id"] for _ in range(7)]
    assert [job["id"] async for job in client.all_jobs(limit=3, state="queued")] == ids[::-1]


async def test_a_full_page_that_would_be_too_large_ends_early(server: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_routes, "FULL_BYTES", 100)
    client = await server.client()
    ids = [(await client.enqueue("echo", {"text": "x" * 50}))["job"]["id"] for _ in range(25)]
    first = await client.jobs(full=True)
    assert len(first["jobs"]) == 10
    assert first["next_cursor"]
    assert [job["id"] async for job in client.all_jobs(full=True)] == ids[::-1]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"state": "queued"}, ["b", "c"]),
        ({"state": ["queued", "cancelled"]}, ["a", "b", "c"]),
        ({"kind": "k1"}, ["a", "b"]),
        ({"kind": ["k1", "k2"]}, ["a", "b", "c"]),
        ({"queue": "default"}, ["a", "b", "c"]),
        ({"queue": "slow"}, []),
        ({"subject": "note:1/2 ü"}, ["b"]),
        ({"tag": "red"}, ["c"]),
        ({"actor": "ann"}, ["a", "b", "c"]),
        ({"actor": "bob"}, []),
        ({"agent": "ann"}, []),
        ({"grade": "note"}, ["a"]),
        ({"q": "needle"}, ["c"]),
        ({"q": "100%"}, []),
        ({"created_after": "2020-01-01T00:00:00Z"}, ["a", "b", "c"]),
        ({"created_before": "2020-01-01T00:00:00+02:00"}, []),
        ({"finished_after": "2020-01-01T00:00:00Z"}, ["a"]),
        ({"finished_before": "2020-01-01T00:00:00Z"}, []),
        ({"limit": 1}, ["c"]),
        ({"limit": 500}, ["a", "b", "c"]),
        ({"full": 0}, ["a", "b", "c"]),
    ],
)
async def test_filters_choose_jobs(server: Service, query: dict[str, Any], found: list[str]) -> None:
    client = await server.client()
    first = await client.enqueue("k1", title="a")
    await client.enqueue("k1", title="b", subject="note:1/2 ü")
    await client.enqueue("k2", title="c needle", tags=["red"])
    await client.cancel(first["job"]["id"])
    told = await client.jobs(**query)
    assert sorted(job["title"][0] for job in told["jobs"]) == found


async def test_a_list_in_a_query_may_be_repeated(server: Service) -> None:
    client, http = await server.client(), await server.http()
    for kind in ("a", "b", "c"):
        await client.enqueue(kind)
    told = (await http.get("/v1/jobs?kind=a&kind=b,c&state=queued")).json()
    assert [job["kind"] for job in told["jobs"]] == ["c", "b", "a"]


async def test_children_are_found_by_their_parent(server: Service) -> None:
    client = await server.client()
    parent = (await client.enqueue("echo"))["job"]["id"]
    child = (await client.enqueue("echo", parent_id=parent))["job"]["id"]
    assert [job["id"] for job in (await client.jobs(parent_id=parent))["jobs"]] == [child]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("sate=queued", "sate: unknown field; did you mean state?"),
        ("colour=red", "colour: unknown field; known are state, kind"),
        ("state=done", "state.0: must be 'queued'"),
        ("state=", "state.0: must be"),
        ("state=queued,", "state.1: must be"),
        ("queue=Default", "queue.0: must match"),
        ("kind=a%20b", "kind.0: must match"),
        ("grade=great", "grade.0: must be 'ok', 'note', 'warn' or 'bad'"),
        ("limit=0", "limit: must be at least 1 (got '0')"),
        ("limit=501", "limit: must be at most 500"),
        ("limit=-1", "limit: must be at least 1"),
        ("limit=1.5", "limit: must be a whole number"),
        ("limit=" + "9" * 400, "limit: must be a whole number"),
        ("limit=%EF%BC%91", "limit: must be a whole number"),
        ("limit=1&limit=2", "limit: must be a whole number (got a list)"),
        ("limit=", "limit: must be a whole number"),
        ("parent_id=0", "parent_id: must be more than 0"),
        ("parent_id=99999999999999999", "parent_id: must be at most"),
        ("created_after=yesterday", "created_after: give a time with its zone"),
        ("created_after=2020-01-01T00:00:00", "created_after: give a time with its zone"),
        ("created_before=1", "created_before: give a time"),
        ("finished_after=0001-01-01T00:00:00%2B23:59", "finished_after: give a time"),
        ("full=maybe", "full: must be true or false"),
        ("agent=a%20b", "agent: must match"),
        ("actor=", "actor: must be at least 1"),
        ("subject=%00", "subject: it holds control characters"),
        ("q=" + "x" * 256, "q: must be at most 255"),
        ("q=a%ED%A0%80", "The query is not UTF-8"),
        ("q=%FF", "The query is not UTF-8"),
        ("cursor=x", "cursor: it belongs to other filters"),
        ("cursor=%C3%A9", "cursor: it belongs to other filters"),
        ("cursor=" + "A" * 201, "cursor: must be at most 200"),
        ("&".join(["state=queued"] * 1001), "more than 1000 fields"),
    ],
)
async def test_a_query_that_is_wrong_is_refused_with_what_is_allowed(server: Service, query: str, told: str) -> None:
    http = await server.http()
    assert told in problem(await http.get(f"/v1/jobs?{query}"), 422, "invalid_request")["detail"]


async def test_a_cursor_is_bound_to_its_filters_and_cannot_be_made_up(server: Service) -> None:
    client = await server.client()
    for _ in range(3):
        await client.enqueue("echo")
    cursor = (await client.jobs(limit=1))["next_cursor"]
    with pytest.raises(InvalidRequest, match="other filters"):
        await client.jobs(limit=1, cursor=cursor, state="queued")
    _, mark = orjson.loads(base64.urlsafe_b64decode(cursor + "=="))
    for made_up in (2**64 - 1, -1, 0, 1.5, True, None, "1"):
        text = base64.urlsafe_b64encode(orjson.dumps([made_up, mark])).decode().rstrip("=")
        with pytest.raises(InvalidRequest):
            await client.jobs(limit=1, cursor=text)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/1?x=1",
        "/v1/jobs/1/result?full=1",
        "/v1/queues?everything=1",
        "/v1/agents?limit=5",
        "/v1/me?a",
        "/v1/jobs/1/wait?secs=1",
        "/v1/jobs/wait?ids=1&second=1",
        "/v1/tokens?limit=1",
        "/healthz?verbose",
    ],
)
async def test_no_route_ignores_a_query_it_does_not_know(server: Service, path: str) -> None:
    http = await server.http("root", "admin")
    assert "unknown field" in problem(await http.get(path), 422, "invalid_request")["detail"]


async def test_writing_calls_take_no_query(server: Service) -> None:
    http = await server.http()
    told = problem(await http.post("/v1/jobs?kind=echo", json={"kind": "echo"}), 422, "invalid_request")
    assert "takes no query" in told["detail"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", "ids: is required"),
        ("ids=", "ids.0: must be a whole number"),
        ("ids=a", "ids.0: must be a whole number"),
        ("ids=1,,2", "ids.1: must be a whole number"),
        ("ids=0", "ids.0: must be more than 0"),
        ("ids=" + ",".join(["1"] * 501), "ids: must have at most 500 entries"),
        ("ids=1&seconds=61", "seconds: must be at most 60"),
        ("ids=1&seconds=-1", "seconds: must be at least 0"),
        ("ids=1&seconds=nan", "seconds: must be a number"),
        ("ids=1&seconds=1e1", "seconds: must be a number"),
    ],
)
async def test_waiting_for_many_checks_its_query(server: Service, query: str, told: str) -> None:
    http = await server.http()
    assert told in problem(await http.get(f"/v1/jobs/wait?{query}"), 422, "invalid_request")["detail"]


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1970-01-01T00:00:00.000Z"),
        (-(2**63), "1970-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "9999-12-31T23:59:59.999Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999Z"),
        (None, None),
    ],
)
def test_any_moment_that_a_row_may_hold_can_be_shown(ms: int | None, shown: str | None) -> None:
    assert views.iso(ms) == shown

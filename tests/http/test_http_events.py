"""Events over HTTP: streams and long polls, their rights, their ends, and no gap whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_swarm import Client
from oaken_swarm.routes import events as events_module
from tests.contract.world import alter
from tests.service import RULES, Service, eventually, plain, problem, serve


class Events:
    """What comes on a stream: (id, event, data), comments left out."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.comments = 0
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str | None, str, Any]:
        """The next one; raises StopAsyncIteration at the end."""
        found: dict[str, str] = {}
        while True:
            line = await asyncio.wait_for(anext(self._lines), 10)
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                found[name] = value
            elif found:
                return found.get("id"), found["event"], orjson.loads(found["data"])

    async def rest(self) -> list[tuple[str | None, str, Any]]:
        """What comes until the stream ends."""
        found: list[tuple[str | None, str, Any]] = []
        while True:
            try:
                found.append(await self.next())
            except (StopAsyncIteration, httpx2.RemoteProtocolError):
                return found

    async def take(self, count: int) -> list[tuple[str | None, str, Any]]:
        return [await self.next() for _ in range(count)]


@asynccontextmanager
async def stream(server: Service, token: str, path: str = "/v1/events", **more: Any) -> AsyncIterator[Events]:
    """A stream that is open: its first sign of life has come."""
    headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
    async with (
        plain(base_url=server.url, timeout=15) as http,
        http.stream("GET", path, headers=headers, params=more) as response,
    ):
        assert response.status_code == 200, await response.aread()
        found = Events(response)
        assert await asyncio.wait_for(anext(found._lines), 10) == ": oaken"
        assert await asyncio.wait_for(anext(found._lines), 10) == ""
        yield found


async def listening(server: Service, count: int = 1) -> None:
    async def there() -> bool:
        return len(server.core.bus._streams) == count  # pyright: ignore[reportPrivateUsage]

    await eventually(there)


async def test_a_stream_tells_what_happens_from_now_on(server: Service) -> None:
    client = await server.client("me", "user")
    await client.enqueue("before")
    async with stream(server, await server.token("eyes", "viewer")) as found:
        assert found.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert found.response.headers["cache-control"] == "no-store"
        await listening(server)
        job = (await client.enqueue("work", {"private": "text"}))["job"]
        mark, kind, told = await found.next()
        assert (kind, told["id"], told["kind"]) == ("job_state_changed", mark, "job_state_changed")
        assert told["data"]["job_id"] == job["id"]
        assert (told["data"].get("from"), told["data"]["to"]) == (None, "queued")
        assert "private" not in orjson.dumps(told).decode()


@pytest.mark.parametrize("how", ["header", "query"])
async def test_a_stream_goes_on_after_an_event_without_gap_or_repetition(server: Service, how: str) -> None:
    client = await server.client("me", "user")
    for _ in range(700):
        await server.core.jobs.enqueue(_me(), _new())
    token = await server.token("eyes", "viewer")
    more: Any = {"headers": {"Last-Event-ID": "5"}} if how == "header" else {"after": "5"}
    async with stream(server, token, **more) as found:
        replayed = await found.take(695)
        await client.enqueue("work")
        (last,) = await found.take(1)
    assert [int(str(mark)) for mark, _, _ in [*replayed, last]] == list(range(6, 702))


async def test_a_stream_goes_on_over_a_restart(tmp_path: Path) -> None:
    core = Core.on_folder(tmp_path, RULES, "serve")
    await core.open()
    server = await serve(core)
    token = await server.token("eyes", "viewer")
    await core.jobs.enqueue(_me(), _new())
    async with stream(server, token, after="0") as found:
        (first,) = await found.take(1)
        await core.jobs.enqueue(_me(), _new())
        await server.close()
        rest = await found.rest()
    await core.close()
    core = Core.on_folder(tmp_path, RULES, "serve")
    await core.open()
    server = await serve(core)
    await core.jobs.enqueue(_me(), _new())
    seen = [first, *rest]
    async with stream(server, token, headers={"Last-Event-ID": str(seen[-1][0])}) as found:
        seen += await found.take(3 - len([one for one in seen if one[1] == "job_state_changed"]))
    states = [one for one in seen if one[1] == "job_state_changed"]
    assert [one[2]["data"]["job_id"] for one in states] == [1, 2, 3]
    await server.close()
    await core.close()


async def test_a_stream_tells_only_what_was_asked_for(server: Service) -> None:
    client = await server.client("me", "user")
    token = await server.token("eyes", "viewer")
    first = (await client.enqueue("work"))["job"]["id"]
    async with (
        stream(server, token, kinds="queue_state_changed,agent_changed") as queues,
        stream(server, token, job_id=first) as one,
    ):
        await listening(server, 2)
        await client.enqueue("work")
        await client.pause_queue("slow")
        await client.cancel(first)
        assert [kind for _, kind, _ in await queues.take(1)] == ["queue_state_changed"]
        assert [told["data"]["to"] for _, _, told in await one.take(1)] == ["cancelled"]


async def test_who_asks_for_what_is_forgotten_is_told_to_read_anew_and_hears_what_comes(
    server: Service, database: DatabaseSettings, tmp_path: Path
) -> None:
    alter(tmp_path / "data", database, "insert into marks values ('activity_forgotten', 3)")
    for _ in range(5):
        await server.core.jobs.enqueue(_me(), _new())
    token = await server.token("eyes", "viewer")
    async with stream(server, token, after="2") as found:
        mark, kind, told = await found.next()
        assert (kind, told, mark) == ("resync", {"cursor": mark}, mark)
        await server.core.jobs.enqueue(_me(), _new())
        assert [told["data"]["job_id"] for _, _, told in await found.take(1)] == [6]


async def test_a_reader_too_slow_for_its_buffer_gets_what_it_missed_from_the_table(server: Service) -> None:
    token = await server.token("eyes", "viewer")
    async with stream(server, token) as found:
        await listening(server)
        (live,) = server.core.bus._streams  # pyright: ignore[reportPrivateUsage]
        for start in range(0, 3000, 500):
            await asyncio.gather(*(server.core.jobs.enqueue(_me(), _new()) for _ in range(start, start + 500)))
            assert len(live._waiting) <= 256
        ids = [told["data"]["job_id"] for _, kind, told in await found.take(3000)]
    assert ids == list(range(1, 3001))


async def test_a_silent_stream_shows_signs_of_life(server: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_SECONDS", 0.05)
    async with stream(server, await server.token("eyes", "viewer")) as found:
        for _ in range(4):
            assert await asyncio.wait_for(anext(found._lines), 10) in (":", "")


async def test_a_stop_ends_streams_and_long_polls_in_order(server: Service) -> None:
    token = await server.token("eyes", "viewer")
    client = await server.client("other", "viewer")
    async with stream(server, token) as found:
        await listening(server)
        poll = asyncio.ensure_future(client.events(seconds=30))

        async def waits() -> bool:
            return len(server.app._waits._watches) == 1  # pyright: ignore[reportPrivateUsage]

        await eventually(waits)
        stopping = asyncio.ensure_future(server.server.stop())
        with pytest.raises(StopAsyncIteration):
            await found.next()
        assert (await asyncio.wait_for(poll, 10))["events"] == []
        await stopping


async def test_a_token_that_is_revoked_hears_nothing_more(server: Service) -> None:
    token = await server.token("eyes", "viewer")
    async with stream(server, token) as found:
        await listening(server)
        await server.core.tokens.revoke(_me().actor, "eyes")
        await server.core.jobs.enqueue(_me(), _new())
        assert "job_state_changed" not in [kind for _, kind, _ in await found.rest()]


async def test_a_client_that_goes_away_leaves_no_stream(server: Service) -> None:
    async with stream(server, await server.token("eyes", "viewer")):
        await listening(server)
    await listening(server, 0)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?kinds=nothing", 422, "invalid_request"),
        ("?after=x", 422, "invalid_request"),
        ("?job_id=0", 422, "invalid_request"),
        ("?limit=1", 422, "invalid_request"),
    ],
)
async def test_what_cannot_be_streamed_is_refused_before_it_begins(
    server: Service, query: str, status: int, code: str
) -> None:
    http = await server.http("viewer", "viewer")
    problem(await http.get(f"/v1/events{query}"), status, code)


async def test_an_agent_alone_hears_no_events_and_a_bound_viewer_those_of_its_workspace(server: Service) -> None:
    http = await server.http("agent", "agent")
    problem(await http.get("/v1/events"), 403, "forbidden")
    problem(await http.get("/v1/events/wait?seconds=0"), 403, "forbidden")
    token = await server.core.tokens.create(_me().actor, "side", ["viewer"], workspace="side")
    async with stream(server, token[1]) as found:
        await listening(server)
        await server.core.jobs.enqueue(_me(), _new())
        await server.core.jobs.enqueue(_me(), _new(workspace="side"))
        assert [told["data"]["workspace"] for _, _, told in await found.take(1)] == ["side"]


async def test_a_long_poll_answers_as_soon_as_something_happens(server: Service) -> None:
    eyes: Client = await server.client("eyes", "viewer")
    client = await server.client("me", "user")
    start = (await eyes.events(seconds=0))["cursor"]
    poll = asyncio.ensure_future(eyes.events(start, seconds=30))

    async def waits() -> bool:
        return bool(server.core.follower._listeners)  # pyright: ignore[reportPrivateUsage]

    await eventually(waits)
    await client.enqueue("work")
    told = await asyncio.wait_for(poll, 10)
    assert [one["data"]["verb"] for one in told["events"]] == ["enqueue"]
    assert told["resync"] is False
    assert (await eyes.events(told["cursor"], seconds=0))["events"] == []


def _me() -> Any:
    from tests.contract.world import ME

    return ME


def _new(**fields: Any) -> Any:
    from oaken_jobs.requests import NewJobRequest

    return NewJobRequest.model_validate({"kind": "work", **fields})

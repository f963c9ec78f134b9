"""MCP over HTTP: the SDK's own client of both eras, with a token, against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import orjson
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from oaken_jobs.core import Core
from oaken_jobs.kinds import Kind
from oaken_jobs.model import Actor, Limits, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_mcp import tools
from oaken_mcp.http import PATH, Endpoint, oaken
from oaken_mcp.tools import LEASE_SECONDS
from oaken_swarm.call import Call, ClientGone
from oaken_swarm.callers import Callers
from oaken_swarm.polls import Polls
from oaken_swarm.waits import Waits
from tests.mcp.door import ME, Caller
from tests.service import ROOT, Service, eventually, plain, problem, serve

ERAS = ("auto", "legacy")
LISTING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
LEASE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "lease", "arguments": {"wait_seconds": 15}},
}
HEADERS = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def connected(service: Service, token: str, era: str) -> AsyncIterator[Caller]:
    async with plain(headers={"Authorization": f"Bearer {token}"}) as http:
        way = streamable_http_client(service.url + PATH, http_client=http)
        async with Client(way, mode=era) as client:  # type: ignore[arg-type]
            yield Caller(client)


@pytest.mark.parametrize("era", ERAS)
async def test_a_job_goes_its_way_between_two_agents(service: Service, era: str) -> None:
    async with (
        connected(service, await service.token("ann", "user"), era) as ann,
        connected(service, await service.token("bot", "agent"), era) as bot,
    ):
        job_id = (await ann("enqueue", kind="shout", payload={"text": "hello"}))["job"]["id"]
        (lease,) = (await bot("lease", kinds=["shout"]))["leases"]
        assert lease["job"]["payload"] == {"text": "hello"}
        await bot("complete", lease_id=lease["lease_id"], result={"text": "HELLO"})
        assert (await ann("status", job_id=job_id))["job"]["result"] == {"text": "HELLO"}
    job = (await service.core.store.jobs([job_id]))[0]
    assert (job.actor_id, job.actor_via, job.agent) == ("ann", "mcp", "bot")


@pytest.mark.parametrize("era", ERAS)
async def test_only_tools_that_the_token_may_use_are_listed(service: Service, era: str) -> None:
    async with connected(service, await service.token("eve", "viewer"), era) as eve:
        names = {tool.name for tool in (await eve.client.list_tools()).tools}
    assert "list_jobs" in names
    assert names.isdisjoint({"enqueue", "lease", "complete", "cancel"})


async def test_a_lease_lasts_as_long_as_an_agent_needs_unless_its_kind_says_otherwise(service: Service) -> None:
    service.core.store.rules.kinds["quick"] = Kind("quick", lease_seconds=90)
    async with connected(service, await service.token("bot", "user", "agent"), "auto") as bot:
        for kind, seconds in (("slow", LEASE_SECONDS), ("quick", 90)):
            await bot("enqueue", kind=kind)
            (lease,) = (await bot("lease", kinds=[kind]))["leases"]
            row = (await service.core.store.jobs([lease["job"]["id"]]))[0]
            assert row.lease_ms == seconds * 1000


async def test_whoever_may_not_come_in_is_refused_before_anything_is_read(service: Service) -> None:
    http = await service.http()
    problem(await http.post(PATH, json=LISTING, headers={"Authorization": ""}), 401, "unauthenticated")
    problem(await http.post(PATH, json=LISTING, headers={"Authorization": "Bearer wrong"}), 401, "unauthenticated")
    problem(await http.post(PATH, json=LISTING, headers={"Host": "evil.example"}), 421, "misdirected")
    problem(await http.post(PATH, json=LISTING, headers={"Origin": "https://evil.example"}), 403, "forbidden")
    problem(await http.get(PATH), 405, "method_not_allowed")
    problem(await http.post(f"{PATH}/deeper", json=LISTING), 404, "not_found")


async def test_calls_under_way_are_ended_by_the_stop_and_later_ones_are_refused(core: Core) -> None:
    endpoint = Endpoint(core)
    service = await serve(core, mounts={"mcp": endpoint})
    http = await service.http()
    assert (await http.post(PATH, json=LISTING, headers=HEADERS)).status_code == 200
    waiting = asyncio.ensure_future(http.post(PATH, json=LEASE, headers=HEADERS, timeout=20))

    async def waits() -> bool:
        return core.dispatch.waiting == 1

    await eventually(waits)
    await endpoint.stop()
    problem(await waiting, 503, "unavailable")
    problem(await http.post(PATH, json=LISTING, headers=HEADERS), 503, "unavailable")
    await service.close()


async def test_a_stop_before_the_first_call_is_ready_is_told_as_one(core: Core) -> None:
    go = threading.Event()

    def make(core: Core) -> Any:
        go.wait(10)
        return oaken(core)

    endpoint = Endpoint(core, make)
    service = await serve(core, mounts={"mcp": endpoint})
    http = await service.http()
    first = asyncio.ensure_future(http.post(PATH, json=LISTING, headers=HEADERS))

    async def begun() -> bool:
        return endpoint._serving is not None

    await eventually(begun)
    stopping = asyncio.ensure_future(endpoint.stop())
    await asyncio.sleep(0)
    go.set()
    await stopping
    problem(await first, 503, "unavailable")
    await service.close()


@pytest.mark.parametrize("moment", ["its answer is made", "its token is looked at again"])
async def test_what_was_leased_for_a_client_that_has_gone_goes_back(
    core: Core, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It goes just then, after the lease."""
    who = Principal(Actor("agent", "bot", "mcp"), frozenset({"user", "agent"}), by_token=True)
    gone = asyncio.Event()
    make = tools._leases

    def leases(*given: Any) -> Any:
        if moment == "its answer is made":
            gone.set()
        return make(*given)

    async def check_token(call: Call) -> None:
        gone.set()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise AssertionError("nothing is sent to who has gone")

    monkeypatch.setattr(tools, "_leases", leases)
    monkeypatch.setattr(Call, "check_token", check_token)
    job = (await core.jobs.enqueue(who, NewJobRequest(kind="shout"))).job
    headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
    scope = {"type": "http", "method": "POST", "path": PATH, "query_string": b""}
    call = Call(
        core, Callers(core.tokens, core.sessions, core.clock, None), Polls(core.clock), Waits(), receive, who, None
    )
    endpoint = Endpoint(core)
    with pytest.raises(ClientGone):
        await endpoint(
            call, {**scope, "headers": [*headers, (b"content-type", b"application/json")]}, orjson.dumps(LEASE), send
        )
    await endpoint.stop()
    (row,) = await core.store.jobs([job.id])
    assert (row.state, row.epoch, row.attempts) == ("queued", 1, 0)


async def test_a_tool_that_the_token_may_not_use_is_refused_with_the_scope_that_would_do(service: Service) -> None:
    http = await service.http("eve", "viewer")
    for tool, scope, roles in (("enqueue", "user", "user or agent or admin"), ("lease", "agent", "agent or admin")):
        params = {"name": tool, "arguments": {}}
        answer = await http.post(PATH, json={**LEASE, "id": "a", "params": params}, headers=HEADERS)
        assert answer.status_code == 403
        assert answer.headers["www-authenticate"] == f'Bearer error="insufficient_scope", scope="{scope}"'
        assert (answer.json()["id"], answer.json()["error"]["code"]) == ("a", 403)
        assert roles in answer.json()["error"]["message"]
    async with connected(service, service.tokens["eve"], "auto") as eve:
        with pytest.raises(MCPError, match="may not use lease: that takes the role agent or admin"):
            await eve.client.call_tool("lease", {})


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}', -32600, "no JSON-RPC"),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600, "no JSON-RPC"),
        (b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}', -32600, "no JSON-RPC"),
        (b'{"jsonrpc":"2.0","id":[],"method":"tools/list"}', -32600, "no JSON-RPC"),
        (b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', -32600, "no JSON-RPC"),
        (b'{"jsonrpc":"2.0","id":1,"method":1}', -32600, "no JSON-RPC"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', -32600, "no JSON-RPC"),
        (b"7", -32600, "no JSON-RPC"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}', -32700, "twice"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\\ud800"}}', -32700, "surrogate"),
        (b"{", -32700, "JSON"),
        (b"\xff", -32700, "UTF-8"),
        (b"[" * 100_000, -32700, "deep"),
        (b"", -32700, "JSON"),
    ],
)
async def test_what_is_no_message_is_refused_as_json_rpc_does(
    service: Service, message: bytes, code: int, words: str
) -> None:
    http = await service.http()
    for version in ({}, {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}):
        answer = await http.post(
            PATH, content=message, headers={**HEADERS, "Content-Type": "application/json", **version}
        )
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == code
        assert words in answer.json()["error"]["message"]


async def test_a_body_that_is_not_read_is_refused_as_everywhere(service: Service) -> None:
    http = await service.http()
    typed = {**HEADERS, "Content-Type": "text/plain"}
    problem(await http.post(PATH, content=b"{}", headers=typed), 415, "unsupported_media_type")
    packed = {**HEADERS, "Content-Type": "application/json", "Content-Encoding": "gzip"}
    problem(await http.post(PATH, content=b"{}", headers=packed), 415, "unsupported_media_type")


async def test_calls_are_counted_by_their_path_and_never_by_what_they_hold(service: Service) -> None:
    http = await service.http()
    await http.post(PATH, json=LISTING, headers=HEADERS)
    counted = (await http.get("/metrics")).text
    assert 'oaken_requests_total{method="POST",route="/mcp",status="200"} 1.0' in counted


async def test_a_token_that_is_revoked_ends_the_call_that_waits_with_it(service: Service) -> None:
    http = await service.http("bot", "agent")
    waiting = asyncio.ensure_future(http.post(PATH, json=LEASE, headers=HEADERS, timeout=20))

    async def waits() -> bool:
        return service.core.dispatch.waiting == 1

    await eventually(waits)
    await service.core.tokens.revoke(ROOT, "bot")
    problem(await waiting, 401, "unauthenticated")


INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}}


async def marked(http: httpx2.AsyncClient) -> dict[str, str]:
    """The headers of a client of the earlier era that has initialized."""
    answer = await http.post(PATH, json={**LISTING, "method": "initialize", "params": INITIALIZE}, headers=HEADERS)
    return {**HEADERS, "Mcp-Session-Id": answer.headers["mcp-session-id"]}


def cancelled(request_id: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


async def test_a_client_of_the_earlier_era_cancels_its_own_call_and_no_other_of_the_same_number(
    service: Service,
) -> None:
    http = await service.http("bot", "agent", "user")
    mine, other = await marked(http), await marked(http)
    assert mine != other
    calls = [asyncio.ensure_future(http.post(PATH, json=LEASE, headers=of, timeout=20)) for of in (mine, other)]

    def waits(count: int) -> Any:
        async def as_many() -> bool:
            return service.core.dispatch.waiting == count

        return as_many

    await eventually(waits(2))
    for odd in ("1", True, 2, None, [1]):
        assert (await http.post(PATH, json=cancelled(odd), headers=mine)).status_code == 202
    for of in (HEADERS, {**HEADERS, "Mcp-Session-Id": "x"}):
        await http.post(PATH, json=cancelled(1), headers=of)
    stranger = await service.http("eve", "agent")
    await stranger.post(PATH, json=cancelled(1), headers=mine)
    assert service.core.dispatch.waiting == 2
    await http.post(PATH, json=cancelled(1), headers=mine)
    assert (await calls[0]).json()["error"] == {"code": -32800, "message": "The call was cancelled by its client."}
    assert service.core.dispatch.waiting == 1
    job = (await service.core.jobs.enqueue(ME, NewJobRequest(kind="shout"))).job
    (lease,) = (await calls[1]).json()["result"]["structuredContent"]["leases"]
    assert lease["job"]["id"] == job.id


async def test_an_agent_that_may_take_no_more_is_told_why_and_not_to_call_again(service: Service) -> None:
    _, token = await service.core.tokens.create(ROOT, "bot", ["user", "agent"], limits=Limits(max_leases=1))
    async with connected(service, token, "auto") as bot:
        await bot("enqueue", kind="shout", payloads=[{}, {}])
        (lease,) = (await bot("lease", max=5))["leases"]
        answer = await bot("lease")
        assert answer["leases"] == []
        assert "may hold 1; finish one, then lease again" in answer["next"]
        await bot("complete", lease_id=lease["lease_id"])
        assert len((await bot("lease"))["leases"]) == 1


async def test_a_client_that_names_its_instance_finds_its_leases_again_and_no_others(service: Service) -> None:
    http = await service.http("bot", "agent", "user")
    desk, sofa = ({**HEADERS, "Oaken-Instance": name} for name in ("desk", "sofa"))

    async def lease(headers: dict[str, str], **arguments: Any) -> dict[str, Any]:
        params = {"name": "lease", "arguments": arguments}
        return (await http.post(PATH, json={**LEASE, "params": params}, headers=headers)).json()["result"]

    for kind in ("a", "b"):
        await service.core.jobs.enqueue(ME, NewJobRequest(kind=kind))
    assert (await lease(desk, kinds=["a"]))["structuredContent"]["leases"]
    assert (await lease(sofa, kinds=["b"]))["structuredContent"]["leases"]
    (again,) = (await lease(desk, resume=True))["structuredContent"]["leases"]
    assert again["job"]["kind"] == "a"
    assert "Oaken-Instance" in (await lease(HEADERS, resume=True))["content"][0]["text"]
    odd = await http.post(PATH, json=LISTING, headers={**HEADERS, "Oaken-Instance": "a b"})
    assert "instance 'a b'" in problem(odd, 422, "invalid_request")["detail"]


async def test_kinds_that_agents_do_are_shown_though_no_one_has_configured_them(service: Service) -> None:
    http = await service.http("bot", "agent", "user")
    await service.core.jobs.enqueue(ME, NewJobRequest(kind="shout"))
    for name, arguments in (("lease", {"kinds": ["shout"]}), ("status", {})):
        told = await http.post(PATH, json={**LEASE, "params": {"name": name, "arguments": arguments}}, headers=HEADERS)
    assert {"name": "shout"} in told.json()["result"]["structuredContent"]["kinds"]

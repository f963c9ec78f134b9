"""MCP over HTTP: the SDK's own client of both eras, with a token, against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from oaken_jobs.core import Core
from oaken_jobs.kinds import Kind
from oaken_mcp.http import PATH, Endpoint
from oaken_mcp.tools import LEASE_SECONDS
from tests.mcp.door import Caller
from tests.service import Service, problem, serve

ERAS = ("auto", "legacy")
LISTING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
async def service(core: Core) -> AsyncIterator[Service]:
    endpoint = Endpoint(core)
    service = await serve(core, mounts={"mcp": endpoint})
    yield service
    await endpoint.stop()
    await service.close()


@asynccontextmanager
async def connected(service: Service, token: str, era: str) -> AsyncIterator[Caller]:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
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
    await endpoint.stop()
    problem(await http.post(PATH, json=LISTING), 503, "unavailable")
    await service.close()

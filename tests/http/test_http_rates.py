"""Those who try tokens, and agents that ask in a tight loop, are slowed down; nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from oaken_jobs.clock import FakeClock, SystemClock
from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core
from oaken_swarm import RateLimited
from tests.service import Service, plain, problem, serve


@pytest.fixture
async def proxied(core: Core) -> AsyncIterator[Service]:
    service = await serve(core, ServerSettings(port=0, behind_proxy=True))
    yield service
    await service.close()


async def wrong(http: httpx2.AsyncClient, times: int, **headers: str) -> list[int]:
    """The answers to calls with tokens that are none."""
    return [
        (await http.get("/v1/me", headers={"Authorization": f"Bearer oak_{n}", **headers})).status_code
        for n in range(times)
    ]


async def test_wrong_tokens_from_one_address_are_slowed_down_and_right_ones_are_not(proxied: Service) -> None:
    http, clock = await proxied.http(), FakeClock()
    proxied.app._callers._failures._clock = clock
    bad, good = {"X-Forwarded-For": "203.0.113.1"}, {"X-Forwarded-For": "203.0.113.2"}
    assert await wrong(http, 22, **bad) == [401] * 20 + [429] * 2
    refused = await http.get("/v1/me", headers={"Authorization": "Bearer oak_x", **bad})
    assert problem(refused, 429, "rate_limited")["retry_after"] == int(refused.headers["retry-after"]) == 3
    assert (await http.get("/v1/me", headers=bad)).status_code == 200
    assert await wrong(http, 1, **good) == [401]
    clock.advance(3)
    assert await wrong(http, 2, **bad) == [401, 429]


async def test_what_a_client_says_of_its_address_itself_is_not_believed(proxied: Service) -> None:
    http = await proxied.http()
    proxied.app._callers._failures._clock = FakeClock()
    seen = [await wrong(http, 1, **{"X-Forwarded-For": f"198.51.100.{n}, 203.0.113.1"}) for n in range(21)]
    assert seen[-1] == [429]


async def test_without_a_proxy_the_header_is_ignored(server: Service) -> None:
    http = await server.http()
    assert await wrong(http, 25, **{"X-Forwarded-For": "203.0.113.1"}) == [401] * 25


async def test_this_machine_may_be_wrong_more_often_but_not_for_ever(server: Service) -> None:
    http = await server.http()
    server.app._callers._loopback._clock = FakeClock()  # however slow the machine is
    answers = await wrong(http, 202)
    assert (answers[:200], answers[-1]) == ([401] * 200, 429)
    assert (await http.get("/v1/me")).status_code == 200


async def test_calls_without_a_token_try_none(proxied: Service) -> None:
    http = plain(base_url=proxied.url)
    proxied.https.append(http)
    headers = {"X-Forwarded-For": "203.0.113.1"}
    assert {(await http.get("/v1/me", headers=headers)).status_code for _ in range(30)} == {401}


async def test_an_agent_that_asks_in_a_tight_loop_is_told_to_wait(server: Service) -> None:
    bot, user = await server.client("bot", "agent"), await server.client()
    server.app._polls._empty._clock = FakeClock()
    for _ in range(100):
        assert await bot.lease(wait_seconds=0) == {"leases": []}
    with pytest.raises(RateLimited, match="wait_seconds") as refused:
        await bot.lease(wait_seconds=0.01)
    assert refused.value.details["retry_after"] == 1
    assert await bot.lease(agent="bot/other") == {"leases": []}
    waiting = asyncio.ensure_future(bot.lease(wait_seconds=10))
    await user.enqueue("echo")
    assert len((await waiting)["leases"]) == 1
    assert await bot.lease() == {"leases": []}  # who got a job starts anew


async def test_an_agent_that_is_told_to_wait_and_does_is_served(server: Service) -> None:
    clock = server.app._polls._empty._clock = FakeClock()

    class Waits(SystemClock):
        async def sleep(self, seconds: float) -> None:
            clock.advance(seconds)

    bot = await server.client("bot", "agent", tries=4, clock=Waits())
    for _ in range(150):
        assert await bot.lease() == {"leases": []}
    assert clock.monotonic() > 3


async def test_an_agent_that_polls_now_and_then_is_let_be(server: Service) -> None:
    clock = server.app._polls._empty._clock = FakeClock()
    bot = await server.client("bot", "agent")
    for _ in range(250):
        clock.advance(0.1)
        assert await bot.lease() == {"leases": []}

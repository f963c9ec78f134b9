"""Calls that wait: answered by events, by clients that leave, and by a server that stops."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest

from oaken_jobs.core import Core
from oaken_swarm import server as server_module
from oaken_swarm.call import Call
from tests.service import Service, eventually, serve


def waiting(server: Service) -> int:
    return len(server.core.dispatch._waiters)  # pyright: ignore[reportPrivateUsage]


async def until_waiting(server: Service, count: int) -> None:
    async def there() -> bool:
        return waiting(server) == count

    await eventually(there)


class Connections:
    """The server's own view of who is connected, and of the calls under way."""

    def __init__(self, server: Service) -> None:
        self._state = server.server._uvicorn.server_state  # type: ignore[union-attr]

    @property
    def all(self) -> list[Any]:
        return [*self._state.connections]

    async def until(self, count: int, *, idle: bool = False) -> None:
        async def there() -> bool:
            return len(self._state.connections) == count and not (idle and self._state.tasks)

        await eventually(there)


async def lease_request(server: Service, seconds: float) -> bytes:
    token = await server.token("bot", "agent")
    body = orjson.dumps({"wait_seconds": seconds})
    head = (
        f"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def test_a_waiting_lease_request_is_answered_by_an_enqueue(server: Service) -> None:
    bot, user = await server.client("bot", "agent"), await server.client("ann", "user")
    pending = asyncio.ensure_future(bot.lease(wait_seconds=30))
    await until_waiting(server, 1)
    begun = time.monotonic()
    job_id = (await user.enqueue("echo"))["job"]["id"]
    [lease] = (await asyncio.wait_for(pending, 5))["leases"]
    assert lease["job"]["id"] == job_id
    assert time.monotonic() - begun < 1


async def test_a_waiting_lease_request_is_answered_empty_at_its_deadline(server: Service) -> None:
    bot = await server.client("bot", "agent")
    assert await bot.lease(wait_seconds=0.05) == {"leases": []}


async def test_one_new_job_goes_to_the_agent_that_waits_longest(server: Service) -> None:
    user = await server.client("ann", "user")
    agents = [await server.client(f"bot{n}", "agent") for n in range(3)]
    pending: list[asyncio.Future[Any]] = []
    for place, agent in enumerate(agents, 1):
        pending.append(asyncio.ensure_future(agent.lease(wait_seconds=30)))
        await until_waiting(server, place)
    for place in range(3):
        await user.enqueue("echo")
        assert len((await asyncio.wait_for(pending[place], 5))["leases"]) == 1
        assert not any(later.done() for later in pending[place + 1 :])


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_claimed(server: Service) -> None:
    user, other = await server.client("ann", "user"), await server.client("other", "agent")
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(await lease_request(server, 30))
        await until_waiting(server, 1)
        writer.close()
        await until_waiting(server, 0)
    await user.enqueue("echo")
    [lease] = (await other.lease())["leases"]
    assert lease["job"]["attempts"] == 1
    assert lease["job"]["lease"]["epoch"] == 1


async def test_a_client_that_leaves_at_the_moment_of_the_claim_leaves_nothing_claimed(server: Service) -> None:
    user = await server.client("ann", "user")
    job_id = (await user.enqueue("echo"))["job"]["id"]
    connections = Connections(server)
    request = await lease_request(server, 0)

    async def free() -> bool:
        [job] = await server.core.store.jobs([job_id])
        return (job.state, job.attempts) == ("queued", 0)

    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await connections.until(2)
        writer.write(request)
        writer.transport.abort()  # the server hears of it before it can answer
        await connections.until(1, idle=True)
        await eventually(free)
    [job] = await server.core.store.jobs([job_id])
    assert job.epoch > 0, "no request got as far as a claim"


async def test_a_client_that_leaves_after_the_claim_and_before_the_answer_leaves_nothing_claimed(
    server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await server.client("ann", "user")
    job_id = (await user.enqueue("echo"))["job"]["id"]
    connections = Connections(server)
    request = await lease_request(server, 1)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await connections.until(2)

    async def leaves(call: Any) -> None:
        writer.transport.abort()
        await connections.until(1)

    monkeypatch.setattr(Call, "check_token", leaves)
    writer.write(request)

    async def free() -> bool:
        [job] = await server.core.store.jobs([job_id])
        return (job.state, job.attempts, job.epoch) == ("queued", 0, 1)

    await eventually(free)


async def test_what_is_leased_for_a_connection_that_closes_just_then_goes_back(
    server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has heard the end, and is to be told of the loss a moment later."""
    user = await server.client("ann", "user")
    job_id = (await user.enqueue("echo"))["job"]["id"]
    connections = Connections(server)
    request = await lease_request(server, 1)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await connections.until(2)

    async def leaves(call: Any) -> None:
        writer.write_eof()
        while not any(each.transport.is_closing() for each in connections.all):  # noqa: ASYNC110
            await asyncio.sleep(0)

    monkeypatch.setattr(Call, "check_token", leaves)
    writer.write(request)
    await connections.until(1, idle=True)
    [job] = await server.core.store.jobs([job_id])
    assert (job.state, job.attempts, job.epoch) == ("queued", 0, 1)


async def test_a_client_that_leaves_while_it_waits_for_a_job_is_forgotten(server: Service) -> None:
    user = await server.client("ann", "user")
    job_id = (await user.enqueue("echo"))["job"]["id"]
    token = await server.token("ann", "user")
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        f"GET /v1/jobs/{job_id}/wait HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    listeners = server.core.follower._listeners  # pyright: ignore[reportPrivateUsage]

    async def listening() -> bool:
        return len(listeners) == 1

    async def silent() -> bool:
        return not listeners

    await eventually(listening)
    writer.close()
    await eventually(silent)


async def test_a_stop_answers_all_that_wait_at_once(core: Core) -> None:
    server = await serve(core)
    bot, user = await server.client("bot", "agent"), await server.client("ann", "user")
    job_id = (await user.enqueue("echo", delay_seconds=1000))["job"]["id"]
    leases = [asyncio.ensure_future(bot.lease(wait_seconds=30)) for _ in range(5)]
    one = asyncio.ensure_future(user.wait(job_id, 30))
    many = asyncio.ensure_future(user.wait([job_id], 30))
    listeners = core.follower._listeners  # pyright: ignore[reportPrivateUsage]

    async def all_wait() -> bool:
        return waiting(server) == 5 and len(listeners) == 2

    await eventually(all_wait)
    begun = time.monotonic()
    await server.server.stop()
    assert time.monotonic() - begun < 2
    for lease in leases:
        assert await lease == {"leases": []}
    assert (await one)["final"] is False
    assert (await many)["jobs"][0]["state"] == "queued"
    await server.close()


async def test_a_call_that_never_comes_to_its_end_does_not_hold_up_the_stop(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "GRACE_SECONDS", 0.1)
    server = await serve(core)
    token = await server.token("ann", "user")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b'Content-Length: 100\r\n\r\n{"kind":"echo"')
    server_tasks = server.server._uvicorn.server_state.tasks  # type: ignore[union-attr]

    async def begun() -> bool:
        return bool(server_tasks)

    await eventually(begun)
    await asyncio.wait_for(server.server.stop(), 5)
    assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
    writer.close()
    await server.close()

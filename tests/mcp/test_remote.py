"""`oaken mcp --url`: a client that speaks stdio works on a server elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import ResourceUpdated
from mcp_types import ResourceTemplateReference

from oaken_jobs.requests import NewJobRequest
from oaken_mcp import remote
from oaken_mcp.http import Endpoint
from oaken_mcp.wire import Wire
from tests.forks import command
from tests.mcp.door import ME, Caller
from tests.service import Service, eventually, plain, serve

OAKEN = str(Path(sys.executable).parent / "oaken")


def environ(token: str) -> dict[str, str]:
    return {**os.environ, "OAKEN_TOKEN": token}


@asynccontextmanager
async def connected(service: Service, name: str, era: str = "auto") -> AsyncIterator[Caller]:
    token = await service.token(name, "user", "agent")
    program, *arguments = command("oaken_app.main", "mcp", "--url", service.url)
    entry = StdioServerParameters(command=program, args=arguments, env=environ(token))
    async with Client(entry, mode=era) as client:  # type: ignore[arg-type]
        yield Caller(client)


@asynccontextmanager
async def spoken(service: Service, token: str, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command("oaken_app.main", "mcp", "--url", service.url, *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ(token),
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    await asyncio.wait_for(process.wait(), 10)


async def say(process: asyncio.subprocess.Process, method: str, params: dict[str, Any], request_id: int) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    process.stdin.write(json.dumps(message).encode() + b"\n")
    answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
    assert answer["id"] == request_id
    return answer


INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "editor", "version": "1"}}
MODERN = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "editor", "version": "1"},
    }
}


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_job_is_done_from_afar(service: Service, era: str) -> None:
    async with connected(service, "bot", era) as bot:
        job_id = (await bot("enqueue", kind="shout", payload={"text": "hello"}))["job"]["id"]
        (lease,) = (await bot("lease", kinds=["shout"]))["leases"]
        await bot("complete", lease_id=lease["lease_id"], result={"text": "HELLO"})
        assert (await bot("status", job_id=job_id))["job"]["state"] == "succeeded"
    assert (await service.core.store.jobs([job_id]))[0].actor_id == "bot"


async def test_a_client_may_ask_what_there_is_and_then_initialize(service: Service) -> None:
    async with spoken(service, await service.token("bot", "user")) as process:
        found = await say(process, "server/discover", MODERN, 1)
        assert "2026-07-28" in found["result"]["supportedVersions"]
        assert (await say(process, "initialize", INITIALIZE, 2))["result"]["protocolVersion"] == "2025-11-25"
        assert {tool["name"] for tool in (await say(process, "tools/list", {}, 3))["result"]["tools"]} >= {"enqueue"}


async def test_a_token_that_is_not_good_is_told_with_the_servers_words(service: Service) -> None:
    async with spoken(service, "oaken_wrong") as process:
        assert "token is not known" in (await say(process, "initialize", INITIALIZE, 1))["error"]["message"]


async def test_a_server_that_is_away_is_told_and_used_again_when_it_is_back(service: Service) -> None:
    async with spoken(service, await service.token("bot", "user")) as process:
        await say(process, "initialize", INITIALIZE, 1)
        port = service.port
        await service.server.stop()
        call = {"name": "enqueue", "arguments": {"kind": "echo"}}
        assert "does not answer" in (await say(process, "tools/call", call, 2))["error"]["message"]
        endpoint = Endpoint(service.core)
        again = await serve(service.core, port=port, mounts={"mcp": endpoint})
        assert (await say(process, "tools/call", call, 3))["result"]["structuredContent"]["created"] is True
        await endpoint.stop()
        await again.close()


async def test_a_call_that_is_cancelled_is_given_up_on_the_server(service: Service) -> None:
    async with spoken(service, await service.token("bot", "agent")) as process:
        await say(process, "initialize", INITIALIZE, 1)
        assert process.stdin is not None
        call = {"name": "lease", "arguments": {"wait_seconds": 15}}
        lease = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        process.stdin.write(json.dumps(lease).encode() + b"\n")

        async def waits() -> bool:
            return service.core.dispatch.waiting == 1

        await eventually(waits)
        gone = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
        process.stdin.write(json.dumps(gone).encode() + b"\n")

        async def waits_no_more() -> bool:
            return service.core.dispatch.waiting == 0

        await eventually(waits_no_more)


async def test_calls_of_a_client_that_has_died_are_given_up_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DRAIN_SECONDS", 60)
    reading, asking = os.pipe()
    answered, writing = os.pipe()
    call = {"name": "lease", "arguments": {"wait_seconds": 15}}
    headers = {"Authorization": f"Bearer {await service.token('bot', 'agent')}", "Content-Type": "application/json"}
    headers["Accept"] = "application/json, text/event-stream"

    def waits(count: int) -> Any:
        async def as_many() -> bool:
            return service.core.dispatch.waiting == count

        return as_many

    async with plain(headers=headers, timeout=60) as http:
        relay = asyncio.create_task(remote.Relay(Wire(reading, writing), http, service.url).run())
        os.write(
            asking, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode() + b"\n"
        )
        await eventually(waits(1))
        os.close(asking)
        os.close(answered)
        await asyncio.wait_for(relay, 10)
        await eventually(waits(0))
    os.close(reading)
    os.close(writing)


async def test_a_call_is_answered_however_many_others_wait(service: Service) -> None:
    async with spoken(service, await service.token("bot", "agent")) as process:
        await say(process, "initialize", INITIALIZE, 1)
        assert process.stdin is not None
        waiting = {"name": "lease", "arguments": {"wait_seconds": 15}}
        for request_id in range(2, 102):
            message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": waiting}
            process.stdin.write(json.dumps(message).encode() + b"\n")
        assert (await say(process, "tools/list", {}, 102))["result"]["tools"]


async def test_odd_messages_end_nothing_and_each_call_is_answered(service: Service) -> None:
    async with spoken(service, await service.token("bot", "user")) as process:
        await say(process, "initialize", INITIALIZE, 1)
        assert process.stdin is not None
        for odd in ([1], {"a": 1}, None, True, 1.5):
            gone = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": odd}}
            process.stdin.write(json.dumps(gone).encode() + b"\n")
        for number, meta in enumerate(("text", [1], 5, {"io.modelcontextprotocol/protocolVersion": [1]}), 2):
            await say(process, "tools/list", {"_meta": meta}, number)
        assert "result" in await say(process, "tools/list", {}, 9)


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_resources_prompts_and_completion_come_from_afar(service: Service, era: str) -> None:
    async with connected(service, "bot", era) as bot:
        job_id = (await bot("enqueue", kind="shout", payload={"text": "\u2028é"}))["job"]["id"]
        [content] = (await bot.client.read_resource(f"oaken://jobs/{job_id}")).contents
        assert json.loads(content.text)["job"]["payload"] == {"text": "\u2028é"}  # type: ignore[union-attr]
        assert len((await bot.client.list_resources()).resources) == 3
        assert (await bot.client.get_prompt("work", {"kind": "shout"})).messages
        ref = ResourceTemplateReference(uri="oaken://jobs/{id}")
        found = await bot.client.complete(ref, {"name": "id", "value": ""})
        assert found.completion.values == [str(job_id)]
        assert bot.client.server_capabilities.resources.subscribe is (era == "auto")  # type: ignore[union-attr]


async def test_changes_are_told_from_afar_until_the_server_stops(service: Service) -> None:
    async with connected(service, "bot") as bot:
        job_id = (await bot("enqueue", kind="shout"))["job"]["id"]
        uri = f"oaken://jobs/{job_id}"
        async with bot.client.listen(resource_subscriptions=[uri]) as told:
            await bot("cancel", job_id=job_id)
            assert await asyncio.wait_for(anext(told), 10) == ResourceUpdated(uri)
        async with bot.client.listen(resource_subscriptions=[uri]) as told:
            await service.app._mounts["mcp"].stop()  # type: ignore[attr-defined]
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(anext(told), 10)

    async def none_listens() -> bool:
        return not service.core.follower._listeners

    await eventually(none_listens)


async def test_a_stream_that_cannot_be_had_is_refused_with_the_servers_words(service: Service) -> None:
    async with spoken(service, await service.token("bot", "user")) as process:
        for number, uri in enumerate(("oaken://jobs/9", "nonsense", "\x00"), 1):
            asked = {**MODERN, "notifications": {"resourceSubscriptions": [uri]}}
            refusal = (await say(process, "subscriptions/listen", asked, number))["error"]
            assert (refusal["code"], "There is no" in refusal["message"]) == (-32602, True)
        asked = {**MODERN, "notifications": {"resourceSubscriptions": ["oaken://queues"]}}
        assert process.stdin is not None
        assert process.stdout is not None
        listen = {"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": asked}
        process.stdin.write(json.dumps(listen).encode() + b"\n")
        assert b"acknowledged" in await asyncio.wait_for(process.stdout.readline(), 20)
        gone = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
        process.stdin.write(json.dumps(gone).encode() + b"\n")

        async def none_listens() -> bool:
            return not service.core.follower._listeners

        await eventually(none_listens)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--url", "http://127.0.0.1:9"], "no token"),
        (["--url", "nonsense"], "nonsense"),
        (["--url", "http://127.0.0.1:9", "--role", "agent"], "--role"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(tmp_path: Path, arguments: list[str], told: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OAKEN_")}
    done = subprocess.run(
        [OAKEN, "mcp", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=30,
        env={**clean, "HOME": str(tmp_path), "OAKEN_DATA_DIR": str(tmp_path / "data")},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr


async def test_an_id_that_is_used_twice_ends_both_of_its_calls_when_it_is_cancelled(service: Service) -> None:
    async with spoken(service, await service.token("bot", "agent")) as process:
        await say(process, "initialize", INITIALIZE, 1)
        assert process.stdin is not None
        call = {"name": "lease", "arguments": {"wait_seconds": 15}}
        for _ in range(2):
            lease = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            process.stdin.write(json.dumps(lease).encode() + b"\n")

        async def wait_both() -> bool:
            return service.core.dispatch.waiting == 2

        await eventually(wait_both)
        gone = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
        process.stdin.write(json.dumps(gone).encode() + b"\n")

        async def none_waits() -> bool:
            return service.core.dispatch.waiting == 0

        await eventually(none_waits)


async def test_leases_are_found_again_from_afar_by_the_same_instance(service: Service) -> None:
    token = await service.token("bot", "agent", "user")
    await service.core.jobs.enqueue(ME, NewJobRequest(kind="shout"))

    async def lease(process: asyncio.subprocess.Process, **arguments: Any) -> list[Any]:
        await say(process, "initialize", INITIALIZE, 1)
        told = await say(process, "tools/call", {"name": "lease", "arguments": arguments}, 2)
        return told["result"]["structuredContent"]["leases"]

    async with spoken(service, token, "--instance", "desk") as process:
        (first,) = await lease(process)
    async with spoken(service, token) as process:
        assert await lease(process, resume=True) == []
    async with spoken(service, token, "--instance", "desk") as process:
        (again,) = await lease(process, resume=True)
    assert again["job"]["id"] == first["job"]["id"]
    assert again["lease_id"] != first["lease_id"]

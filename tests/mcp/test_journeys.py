"""The SDK's own client over stdio and over HTTP, in both eras: every tool, every refusal, and calls that are given up in the middle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from oaken_jobs.core import Core
from oaken_jobs.kinds import Kind, Rules, Schema
from oaken_jobs.store.base import JobFilter
from oaken_mcp.catalogue import TOOLS
from oaken_mcp.http import PATH, Endpoint
from oaken_mcp.server import NEXT
from tests.forks import command
from tests.mcp.door import ME, Caller
from tests.service import eventually, plain, serve

CONFIG = """
[kinds.count]
result_schema = {type = "object", properties = {n = {type = "integer"}}, required = ["n"]}
payload_schema = {type = "object", properties = {text = {type = "string"}}}
[jobs]
max_payload_bytes = 2000
"""
COUNT = Schema.compile({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "count")
TEXT = Schema.compile({"type": "object", "properties": {"text": {"type": "string"}}}, "count")
RULES = Rules(kinds={"count": Kind("count", payload_schema=TEXT, result_schema=COUNT)}, max_payload_bytes=2000)


class Way:
    """A server, and how clients come to it. `core` is on the same database."""

    def __init__(self, core: Core, connect: Callable[..., AbstractAsyncContextManager[Caller]]) -> None:
        self.core = core
        self.connect = connect

    async def jobs(self, kind: str) -> list[int]:
        """Ids of the jobs of a kind."""
        return [job.id for job in (await self.core.jobs.list(ME, JobFilter(kinds=(kind,)))).jobs]


@pytest.fixture(params=[(where, era) for where in ("stdio", "http") for era in ("auto", "legacy")], ids="-".join)
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    where, era = request.param
    (tmp_path / "config.toml").write_text(CONFIG)
    core = Core.on_folder(tmp_path, RULES, "test")
    await core.open()
    async with AsyncExitStack() as stack:
        if where == "stdio":

            @asynccontextmanager
            async def connect(name: str = "bot") -> AsyncIterator[Caller]:
                options = ["--data-dir", str(tmp_path), "--actor", f"agent:{name}"]
                program, *arguments = command("oaken_mcp.__main__", *options)
                entry = StdioServerParameters(command=program, args=arguments, env={**os.environ})
                async with Client(entry, mode=era) as client:
                    yield Caller(client)

        else:
            endpoint = Endpoint(core)
            service = await serve(core, mounts={"mcp": endpoint})
            stack.push_async_callback(service.close)
            stack.push_async_callback(endpoint.stop)

            @asynccontextmanager
            async def connect(name: str = "bot") -> AsyncIterator[Caller]:
                token = await service.token(name, "user", "agent")
                async with plain(headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
                    sdk = streamable_http_client(service.url + PATH, http_client=http)
                    try:
                        async with Client(sdk, mode=era) as client:
                            yield Caller(client)
                    except* anyio.BrokenResourceError:
                        pass  # the SDK's client, where the answer to a call that it gave up comes while it closes

        yield Way(core, connect)
    await core.close()


async def test_every_tool_does_its_part(way: Way) -> None:
    used: set[str] = set()

    def counted(caller: Caller) -> Callable[..., Awaitable[Any]]:
        async def call(tool: str, **arguments: Any) -> Any:
            used.add(tool)
            return await caller(tool, **arguments)

        return call

    async with way.connect("ann") as ann_there, way.connect("bot") as bot_there:
        ann, bot = counted(ann_there), counted(bot_there)
        listed = {tool.name for tool in (await ann_there.client.list_tools()).tools}
        assert listed == {tool.name for tool in TOOLS}
        job = (await ann("enqueue", kind="translate", payload={"text": "Hallo"}))["job"]["id"]
        assert [one["id"] for one in (await ann("list_jobs", mine=True))["jobs"]] == [job]
        (lease,) = (await bot("lease", kinds=["translate"]))["leases"]
        assert (await bot("heartbeat", lease_id=lease["lease_id"], percent=50))["cancelling"] is False
        await bot("release", lease_id=lease["lease_id"], question="Formal?")
        assert (await ann("status", job_id=job))["job"]["question"] == "Formal?"
        await ann("answer", job_id=job, text="No.")
        (lease,) = (await bot("lease", kinds=["translate"], wait_seconds=5))["leases"]
        assert lease["answers"] == [{"question": "Formal?", "answer": "No."}]
        waiting = asyncio.ensure_future(ann("wait", job_id=job, seconds=15))
        await bot("complete", lease_id=lease["lease_id"], result={"text": "Hi"})
        assert (await waiting)["job"]["result"] == {"text": "Hi"}
        other = (await ann("enqueue", kind="translate"))["job"]["id"]
        (lease,) = (await bot("lease"))["leases"]
        assert (await bot("fail", lease_id=lease["lease_id"], error="e", permanent=True))["job"]["state"] == "failed"
        assert (await ann("requeue", job_id=other))["job"]["state"] == "queued"
        assert (await ann("cancel", job_id=other))["changed"] is True
    assert used == {tool.name for tool in TOOLS}


async def test_every_refusal_says_what_to_do_next(way: Way) -> None:
    async with way.connect("ann") as ann, way.connect("bot") as bot:
        await ann("enqueue", kind="count", idempotency_key="k")
        (lease,) = (await bot("lease"))["leases"]
        held = lease["lease_id"]
        stranger = held[:-1] + ("0" if held[-1] != "0" else "1")
        child = (await bot("enqueue", kind="part", lease_id=held))["job"]["id"]
        for caller, code, tool, arguments in (
            (bot, "lease_lost", "complete", {"lease_id": stranger}),
            (ann, "not_found", "status", {"job_id": 999}),
            (ann, "conflict", "answer", {"job_id": child, "text": "x"}),
            (ann, "idempotency_conflict", "enqueue", {"kind": "other", "idempotency_key": "k"}),
            (ann, "invalid_request", "enqueue", {"kind": "a b"}),
            (ann, "payload_invalid", "enqueue", {"kind": "count", "payload": {"text": 1}}),
            (ann, "too_large", "enqueue", {"kind": "tidy", "payload": {"text": "x" * 3000}}),
        ):
            told = await caller.refused(tool, **arguments)
            assert told.endswith(NEXT[code]), (code, told)
        told = await bot.refused("complete", lease_id=held, result={"n": "two"})
        assert "You still hold the lease" in told
        assert '"required":["n"]' in told
        await bot("complete", lease_id=held, result={"n": 2})


async def test_a_lease_request_that_its_client_gives_up_takes_no_job(way: Way) -> None:
    async with way.connect("bot") as bot, way.connect("ann") as ann:
        call = asyncio.ensure_future(bot("lease", wait_seconds=15))
        # It is heard before what follows on the same connection, or is not yet there to take anything.
        await bot("status")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        job = (await ann("enqueue", kind="tidy"))["job"]["id"]
        (lease,) = (await ann("lease", wait_seconds=15))["leases"]
        assert lease["job"]["id"] == job
        assert (await bot("status"))["leases"] == []


async def test_an_enqueue_that_is_cut_off_is_there_once_and_may_be_repeated(way: Way) -> None:
    """Cut off while it waits, after it has added its job; and then at whatever moment."""
    for turn, moment in enumerate(("waiting", "at once")):
        given = {"kind": f"tidy{turn}", "idempotency_key": f"k{turn}", "wait": 15}
        async with way.connect("bot") as bot:
            call = asyncio.ensure_future(bot("enqueue", **given))
            if moment == "waiting":
                await eventually(lambda turn=turn: way.jobs(f"tidy{turn}"))
            else:
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        async with way.connect("bot") as again:
            job = (await again("enqueue", **{**given, "wait": 0}))["job"]
        assert await way.jobs(f"tidy{turn}") == [job["id"]]


async def test_a_complete_whose_answer_is_never_heard_may_be_repeated(way: Way) -> None:
    async with way.connect("bot") as bot:
        await bot("enqueue", kind="tidy")
        (lease,) = (await bot("lease"))["leases"]
        call = asyncio.ensure_future(bot("complete", lease_id=lease["lease_id"], result={"n": 1}))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        again = await bot("complete", lease_id=lease["lease_id"], result={"n": 1})
        assert again["job"]["state"] == "succeeded"
        assert (await bot("status", job_id=lease["job"]["id"]))["job"]["attempts"] == 1

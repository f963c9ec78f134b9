"""Twenty thousand messages as nobody should send them, on each transport: nothing breaks, and nobody's job is told to another."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.core import Core
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_mcp.http import PATH
from tests.mcp.fuzz import MODERN, Fuzz
from tests.mcp.process import Peer, server
from tests.service import ROOT, Service

MESSAGES = 20_000
SECRET = "canary-of-another"
OWNER = Principal(Actor("user", "owner", "cli"), frozenset({"user", "agent"}))


async def secrets(core: Core, workspace: str) -> None:
    """Jobs of somebody else's, in every state, whose every text is secret."""
    text = {"title": SECRET, "subject": SECRET, "tags": [SECRET], "payload": {SECRET: SECRET}, "workspace": workspace}
    for kind in ("done", "failed", "asking"):
        await core.jobs.enqueue(OWNER, NewJobRequest(kind=kind, **text))
        (lease,) = await core.jobs.lease(OWNER, kinds=[kind])
        if kind == "done":
            op = core.jobs.complete_op(OWNER, lease.lease_id, {SECRET: SECRET}, None)
        elif kind == "failed":
            op = core.jobs.fail_op(OWNER, lease.lease_id, SECRET, permanent=True)
        else:
            op = core.jobs.ask_op(OWNER, lease.lease_id, SECRET)
        await core.jobs.finish(OWNER, op)
    await core.jobs.enqueue(OWNER, NewJobRequest(kind="held", **text))
    await core.jobs.lease(OWNER, kinds=["held"], lease_seconds=3600)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_over_stdio_nothing_breaks_and_nothing_of_others_is_told(core: Core, tmp_path: Path, era: str) -> None:
    await secrets(core, "default")
    async with server(tmp_path / "data", "--role", "agent", name="fuzz") as peer:
        if era == "legacy":
            await peer.initialize()
        else:
            await peer.answer(peer.send("tools/list", peer.modern()))
        read = asyncio.ensure_future(_told(peer, "the last"))
        stdin = peer.process.stdin
        assert stdin is not None
        for line in Fuzz(1).lines(MESSAGES // 2, era):
            stdin.write(line + b"\n")
            await stdin.drain()
        params = peer.modern() if era == "modern" else {}
        peer.write({"id": "the last", "method": "tools/list", "params": params})
        told, last = await asyncio.wait_for(read, 60)
        assert len(last["result"]["tools"]) == 10, "those of an agent"
        assert told > MESSAGES // 4
        code, _ = await peer.end()
        errors = await peer.stderr()
    assert code == 0
    assert "Traceback" not in errors, errors[-3000:]
    assert SECRET not in errors


async def _told(peer: Peer, last: str) -> tuple[int, dict[str, Any]]:
    """How many messages came until the answer to the last request, and that; each is one message of the protocol."""
    assert peer.process.stdout is not None
    count = 0
    while True:
        line = await peer.process.stdout.readline()
        assert line, "the server ended"
        assert SECRET not in line.decode()
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        count += 1
        if message.get("id") == last:
            return count, message


async def test_over_http_nothing_breaks_and_nothing_of_others_is_told(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await secrets(service.core, "theirs")
    _, token = await service.core.tokens.create(ROOT, "fuzz", ["user", "agent"], workspace="ours")
    lines = iter(Fuzz(2).lines(MESSAGES, "both"))
    statuses: dict[int, int] = {}

    async def sender(place: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        for line in lines:
            headers = {"MCP-Protocol-Version": MODERN, **_routing(line)} if place % 2 == 0 else {}
            writer.write(_request(token, headers, line))
            status, answer = await asyncio.wait_for(_response(reader), 30)
            statuses[status] = statuses.get(status, 0) + 1
            assert status < 500, (line, answer)
            assert SECRET.encode() not in answer, line
        writer.close()

    with caplog.at_level(logging.WARNING):
        await asyncio.gather(*(sender(place) for place in range(8)))
    assert sum(statuses.values()) == MESSAGES
    assert {200, 202, 400} <= statuses.keys()
    said = [record.getMessage() for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    assert said == []


def _request(token: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = {
        "Host": "localhost",
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **headers,
    }
    return (
        b"POST %b HTTP/1.1\r\n%b\r\n" % (PATH.encode(), "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode())
        + body
    )


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return int(head.split(b" ", 2)[1]), head + await reader.readexactly(length)


def _routing(line: bytes) -> dict[str, str]:
    """The headers that a client of the later era puts beside its message, where it can be read so far."""
    try:
        message = json.loads(line)
        method = message["method"]
        headers = {"Mcp-Method": method}
        name = message["params"].get(
            {"resources/read": "uri"}.get(method, "taskId" if method.startswith("tasks/") else "name")
        )
        if isinstance(name, str):
            headers["Mcp-Name"] = name
        return {
            key: value.encode("ascii").decode()
            for key, value in headers.items()
            if value.isprintable() and value.strip() == value
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}

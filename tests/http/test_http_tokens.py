"""Tokens over HTTP: limits, rotation, and the end of calls that wait with one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_swarm import Client, Forbidden, Unauthenticated
from tests.service import ROOT, RULES, Service, eventually


@pytest.fixture
async def other(server: Service, database: DatabaseSettings, tmp_path: Path) -> AsyncIterator[Core]:
    """Another process on the same data folder."""
    core = Core.on_folder(tmp_path / "data", RULES, "cli", database=database)
    await core.open()
    yield core
    await core.close()


def of(server: Service, token: str) -> Client:
    client = Client(server.url, token, tries=1)
    server.clients.append(client)
    return client


async def test_a_token_is_made_with_limits_which_the_list_and_its_holder_see(server: Service) -> None:
    admin = await server.client("root", "admin")
    limits = {"queues": ["slow"], "kinds": ["a", "echo"], "max_leases": 2, "max_per_hour": 9}
    made = await admin.create_token("bot", ["agent"], **{**limits, "kinds": ["echo", "a", "a"]})
    assert made.items() >= limits.items()
    assert (await of(server, made["token"]).me())["limits"] == limits
    row = (await admin.tokens())["tokens"][1]
    assert {name: row[name] for name in limits} == limits
    assert (row["rotated_at"], row["last_used_at"], row["revoked_at"], row["expires_at"]) == (None,) * 4


async def test_leasing_outside_of_the_limits_of_a_token_is_refused_with_what_is_allowed(server: Service) -> None:
    admin = await server.client("root", "admin")
    bot = of(server, (await admin.create_token("bot", ["agent"], kinds=["echo"]))["token"])
    for kind in ("other", "echo"):
        await admin.enqueue(kind)
    with pytest.raises(Forbidden, match="it is limited to echo") as refused:
        await bot.lease(kinds=["other"])
    assert refused.value.details["allowed"] == ["echo"]
    assert [one["job"]["kind"] for one in (await bot.lease(max=5))["leases"]] == ["echo"]


async def test_an_empty_answer_says_when_it_is_the_limits_of_the_token_that_made_it_so(server: Service) -> None:
    admin = await server.client("root", "admin")
    bot = of(server, (await admin.create_token("bot", ["agent"], max_leases=1))["token"])
    assert await bot.lease() == {"leases": []}
    for _ in range(2):
        await admin.enqueue("echo")
    await bot.lease()
    told = await bot.lease()
    assert (told["leases"], told["limited"][:11]) == ([], "max_leases:")


async def test_a_rotated_token_is_worthless_at_once_and_the_new_one_has_its_leases(server: Service) -> None:
    admin = await server.client("root", "admin")
    old = (await admin.create_token("bot", ["agent"]))["token"]
    await admin.enqueue("echo")
    lease_id = (await of(server, old).lease())["leases"][0]["lease_id"]
    rotated = await admin.rotate_token("bot", expires_in=60)
    assert rotated["rotated_at"] is not None
    assert rotated["expires_at"] is not None
    with pytest.raises(Unauthenticated):
        await of(server, old).heartbeat(lease_id)
    assert (await of(server, rotated["token"]).complete(lease_id))["job"]["state"] == "succeeded"


async def waits(server: Service) -> bool:
    return bool(server.core.tokens._waiting)


@pytest.mark.parametrize("call", ["lease", "wait", "events", "stream"])
@pytest.mark.parametrize("end", ["revoke", "rotate", "elsewhere", "expire"])
async def test_a_call_that_waits_ends_with_its_token(server: Service, other: Core, call: str, end: str) -> None:
    admin = await server.client("root", "admin")
    job_id = (await admin.enqueue("other"))["job"]["id"]
    roles, expires = ["user", "agent"], 1.5 if end == "expire" else None
    _, token = await server.core.tokens.create(ROOT, "bot", roles, expires_in=expires)
    bot = of(server, token)
    http = await server.http("root")
    calls: dict[str, Any] = {
        "lease": lambda: bot.lease(kinds=["echo"], wait_seconds=30),
        "wait": lambda: bot.wait(job_id, 30),
        "events": lambda: bot.events(kinds=["question_asked"], seconds=30),
        "stream": lambda: http.get(
            "/v1/events?kinds=question_asked", headers={"Authorization": f"Bearer {token}"}, timeout=30
        ),
    }
    waiting = asyncio.ensure_future(calls[call]())
    await eventually(lambda: waits(server))
    if end == "revoke":
        await admin.revoke_token("bot")
    elif end == "rotate":
        await admin.rotate_token("bot")
    elif end == "elsewhere":
        await other.tokens.revoke(ROOT, "bot")
    if call == "stream":
        assert "event:" not in (await asyncio.wait_for(waiting, 5)).text
    else:
        with pytest.raises(Unauthenticated):
            await asyncio.wait_for(waiting, 5)
    assert not await waits(server)

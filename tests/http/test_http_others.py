"""Queues, subjects, intake, agents, kinds, tokens, and what the server says of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from oaken_jobs import __version__, pipeline
from oaken_jobs.clock import SystemClock
from oaken_jobs.core import Core
from oaken_jobs.kinds import Kind, Rules
from oaken_jobs.runner import Runner
from oaken_jobs.store.operations import SetHealth
from oaken_swarm import Client, Conflict, InvalidRequest, NotFound, Unauthenticated
from tests.service import ROOT, Service, eventually, problem, serve


async def test_queues_show_counts_and_hide_the_built_in_stages(server: Service) -> None:
    client = await server.client()
    await client.enqueue("echo")
    told = (await client.queues())["queues"]
    assert [queue["name"] for queue in told] == ["default", "slow"]
    assert told[0]["counts"]["queued"] == 1
    assert {queue["name"] for queue in (await client.queues(all=True))["queues"]} == {
        "default",
        "slow",
        "store",
        "embed",
    }


async def test_a_paused_queue_hands_out_nothing_until_resumed(server: Service) -> None:
    client = await server.client()
    await client.enqueue("echo")
    assert (await client.pause_queue("default"))["queue"]["paused"] is True
    assert (await client.lease())["leases"] == []
    assert (await client.resume_queue("default"))["queue"]["paused"] is False
    assert len((await client.lease())["leases"]) == 1


async def test_a_queue_that_is_none_is_404(server: Service) -> None:
    http = await server.http()
    for name in ("nowhere", "No", "a%20b", "%00", "..%2F..", "x" * 500, "%ED%A0%80"):
        problem(await http.post(f"/v1/queues/{name}/pause"), 404, "not_found")


async def test_labels_of_a_subject_are_set_by_people_and_removed_by_an_empty_value(server: Service) -> None:
    client = await server.client()
    subject = "note:17/ünï ?#%"
    assert await client.subject(subject) == {"subject": subject, "labels": {"human": {}, "machine": {}}}
    told = await client.set_labels(subject, {"queue": "slow", "topic": "x"})
    assert told == {"subject": subject, "labels": {"human": {"queue": "slow", "topic": "x"}, "machine": {}}}
    assert (await client.enqueue("echo", subject=subject))["job"]["queue"] == "slow"
    await client.set_labels(subject, {"queue": "", "topic": None})
    assert (await client.subject(subject))["labels"]["human"] == {}


async def test_an_intake_becomes_a_document_with_its_sources_and_two_jobs(server: Service) -> None:
    client = await server.client()
    runner = Runner(server.core.jobs, server.core.follower, SystemClock(), pipeline.handlers(), 1)
    first = await client.intake("# Hello\n\nworld", source="a.md")
    await client.intake("# Hello\n\nworld\n", source="b.md")
    assert first["created"] is True
    assert first["job"]["kind"] == "intake"
    await runner.drain()
    leases = (await client.lease(kinds=["embed", "triage"], max=9))["leases"]
    assert sorted(one["job"]["kind"] for one in leases) == ["embed", "triage"]
    subject = leases[0]["job"]["subject"]
    document = (await client.subject(subject))["document"]
    assert (document["title"], document["sources"]) == ("Hello", ["a.md", "b.md"])
    triage = next(one for one in leases if one["job"]["kind"] == "triage")
    await client.complete(triage["lease_id"], {"labels": {"topic": "greeting"}})
    assert (await client.subject(subject))["labels"]["machine"] == {"topic": "greeting"}


async def test_agents_show_what_they_hold_and_did(server: Service) -> None:
    client = await server.client(instance="i")
    for _ in range(2):
        await client.enqueue("echo")
    first, second = (await client.lease(max=2))["leases"]
    await client.complete(first["lease_id"])
    rows = (await client.agents())["agents"]
    row = next(row for row in rows if row["agent"] == "ann/i")
    assert (row["name"], row["holds"], row["leased"]) == ("ann", [second["job"]["id"]], 2)


async def test_kinds_show_their_schemas_and_instructions(server: Service) -> None:
    client = await server.client()
    kinds = {kind["name"]: kind for kind in (await client.kinds())["kinds"]}
    assert kinds.keys() == {"checked", "embed", "intake", "store", "triage"}
    assert kinds["checked"]["result_schema"] == {"type": "object", "required": ["sum"]}
    assert kinds["intake"]["internal"] is True


async def test_a_kind_shows_the_limit_that_counts(tmp_path: Path) -> None:
    kinds = {"own": Kind("own", limit=3), "capped": Kind("capped", limit=3), "set": Kind("set"), "free": Kind("free")}
    core = Core.on_folder(tmp_path / "limits", Rules(kinds=kinds, kind_limits={"capped": 1, "set": 2}), "serve")
    await core.open()
    service = await serve(core)
    told = (await (await service.client()).kinds())["kinds"]
    assert {kind["name"]: kind["limit"] for kind in told} == {"own": 3, "capped": 1, "set": 2, "free": None}
    await service.close()
    await core.close()


async def test_me_says_who_a_token_is_and_what_it_may_do(server: Service) -> None:
    client = await server.client("bot", "agent", "viewer")
    assert await client.me() == {
        "name": "bot",
        "actor": {"kind": "user", "id": "bot", "via": "http"},
        "workspace": None,
        "roles": ["viewer", "agent"],
        "limits": {"queues": None, "kinds": None, "max_leases": None, "max_per_hour": None},
        "may": ["read", "enqueue", "lease"],
    }


async def test_meta_names_version_features_and_limits(server: Service) -> None:
    told = await (await server.client()).meta()
    assert told["version"] == __version__
    assert "long_poll" in told["features"]
    assert told["limits"]["max_payload_bytes"] == 1 << 20
    assert told["limits"]["max_batch"] == 20
    assert told["plugins"] == []


async def test_meta_names_plugins_and_whether_they_are_healthy_but_never_why_not(server: Service) -> None:
    for name, reason in (("ill", "the disk is full"), ("well", None)):
        await server.core.commit.call(SetHealth(name, reason is None, reason, ROOT))
    told = await (await server.client("looker", "viewer")).meta()
    assert told["plugins"] == [{"name": "ill", "healthy": False}, {"name": "well", "healthy": True}]


async def test_health_needs_no_token(server: Service) -> None:
    client = Client(server.url, "wrong")
    server.clients.append(client)
    assert await client.healthz() == {"status": "ok"}
    http = await server.http()
    response = await http.get("/readyz", headers={"Authorization": ""})
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_not_ready_while_the_store_is_closed_or_the_server_stops(server: Service) -> None:
    http = await server.http()
    server.app.stop()
    response = await http.get("/readyz")
    problem(response, 503, "unavailable")
    assert response.headers["retry-after"] == "1"


async def test_a_store_that_hangs_makes_the_server_not_ready_but_alive(
    server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = await server.http()
    released = asyncio.Event()

    async def hangs() -> int:
        await released.wait()
        return 0

    monkeypatch.setattr(server.core.store, "activity_head", hangs)
    monkeypatch.setattr("oaken_swarm.routes.health.PATIENCE_SECONDS", 0.01)
    problem(await http.get("/readyz"), 503, "unavailable")
    assert (await http.get("/healthz")).status_code == 200
    released.set()


async def test_a_token_is_made_listed_without_its_secret_and_revoked(server: Service) -> None:
    admin = await server.client("root", "admin")
    made = await admin.create_token("bot", ["agent"], expires_in=3600)
    assert made["token"].startswith("oak_")
    assert (made["name"], made["kind"], made["roles"]) == ("bot", "agent", ["agent"])
    listed = (await admin.tokens())["tokens"]
    assert [row["name"] for row in listed] == ["root", "bot"]
    assert "token" not in listed[1]
    assert made["token"] not in str(listed)
    bot = Client(server.url, made["token"], tries=1)
    server.clients.append(bot)
    assert (await bot.me())["roles"] == ["agent"]
    assert (await admin.revoke_token("bot"))["revoked_at"] is not None
    with pytest.raises(Unauthenticated, match="revoked"):
        await bot.me()
    with pytest.raises(Conflict, match="never used again"):
        await admin.create_token("bot", ["agent"])
    with pytest.raises(NotFound):
        await admin.revoke_token("nobody")


async def test_revoking_a_token_gives_its_leases_back_unharmed(server: Service) -> None:
    admin, bot = await server.client("root", "admin"), await server.client("bot", "agent")
    job_id = (await admin.enqueue("echo"))["job"]["id"]
    lease_id = (await bot.lease())["leases"][0]["lease_id"]
    await admin.revoke_token("bot")
    with pytest.raises(Unauthenticated):
        await bot.complete(lease_id)
    job = (await admin.job(job_id))["job"]
    assert (job["state"], job["attempts"]) == ("queued", 0)


async def test_a_token_revoked_while_it_waits_for_work_gets_none(server: Service) -> None:
    admin, bot = await server.client("root", "admin"), await server.client("bot", "agent")
    waiting = asyncio.ensure_future(bot.lease(wait_seconds=30))
    await eventually(lambda: _waits(server))
    await admin.revoke_token("bot")
    job_id = (await admin.enqueue("echo"))["job"]["id"]
    with pytest.raises(Unauthenticated):
        await asyncio.wait_for(waiting, 5)
    job = (await admin.job(job_id))["job"]
    assert (job["state"], job["attempts"]) == ("queued", 0)


async def _waits(server: Service) -> bool:
    return bool(server.core.dispatch._waiters)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "a b"}, "name 'a b' cannot be a token's name"),
        ({"name": "x" * 65}, "name: must be at most 64"),
        ({"name": ""}, "name: must be at least 1"),
        ({"roles": []}, "roles: must have at least 1"),
        ({"roles": ["root"]}, "roles.0: must be 'viewer', 'user', 'agent' or 'admin'"),
        ({"roles": "admin"}, "roles: must be a list"),
        ({"expires_in": 0}, "expires_in: must be more than 0"),
        ({"expires_in": 1e300}, "expires_in: must be at most"),
        ({"kind": "system"}, "kind: must be 'user' or 'agent'"),
    ],
)
async def test_a_token_that_cannot_be_is_refused(server: Service, fields: dict[str, object], told: str) -> None:
    admin = await server.client("root", "admin")
    with pytest.raises(InvalidRequest) as caught:
        await admin._call("POST", "/tokens", {"name": "new", "roles": ["user"], **fields})  # pyright: ignore[reportPrivateUsage]
    assert told in caught.value.message

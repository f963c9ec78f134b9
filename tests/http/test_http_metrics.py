"""Figures: right, bounded, and without a text of others."""

from __future__ import annotations

import re

from tests.service import Service

CANARY = "canary-text"


async def figures(server: Service) -> dict[str, float]:
    http = await server.http("eyes", "viewer")
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    rows = (line.rpartition(" ") for line in answer.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


async def test_figures_tell_of_jobs_moves_transactions_and_calls(server: Service) -> None:
    client = await server.client("bot", "agent", "user")
    for _ in range(3):
        await client.enqueue("checked", {"n": 1})
    (lease,) = (await client.lease(kinds=["checked"]))["leases"]
    await client.complete(lease["lease_id"], {"sum": 1})
    found = await figures(server)
    assert found['oaken_jobs{kind="checked",queue="default",state="queued"}'] == 2
    assert found['oaken_jobs{kind="checked",queue="default",state="succeeded"}'] == 1
    assert found['oaken_oldest_seconds{queue="default"}'] >= 0
    assert found['oaken_moves_total{to="queued",verb="enqueue"}'] == 3
    assert found['oaken_moves_total{to="succeeded",verb="complete"}'] == 1
    assert found["oaken_commit_seconds_count"] >= 5
    assert found["oaken_claim_seconds_count"] >= 1
    assert found['oaken_request_seconds_count{method="POST",route="/v1/jobs"}'] == 3
    assert found['oaken_requests_total{method="POST",route="/v1/leases/{lease_id}/complete",status="200"}'] == 1
    assert found["oaken_streams"] == 0
    assert found["oaken_database_bytes"] > 10_000


async def test_kinds_that_are_not_known_are_one_label_and_paths_are_none(server: Service) -> None:
    client = await server.client()
    for n in range(20):
        await client.enqueue(f"{CANARY}-{n}", {"text": CANARY}, title=CANARY, subject=CANARY)
    http = await server.http()
    await http.get(f"/v1/jobs?q={CANARY}")
    await http.get(f"/{CANARY}")
    await http.post(f"/v1/leases/{CANARY}/complete", json={"result": {"text": CANARY}})
    text = (await http.get("/metrics")).text
    assert CANARY not in text
    assert 'oaken_jobs{kind="other",queue="default",state="queued"} 20.0' in text
    assert re.search(r'oaken_requests_total\{method="",route="none",status="404"\} 1', text)


async def test_figures_need_a_token(server: Service) -> None:
    async with await server.http() as http:
        assert (await http.get("/metrics", headers={"Authorization": "Bearer no"})).status_code == 401

"""What is left behind: the activity of every change, waiting for ends, lists and cursors, tokens, the pipeline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oaken_jobs import pipeline
from oaken_jobs.auth import hash_token
from oaken_jobs.errors import Conflict, InvalidRequest, LeaseLost, Unauthenticated
from oaken_jobs.model import Actor
from oaken_jobs.runner import Runner
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, OTHER, VIEWER, World, until


async def test_every_change_of_a_job_leaves_one_row_with_its_actor(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    await world.jobs.heartbeat(AGENT, lease.lease_id, percent=40, message="private", progress=True)
    await world.jobs.fail(AGENT, lease.lease_id, "private")
    world.clock.advance(60)
    lease = await world.take(OTHER)
    await world.jobs.cancel(ME, job.id)
    await world.jobs.release(OTHER, lease.lease_id)
    await world.jobs.requeue(ME, job.id)
    rows = await world.jobs.activity(ME, job.id)
    assert [(r.verb, r.from_state, r.to_state, r.epoch, r.attempt, r.actor.id) for r in rows] == [
        ("enqueue", None, "queued", 0, 0, "me"),
        ("claim", "queued", "running", 1, 1, "worker"),
        ("progress", "running", "running", 1, 1, "worker"),
        ("fail", "running", "queued", 1, 1, "worker"),
        ("claim", "queued", "running", 2, 2, "other"),
        ("cancel", "running", "running", 2, 2, "me"),
        ("release", "running", "cancelled", 2, 2, "other"),
        ("requeue", "cancelled", "queued", 2, 0, "me"),
    ]
    assert "private" not in repr(rows)


async def test_the_activity_of_progress_says_how_far_the_work_is_now(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    for percent in (10, 40.4, None):
        await world.jobs.heartbeat(AGENT, lease.lease_id, percent=percent, message="m", progress=True)
    rows = [row for row in await world.jobs.activity(ME, job.id) if row.kind == "job_progress"]
    assert [row.percent for row in rows] == [10, 40, 40]


async def test_of_very_much_activity_the_latest_is_told_and_reports_crowd_nothing_out(world: World) -> None:
    job = await world.add()
    lease = await world.take()
    for percent in range(6):
        await world.jobs.heartbeat(AGENT, lease.lease_id, percent=percent, message="m", progress=True)
    await world.jobs.complete(AGENT, lease.lease_id)
    latest = await world.core.store.activity_of(job.id, 3)
    assert [row.verb for row in latest] == ["progress", "progress", "complete"]
    deeds = await world.core.store.activity_of(job.id, 3, reports=False)
    assert [row.verb for row in deeds] == ["enqueue", "claim", "complete"]


async def test_the_activity_replayed_from_its_start_gives_the_present_states(world: World) -> None:
    for n in range(12):
        await world.add("capped" if n % 3 else "work", dedupe_key=f"k{n % 5}")
    for lease in await world.jobs.lease(AGENT, max=6, lease_seconds=5):
        if lease.job.id % 2:
            await world.jobs.complete(AGENT, lease.lease_id)
    await world.jobs.cancel(ME, 5)
    await world.tick(10)
    replayed: dict[int, str] = {}
    for row in await world.core.store.activity(0, 1000):
        if row.job_id is not None:
            if row.verb != "enqueue":
                assert replayed[row.job_id] == row.from_state
            replayed[row.job_id] = row.to_state or ""
    present = {j.id: j.state for j in (await world.jobs.list(ME, JobFilter(), limit=500)).jobs}
    assert replayed == present


async def test_waiting_ends_when_all_are_final_or_at_the_deadline(world: World) -> None:
    first, second = await world.add(), await world.add()
    waiting = asyncio.ensure_future(world.jobs.wait(ME, [first.id, second.id], 60))
    await until(lambda: bool(world.core.follower._listeners))
    for lease in await world.jobs.lease(AGENT, max=2):
        assert not waiting.done()
        await world.jobs.complete(AGENT, lease.lease_id)
    jobs, final = await asyncio.wait_for(waiting, 5)
    assert final
    assert [j.id for j in jobs] == [first.id, second.id]
    third = await world.add()
    waiting = asyncio.ensure_future(world.jobs.wait(ME, [third.id], 60))
    await until(lambda: bool(world.core.follower._listeners))
    world.clock.advance(60)
    jobs, final = await asyncio.wait_for(waiting, 5)
    assert (jobs[0].state, final) == ("queued", False)


async def test_a_wait_reads_only_what_comes_after_it_began_also_beside_a_runner_that_listened_all_day(
    world: World,
) -> None:
    heard: list[int] = []
    with world.core.follower.listen(lambda rows: heard.extend(row.id for row in rows), cancels_only=True):
        await until(lambda: world.core.follower._cursor is not None)
        for _ in range(50):
            await world.add()
        last = (await world.add()).id
        read: list[int] = []
        activity = world.core.store.activity

        async def counted(*arguments: Any) -> Any:
            rows = await activity(*arguments)
            read.extend(row.id for row in rows)
            return rows

        world.core.store.activity = counted  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(world.jobs.wait(ME, [last], 60))
        await until(lambda: len(world.core.follower._listeners) == 2)
        await world.jobs.cancel(ME, last)
        assert (await asyncio.wait_for(waiting, 5))[1]
        await until(lambda: bool(heard))
    assert len(read) < 10
    assert heard == [52]


async def test_lists_page_newest_first_by_a_cursor_bound_to_its_filters(world: World) -> None:
    ids = [(await world.add("a" if n % 2 else "b")).id for n in range(25)]
    seen: list[int] = []
    cursor = None
    while True:
        page = await world.jobs.list(VIEWER, JobFilter(kinds=("a",)), cursor=cursor, limit=5)
        seen += [j.id for j in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            break
        await world.add("a")  # what is added meanwhile is on none of the later pages
    assert seen == [i for n, i in enumerate(ids) if n % 2][::-1]
    page = await world.jobs.list(ME, JobFilter(kinds=("a",)), limit=5)
    for bad in (page.next_cursor, "nonsense", "", "🦉", page.next_cursor[:-2]):
        with pytest.raises(InvalidRequest, match="cursor"):
            await world.jobs.list(ME, JobFilter(kinds=("b",)), cursor=bad)


async def test_every_filter_of_a_list_works(world: World) -> None:
    wanted = await world.add("special", subject="note:1", title="Über 100%_done", tags=["red", "blue"])
    other = await world.add("plain", parent_id=wanted.id, title="other")
    lease = await world.take(kinds=["special"])
    await world.jobs.fail(AGENT, lease.lease_id, "disk full", permanent=True)
    world.clock.advance(10)
    now = world.clock.now()
    hits: list[tuple[dict[str, Any], list[int]]] = [
        ({"states": ("failed",)}, [wanted.id]),
        ({"kinds": ("plain",)}, [other.id]),
        ({"queues": ("mail",)}, []),
        ({"not_queues": ("default",)}, []),
        ({"actor": "me"}, [other.id, wanted.id]),
        ({"agent": "worker"}, [wanted.id]),
        ({"agent": "worker/a"}, [wanted.id]),
        ({"agent": "work"}, []),
        ({"subject": "note:1"}, [wanted.id]),
        ({"tag": "blue"}, [wanted.id]),
        ({"tag": "blu"}, []),
        ({"parent_id": wanted.id}, [other.id]),
        ({"grades": ("bad",)}, [wanted.id]),
        ({"created_before": now - 10_000}, []),
        ({"created_after": now - 10_000}, [other.id, wanted.id]),
        ({"finished_after": now}, []),
        ({"finished_before": now}, [wanted.id]),
        ({"query": "100%_"}, [wanted.id]),
        ({"query": "DISK"}, [wanted.id]),
        ({"query": "100__"}, []),
    ]
    for fields, ids in hits:
        assert [j.id for j in (await world.jobs.list(ME, JobFilter(**fields))).jobs] == ids, fields


async def test_a_token_is_stored_as_a_hash_and_gives_its_roles_and_actor(world: World) -> None:
    tokens = world.core.tokens
    row, secret = await tokens.create(Actor("user", "root", "cli"), "embedder", ["agent"])
    assert (row.kind, row.hash) == ("agent", hash_token(secret))
    assert secret not in repr(await tokens.list())
    who = await tokens.authenticate(secret, "http")
    assert (who.actor, who.roles) == (("agent", "embedder", "http"), {"agent"})
    assert (await tokens.create(ME.actor, "person", ["user", "agent"]))[0].kind == "user"


async def test_a_tokens_name_is_never_used_again(world: World) -> None:
    await world.core.tokens.create(ME.actor, "a", ["viewer"])
    await world.core.tokens.revoke(ME.actor, "a")
    with pytest.raises(Conflict, match="never used again"):
        await world.core.tokens.create(ME.actor, "a", ["viewer"])


@pytest.mark.parametrize(
    ("name", "roles", "expires"),
    [
        ("", ["user"], None),
        ("a/b", ["user"], None),
        ("x" * 65, ["user"], None),
        ("a", [], None),
        ("a", ["root"], None),
        ("a", ["user"], 0),
    ],
)
async def test_bad_tokens_are_not_made(world: World, name: str, roles: list[str], expires: float | None) -> None:
    with pytest.raises(InvalidRequest):
        await world.core.tokens.create(ME.actor, name, roles, expires_in=expires)


async def test_unknown_expired_and_revoked_tokens_are_refused(world: World) -> None:
    tokens = world.core.tokens
    _, short = await tokens.create(ME.actor, "short", ["user"], expires_in=10)
    _, gone = await tokens.create(ME.actor, "gone", ["user"])
    await tokens.authenticate(short, "http")
    world.clock.advance(10)
    await tokens.revoke(ME.actor, "gone")
    for token, told in (
        (short, "expired"),
        (gone, "revoked"),
        ("oak_wrong", "not known"),
        ("", "needs a token"),
        (None, "needs"),
    ):
        with pytest.raises(Unauthenticated, match=told):
            await tokens.authenticate(token, "http")


async def test_revoking_a_token_gives_its_leases_back_unharmed(world: World) -> None:
    await world.core.tokens.create(ME.actor, "worker", ["agent"])
    job = await world.add()
    lease = await world.take()
    await world.core.tokens.revoke(ME.actor, "worker")
    found = await world.job(job.id)
    assert (found.state, found.attempts) == ("queued", 0)
    assert [a.outcome for a in await world.attempts(job.id)] == ["released"]
    with pytest.raises(LeaseLost):
        await world.jobs.complete(AGENT, lease.lease_id)


def runner(world: World) -> Runner:
    core = world.core
    return Runner(core.jobs, core.follower, world.clock, pipeline.handlers(), 5)


async def test_a_text_is_stored_and_its_embedding_and_triage_wait_as_children_for_agents(world: World) -> None:
    job = await world.add("intake", payload={"text": "intro\r\n\r\n# A Title #\r\nbody", "source": "a.md"})
    await runner(world).drain()
    intake = await world.job(job.id)
    assert intake.state == "succeeded", intake.last_error
    children = {c.kind: c for c in await world.jobs.children(ME, job.id)}
    assert {k: c.state for k, c in children.items()} == {"store": "succeeded", "embed": "queued", "triage": "queued"}
    document = pipeline.document_id("intro\n\n# A Title #\nbody\n")
    assert {c.subject for c in children.values()} == {f"document:{document}"}
    (stored,) = await world.jobs.documents(ME, [document])
    assert (stored.title, stored.sources) == ("A Title", ("a.md",))
    leases = {x.job.kind: x for x in await world.jobs.lease(AGENT, max=5)}
    await world.jobs.complete(AGENT, leases["embed"].lease_id, {"model": "m", "vector": [0.5, 1]})
    await world.jobs.complete(AGENT, leases["triage"].lease_id, {"labels": {"topic": "x", "queue": "mail"}})
    assert await world.jobs.vectors(ME) == [(f"document:{document}", "m", [0.5, 1.0])]
    assert (await world.jobs.labels(ME, f"document:{document}"))["machine"] == {"topic": "x", "queue": "mail"}
    assert (await world.add("later", subject=f"document:{document}")).queue == "mail"


async def test_the_same_text_twice_is_one_document_with_both_sources_and_no_second_jobs(world: World) -> None:
    for source in ("a.md", "b.md"):
        await world.add("intake", payload={"text": "same", "source": source})
    await runner(world).drain()
    await world.add("intake", payload={"text": "same\r\n", "source": "c.md"})
    await runner(world).drain()
    jobs = (await world.jobs.list(ME, JobFilter(), limit=100)).jobs
    assert sorted(j.kind for j in jobs) == ["embed", "intake", "intake", "intake", "store", "triage"]
    (stored,) = await world.jobs.documents(ME, [pipeline.document_id("same\n")])
    assert stored.sources == ("a.md", "b.md", "c.md")


async def test_an_intake_whose_worker_is_lost_makes_its_children_once(world: World) -> None:
    from tests.contract.world import RUNNER

    job = await world.add("intake", payload={"text": "once"})
    lost = await world.take(RUNNER, lease_seconds=5)
    world.clock.advance(6)
    await runner(world).drain()
    with pytest.raises(LeaseLost):
        await world.jobs.complete(RUNNER, lost.lease_id)
    assert sorted(c.kind for c in await world.jobs.children(ME, job.id)) == ["embed", "store", "triage"]


async def test_an_empty_text_fails_for_good(world: World) -> None:
    job = await world.add("intake", payload={"text": "\ufeff \n\t "})
    await runner(world).drain()
    found = await world.job(job.id)
    assert (found.state, found.reason) == ("failed", "permanent")


async def test_a_triage_result_of_the_wrong_shape_is_refused(world: World) -> None:
    from oaken_jobs.errors import ResultInvalid

    await world.add("triage", payload={"text": "x"}, subject="s")
    lease = await world.take()
    for result in ({}, {"labels": {}}, {"labels": {"topic": 1}}):
        with pytest.raises(ResultInvalid):
            await world.jobs.complete(AGENT, lease.lease_id, result)
    assert (await world.jobs.labels(ME, "s"))["machine"] == {}


@pytest.mark.parametrize("name", ["runner", "oaken", "intake", "store"])
async def test_a_token_named_like_the_system_itself_sees_nothing_of_its_jobs(world: World, name: str) -> None:
    await world.add("intake", payload={"text": "SECRET"})
    await runner(world).drain()
    impostor = AGENT.__class__(AGENT.actor._replace(id=name), frozenset({"agent"}))
    assert (await world.jobs.list(impostor, JobFilter())).jobs == []
    assert await world.jobs.held(impostor) == []


async def test_revoking_a_token_while_its_job_is_asked_to_stop_ends_the_job_properly(world: World) -> None:
    await world.core.tokens.create(ME.actor, "worker", ["agent"])
    job = await world.add()
    await world.take()
    await world.jobs.cancel(ME, job.id)
    await world.core.tokens.revoke(ME.actor, "worker")
    found = await world.job(job.id)
    assert (found.state, found.cancelling, found.grade) == ("cancelled", 0, "note")


async def test_a_token_revoked_by_another_process_leases_nothing_more(world: World) -> None:

    _, secret = await world.core.tokens.create(ME.actor, "bob", ["agent"])
    who = await world.core.tokens.authenticate(secret, "http")
    await world.add()
    other = world.another("cli")
    await other.open()
    await other.tokens.revoke(ME.actor, "bob")
    assert await world.jobs.lease(who) == [], "let in by what this process remembered"
    world.clock.advance(1)
    with pytest.raises(Unauthenticated, match="revoked"):
        await world.core.tokens.authenticate(secret, "http")
    await other.close()


async def test_a_token_made_by_another_process_is_taken_at_once(world: World) -> None:

    _, first = await world.core.tokens.create(ME.actor, "first", ["agent"])
    await world.core.tokens.authenticate(first, "http")
    other = world.another("cli")
    await other.open()
    _, second = await other.tokens.create(ME.actor, "second", ["agent"])
    world.clock.advance(0.05)
    assert (await world.core.tokens.authenticate(second, "http")).name == "second"
    await other.close()


async def test_one_claim_hands_out_no_more_than_an_answer_may_carry(world: World) -> None:
    for _ in range(20):
        await world.add(payload={"t": "x" * 1_000_000})
    first = await world.jobs.lease(AGENT, max=20)
    assert 10 <= len(first) < 20
    assert len(first) + len(await world.jobs.lease(AGENT, max=20)) == 20

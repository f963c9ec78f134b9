"""What bounds a token's leasing, and how tokens end: on a fake clock, also from two processes on one database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from oaken_jobs.core import Core
from oaken_jobs.errors import Conflict, Forbidden, NotFound, Unauthenticated
from oaken_jobs.model import Limits, Principal
from tests.contract.world import AGENT, ME, World, until

HOUR = 3600


async def limited(world: World, name: str = "bob", expires_in: float | None = None, **limits: Any) -> Principal:
    _, secret = await world.core.tokens.create(
        ME.actor, name, ["agent"], limits=Limits(**limits), expires_in=expires_in
    )
    return await world.core.tokens.authenticate(secret, "http")


async def add(world: World, count: int, kind: str = "work") -> None:
    for _ in range(count):
        await world.add(kind)


async def waiting(world: World, who: Principal, **asked: Any) -> asyncio.Task[Any]:
    """A lease request that has found nothing, and waits."""
    task = asyncio.create_task(world.jobs.lease(who, wait_seconds=2 * HOUR, **asked))
    await until(
        lambda: any(w.want.holder == who.holder and w.asked and not w.in_claim for w in world.core.dispatch._waiters)
    )
    assert not task.done()
    return task


async def test_a_token_limited_to_kinds_and_queues_leases_these_unless_it_names_some(world: World) -> None:
    bob = await limited(world, kinds=("other", "work"), queues=("default",))
    for kind in ("third", "work", "other"):
        await world.add(kind)
    assert [one.job.kind for one in await world.jobs.lease(bob, kinds=["other"], max=5)] == ["other"]
    assert [one.job.kind for one in await world.jobs.lease(bob, max=5)] == ["work"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"kinds": ["work", "third"]}, r"kinds third; it is limited to other, work"),
        ({"queues": ["mail"]}, r"queues mail; it is limited to default"),
    ],
)
async def test_naming_one_outside_of_the_limit_is_refused_with_what_is_allowed(
    world: World, asked: dict[str, list[str]], told: str
) -> None:
    bob = await limited(world, kinds=("other", "work"), queues=("default",))
    with pytest.raises(Forbidden, match=told) as refused:
        await world.jobs.lease(bob, **asked)
    assert refused.value.details["allowed"] in (["other", "work"], ["default"])


async def test_all_instances_of_a_token_together_hold_no_more_than_its_leases(world: World) -> None:
    bob = await limited(world, max_leases=3)
    await add(world, 5)
    assert len(await world.jobs.lease(replace(bob, instance="a"), max=2)) == 2
    assert len(await world.jobs.lease(replace(bob, instance="b"), max=2)) == 1
    assert await world.jobs.lease(replace(bob, instance="c"), max=2) == []
    assert "max_leases: this token holds 3 jobs, and may hold 3" in await world.jobs.limited(bob)
    assert len(await world.jobs.lease(AGENT, max=5)) == 2


async def test_one_claim_for_many_requests_of_a_token_keeps_to_its_leases(world: World) -> None:
    bob, free = await limited(world, max_leases=3), await limited(world, "free")
    await add(world, 20)
    asked = [world.jobs.lease(replace(who, instance=str(n)), max=2) for n in range(4) for who in (bob, free)]
    got = await asyncio.gather(*asked)
    assert [sum(map(len, got[at::2])) for at in (0, 1)] == [3, 8]


async def test_two_processes_together_keep_to_the_limits_of_a_token(world: World, other: Core) -> None:
    bob = await limited(world, max_leases=7, max_per_hour=12)
    await add(world, 40)

    async def rounds(jobs: Any) -> int:
        taken = 0
        for _ in range(10):
            leases = await jobs.lease(bob, max=2)
            taken += len(leases)
            assert (await world.core.store.leases_of("bob", world.clock.now())).live <= 7
            for lease in leases:
                await jobs.release(bob, lease.lease_id)
        return taken

    assert sum(await asyncio.gather(*(rounds(jobs) for jobs in (world.jobs, other.jobs) for _ in range(3)))) == 12


async def test_a_request_over_the_limit_is_served_as_soon_as_the_token_has_ended_a_job(world: World) -> None:
    bob = await limited(world, max_leases=1)
    await add(world, 2)
    lease = await world.take(bob)
    task = await waiting(world, bob)
    await world.jobs.complete(bob, lease.lease_id)
    assert [one.job.id for one in await asyncio.wait_for(task, 5)] == [2]


async def test_a_request_over_the_limit_is_served_when_another_process_ends_a_job(world: World, other: Core) -> None:
    bob = await limited(world, max_leases=1)
    await add(world, 2)
    lease = await world.take(bob)
    task = await waiting(world, bob)
    await other.jobs.complete(bob, lease.lease_id)
    assert [one.job.id for one in await asyncio.wait_for(task, 5)] == [2]


async def test_a_request_over_the_limit_is_served_when_a_lease_has_run_out(world: World) -> None:
    bob = await limited(world, max_leases=1)
    await add(world, 2)
    await world.take(bob, lease_seconds=2)
    task = await waiting(world, bob)
    world.clock.advance(2.1)
    assert len(await asyncio.wait_for(task, 5)) == 1


async def test_a_request_over_the_limit_of_the_hour_is_served_when_the_hour_is_over(world: World) -> None:
    bob = await limited(world, max_per_hour=2)
    await add(world, 4)
    await world.take(bob, lease_seconds=3 * HOUR)
    world.clock.advance(600)
    await world.take(bob, lease_seconds=3 * HOUR)
    assert "max_per_hour: this token has leased 2 jobs within the hour" in await world.jobs.limited(bob)
    task = await waiting(world, bob)
    world.clock.advance(HOUR - 601)
    await world.none(bob)
    world.clock.advance(1)
    assert [one.job.id for one in await asyncio.wait_for(task, 5)] == [3]
    await world.none(bob)
    world.clock.advance(600)
    assert (await world.take(bob)).job.id == 4


async def test_what_is_given_back_still_counts_against_the_hour(world: World) -> None:
    bob = await limited(world, max_per_hour=1)
    await add(world, 1)
    await world.jobs.release(bob, (await world.take(bob)).lease_id)
    await world.none(bob)
    await world.take(AGENT)


async def test_a_lease_that_is_resumed_or_repeated_is_none_more(world: World) -> None:
    bob = replace(await limited(world, max_leases=1, max_per_hour=1), instance="a")
    await add(world, 2)
    await world.take(bob, idempotency_key="i")
    assert (await world.take(bob, idempotency_key="i")).replayed
    assert [one.job.id for one in await world.jobs.resume(bob)] == [1]


async def test_who_is_not_limited_overtakes_one_who_is(world: World) -> None:
    bob = await limited(world, max_leases=1)
    await add(world, 1)
    await world.take(bob)
    task = await waiting(world, bob)
    job = await world.add()
    assert (await world.take()).job.id == job.id
    assert not task.done()
    task.cancel()


async def test_a_rotated_token_keeps_its_leases_and_limits_under_another_secret(world: World, other: Core) -> None:
    tokens = world.core.tokens
    row, old = await tokens.create(ME.actor, "bob", ["agent"], limits=Limits(max_leases=2), expires_in=100)
    bob = await tokens.authenticate(old, "http")
    await other.tokens.authenticate(old, "http")
    await add(world, 1)
    lease = await world.take(bob)
    rotated, new = await tokens.rotate(ME.actor, "bob")
    assert rotated == row._replace(hash=rotated.hash, rotated_at=world.clock.now())
    other.tokens.forget()
    for each in (tokens, other.tokens):
        with pytest.raises(Unauthenticated, match="not known"):
            await each.authenticate(old, "http")
        assert await each.authenticate(new, "http") == bob
    assert (await world.jobs.complete(bob, lease.lease_id)).state == "succeeded"


async def test_a_token_that_has_ended_is_rotated_only_where_that_can_help(world: World) -> None:
    tokens = world.core.tokens
    await tokens.create(ME.actor, "short", ["user"], expires_in=10)
    await tokens.create(ME.actor, "gone", ["user"])
    await tokens.revoke(ME.actor, "gone")
    world.clock.advance(10)
    for name, error, told in (
        ("short", Conflict, "expires_in"),
        ("gone", Conflict, "revoked, for good"),
        ("nobody", NotFound, "no token named nobody"),
    ):
        with pytest.raises(error, match=told):
            await tokens.rotate(ME.actor, name)
    row, secret = await tokens.rotate(ME.actor, "short", expires_in=20)
    assert row.expires_at == world.clock.now() + 20_000
    assert (await tokens.authenticate(secret, "http")).name == "short"


async def test_what_is_done_to_tokens_is_in_the_audit_and_in_the_activity(world: World) -> None:
    tokens = world.core.tokens
    await tokens.create(ME.actor, "bob", ["user"])
    await tokens.rotate(ME.actor, "bob")
    await tokens.revoke(ME.actor, "bob")
    await tokens.revoke(ME.actor, "bob")
    audited = [(row.action, row.outcome, row.actor_id, row.agent) for row in await world.core.store.audit(None, 10)]
    assert audited == [(f"token.{verb}", "allowed", "me", "bob") for verb in ("revoke", "rotate", "create")]
    told = [(row.event, row.verb, row.name) for row in await world.core.store.activity(0, 10)]
    assert told == [("token_changed", verb, "bob") for verb in ("create", "rotate", "revoke")]


async def test_the_last_use_of_a_token_is_written_down_once_a_minute_at_most(world: World) -> None:
    tokens = world.core.tokens
    _, secret = await tokens.create(ME.actor, "bob", ["user"])
    await tokens.create(ME.actor, "idle", ["user"])
    used: list[Any] = []
    start = world.clock.now()
    for _ in range(121):
        await tokens.authenticate(secret, "http")
        await world.tick(1)
        used.append((await tokens.list())[0].last_used_at)
    assert sorted(set(used)) == [start, start + 60_000, start + 120_000]
    assert (await tokens.list())[1].last_used_at is None


@pytest.mark.parametrize("end", ["revoke", "rotate", "expire", "elsewhere"])
async def test_who_waits_for_the_end_of_a_token_is_told_at_once(world: World, other: Core, end: str) -> None:
    tokens = world.core.tokens
    _, secret = await tokens.create(ME.actor, "bob", ["user"], expires_in=50)
    _, another = await tokens.create(ME.actor, "ann", ["user"])
    gone, stays = (asyncio.create_task(tokens.ended(each)) for each in (secret, another))
    await until(lambda: len(tokens._waiting) == 2)
    world.core.follower.watch(True)
    if end == "expire":
        world.clock.advance(50)
    elif end == "elsewhere":
        await other.tokens.revoke(ME.actor, "bob")
    else:
        await getattr(tokens, end)(ME.actor, "bob")
    await asyncio.wait_for(gone, 5)
    world.core.follower.watch(False)
    assert not stays.done()
    stays.cancel()


async def test_nobody_waits_for_the_end_of_what_is_no_token(world: World) -> None:
    await asyncio.wait_for(world.core.tokens.ended("oak_nothing"), 5)

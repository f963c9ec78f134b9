"""Sessions of browsers and login codes: random, bounded in time, ended with their token or by an admin, and only hashes are kept."""

from __future__ import annotations

import asyncio

import pytest

from oaken_jobs.errors import Forbidden, NotFound, Unauthenticated
from oaken_jobs.model import Actor, Principal
from oaken_jobs.sessions import CODE_MS, IDLE_MS, LONGEST_MS, MOST, form_token, is_form_token
from tests.contract.world import ME, World

ADMIN = Principal(Actor("user", "root", "cli"), frozenset({"admin"}))


async def token(world: World, name: str = "ann", *roles: str, expires_in: float | None = None) -> str:
    _, secret = await world.core.tokens.create(ADMIN.actor, name, list(roles or ("user",)), expires_in=expires_in)
    return secret


async def test_a_session_speaks_for_its_token_and_survives_a_restart(world: World) -> None:
    secret = await world.core.sessions.open(await token(world, "ann", "viewer", "user"))
    await world.restart()
    found = await world.core.sessions.find(secret)
    assert (found.who.name, found.who.roles, found.who.actor.via) == ("ann", {"viewer", "user"}, "http")


async def test_neither_secret_is_kept(world: World) -> None:
    given = await token(world)
    secret, code = await world.core.sessions.open(given), await world.core.sessions.new_code("ann")
    kept = str(await world.core.store.sessions()) + str(await world.core.store.audit(None, 10))
    assert not any(one in kept for one in (given, secret, code))


async def test_two_sessions_of_a_token_are_two(world: World) -> None:
    given = await token(world)
    one, other = await world.core.sessions.open(given), await world.core.sessions.open(given)
    await world.core.sessions.close(one)
    with pytest.raises(Unauthenticated):
        await world.core.sessions.find(one)
    assert (await world.core.sessions.find(other)).who.name == "ann"


async def test_a_session_that_another_takes_the_place_of_ends_with_its_beginning(world: World) -> None:
    sessions = world.core.sessions
    old = await sessions.open(await token(world))
    bob = await token(world, "bob")
    with pytest.raises(Unauthenticated):
        await sessions.open("oak_wrong", instead_of=old)
    assert (await sessions.find(old)).who.name == "ann"
    new = await sessions.open(bob, instead_of=old)
    with pytest.raises(Unauthenticated):
        await sessions.find(old)
    assert (await sessions.find(new)).who.name == "bob"
    assert (await sessions.find(await sessions.open(bob, instead_of="oas_gone"))).who.name == "bob"
    rows = [(row.actor_id, row.action, row.agent) for row in await world.core.store.audit(None, 4)]
    assert rows[1:3] == [("bob", "session.create", "bob"), ("bob", "session.end", "ann")]


async def test_a_token_has_so_many_sessions_and_with_one_more_the_one_unused_longest_ends(world: World) -> None:
    sessions = world.core.sessions
    given, bobs = await token(world), await sessions.open(await token(world, "bob"))
    secrets = []
    for _ in range(MOST):
        secrets.append(await sessions.open(given))
        world.clock.advance(60)
    await sessions.find(secrets[0])
    secrets.append(await sessions.open(given))
    with pytest.raises(Unauthenticated):
        await sessions.find(secrets.pop(1))
    for secret in secrets:
        assert (await sessions.find(secret)).who.name == "ann"
    assert (await sessions.find(bobs)).who.name == "bob"
    secrets.append(await sessions.open(given, instead_of=secrets[-1]))
    assert len(await sessions.list(ADMIN)) == MOST + 1, "one that takes the place of another ends no third"
    world.clock.jump(-3600)
    assert (await sessions.find(await sessions.open(given))).who.name == "ann", "whatever the clock did meanwhile"


@pytest.mark.parametrize("end", ["revoke", "rotate", "expire", "admin", "idle", "long"])
async def test_a_session_ends_with_its_token_by_an_admin_and_in_time(world: World, end: str) -> None:
    sessions, tokens = world.core.sessions, world.core.tokens
    secret = await sessions.open(await token(world, expires_in=3600 if end == "expire" else None))
    if end == "revoke":
        await tokens.revoke(ADMIN.actor, "ann")
    elif end == "rotate":
        await tokens.rotate(ADMIN.actor, "ann")
    elif end == "expire":
        world.clock.advance(3600)
    elif end == "admin":
        await sessions.end(ADMIN, (await sessions.list(ADMIN))[0].id)
    elif end == "idle":
        world.clock.advance(IDLE_MS / 1000)
    else:
        for _ in range(LONGEST_MS // IDLE_MS * 2):
            await sessions.find(secret)
            world.clock.advance(IDLE_MS / 2000)
    with pytest.raises(Unauthenticated):
        await sessions.find(secret)
    assert await sessions.list(ADMIN) == []


async def test_use_keeps_a_session_alive_and_is_written_down_once_a_minute(world: World) -> None:
    secret = await world.core.sessions.open(await token(world))
    for _ in range(3):
        world.clock.advance(IDLE_MS / 1000 - 1)
        await world.core.sessions.find(secret)
    seen = (await world.core.store.sessions())[0].seen_at
    world.clock.advance(30)
    await world.core.sessions.find(secret)
    assert (await world.core.store.sessions())[0].seen_at == seen == world.clock.now() - 30_000


async def test_only_an_admin_sees_and_ends_the_sessions_of_others(world: World) -> None:
    await world.core.sessions.open(await token(world))
    with pytest.raises(Forbidden):
        await world.core.sessions.list(ME)
    with pytest.raises(Forbidden):
        await world.core.sessions.end(ME, 1)
    with pytest.raises(NotFound):
        await world.core.sessions.end(ADMIN, 99)


async def test_a_login_code_is_good_once_within_a_minute(world: World) -> None:
    sessions = world.core.sessions
    await token(world)
    code = await sessions.new_code("ann")
    assert (await sessions.find(await sessions.open_by_code(code))).who.name == "ann"
    late = await sessions.new_code("ann")
    world.clock.advance(CODE_MS / 1000)
    for bad in (code, late, "guess", ""):
        with pytest.raises(Unauthenticated):
            await sessions.open_by_code(bad)


async def test_of_two_who_come_with_one_code_at_once_one_comes_in(world: World) -> None:
    await token(world)
    code = await world.core.sessions.new_code("ann")
    came = await asyncio.gather(*(world.core.sessions.open_by_code(code) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(one, str) for one in came) == 1


async def test_a_code_of_a_token_that_was_rotated_meanwhile_is_worth_nothing(world: World) -> None:
    await token(world)
    code = await world.core.sessions.new_code("ann")
    await world.core.tokens.rotate(ADMIN.actor, "ann")
    with pytest.raises(Unauthenticated):
        await world.core.sessions.open_by_code(code)


async def test_who_waits_with_a_session_hears_of_its_end(world: World) -> None:
    secret = await world.core.sessions.open(await token(world))
    waiting = asyncio.create_task(world.core.sessions.ended(secret))
    await asyncio.sleep(0)
    assert not waiting.done()
    await world.core.sessions.end(ADMIN, 1)
    while not waiting.done():
        world.clock.advance(1)
        await asyncio.sleep(0.01)


async def test_opening_and_ending_stand_in_the_audit(world: World) -> None:
    secret = await world.core.sessions.open(await token(world))
    await world.core.sessions.close(secret)
    rows = [(row.actor_id, row.action, row.agent) for row in await world.core.store.audit(None, 2)]
    assert rows == [("ann", "session.end", "ann"), ("ann", "session.create", "ann")]


def test_the_mark_of_a_form_is_its_sessions_alone() -> None:
    assert is_form_token("oas_a", form_token("oas_a"))
    assert not is_form_token("oas_b", form_token("oas_a"))
    assert not is_form_token("oas_a", "é\ud800")
    assert "oas_a" not in form_token("oas_a")

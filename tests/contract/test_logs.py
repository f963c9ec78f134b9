"""Log lines: kept with their process, clean, bounded, and forgotten in time."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson
import pytest

from oaken_jobs import logs
from oaken_jobs.config import LogSettings
from oaken_jobs.core import Core
from oaken_jobs.errors import Conflict, Forbidden, Unavailable
from oaken_jobs.events.event import LogLine
from oaken_jobs.model import Actor, Principal
from tests.contract.world import ME, RULES, World

ADMIN = Principal(Actor("user", "root", "cli"), frozenset({"admin"}))
KEY = "sk-ant-" + "a1b2c3d4" * 4
log = logging.getLogger("oaken.test")


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "oaken.test")


async def messages(world: World, level: str = "debug") -> list[tuple[str, str]]:
    rows = await world.core.logs.list(ADMIN, level=level)
    return [(row.level, row.message) for row in rows if row.logger == "oaken.test"]


async def test_what_is_logged_between_start_and_stop_is_kept_with_level_and_process(world: World) -> None:
    log.info("too early")
    await world.core.log_keeper.start()
    log.info("first %d", 1)
    log.critical("second")
    await world.core.log_keeper.tick()
    assert await messages(world) == [("error", "second"), ("info", "first 1")]
    (row, _) = await world.core.logs.list(ADMIN)
    assert row.process.startswith("serve ")
    assert row.at == world.clock.now()
    await world.core.log_keeper.stop()
    log.info("too late")
    await world.restart()
    assert len(await messages(world)) == 2


async def test_the_last_lines_before_a_close_are_kept(world: World) -> None:
    await world.core.start_duties()
    log.warning("going")
    await world.restart()
    assert await messages(world) == [("warning", "going")]


async def test_lines_can_be_asked_for_by_level_backwards_and_forwards(world: World) -> None:
    await world.core.log_keeper.start()
    for level, word in ((10, "a"), (20, "b"), (30, "c"), (40, "d")):
        log.log(level, word)
    await world.core.log_keeper.tick()
    assert [word for _, word in await messages(world, "warning")] == ["d", "c"]
    rows = await world.core.logs.list(ADMIN, limit=2)
    assert [r.message for r in rows] == ["d", "c"]
    assert [r.message for r in await world.core.logs.list(ADMIN, before=rows[-1].id)] == ["b", "a"]
    assert [r.message for r in await world.core.logs.list(ADMIN, after=rows[-1].id - 1)] == ["c", "d"]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"key {KEY} used", "key [redacted] used"),
        ("bell\x07 and\x1b[31m", "bell  and [31m"),
        ("half \ud800", "half \ufffd"),
        ("x" * 100_000, "x" * (logs.MESSAGE_LIMIT - 1) + "…"),
    ],
)
async def test_a_line_is_kept_clean(world: World, said: str, kept: str) -> None:
    await world.core.log_keeper.start()
    log.info(said)
    await world.core.log_keeper.tick()
    assert await messages(world) == [("info", kept)]


async def test_an_error_is_kept_with_where_it_came_from_and_without_secrets(world: World) -> None:
    await world.core.log_keeper.start()
    try:
        raise ValueError(f"token={KEY}")
    except ValueError:
        log.exception("it failed")
    await world.core.log_keeper.tick()
    ((_, told),) = await messages(world)
    assert told.startswith("it failed\nTraceback")
    assert "test_logs.py" in told
    assert KEY not in told


async def test_a_flood_is_bounded_and_what_was_lost_is_counted(world: World) -> None:
    await world.core.log_keeper.start()
    for n in range(logs.MOST_WAITING + 7):
        log.info("%d", n)
    await world.core.log_keeper.tick()
    rows = await world.core.logs.list(ADMIN, limit=5000)
    assert len(rows) == logs.MOST_WAITING + 1
    assert rows[0].message == "7 lines before this one were lost"


async def test_lines_wait_while_they_cannot_be_kept_and_keep_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.core.log_keeper.start()

    async def fails(op: object) -> None:
        raise Unavailable("the disk is full")

    log.info("first")
    with monkeypatch.context() as broken:
        broken.setattr(world.core.commit, "call", fails)
        await world.core.log_keeper.tick()
        log.info("second")
        await world.core.log_keeper.tick()
    await world.core.log_keeper.tick()
    assert [word for _, word in await messages(world)] == ["second", "first"]


async def test_lines_are_told_on_the_bus_to_who_asks_for_them(world: World) -> None:
    await world.core.bus.start()
    await world.core.log_keeper.start()
    with world.core.bus.stream(5, ["log_line"]) as stream, world.core.bus.stream(5) as public:
        log.info("hello")
        await world.core.log_keeper.tick()
        stream.end()
        public.end()
        assert await stream.take() == [LogLine(world.clock.now(), "info", "oaken.test", "hello")]
        assert await public.take() == []


async def test_lines_are_forgotten_after_their_days(world: World) -> None:
    await world.core.log_keeper.start()
    log.info("old")
    await world.core.log_keeper.tick()
    world.clock.advance(6.9 * 86_400)
    log.info("new")
    await world.core.log_keeper.tick()
    await world.core.pruner.tick()
    assert len(await messages(world)) == 2
    world.clock.advance(0.2 * 86_400)
    await world.core.pruner.tick()
    assert [word for _, word in await messages(world)] == ["new"]


async def test_only_admins_read_them(world: World) -> None:
    bound = Principal(ADMIN.actor, ADMIN.roles, workspace="side")
    for who in (ME, bound):
        with pytest.raises(Forbidden):
            await world.core.logs.list(who)


async def test_where_a_file_is_set_lines_go_there_and_not_to_the_database(tmp_path: Path) -> None:
    core = Core.on_folder(tmp_path, RULES, "runner", log=LogSettings(file="oaken.log", events_file=""))
    await core.open()
    await core.log_keeper.start()
    log.info("hello %s", KEY)
    await core.log_keeper.tick()
    (line,) = (tmp_path / "oaken.log").read_bytes().splitlines()
    told = orjson.loads(line)
    assert (told["level"], told["message"]) == ("info", "hello [redacted]")
    assert told["process"].startswith("runner ")
    with pytest.raises(Conflict, match=r"go to the file oaken\.log"):
        await core.logs.list(ADMIN)
    await core.close()


@pytest.mark.parametrize("place", ["database", "file"])
@pytest.mark.parametrize(
    "name", ["tool.caf\udce9", "x" * 100_000, "a\0b\x1b[31m"], ids=["surrogate", "huge", "control"]
)
async def test_whatever_a_logger_is_called_its_lines_are_kept(tmp_path: Path, place: str, name: str) -> None:
    settings = LogSettings(file="oaken.log" if place == "file" else None, events_file="")
    core = Core.on_folder(tmp_path, RULES, "serve", log=settings)
    await core.open()
    await core.log_keeper.start()
    logging.getLogger(name).error("hello")
    log.info("and after it")
    await core.log_keeper.tick()
    if place == "file":
        rows = [orjson.loads(one) for one in (tmp_path / "oaken.log").read_bytes().splitlines()]
        found = [(row["logger"], row["message"]) for row in rows]
    else:
        found = [(row.logger, row.message) for row in reversed(await core.logs.list(ADMIN))]
    await core.close()
    assert [message for _, message in found] == ["hello", "and after it"]
    assert found[0][0].isprintable()
    assert len(found[0][0]) <= logs.LOGGER_LIMIT


async def test_lines_that_can_never_be_kept_do_not_block_those_after_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.core.commit.call

    async def picky(op: Any) -> Any:
        if any("poison" in row.message for row in op.rows):
            raise RuntimeError("no")
        return await real(op)

    monkeypatch.setattr(world.core.commit, "call", picky)
    await world.core.log_keeper.start()
    log.info("poison")
    for _ in range(logs.TRIES):
        await world.core.log_keeper.tick()
    log.info("fine")
    await world.core.log_keeper.tick()
    rows = await world.core.logs.list(ADMIN)
    assert {row.message for row in rows} == {"fine", "1 lines before this one were lost"}


async def test_of_a_minute_only_so_many_lines_are_kept_and_the_rest_is_counted(world: World) -> None:
    await world.core.log_keeper.start()
    for n in range(2 * logs.MOST_A_MINUTE):
        log.info("%d", n)
        if n % 1000 == 0:
            await world.core.log_keeper.tick()
    await world.core.log_keeper.tick()
    rows = await world.core.logs.list(ADMIN, limit=10_000)
    assert [row.message for row in rows] == [str(n) for n in reversed(range(logs.MOST_A_MINUTE))]
    world.clock.advance(60)
    await world.core.log_keeper.tick()
    log.info("calm")
    await world.core.log_keeper.stop()
    rows = await world.core.logs.list(ADMIN, limit=2)
    assert [row.message for row in rows] == ["calm", f"{logs.MOST_A_MINUTE} lines before this one were lost"]


PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEq7fQ\n" * 300 + "-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("secret", [f"key {KEY} ", PEM], ids=["key", "block"])
async def test_no_part_of_a_secret_is_kept_wherever_a_line_is_cut(world: World, secret: str) -> None:
    await world.core.log_keeper.start()
    limits = (logs.MESSAGE_LIMIT, logs.TRACEBACK_LIMIT, 4 * logs.MESSAGE_LIMIT, 16_384, 65_536)
    for limit in limits:
        for before in range(limit - len(secret) - 60, limit + 40, max(9, len(secret) // 30)):
            log.info("%s", "y" * max(before, 0) + " " + secret)
            log.error("boom", exc_info=RuntimeError(secret + " " + "y" * max(before, 0)))
        await world.core.log_keeper.tick()
        world.clock.advance(60)
    rows = await world.core.logs.list(ADMIN, limit=10_000)
    assert len(rows) > 50
    for row in rows:
        assert "b2c3d4a1" not in row.message
        assert "MIIEq7fQ" not in row.message

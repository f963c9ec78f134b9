"""The event log: each event once, in a file, whoever writes it."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import orjson
import pytest

from oaken_jobs.core import Core
from tests.contract.world import AGENT, ME, World


def lines(folder: Path) -> list[dict[str, object]]:
    """What stands in the log, oldest first."""
    found = sorted(folder.glob("events.jsonl*"), key=lambda p: -int(p.suffix[1:]) if p.suffix[1:].isdigit() else 0)
    return [
        orjson.loads(line)
        for file in found
        if file.suffix not in (".lock", ".tmp")
        for line in file.read_bytes().splitlines()
    ]


def ids(folder: Path) -> list[int]:
    return [int(str(line["id"])) for line in lines(folder)]


async def tick(core: Core) -> None:
    assert core.event_log is not None
    await core.event_log.tick()


async def test_each_event_is_a_line_of_ids_states_and_numbers(world: World, tmp_path: Path) -> None:
    job = await world.add(payload={"secret": "text"}, title="a private title")
    lease = await world.take()
    await world.jobs.fail(AGENT, lease.lease_id, "a private error", permanent=True)
    await tick(world.core)
    first, _, last = lines(tmp_path)
    assert sorted(first) == ["data", "id", "kind", "ts"]
    assert last["kind"] == "job_state_changed"
    actor = {"kind": "agent", "id": "worker", "via": "http"}
    assert last["data"] == {
        "verb": "fail",
        "job_id": job.id,
        "job_kind": "work",
        "queue": "default",
        "from": "running",
        "to": "failed",
        "epoch": 1,
        "attempt": 1,
        "workspace": "default",
        "actor": actor,
    }
    assert b"private" not in (tmp_path / "events.jsonl").read_bytes()
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "events.jsonl").stat().st_mode) == 0o600


async def test_two_processes_write_each_event_once(world: World, tmp_path: Path) -> None:
    other = world.another("serve")
    await other.open()
    for _ in range(20):
        await world.add()
        await asyncio.gather(tick(world.core), tick(other))
    await tick(other)
    await other.close()
    assert ids(tmp_path) == world.event_ids
    assert len(ids(tmp_path)) == 20


async def test_a_line_that_a_killed_writer_began_is_written_whole_by_the_next(world: World, tmp_path: Path) -> None:
    await world.add()
    await world.add()
    await tick(world.core)
    file = tmp_path / "events.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    await world.restart()
    await world.add()
    await tick(world.core)
    assert ids(tmp_path) == world.event_ids
    assert len(ids(tmp_path)) == 3


async def test_a_log_that_is_new_begins_with_the_events_that_are_always_kept(world: World, tmp_path: Path) -> None:
    await world.restart(event_ring_size=3)
    for _ in range(10):
        await world.add()
    await tick(world.core)
    assert ids(tmp_path) == world.event_ids[-3:]


async def test_the_log_of_another_database_goes_on_with_this_one(world: World, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        '{"id":"9007199254740991","ts":"2020-01-01T00:00:00.000Z","kind":"x","data":{}}\n'
    )
    await world.add()
    await tick(world.core)
    await world.add()
    await tick(world.core)
    assert ids(tmp_path) == [2**53 - 1, *world.event_ids]


async def test_lines_of_others_in_the_log_do_not_hold_it_up(world: World, tmp_path: Path) -> None:
    await world.add()
    await tick(world.core)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("not ours\n[1]\n")
    await world.add()
    await tick(world.core)
    text = (tmp_path / "events.jsonl").read_text().splitlines()
    first, second = world.event_ids
    assert [line.partition(",")[0] for line in text] == [f'{{"id":"{first}"', "not ours", "[1]", f'{{"id":"{second}"']


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.lock", "events.jsonl.1"])
async def test_a_file_that_cannot_be_written_is_said_once_a_minute_and_lost_is_nothing(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (tmp_path / name).mkdir()
    await world.add()
    for _ in range(3):
        await tick(world.core)
    assert caplog.text.count("cannot be written") == 1
    world.clock.advance(60)
    await tick(world.core)
    assert caplog.text.count("cannot be written") == 2
    (tmp_path / name).rmdir()
    await tick(world.core)
    assert ids(tmp_path) == world.event_ids
    assert len(ids(tmp_path)) == 1


async def test_what_happens_up_to_the_stop_is_written_at_the_stop(world: World, tmp_path: Path) -> None:
    await world.core.start_duties()
    await world.add()
    await world.core.stop_duties()
    await world.jobs.set_paused(ME, "mail", True)
    await world.core.close()
    assert ids(tmp_path) == world.event_ids
    assert len(ids(tmp_path)) == 2


@pytest.mark.parametrize("name", ["", "sub/../events2.jsonl"])
async def test_the_file_is_the_one_that_settings_name(tmp_path: Path, name: str) -> None:
    from oaken_jobs.config import LogSettings
    from tests.contract.world import RULES

    (tmp_path / "sub").mkdir()
    core = Core.on_folder(tmp_path, RULES, "serve", log=LogSettings(events_file=name))
    await core.open()
    await core.jobs.set_paused(ME, "mail", True)
    if core.event_log is not None:
        await core.event_log.tick()
    await core.close()
    assert not (tmp_path / "events.jsonl").exists()
    assert (tmp_path / "events2.jsonl").exists() == bool(name)

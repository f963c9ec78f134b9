"""A process composed in the test's own loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from oaken_app.process import Process
from oaken_jobs import pipeline
from oaken_jobs.config import load
from oaken_jobs.errors import ConfigError, Unavailable
from oaken_jobs.model import Actor
from oaken_swarm import Client
from tests.contract.world import until

ROOT = Actor("user", "root", "cli")


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oaken")


def settings_for(folder: Path, **server: Any) -> Any:
    return load(folder, environ={}, server={"port": 0, **server})


async def client_of(process: Process) -> Client:
    _, token = await process.core.tokens.create(ROOT, "root", ["admin"])
    return Client(process.address, token, tries=1)


async def test_a_process_takes_in_a_text_from_the_first_call_to_the_agents_jobs(tmp_path: Path) -> None:
    process = Process(settings_for(tmp_path))
    await process.start()
    client = await client_of(process)
    job_id = (await client.intake("# Hello\n\nworld", source="a.md"))["job"]["id"]
    told = await client.wait(job_id, 10)
    assert told["job"]["state"] == "succeeded"
    leases: list[Any] = []
    while len(leases) < 2:
        got = await client.lease(kinds=["embed", "triage"], max=2, wait_seconds=10)
        assert got["leases"]
        leases += got["leases"]
    assert sorted(one["job"]["kind"] for one in leases) == ["embed", "triage"]
    await client.aclose()
    await process.stop()


async def test_without_a_runner_no_body_runs_until_a_runner_process_comes(tmp_path: Path) -> None:
    server = Process(settings_for(tmp_path), runner=False)
    await server.start()
    client = await client_of(server)
    job_id = (await client.intake("hello"))["job"]["id"]
    assert (await client.wait(job_id, 0.2))["job"]["attempts"] == 0
    runner = Process(settings_for(tmp_path), role="runner")
    assert runner.address is None
    await runner.start()
    assert (await client.wait(job_id, 10))["job"]["state"] == "succeeded"
    await runner.stop()
    await client.aclose()
    await server.stop()


def recorded(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which the parts of a process begin and have ended, and when the database is last written to."""
    order: list[str] = []
    core = process.core

    def wrap(part: Any, method: str, name: str) -> None:
        original = getattr(part, method)

        async def call(*arguments: Any) -> Any:
            answer = await original(*arguments)
            order.append(name)
            return answer

        monkeypatch.setattr(part, method, call)

    for part, name in (
        (process._server, "server"),
        (process._runner, "runner"),
        (core.scheduler, "scheduler"),
        (core.maintenance, "maintenance"),
        (core.bus, "bus"),
        (core.event_log, "event log"),
        (core.follower, "follower"),
        (core.log_keeper, "log keeper"),
    ):
        wrap(part, "start", f"{name} begins")
        wrap(part, "stop", f"{name} ended")
    wrap(core.store, "open", "database opened")
    wrap(core.store, "close", "database closed")
    for call in ("write", "_find", "_read", "changed"):
        wrap(core.store, call, "database used")
    handler = logging.Handler()
    handler.emit = lambda record: order.append(f"log: {record.getMessage()}.")  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger("oaken"), "handlers", [handler])
    return order


def steps(order: list[str]) -> list[str]:
    """What began or ended, each once, without what was said and read meanwhile."""
    return list(dict.fromkeys(step for step in order if step.endswith(("begins", "ended", "opened", "closed"))))


ENDS = [
    "scheduler ended",
    "maintenance ended",
    "runner ended",
    "server ended",
    "bus ended",
    "event log ended",
    "follower ended",
    "log keeper ended",
    "database closed",
]


async def ended_in_order(order: list[str]) -> None:
    """All ended in their order, and nothing touches the database or logs afterwards, however long one looks."""
    assert steps(order) == ENDS
    for _ in range(50):
        await asyncio.sleep(0)
    assert order[-2:] == ["database closed", "log: database closed."]


async def test_a_process_begins_with_the_database_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(settings_for(tmp_path))
    order = recorded(process, monkeypatch)
    await process.start()
    assert steps(order) == [
        "database opened",
        "follower begins",
        "log keeper begins",
        "bus begins",
        "event log begins",
        "maintenance begins",
        "scheduler begins",
        "runner begins",
        "server begins",
    ]
    client = await client_of(process)
    job_id = (await client.intake("hello"))["job"]["id"]
    assert (await client.wait(job_id, 10))["final"]
    await client.aclose()
    del order[:]
    await process.stop()
    await ended_in_order(order)
    told = [step for step in order if step.startswith("log: ")]
    assert told == [
        "log: no new requests.",
        "log: duties ended.",
        "log: runner ended.",
        "log: streams ended.",
        "log: database closed.",
    ]


async def in_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Any) -> tuple[Process, list[str], int]:
    """A process whose runner is inside `handler`, with no grace for it; the order of what happens, and the job."""
    monkeypatch.setattr(pipeline, "_intake", handler)
    process = Process(load(tmp_path, environ={}, server={"port": 0}, runner={"grace": 0}))
    order = recorded(process, monkeypatch)
    await process.start()
    client = await client_of(process)
    job_id = (await client.intake("hello"))["job"]["id"]
    await client.aclose()
    return process, order, job_id


async def state_of(tmp_path: Path, job_id: int) -> tuple[str, int]:
    """As the next process finds it."""
    again = Process(settings_for(tmp_path), runner=False)
    await again.start()
    (job,) = await again.core.store.jobs([job_id])
    await again.stop()
    return job.state, job.attempts


async def test_a_process_that_is_stopped_in_a_handler_gives_the_job_back_before_the_database_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = asyncio.Event()

    async def forever(job: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    process, order, job_id = await in_a_handler(tmp_path, monkeypatch, forever)
    await asyncio.wait_for(entered.wait(), 10)
    del order[:]
    await process.stop()
    await ended_in_order(order)
    assert await state_of(tmp_path, job_id) == ("queued", 0)


async def test_a_handler_that_ignores_cancellation_keeps_the_stop_pending_and_the_database_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, cancelled, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(job: Any) -> dict[str, Any]:
        entered.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                cancelled.set()
        return {"document": "0" * 64, "characters": 1}

    process, order, job_id = await in_a_handler(tmp_path, monkeypatch, stubborn)
    await asyncio.wait_for(entered.wait(), 10)
    del order[:]
    stopping = asyncio.ensure_future(process.stop())
    await asyncio.wait_for(cancelled.wait(), 10)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not stopping.done()
    assert "runner ended" not in order
    assert len(await process.core.store.jobs([job_id])) == 1, "the database is open"
    go.set()
    await asyncio.wait_for(stopping, 10)
    await ended_in_order(order)
    assert await state_of(tmp_path, job_id) == ("succeeded", 1)


async def test_a_stop_in_the_middle_of_a_tick_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(settings_for(tmp_path))
    order = recorded(process, monkeypatch)
    entered, go = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        entered.set()
        await go.wait()
        await process.core.store.next_schedule()
        order.append("tick is over")

    monkeypatch.setattr(process.core.scheduler, "_tick", slow)
    monkeypatch.setattr(process.core.scheduler, "_seconds", 0.0)
    await process.start()
    await asyncio.wait_for(entered.wait(), 10)
    del order[:]
    stopping = asyncio.ensure_future(process.stop())
    await until(lambda: "log: no new requests." in order)
    assert "scheduler ended" not in order
    go.set()
    await stopping
    await asyncio.sleep(0)
    assert order.index("tick is over") < order.index("scheduler ended")
    await ended_in_order(order)


async def test_start_and_stop_may_be_called_again_and_at_once(tmp_path: Path) -> None:
    process = Process(settings_for(tmp_path))
    await process.start()
    await process.start()
    await asyncio.gather(process.stop(), process.stop())
    await process.stop()


async def test_an_address_in_use_is_told_kindly_and_nothing_is_begun(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = Process(settings_for(tmp_path / "data", port=port))
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} is in use.*--port"):
            await process.start()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "a b", "x" * 250])
async def test_an_address_that_is_not_of_this_machine_is_told_kindly(tmp_path: Path, host: str) -> None:
    process = Process(settings_for(tmp_path, host=host, behind_proxy=True))
    with pytest.raises(ConfigError, match="Cannot listen on"):
        await process.start()


async def test_a_database_that_is_none_is_told_kindly_and_the_port_is_free_again(tmp_path: Path) -> None:
    (tmp_path / "core.db").write_bytes(b"no database" * 1000)
    process = Process(settings_for(tmp_path))
    with pytest.raises(Unavailable, match=r"core\.db cannot be opened"):
        await process.start()
    port = int(str(process.address).rsplit(":", 1)[1])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


async def test_ipv6_loopback_can_be_served(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    process = Process(settings_for(tmp_path, host="::1"))
    try:
        await process.start()
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    assert str(process.address).startswith("http://[::1]:")
    client = Client(process.address)
    assert await client.healthz() == {"status": "ok"}
    await client.aclose()
    await process.stop()

"""A process composed in the test's own loop."""

from __future__ import annotations

import asyncio
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

ROOT = Actor("user", "root", "cli")


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
    ):
        wrap(part, "start", f"{name} begins")
        wrap(part, "stop", f"{name} ended")
    wrap(core.store, "open", "database opened")
    wrap(core.store, "close", "database closed")
    wrap(core.store, "write", "write")
    return order


async def test_a_process_begins_with_the_database_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(settings_for(tmp_path))
    order = recorded(process, monkeypatch)
    await process.start()
    begun = [step for step in order if step != "write"]
    assert begun == ["database opened", "maintenance begins", "scheduler begins", "runner begins", "server begins"]
    client = await client_of(process)
    job_id = (await client.intake("hello"))["job"]["id"]
    assert (await client.wait(job_id, 10))["final"]
    await client.aclose()
    del order[:]
    await process.stop()
    first_ends = list(dict.fromkeys(step for step in order if step != "write"))
    assert first_ends == ["server ended", "scheduler ended", "maintenance ended", "runner ended", "database closed"]
    # Nothing is written once it is closed, however long one looks.
    assert order[-1] == "database closed"
    await asyncio.sleep(0)
    assert order[-1] == "database closed"


async def test_a_process_that_is_stopped_in_a_handler_gives_the_job_back_before_the_database_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(tmp_path, environ={}, server={"port": 0}, runner={"grace": 0})
    process = Process(settings)
    entered = asyncio.Event()

    async def forever(job: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(pipeline, "_intake", forever)
    process = Process(settings)
    order = recorded(process, monkeypatch)
    await process.start()
    client = await client_of(process)
    job_id = (await client.intake("hello"))["job"]["id"]
    await asyncio.wait_for(entered.wait(), 10)
    await client.aclose()
    await process.stop()
    assert order[-1] == "database closed"
    again = Process(settings_for(tmp_path), runner=False)
    await again.start()
    (job,) = await again.core.store.jobs([job_id])
    assert (job.state, job.attempts) == ("queued", 0)
    await again.stop()


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
    process = Process(settings_for(tmp_path, host=host))
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

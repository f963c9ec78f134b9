"""The blocking client, and following events, against a real server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from oaken_swarm import Event, NotFound, SyncClient, Unavailable
from oaken_swarm.sync import _iterating
from tests.service import Service, eventually, serve


async def test_a_program_without_a_loop_makes_the_same_calls(server: Service) -> None:
    token = await server.token("ann", "user", "agent")

    def program() -> dict[str, Any]:
        with SyncClient(server.url, token, instance="a") as client:
            job = client.enqueue("echo", {"n": 1}, title="one")["job"]
            client.enqueue_many([{"kind": "echo"}, {"kind": "echo"}])
            (lease,) = client.lease(kinds=["echo"])["leases"]
            client.complete(lease["lease_id"], {"n": 2})
            with pytest.raises(NotFound):
                client.job(10_000)
            listed = [one["id"] for one in client.all_jobs(limit=1)]
            return {"job": client.job(job["id"])["job"], "listed": listed}

    found = await asyncio.to_thread(program)
    assert (found["job"]["state"], found["job"]["result"]) == ("succeeded", {"n": 2})
    assert found["listed"] == sorted(found["listed"], reverse=True)
    assert len(found["listed"]) == 3


async def test_the_blocking_client_works_where_a_loop_runs_and_opens_again() -> None:
    client = SyncClient("http://127.0.0.1:9", "t", tries=1)
    for _ in range(2):
        with pytest.raises(Unavailable):
            client.me()
        client.close()
    client.close()


async def test_several_threads_share_a_blocking_client(server: Service) -> None:
    with SyncClient(server.url, await server.token("ann", "user")) as client:
        await asyncio.gather(*(asyncio.to_thread(client.enqueue, "echo", {"n": n}) for n in range(20)))
        assert len((await asyncio.to_thread(client.jobs, kind="echo"))["jobs"]) == 20


async def test_following_goes_on_over_a_restart_of_the_server_without_a_gap(server: Service) -> None:
    client = await server.client("ann", "user", tries=4)
    found: list[int] = []

    async def follow() -> None:
        async for one in client.follow("0", kinds=["job_state_changed"]):
            assert isinstance(one, Event)
            found.append(one.data["job_id"])

    async def enqueue() -> int:
        return (await client.enqueue("echo"))["job"]["id"]

    async def came(count: int) -> bool:
        return len(found) == count

    following = asyncio.ensure_future(follow())
    ids = [await enqueue(), await enqueue()]
    await eventually(lambda: came(2))
    server.app.end_streams()
    await server.server.stop()
    again = await serve(server.core, port=server.port)
    ids += [await enqueue(), await enqueue()]
    await eventually(lambda: came(4))
    assert found == ids
    following.cancel()
    await asyncio.wait({following})
    await again.close()


async def test_a_program_without_a_loop_follows_too(server: Service) -> None:
    def program(token: str) -> list[str]:
        with SyncClient(server.url, token) as client:
            for n in range(3):
                client.enqueue("echo", {"n": n})
            return [
                one.id for one in islice(client.follow("0", kinds=["job_state_changed"]), 3) if isinstance(one, Event)
            ]

    ids = await asyncio.to_thread(program, await server.token("ann", "user"))
    assert len(ids) == 3
    assert sorted(ids, key=int) == ids


async def test_closing_ends_what_other_threads_wait_for(server: Service, caplog: pytest.LogCaptureFixture) -> None:
    client = SyncClient(server.url, await server.token("ann", "user"))
    job_id = (await asyncio.to_thread(client.enqueue, "echo"))["job"]["id"]
    waiting = asyncio.ensure_future(asyncio.to_thread(client.wait, job_id, 60))
    events = client.follow("0")
    await asyncio.to_thread(next, events)
    await asyncio.to_thread(client.close)
    with pytest.raises(Unavailable, match="closed"):
        await asyncio.wait_for(waiting, 10)
    assert not [thread for thread in threading.enumerate() if thread.name == "oaken client"]
    events.close()
    assert "closing of asynchronous generator" not in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "oaken client"]


FOLLOWS = """
from oaken_swarm import SyncClient
with SyncClient() as client:
    for event in client.follow("0", kinds=["job_state_changed"]):
        print(event.kind, flush=True)
"""


class Ticking(SyncClient):
    """Has an iterator that needs no server."""

    async def _ticks(self: object) -> AsyncGenerator[int]:  # `self` is the client inside
        for tick in range(2):
            await asyncio.sleep(0.001)
            yield tick

    ticks = _iterating(cast(Any, _ticks))


def interrupted_at(step: int) -> list[BaseException]:
    """What ends an iteration that is interrupted at a line of ours, with what that came from; nothing where it has fewer."""
    steps = itertools.count()

    def each(frame: FrameType, event: str, _: object) -> Any:
        if Path(frame.f_code.co_filename).name not in ("sync.py", "portal.py"):
            return None
        if frame.f_code.co_name == "_running":  # traced, a lock can be interrupted where it cannot be otherwise
            return None
        if event == "line" and next(steps) == step:
            raise KeyboardInterrupt
        return each

    with Ticking("http://127.0.0.1:9") as client:
        before, ended = sys.gettrace(), list[BaseException]()
        sys.settrace(each)
        try:
            for _ in client.ticks():
                pass
        except BaseException as error:
            ended.append(error)
        finally:
            sys.settrace(before)
    while ended and ended[-1].__context__ is not None:
        ended.append(ended[-1].__context__)
    return ended


@pytest.mark.filterwarnings("error")
def test_an_iteration_may_be_interrupted_at_any_line() -> None:
    for step in itertools.count():
        ended = interrupted_at(step)
        if not ended:
            break
        assert isinstance(ended[0], KeyboardInterrupt), (step, ended)
        assert not any(isinstance(error, RuntimeError) for error in ended), (step, ended)
    assert step > 30


async def test_a_program_that_follows_ends_at_ctrl_c(server: Service) -> None:
    token = await server.token("ann", "user")
    await (await server.client("ann", "user")).enqueue("echo")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FOLLOWS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OAKEN_URL": server.url, "OAKEN_TOKEN": token},
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"job_state_changed\n"
    process.send_signal(signal.SIGINT)
    _, told = await asyncio.wait_for(process.communicate(), 10)
    assert told.decode().splitlines()[-1] == "KeyboardInterrupt"
    assert b"during handling" not in told.lower()
    assert b"RuntimeError" not in told
    assert b"never awaited" not in told

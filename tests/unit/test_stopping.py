"""Stops that go to their end, and starts that a stop ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oaken_jobs.errors import Unavailable
from oaken_jobs.stopping import Unfinished, every, unless_asked


@pytest.mark.parametrize(
    "error", [Unavailable("the disk is full"), RuntimeError("broken"), asyncio.CancelledError()], ids=repr
)
async def test_every_step_is_taken_although_one_before_it_failed(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[str] = []

    def step(name: str, fails: bool) -> tuple[str, object]:
        async def act() -> None:
            taken.append(name)
            if fails:
                raise error

        return name, act

    with pytest.raises(Unfinished, match=r"inner failed|two, inner"):
        await every(
            step("one", False),
            step("two", True),
            ("inner", lambda: every(step("three", True), step("four", False))),
            step("five", False),
        )
    assert taken == ["one", "two", "three", "four", "five"]
    assert [r.getMessage().split(" failed")[0] for r in caplog.records] == ["stopping: two", "stopping: three"]
    assert all("\n" not in r.getMessage() and r.levelno == logging.ERROR for r in caplog.records)


async def test_a_start_that_is_asked_to_stop_is_undone_and_one_that_fails_says_why() -> None:
    undone = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            undone.set()

    async def broken() -> None:
        raise Unavailable("no database")

    asked = asyncio.Event()
    asyncio.get_running_loop().call_soon(asked.set)
    assert not await unless_asked(slow(), asked)
    assert undone.is_set()
    with pytest.raises(Unavailable, match="no database"):
        await unless_asked(broken(), asyncio.Event())
    assert await unless_asked(asyncio.sleep(0), asyncio.Event())

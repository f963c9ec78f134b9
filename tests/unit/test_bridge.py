"""Plain functions whose statements are awaited."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from oaken_jobs.store.postgres.bridge import run, wait

CONTEXT: ContextVar[str] = ContextVar("context", default="none")


async def test_a_function_gets_what_it_waits_for_and_the_loop_goes_on_meanwhile() -> None:
    asked, turn, order = asyncio.Event(), asyncio.Event(), list[str]()

    async def answer(text: str) -> str:
        order.append(text)
        asked.set()
        await turn.wait()
        return text.upper()

    def work(first: str, *, second: str) -> list[str]:
        return [wait(answer(first)), wait(answer(second))]

    task = asyncio.ensure_future(run(work, "a", second="b"))
    await asked.wait()
    turn.set()
    assert await task == ["A", "B"]
    assert order == ["a", "b"]


async def test_an_error_is_raised_where_the_function_waits_and_may_be_caught_there() -> None:
    async def fails() -> None:
        raise ValueError("broken")

    def work() -> str:
        with pytest.raises(ValueError, match="broken"):
            wait(fails())
        wait(fails())
        return "never"

    with pytest.raises(ValueError, match="broken"):
        await run(work)


async def test_a_call_that_is_cancelled_ends_the_function_where_it_waits() -> None:
    ended: list[str] = []

    def work() -> None:
        try:
            wait(asyncio.Event().wait())
        finally:
            ended.append("here")

    task = asyncio.ensure_future(run(work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["here"]


async def test_the_context_is_the_callers() -> None:
    CONTEXT.set("mine")
    assert await run(CONTEXT.get) == "mine"

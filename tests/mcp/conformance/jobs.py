"""Tools that are tasks: each is an enqueue of Oaken's own, of a kind that a handler here does."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server

from oaken_jobs.handlers import Ask, Handlers, JobContext, PermanentJobError
from oaken_jobs.kinds import Kind, Schema
from oaken_mcp import tasks
from oaken_mcp.server import carry_out, tool_named
from tests.mcp.conformance import questions
from tests.mcp.conformance.tools import Asked, text, tool

WAIT_SECONDS = 10

handlers = Handlers()
LOST = Kind(
    "lost",
    result_schema=Schema.compile({"type": "object", "additionalProperties": False}, "the fixture's schema"),
    invalid_result="fail",
)
"""Jobs of this kind end without a result, and not by their worker's word."""


async def _enqueue(asked: Asked, kind: str, **arguments: Any) -> HandlerResult:
    enqueue = tool_named("enqueue")
    assert enqueue is not None
    given = {"kind": kind, "wait": WAIT_SECONDS, **arguments}
    return await carry_out(enqueue, asked.to, given, task=tasks.declared(asked.ctx))


@tool({"name": {"type": "string"}})
async def greet(asked: Asked) -> HandlerResult:
    """Greets at once."""
    return text(f"Hello, {(asked.params.arguments or {})['name']}!")


@tool({"seconds": {"type": "number"}, "label": {"type": "string"}})
async def slow_compute(asked: Asked) -> HandlerResult:
    """Takes so many seconds."""
    return await _enqueue(asked, "slow", payload=asked.params.arguments)


@tool()
async def failing_job(asked: Asked) -> HandlerResult:
    """Fails, as a task only."""
    tasks.require(asked.ctx)
    return await _enqueue(asked, "failing")


@tool()
async def protocol_error_job(asked: Asked) -> HandlerResult:
    """Fails without a worker's word."""
    return await _enqueue(asked, "lost")


@tool({"filename": {"type": "string"}})
async def confirm_delete(asked: Asked) -> HandlerResult:
    """Asks before it goes on."""
    return await _enqueue(asked, "asking", payload=asked.params.arguments)


@tool()
async def multi_input(asked: Asked) -> HandlerResult:
    """Asks two things before it goes on."""
    return await _enqueue(asked, "asking", payloads=[{"part": 1}, {"part": 2}])


@tool()
async def test_tool_with_task(asked: Asked) -> HandlerResult:
    """Asks for a name, and becomes a task with it."""
    responses = questions.given(asked.params, questions.NAME)
    if responses is None:
        return questions.asking(questions.NAME)
    name = questions.field(responses["user_name"], "name")
    return await _enqueue(asked, "slow", payload={"seconds": 0, "user_name": name})


@handlers.handler("slow")
async def slow(job: JobContext) -> dict[str, Any]:
    await asyncio.sleep(job.payload["seconds"])
    return job.payload


@handlers.handler("failing")
async def failing(job: JobContext) -> None:
    raise PermanentJobError("meant to fail")


@handlers.handler("lost")
async def lost(job: JobContext) -> dict[str, Any]:
    return {"no": "such result is taken"}


@handlers.handler("asking")
async def asking(job: JobContext) -> dict[str, Any]:
    if job.answers is None:
        raise Ask("Really?")
    return {"answer": job.answers[0]["answer"]}


def read_other_forms(server: Server[Any]) -> None:
    """Takes what the suites fill into forms of their own: they do not look at the form that they were asked to fill in."""
    found = server.get_request_handler("tasks/update")
    assert found is not None

    async def update(ctx: ServerRequestContext[Any], params: tasks.Update) -> HandlerResult:
        responses = {
            key: {"action": "accept", "content": {tasks.FIELD: "yes"}}
            if isinstance(response, dict) and response.get("action") == "accept"
            else response
            for key, response in params.input_responses.items()
        }
        return await found.handler(ctx, params.model_copy(update={"input_responses": responses}))

    server.add_request_handler("tasks/update", tasks.Update, update)

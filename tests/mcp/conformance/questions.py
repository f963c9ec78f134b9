"""Tools and a prompt that ask their caller before they answer (results of the type `input_required`)."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError

from tests.mcp.conformance.tools import Asked, text, tool

STATE = "first"
"""What a tool has its caller bring back."""


def _form(message: str, field: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(said: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=said))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))


NAME = {"user_name": _form("What is your name?", "name")}
CONFIRM = {"confirm": _form("Please confirm", "ok", "boolean")}
CAPITAL = {"capital_question": _sample("What is the capital of France?")}
ROOTS = {"client_roots": types.ListRootsRequest()}


def asking(requests: dict[str, Any], state: str | None = None) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def given(params: Any, requests: dict[str, Any]) -> dict[str, Any] | None:
    """The responses to these requests, where all of them are there."""
    found = {key: value for key, value in (params.input_responses or {}).items() if key in requests}
    return found if found.keys() == requests.keys() else None


def field(response: Any, name: str) -> Any:
    """What was filled into a form."""
    return (response.content or {})[name]


@tool()
async def test_input_required_result_elicitation(asked: Asked) -> HandlerResult:
    """Asks for a name."""
    responses = given(asked.params, NAME)
    return asking(NAME) if responses is None else text(f"Hello, {field(responses['user_name'], 'name')}!")


@tool()
async def test_input_required_result_sampling(asked: Asked) -> HandlerResult:
    """Asks the caller's model."""
    responses = given(asked.params, CAPITAL)
    return asking(CAPITAL) if responses is None else text(responses["capital_question"].content.text)


@tool()
async def test_input_required_result_list_roots(asked: Asked) -> HandlerResult:
    """Asks for the caller's folders."""
    responses = given(asked.params, ROOTS)
    if responses is None:
        return asking(ROOTS)
    return text(", ".join(str(root.uri) for root in responses["client_roots"].roots))


@tool()
async def test_input_required_result_request_state(asked: Asked) -> HandlerResult:
    """Asks, and has its state brought back."""
    if given(asked.params, CONFIRM) is None or asked.params.request_state != STATE:
        return asking(CONFIRM, STATE)
    return text("state-ok")


@tool()
async def test_input_required_result_tampered_state(asked: Asked) -> HandlerResult:
    """Asks, and has its state brought back as it was."""
    return await test_input_required_result_request_state(asked)


@tool()
async def test_input_required_result_multiple_inputs(asked: Asked) -> HandlerResult:
    """Asks three things at once."""
    requests = {**NAME, "greeting": _sample("Generate a greeting"), **ROOTS}
    return asking(requests, STATE) if given(asked.params, requests) is None else text("Done.")


@tool()
async def test_input_required_result_multi_round(asked: Asked) -> HandlerResult:
    """Asks one thing after another."""
    first = {"step1": _form("Step 1: What is your name?", "name")}
    second = {"step2": _form("Step 2: What is your favorite color?", "color")}
    if asked.params.request_state is None:
        return asking(first, STATE)
    if given(asked.params, second) is None:
        return asking(second, "second")
    return text("Done.")


@tool()
async def test_input_required_result_capabilities(asked: Asked) -> HandlerResult:
    """Asks only what the caller can answer."""
    can = asked.ctx.session.client_capabilities or types.ClientCapabilities()
    requests = {**(CAPITAL if can.sampling else {}), **(NAME if can.elicitation else {})}
    return asking(requests) if given(asked.params, requests) is None else text("Done.")


@tool()
async def test_streaming_elicitation(asked: Asked) -> HandlerResult:
    """Asks for a name."""
    return await test_input_required_result_elicitation(asked)


@tool()
async def test_missing_capability(asked: Asked) -> HandlerResult:
    """Needs a caller with a model."""
    can = asked.ctx.session.client_capabilities
    if can is None or can.sampling is None:
        needed = types.ClientCapabilities(sampling=types.SamplingCapability())
        data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This call needs a client that declares sampling.",
            data.model_dump(by_alias=True, mode="json", exclude_none=True),
        )
    return text("Done.")


async def prompt(ctx: ServerRequestContext[Any], params: types.GetPromptRequestParams) -> HandlerResult:
    """The prompt that asks."""
    requests = {"user_context": _form("What context should the prompt use?", "context")}
    responses = given(params, requests)
    if responses is None:
        return asking(requests)
    said = types.TextContent(type="text", text=f"The context: {field(responses['user_context'], 'context')}")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=said)])

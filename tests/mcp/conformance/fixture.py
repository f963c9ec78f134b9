"""The server that the suites want: tools, resources and prompts of fixed names, behind Oaken's own transport, checks, tasks and
subscriptions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from oaken_jobs.core import Core
from oaken_mcp import tasks
from oaken_mcp.http import context_of
from oaken_mcp.server import CACHING, OakenServer, tell
from oaken_mcp.subscriptions import Updates
from tests.mcp.conformance import contents, jobs, questions
from tests.mcp.conformance.tools import TOOLS, Asked

if TYPE_CHECKING:
    from oaken_mcp.http import Serving

NAME = "conformance"


async def _list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[tool.about for tool in TOOLS.values()])


async def _call_tool(ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> HandlerResult:
    tool = TOOLS.get(params.name)
    if tool is None:
        raise MCPError(types.INVALID_PARAMS, "There is no such tool.")
    return await tool.run(Asked(ctx, params, context_of(ctx)))


async def _list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=contents.RESOURCES)


async def _list_templates(ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=[contents.TEMPLATE])


async def _read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    found = contents.resource(params.uri)
    if found is None:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": params.uri})
    return types.ReadResourceResult(contents=[found])


async def _list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=contents.prompts())


async def _get_prompt(ctx: ServerRequestContext[Any], params: types.GetPromptRequestParams) -> HandlerResult:
    if params.name == "test_input_required_result_prompt":
        return await questions.prompt(ctx, params)
    return types.GetPromptResult(messages=contents.messages(params.name, params.arguments or {}))


async def _complete(ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [city for city in ("paris", "park", "party") if city.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, has_more=False))


async def _set_level(ctx: Any, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


def build(updates: Updates) -> Server[Any]:
    server = OakenServer(
        NAME,
        version="1",
        get_tool_input_schema=lambda name: TOOLS[name].about.input_schema if name in TOOLS else None,
        cache_hints=CACHING,
        on_list_tools=_list_tools,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
        on_list_prompts=_list_prompts,
        on_completion=_complete,
    )
    server.add_request_handler("tools/call", types.CallToolRequestParams, _call_tool)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _set_level)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, _get_prompt)
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    tasks.install(server, context_of)
    jobs.read_other_forms(server)
    tell(server, context_of, updates)
    return server


def fixture(core: Core) -> Serving:
    """Unlike Oaken's own, whose tools tell nothing before they answer, it answers with streams."""
    updates = Updates(core)
    return StreamableHTTPSessionManager(build(updates), stateless=True, max_request_body_size=sys.maxsize), updates

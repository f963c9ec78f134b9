"""The tools of the fixture server: a table that its modules fill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import mcp_types as types
from mcp.server.context import HandlerResult, ServerRequestContext

from oaken_mcp.tools import Context


class Asked(NamedTuple):
    """One call of a tool."""

    ctx: ServerRequestContext[Any]
    params: types.CallToolRequestParams
    to: Context


Run = Callable[[Asked], Awaitable[HandlerResult]]


class Tool(NamedTuple):
    about: types.Tool
    run: Run


TOOLS: dict[str, Tool] = {}


def tool(properties: dict[str, Any] | None = None, **schema: Any) -> Callable[[Run], Run]:
    """Adds a tool with the name and the description of its function."""

    def add(run: Run) -> Run:
        shape = {"type": "object", "properties": properties or {}, **schema}
        about = types.Tool(name=run.__name__, description=run.__doc__, input_schema=shape)
        TOOLS[run.__name__] = Tool(about, run)
        return run

    return add


def text(said: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)], is_error=is_error)

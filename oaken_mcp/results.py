"""Answers as the protocol has a tool's results. Apart from `answers`, since it takes the SDK."""

from __future__ import annotations

import mcp_types as types

from oaken_jobs.model import Json
from oaken_mcp import answers


def success(answer: Json) -> types.CallToolResult:
    """As structured content, and as the same JSON in text."""
    text = types.TextContent(type="text", text=answers.text(answer))
    return types.CallToolResult(content=[text], structured_content=answer)


def failure(text: str) -> types.CallToolResult:
    """Without structured content, which would have to be what the tool otherwise gives."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)

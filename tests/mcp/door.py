"""Short words for calling tools as a client does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from oaken_jobs.model import Actor, Principal
from oaken_mcp.server import build
from oaken_mcp.tools import Context

ME = Principal(Actor("agent", "me", "mcp"), frozenset({"user", "agent"}), "one")
TWIN = Principal(Actor("agent", "me", "mcp"), frozenset({"user", "agent"}), "two")
OTHER = Principal(Actor("agent", "other", "mcp"), frozenset({"user", "agent"}), "one")
WORKER = Principal(Actor("agent", "worker", "mcp"), frozenset({"agent"}), "one")
VIEWER = Principal(Actor("user", "viewer", "mcp"), frozenset({"viewer"}), "one")


class Caller:
    """A connected client."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        """The answer of a call that must work, the same in both of its forms."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content[0].text
        assert json.loads(result.content[0].text) == result.structured_content
        assert len(result.content[0].text) < 20_000
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        """The text of a call that must be refused."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        assert result.structured_content is None
        return result.content[0].text


class Door:
    """A core with the server on it."""

    def __init__(self, core: Core, clock: FakeClock) -> None:
        self.core = core
        self.clock = clock

    @asynccontextmanager
    async def open(self, who: Principal = ME, mode: str = "auto") -> AsyncIterator[Caller]:
        async with Client(build(lambda ctx: Context(self.core, who)), mode=mode) as client:
            yield Caller(client)

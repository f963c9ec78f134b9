"""MCP over streamable HTTP: one path of Oaken's own server, for clients of both protocol eras, without sessions.

Every request stands alone: a restart, or another process on the same database, takes nothing from a client. The SDK is imported with
the first request, since most servers never get one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope, Send

from oaken_jobs.core import Core
from oaken_jobs.errors import MethodNotAllowed, NotFound, Unavailable
from oaken_jobs.model import Principal
from oaken_swarm.app import BULK_BYTES, WHO

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"


class Endpoint:
    """The ASGI application, to be mounted at the first segment of `PATH`. Calls come authenticated, as `App` hands them on."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != PATH:
            raise NotFound(f"There is nothing here; MCP is at {PATH}.")
        if scope["method"] != "POST":
            # A stream of the server's own, or a session to end: there is neither.
            raise MethodNotAllowed("MCP messages are sent with POST; there are no sessions here.", allow=["POST"])
        manager = await self._begun()
        await _unless_gone(receive, lambda heard: manager.handle_request(scope, heard, send))

    async def stop(self) -> None:
        """Cancels what is under way. Idempotent."""
        self._stopping.set()
        if self._serving is not None:
            await asyncio.wait((self._serving,))

    async def _begun(self) -> StreamableHTTPSessionManager:
        if self._stopping.is_set():
            raise Unavailable("Oaken is stopping. Try again when it is back.")
        if self._manager is None:
            loop = asyncio.get_running_loop()
            self._manager = loop.create_future()
            self._serving = loop.create_task(self._serve(self._manager), name="mcp")
        return await asyncio.shield(self._manager)

    async def _serve(self, begun: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            manager = await asyncio.to_thread(_manager, self._core)
        except Exception as error:
            begun.set_exception(error)
            return
        async with manager.run():
            begun.set_result(manager)
            await self._stopping.wait()


async def _unless_gone(receive: Receive, handle: Callable[[Receive], Coroutine[Any, Any, None]]) -> None:
    """Handles a request, and cancels that when its client goes away: nobody would hear what was leased. The SDK does not for answers
    in JSON."""
    read, gone = asyncio.Event(), asyncio.Event()

    async def heard() -> Message:
        if read.is_set():
            await gone.wait()
            return {"type": "http.disconnect"}
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            read.set()
        return message

    async def listen() -> None:
        await read.wait()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    handling, listening = asyncio.ensure_future(handle(heard)), asyncio.ensure_future(listen())
    try:
        await asyncio.wait((handling, listening), return_when=asyncio.FIRST_COMPLETED)
        if handling.done():
            handling.result()
    finally:
        listening.cancel()
        handling.cancel()
        await asyncio.wait((handling,))


def _manager(core: Core) -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from oaken_mcp import server

    logging.getLogger("mcp").setLevel(logging.WARNING)  # it tells of every request

    def who(ctx: Any) -> Principal:
        principal: Principal = ctx.request.scope[WHO]
        return principal

    return StreamableHTTPSessionManager(
        server.build(core, who), json_response=True, stateless=True, max_request_body_size=BULK_BYTES
    )

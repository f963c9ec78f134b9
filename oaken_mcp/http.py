"""MCP over streamable HTTP: one path of Oaken's own server, for clients of both protocol eras, without sessions.

Every request stands alone: a restart, or another process on the same database, takes nothing from a client. The SDK is imported with
the first request, since most servers never get one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope, Send

from oaken_jobs.core import Core
from oaken_jobs.errors import MethodNotAllowed, NotFound, stopping
from oaken_mcp.tools import Context
from oaken_swarm.app import BULK_BYTES, WHO

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
CONTEXT = "oaken.context"
"""In the scope of a request: the `Context` of its call."""


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
        context = scope[CONTEXT] = Context(self._core, scope[WHO])
        try:
            answered = await self._unless_gone(manager, scope, receive, send)
        except asyncio.CancelledError:
            await self._give_back(context)
            raise
        if not answered:
            await self._give_back(context)
            if self._stopping.is_set():
                raise stopping()

    async def stop(self) -> None:
        """Cancels what is under way. Idempotent."""
        self._stopping.set()
        if self._serving is not None:
            await asyncio.wait((self._serving,))

    async def _begun(self) -> StreamableHTTPSessionManager:
        if self._manager is None and not self._stopping.is_set():
            loop = asyncio.get_running_loop()
            self._manager = loop.create_future()
            self._serving = loop.create_task(self._serve(self._manager), name="mcp")
        manager = await asyncio.shield(self._manager) if self._manager is not None else None
        if manager is None or self._stopping.is_set():
            raise stopping()
        return manager

    async def _serve(self, begun: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            manager = await asyncio.to_thread(_manager)
        except Exception as error:
            self._manager = None  # the next call tries again
            begun.set_exception(error)
            return
        async with manager.run():
            begun.set_result(manager)
            await self._stopping.wait()

    async def _give_back(self, context: Context) -> None:
        """Returns jobs that were leased for an answer which reached nobody."""
        if context.leased:
            jobs = self._core.jobs
            releases = [jobs.release_op(context.who, lease_id) for lease_id in context.leased]
            await asyncio.shield(jobs.finish_many(context.who, releases))

    async def _unless_gone(
        self, manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Handles a request, and cancels that when its client goes away, which the SDK does not for answers in JSON. Whether an answer
        was sent; none is to a client that has gone, nor the SDK's own where the server stops."""
        read, gone = asyncio.Event(), asyncio.Event()
        answered = False

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

        async def tell(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                await asyncio.sleep(0)  # a client that has just gone is heard of first
                broken_off = self._stopping.is_set() and message["status"] >= 500
                answered = not gone.is_set() and not broken_off
            if answered:
                await send(message)

        handling = asyncio.ensure_future(manager.handle_request(scope, heard, tell))
        listening = asyncio.ensure_future(listen())
        try:
            await asyncio.wait((handling, listening), return_when=asyncio.FIRST_COMPLETED)
            if handling.done():
                handling.result()
        except Exception:
            if not self._stopping.is_set():  # else the SDK's streams were closed under it
                raise
        finally:
            listening.cancel()
            handling.cancel()
            await asyncio.wait((handling,))
        return answered


def _manager() -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from oaken_mcp import server

    # It tells of every client that goes away, with what was sent in its tracebacks. What fails in a tool is logged by us.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)

    def context(ctx: Any) -> Context:
        found: Context = ctx.request.scope[CONTEXT]
        return found

    return StreamableHTTPSessionManager(
        server.build(context), json_response=True, stateless=True, max_request_body_size=BULK_BYTES
    )

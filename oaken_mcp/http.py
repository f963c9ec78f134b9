"""MCP over streamable HTTP: one path of Oaken's own server, for clients of both protocol eras, with nothing kept of any.

Every request stands alone: a restart, or another process on the same database, takes nothing from a client. The SDK is imported with
the first request, since most servers never get one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from starlette.types import Message, Scope, Send

from oaken_jobs.core import Core
from oaken_jobs.errors import MethodNotAllowed, NotFound, OakenError, stopping
from oaken_mcp.answers import FORBIDDEN
from oaken_mcp.cancelling import HEADER, OpenCalls, new_mark
from oaken_mcp.tools import Context
from oaken_swarm import signin
from oaken_swarm.body import THREAD_BYTES
from oaken_swarm.call import Answer, Call, ClientGone
from oaken_swarm.waits import Waits

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from oaken_mcp.subscriptions import Updates

    Serving = tuple[StreamableHTTPSessionManager, Updates]
    """The SDK's side of an endpoint, and what tells its clients of changes."""

DOOR = "mcp"
PATH = f"/{DOOR}"
CONTEXT = "oaken.context"
"""In the scope of a request: the `Context` of its call."""
CANCELLED = -32800
"""The code of the error that ends a call whose client has cancelled it."""


def context_of(ctx: Any) -> Context:
    """The call that a request of the SDK's came with."""
    found: Context = ctx.request.scope[CONTEXT]
    return found


def oaken(core: Core) -> Serving:
    """Oaken's own server."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from oaken_mcp import server
    from oaken_mcp.subscriptions import Updates

    updates = Updates(core)
    mcp = server.build(context_of, updates)
    return StreamableHTTPSessionManager(
        mcp, json_response=True, stateless=True, max_request_body_size=sys.maxsize
    ), updates


class Endpoint:
    """The mount at `PATH`. `make` makes what answers there; it is called in a thread, with the first request."""

    def __init__(self, core: Core, make: Callable[[Core], Serving] = oaken) -> None:
        self._core = core
        self._make = make
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._streams = Waits(last=True)
        self._open = OpenCalls()

    async def __call__(self, call: Call, scope: Scope, raw: bytes, send: Send) -> Answer | None:
        if scope["path"] != PATH:
            raise NotFound(f"There is nothing here; MCP is at {PATH}.")
        if scope["method"] != "POST":
            # A stream of the server's own, or a session to end: there is neither.
            raise MethodNotAllowed("MCP messages are sent with POST; no session is kept here.", allow=["POST"])
        manager = await self._begun()
        asked = await asyncio.to_thread(_asked, call, raw) if len(raw) > THREAD_BYTES else _asked(call, raw)
        if isinstance(asked, Answer):
            return asked
        context = scope[CONTEXT] = Context(self._core, call.who, ended=call.ended)
        answering = _Answering(raw, send)
        handling = manager.handle_request(scope, answering.receive, answering.send)
        try:
            if asked.method == "subscriptions/listen":
                # It goes on until it ends by itself, which it does at a stop and with its token: so its client hears of that.
                waited = await self._streams.run(call.receive, handling, anyio.sleep_forever())
            else:
                waited = await call.wait(self._handled(call, _mark(scope), asked, handling))
            if waited.gone:
                raise ClientGone
            if answering.answer is None:
                return None
            await call.check_token()
            if not waited.done or self._stopping.is_set():  # the SDK's streams may have been closed under it
                raise stopping()
            # Whoever goes now has its answer on the way; only what was leased must not be lost with that.
            if context.leased and Waits.gone(call.receive):
                raise ClientGone
        except BaseException as error:
            await context.give_back()
            if self._stopping.is_set() and not isinstance(error, OakenError | ClientGone | asyncio.CancelledError):
                raise stopping() from None  # the SDK's streams were closed under it
            raise
        if waited.value is not None:
            await context.give_back()
            return _error(waited.value, 200)
        if asked.method == "initialize":
            return answering.answer._replace(headers=(*answering.answer.headers, new_mark()))
        return answering.answer

    async def _handled(
        self, call: Call, mark: bytes | None, asked: _Asked, handling: Coroutine[Any, Any, None]
    ) -> types.JSONRPCError | None:
        """Lets the SDK answer. What to answer instead where the client has cancelled the call."""
        import mcp_types as types

        if isinstance(asked.message, types.JSONRPCNotification):
            self._open.cancel(call.who.name, mark, asked.message)
        if not isinstance(asked.message, types.JSONRPCRequest):
            await handling
        elif not await self._open.run(call.who.name, mark, asked.message.id, handling):
            data = types.ErrorData(code=CANCELLED, message="The call was cancelled by its client.")
            return types.JSONRPCError(jsonrpc="2.0", id=asked.message.id, error=data)
        return None

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
            manager, updates = await asyncio.to_thread(self._make, self._core)
        except Exception as error:
            self._manager = None  # the next call tries again
            begun.set_exception(error)
            return
        # It tells of every client that goes away, with what was sent in its tracebacks. What fails in a tool is logged by us.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        async with manager.run():
            begun.set_result(manager)
            await self._stopping.wait()
            updates.end()


class _Answering:
    """The SDK's side of one request: its body, and what becomes of what it answers. A stream is sent on as it comes."""

    def __init__(self, raw: bytes, send: Send) -> None:
        self._raw: bytes | None = raw
        self._send = send
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._media_type = b""
        self._body = b""
        self._streams = False

    @property
    def answer(self) -> Answer | None:
        """What is to be answered; None where a stream was sent."""
        if self._streams:
            return None
        return Answer(self._body, self._status, tuple(self._headers), self._media_type)

    async def receive(self) -> Message:
        raw, self._raw = self._raw, None
        if raw is None:  # that the client goes is heard elsewhere
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            for name, value in message["headers"]:
                if name == b"content-type":
                    self._media_type = value
                elif name == b"allow":
                    self._headers.append((name, value))
            self._streams = self._media_type.startswith(b"text/event-stream")
        elif not self._streams:
            self._body += message.get("body", b"")
        if self._streams:
            await self._send(message)


class _Asked(NamedTuple):
    """A message, and the method where it is a request."""

    message: types.JSONRPCMessage
    method: str | None = None


def _mark(scope: Scope) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == HEADER), None)


def _asked(call: Call, raw: bytes) -> _Asked | Answer:
    """What a message asks; or the answer to one that the SDK would misread, or that asks for what the caller may not."""
    import mcp_types as types

    from oaken_mcp.server import tool_named
    from oaken_mcp.stdio import Unreadable, parse

    try:
        message = parse(raw)
    except Unreadable as refusal:
        return _error(refusal.reply, 400)
    if not isinstance(message, types.JSONRPCRequest):
        return _Asked(message)
    tool = tool_named((message.params or {}).get("name")) if message.method == "tools/call" else None
    if tool is None or tool.allowed(call.who):
        return _Asked(message, message.method)
    scope = tool.roles[0]
    text = f"{call.who.name} may not use {tool.name}: that takes the role {' or '.join(tool.roles)}. Tell the person you work for."
    error = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=types.ErrorData(code=FORBIDDEN, message=text))
    challenge = signin.challenge(call, DOOR, 'error="insufficient_scope"', f'scope="{scope}"')
    return _error(error, 403, (b"www-authenticate", challenge))


def _error(error: types.JSONRPCError, status: int, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer(error.model_dump_json(by_alias=True, exclude_unset=True).encode(), status, headers)

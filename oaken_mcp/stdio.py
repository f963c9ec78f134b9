"""MCP on stdin and stdout, for clients of both protocol eras.

The SDK's loop settles the era by the first request, so a client that asks `server/discover` before it decides to `initialize`
would be refused. Here that question is answered apart, and the request after it settles the era.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

import anyio
import mcp_types as types
from anyio.abc import ObjectSendStream
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from oaken_jobs import config, jsontext, plugins
from oaken_jobs.clock import Clock
from oaken_jobs.config import Settings
from oaken_jobs.core import Core, clock_for
from oaken_jobs.errors import BadJson
from oaken_jobs.stopping import LEAVE_AT_ONCE, Unfinished, unless_asked
from oaken_jobs.store.sqlite.driver import unsafe_version
from oaken_jobs.tracing import Trace
from oaken_mcp import server
from oaken_mcp.caller import Caller
from oaken_mcp.subscriptions import Updates
from oaken_mcp.tools import Context
from oaken_mcp.wire import MAX_LINE, Wire, Writer, lines

log = logging.getLogger("oaken.mcp")

DRAIN_SECONDS = 0.5
"""How long calls may go on after stdin has ended: enough for all that do not wait for something."""
LAST_SECONDS = 0.1
"""How long streams have at a stop to say that they end; calls that wait are cut short."""
FLUSH_SECONDS = 0.5
"""How long the last answers may take to a client that does not read them."""


def run(
    wire: Wire,
    data_dir: Path | None,
    *,
    actor: str | None,
    roles: Sequence[str],
    instance: str | None = None,
    trace: Callable[[Settings, Clock], Trace] | None = None,
) -> None:
    """Serves until the client closes stdin or a signal comes; a second signal leaves at once.

    Raises `InvalidRequest` for an actor, a role or an instance, `ConfigError` for settings, `Unavailable` for a database that
    cannot be used.
    """
    caller = Caller(actor, roles, instance)
    settings = config.load(data_dir)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("oaken").setLevel(settings.log.level.upper())
    if settings.url is not None and data_dir is None:
        log.warning("OAKEN_URL is not used here: this serves the jobs of the data folder %s", settings.data_dir)
    if settings.trace.enabled and trace is None:
        log.warning("[trace] enabled is true, but nothing is recorded here; start `oaken mcp` instead")
    loaded = plugins.load(settings)
    loaded.report()
    clock = clock_for(settings.database)
    recorded = trace(settings, clock) if trace is not None else None
    core = Core.on_folder(
        settings.data_dir, loaded.rules, "mcp", clock, database=settings.database, log=settings.log, trace=recorded
    )
    asyncio.run(_run(core, caller, wire))


async def _run(core: Core, caller: Caller, wire: Wire) -> None:
    stop = asyncio.Event()
    _on_signals(asyncio.get_running_loop(), stop)

    begun = await unless_asked(_start(core), stop)
    try:
        if begun:
            updates, calls = Updates(core, lasting=True), Calls()

            def context(ctx: ServerRequestContext[Any]) -> Context:
                return calls.begun(ctx.request_id, Context(core, caller.principal(server.client_name(ctx))))

            await serve(server.build(context, updates), updates, wire, stop, calls)
            await calls.give_back()
    finally:
        await core.close()


async def _start(core: Core) -> None:
    try:
        await core.open()
        if (danger := unsafe_version()) is not None:
            log.warning("%s", danger)
        await core.start_duties()
    except BaseException:
        with suppress(Unfinished):
            await core.close()
        raise


def _on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, _leave)
        loop.call_soon_threadsafe(stop.set)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, on_signal)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(LEAVE_AT_ONCE)


class Calls:
    """The calls of a connection whose answers have not reached the client."""

    def __init__(self) -> None:
        self._open: dict[object, Context] = {}

    def begun(self, request_id: object, context: Context) -> Context:
        """Remembers the call."""
        self._open[request_id] = context
        return context

    def over(self, request_id: object) -> None:
        """Forgets a call that was answered, or that its client has given up, which returns by itself what it leased."""
        if isinstance(request_id, str | int):  # what came from a client may be anything
            self._open.pop(request_id, None)

    async def give_back(self) -> None:
        """Returns what was leased for answers that reach nobody any more."""
        for context in self._open.values():
            await context.give_back()


async def serve(mcp: Server[Any], updates: Updates, wire: Wire, stop: asyncio.Event, calls: Calls) -> None:
    """One connection, until the client closes it or goes away, or `stop` is set."""
    inbox, requests = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbox, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    answers = _Answers(outbox)
    written = anyio.Event()

    async def read() -> None:
        try:
            await _relay(mcp, wire, inbox, answers, calls)
            updates.end()  # else those who listen would be waited for
            with anyio.move_on_after(DRAIN_SECONDS):
                await answers.all_given()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # stopped meanwhile
        stop.set()

    async def write() -> None:
        writer = Writer(wire.writing)
        async with outgoing:
            async for item in outgoing:
                try:
                    await writer.line(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                except OSError:
                    stop.set()  # the client has gone
                    break
                if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
                    calls.over(item.message.id)
        written.set()

    async def close() -> None:
        await stop.wait()
        updates.end()
        with anyio.move_on_after(LAST_SECONDS):
            await answers.all_given()
        await inbox.aclose()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        group.start_soon(close)
        await mcp.run(requests, answers, mcp.create_initialization_options())
        with anyio.move_on_after(FLUSH_SECONDS):
            await written.wait()
        group.cancel_scope.cancel()


async def _relay(
    mcp: Server[Any],
    wire: Wire,
    inbox: ObjectSendStream[SessionMessage | Exception],
    answers: _Answers,
    calls: Calls,
) -> None:
    """Hands on what comes in until its end; answers itself what cannot be read, and what is asked before the era is settled."""
    settled = False
    async for line in lines(wire.reading):
        try:
            message = parse(line)
        except Unreadable as refusal:
            await answers.send(SessionMessage(refusal.reply))
            continue
        if isinstance(message, types.JSONRPCRequest):
            if message.method == "server/discover" and not settled:
                await answers.send(SessionMessage(discovered(mcp, message)))
                continue
            settled = True
            answers.owed(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            answers.not_owed(given_up := (message.params or {}).get("requestId"))
            calls.over(given_up)
        await inbox.send(SessionMessage(message))


class Unreadable(Exception):
    """A line that is no message; `reply` says so to its sender."""

    def __init__(self, code: int, text: str, request_id: int | str | None) -> None:
        super().__init__(text)
        self.reply = _error(request_id, code, text)


def parse(line: bytes | None) -> types.JSONRPCMessage:
    """The message of a line; None stands for one that was too long. Raises `Unreadable`.

    What JSON readers cannot keep (a key twice, an integer beyond 64 bits, half a surrogate pair) is refused with its place.
    """
    if line is None:
        raise Unreadable(types.PARSE_ERROR, f"The message is longer than {MAX_LINE} bytes.", None)
    try:
        value = jsontext.parse(line)
    except BadJson as refusal:
        raise Unreadable(types.PARSE_ERROR, refusal.message, _id_of(line)) from None
    try:
        message = types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError:
        raise Unreadable(types.INVALID_REQUEST, "This is no JSON-RPC 2.0 message.", _id_of(line)) from None
    if isinstance(message, types.JSONRPCNotification) and "id" in value:  # whoever sends one waits for an answer
        raise Unreadable(
            types.INVALID_REQUEST,
            "This is no JSON-RPC 2.0 message: the id of a request is a text or a whole number.",
            None,
        )
    return message


def _id_of(line: bytes) -> int | str | None:
    """The id in a message that cannot be used, where one can be found."""
    try:
        value = json.loads(line)
        found = cast("dict[str, Any]", value).get("id") if isinstance(value, dict) else None
        if isinstance(found, str):
            found.encode()
            return found
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**63 else None


def discovered(mcp: Server[Any], request: types.JSONRPCRequest) -> types.JSONRPCResponse | types.JSONRPCError:
    """The answer to `server/discover`, as the SDK gives it once the era is settled."""
    route = classify_inbound_request({"method": request.method, "params": request.params})
    if isinstance(route, InboundLadderRejection):
        return _error(request.id, route.code, route.message, route.data)
    found = types.DiscoverResult(
        supported_versions=list(MODERN_PROTOCOL_VERSIONS),
        capabilities=mcp.get_capabilities(protocol_version=route.protocol_version),
        instructions=mcp.instructions,
    )
    result = found.model_dump(by_alias=True, mode="json", exclude_none=True)
    result["_meta"] = {types.SERVER_INFO_META_KEY: mcp.server_info_stamp}
    return types.JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)


def _error(request_id: int | str | None, code: int, text: str, data: Any = None) -> types.JSONRPCError:
    error = (
        types.ErrorData(code=code, message=text)
        if data is None
        else types.ErrorData(code=code, message=text, data=data)
    )
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


class _Answers:
    """The way back to the client, as the SDK writes to it. Knows which requests are still owed an answer."""

    def __init__(self, stream: ObjectSendStream[SessionMessage]) -> None:
        self._stream = stream
        self._owed: set[object] = set()
        self._fewer = anyio.Event()

    def owed(self, request_id: object) -> None:
        """Says that a request was handed on."""
        self._owed.add(request_id)

    def not_owed(self, request_id: object) -> None:
        """Says that a request was answered or given up."""
        if isinstance(request_id, str | int):  # what came from a client may be anything
            self._owed.discard(request_id)
        self._fewer.set()
        self._fewer = anyio.Event()

    async def all_given(self) -> None:
        """Returns when nothing is owed."""
        while self._owed:
            await self._fewer.wait()

    async def send(self, item: SessionMessage, /) -> None:
        await self._stream.send(item)
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
            self.not_owed(item.message.id)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Answers:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()

"""MCP on stdin and stdout for a server elsewhere: each message goes to its `/mcp`, and the answer comes back.

Nothing is kept here. What the protocol wants said in headers over HTTP is read from the messages themselves.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from typing import Any, cast

import httpx2
import mcp_types as types
import orjson
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)

from oaken_mcp import tasks
from oaken_mcp.http import PATH
from oaken_mcp.stdio import DRAIN_SECONDS, Unreadable, parse
from oaken_mcp.wire import Wire, Writer, hung_up, lines
from oaken_swarm.following import messages

ANSWER_SECONDS = 60.0
"""How long one call may take, and how long a stream may be silent; the tools answer within 20, and streams give a sign of life every 15."""
LOOK_SECONDS = 0.02
"""Between two looks, after stdin has ended, at whether the client can still read."""
_VERSION = "io.modelcontextprotocol/protocolVersion"
_NAMED = {**NAME_BEARING_METHODS, **dict.fromkeys(tasks.METHODS, tasks.NAME_KEY)}


def run(wire: Wire, url: str, token: str, instance: str | None) -> None:
    """Serves until the client closes stdin. `instance` tells this process from others with the token; left out, it is a new one."""
    asyncio.run(_run(wire, url, token, instance or secrets.token_hex(4)))


async def _run(wire: Wire, url: str, token: str, instance: str) -> None:
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Oaken-Instance": instance,
    }
    # As many connections as there are calls: with a bound, streams could keep calls from being sent.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx2.AsyncClient(headers=headers, timeout=ANSWER_SECONDS, limits=limits) as http:
        await Relay(wire, http, url).run()


class Relay:
    """One client's messages on their way to one server."""

    def __init__(self, wire: Wire, http: httpx2.AsyncClient, url: str) -> None:
        self._wire = wire
        self._http = http
        self._url = url
        self._writer = Writer(wire.writing)
        self._version: str | None = None
        """As agreed upon by `initialize`; later messages of that era do not say it themselves."""
        self._open: dict[asyncio.Task[None], int | str] = {}
        """Calls under way, and the ids of their requests, which a client may use twice."""

    async def run(self) -> None:
        """Returns when the client has closed stdin, or goes away."""
        async for line in lines(self._wire.reading):
            try:
                message = parse(line)
            except Unreadable as refusal:
                await self._answer(refusal.reply.model_dump_json(by_alias=True, exclude_unset=True).encode())
                continue
            if isinstance(message, types.JSONRPCRequest):
                call = asyncio.create_task(self._call(message))
                self._open[call] = message.id
                call.add_done_callback(self._open.pop)
            elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
                self._cancel((message.params or {}).get("requestId"))
            # A server without sessions has no use for other notifications.
        until = asyncio.get_running_loop().time() + DRAIN_SECONDS
        # Of a client that has died, too, stdin may end first; a job that came then would be leased for nobody.
        while self._open and not hung_up(self._wire.writing) and asyncio.get_running_loop().time() < until:
            await asyncio.wait([*self._open], timeout=LOOK_SECONDS)
        for call in self._open:
            call.cancel()

    def _cancel(self, request_id: object) -> None:
        for call, asked in self._open.items():
            if type(asked) is type(request_id) and asked == request_id:  # true is no 1
                call.cancel()  # the server hears of it by the end of the connection

    async def _call(self, request: types.JSONRPCRequest) -> None:
        answer: dict[str, Any]
        listens = request.method == "subscriptions/listen"
        try:
            if listens:
                answer = await self._listen(request)
            else:
                async with asyncio.timeout(ANSWER_SECONDS):
                    response = await self._http.post(**self._request(request))
                answer = _read(response, request.id)
            line = orjson.dumps(answer)
        except Exception as error:  # whatever it is, the client waits for an answer
            doing = (
                "The stream is lost: open it again, and read again what it is about."
                if listens
                else "The outcome of the call is unknown: look with status or list_jobs, then call again."
            )
            answer = _refusal(request.id, f"{self._url} does not answer ({type(error).__name__}). {doing}")
            line = orjson.dumps(answer)
        if request.method == "initialize":
            self._version = _text(answer.get("result"), "protocolVersion")
        await self._answer(line)

    async def _listen(self, request: types.JSONRPCRequest) -> dict[str, Any]:
        """Hands on what a stream brings; its last message is the answer."""
        async with self._http.stream("POST", **self._request(request)) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                await response.aread()
                return _read(response, request.id)
            async with aclosing(messages(response.aiter_bytes())) as stream:
                async for message in stream:
                    if "id" in message.json:
                        return message.json | {"id": request.id}
                    await self._answer(message.data)
        raise EOFError

    def _request(self, request: types.JSONRPCRequest) -> dict[str, Any]:
        body = request.model_dump_json(by_alias=True, exclude_unset=True)
        return {"url": f"{self._url}{PATH}", "content": body, "headers": self._headers(request)}

    def _headers(self, request: types.JSONRPCRequest) -> dict[str, str]:
        params: dict[str, Any] = request.params or {}
        version = _text(params.get("_meta"), _VERSION)
        if version is None:
            return {MCP_PROTOCOL_VERSION_HEADER: self._version} if self._version else {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: request.method}
        name = params.get(_NAMED.get(request.method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = name
        return {name: encode_header_value(value) for name, value in headers.items()}

    async def _answer(self, line: bytes) -> None:
        try:
            await self._writer.line(line)
        except OSError:
            for call in self._open:  # the client has gone
                call.cancel()


def _read(response: httpx2.Response, request_id: int | str) -> dict[str, Any]:
    """The answer in a response; a refusal of the server itself, a token that is not good for instance, as an error."""
    try:
        found: Any = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, dict):
        answer = cast("dict[str, Any]", found)
        if answer.get("jsonrpc") == "2.0" and ("result" in answer or "error" in answer):
            # One to something else would leave this call without any.
            return answer | {"id": request_id}
        if isinstance(answer.get("detail"), str):
            return _refusal(request_id, answer["detail"])
    return _refusal(
        request_id, f"The server answered {response.status_code}, and not as Oaken does. Is its address right?"
    )


def _text(value: object, name: str) -> str | None:
    """A text in an object; None where either is something else."""
    found = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def _refusal(request_id: int | str, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": types.INTERNAL_ERROR, "message": text}}

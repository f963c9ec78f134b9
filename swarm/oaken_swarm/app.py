"""The HTTP service: one ASGI application over a core.

A call goes through here once: Host and Origin, route, token, role, body or query, the route's own function, answer. No layers of middleware
lie between, since at ten thousand calls a second each of them is felt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.types import Receive, Scope, Send

from oaken_jobs import auth, traceparent
from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core
from oaken_jobs.errors import InvalidRequest, OakenError, Unauthenticated, Unavailable, stopping
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import Request, read
from oaken_swarm import cookie, signin
from oaken_swarm.body import (
    AT_ONCE,
    THREAD_BYTES,
    Many,
    Size,
    is_text,
    read_bytes,
    read_json,
    read_text,
    refuse_crowded,
)
from oaken_swarm.call import Answer, Call, ClientGone, Mount, Stream, kept_answer, replayed
from oaken_swarm.callers import Callers, address_of
from oaken_swarm.guard import Guard
from oaken_swarm.paths import BodySize, Paths, Route
from oaken_swarm.polls import Polls
from oaken_swarm.problems import problem_answer
from oaken_swarm.query import read_query
from oaken_swarm.routes import ROUTES
from oaken_swarm.visit import CODE_PATH, Visit
from oaken_swarm.waits import Waits

if TYPE_CHECKING:
    from oaken_swarm.cockpit import Cockpit
    from oaken_swarm.metrics import Metrics
    from oaken_swarm.oidc import Oidc

log = logging.getLogger("oaken.http")

SMALL_BYTES = 1 << 20
BULK_BYTES = 16 << 20
MOST_CONTAINERS = 1 << 20
_ROUTE = "oaken.route"
"""In the scope of a call: the template of its route."""
INSTANCE_HEADER = b"oaken-instance"
"""Of a call to a mount, which has no field for it: which of several processes with the token calls."""
_API = frozenset(route.path.split("/", 2)[1] for route in ROUTES)
"""First segments of the interface's paths. What is neither there nor a mount is a page, or none."""
_NOBODY = Principal(Actor("user", "nobody", "http"), frozenset())
_ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_HEAD = b"".join(b"%b: %b\r\n" % header for header in _ALWAYS) + b"content-type: %b\r\ncontent-length: %d\r\n"

SendWhole = Callable[[int, bytes, bytes], bool]
WHOLE = "oaken.whole"
"""In the scope of a call, where its server has it: a `SendWhole`, which sends status, lines of headers and body in one piece. It costs a
third of two messages. False where it cannot; then nothing was sent."""


class App:
    """The ASGI application. `mounts` are other applications by the first segment of their paths, behind the same checks.

    `oidc` checks tokens of an issuer's. `local` is who calls where no port is served: the command line on a data folder, which
    whoever may read it may use.
    """

    def __init__(
        self,
        core: Core,
        server: ServerSettings,
        mounts: Mapping[str, Mount] | None = None,
        *,
        local: Principal | None = None,
        oidc: Oidc | None = None,
    ) -> None:
        self._core = core
        self._local = local
        self._guard = Guard(server.host, server.allowed_hosts, server.allowed_origins)
        self._behind_proxy = server.behind_proxy
        self._callers = Callers(core.tokens, core.sessions, core.clock, oidc)
        self._polls = Polls(core.clock)
        self._paths = Paths(ROUTES)
        self._mounts = dict(mounts or {})
        self._waits = Waits()
        self._streams = Waits(last=True)
        self._metrics: Metrics | None = None
        self._cockpit: Cockpit | None = None
        if local is None:  # not for commands, which are to come at once
            from oaken_swarm.cockpit import Cockpit
            from oaken_swarm.metrics import Metrics

            self._metrics = Metrics(core, lambda: self._streams.open)
            self._cockpit = Cockpit(core)
        self._stopping = False
        self._sizes = _sizes(core)
        # As JSON a text only gets longer.
        self._text_size = self._sizes["payload"]._replace(limit=core.jobs.rules.max_payload_bytes)
        self._many = {
            route.path: Many(self._sizes[route.many_size], route.begins_many) for route in ROUTES if route.many_size
        }
        self._threads = asyncio.Semaphore(AT_ONCE)

    def stop(self) -> None:
        """Takes no calls any more, and answers those that wait. Streams go on until `end_streams`."""
        self._stopping = True
        self._waits.stop()

    def end_streams(self) -> None:
        """Ends all streams of events. The server itself is stopped afterwards."""
        self._streams.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan: whoever composes the process owns start and stop
        # Taken out, for it holds the server's side of the call, which holds this scope: what goes round in a circle stays until the garbage
        # collector looks. Of bare answers a fifth was its work, and memory that is new for each call is cold.
        send_whole: SendWhole | None = scope.pop(WHOLE, None)
        started = time.perf_counter()
        try:
            path = scope.get("raw_path", b"").decode("ascii")
            headers = _Headers(scope)
            door = path.split("/", 2)[1]
            address = address_of(scope.get("client"), headers.forwarded_for, self._behind_proxy)
            if self._cockpit is not None and door not in _API and door not in self._mounts:
                answer = await self._show(self._cockpit, scope, path, headers, receive, address)
            else:
                self._guard.check(headers.hosts, headers.origin)
                if door in self._mounts:
                    answer = await self._hand_on(door, scope, headers, receive, send, address)
                    if answer is None:
                        return
                else:
                    answer = await self._answer(scope, path, headers, receive, address)
            if isinstance(answer, Stream):
                await self._pour(answer, receive, send)
                return
        except OakenError as error:
            if error.status >= 500 and not isinstance(error, Unavailable):
                log.error("a call failed", exc_info=error)
                error = OakenError(_INTERNAL)
            answer = problem_answer(error)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            answer = problem_answer(stopping())
        except Exception:
            log.exception("a call failed")
            answer = problem_answer(OakenError(_INTERNAL))
        if answer.headers or not answer.body or not _at_once(send_whole, answer):
            await _in_parts(send, answer)
        self._note(scope, answer.status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Keeps account of a call by its route's template: a path may hold a lease id, a query anything."""
        method, route = (scope["method"], scope[_ROUTE]) if _ROUTE in scope else ("", "none")
        if self._metrics is not None:
            self._metrics.answered(method, route, status, seconds)
        log.debug("%s %s: %d in %.1f ms", method, route, status, seconds * 1000)

    async def _pour(self, stream: Stream, receive: Receive, send: Send) -> None:
        """Sends parts as they come. A client that reads slowly holds up nobody: the parts are made as it takes them."""
        await send({"type": "http.response.start", "status": 200, "headers": [*_ALWAYS, *stream.headers]})

        async def pour() -> None:
            async for part in stream.parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})

        try:
            waited = await self._streams.run(receive, pour(), stream.ended())
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a stream failed")
            return  # its connection is closed in the middle, so that its client comes again
        finally:
            await stream.parts.aclose()
        if not waited.gone:
            await send({"type": "http.response.body", "body": b""})

    async def _hand_on(
        self, door: str, scope: Scope, headers: _Headers, receive: Receive, send: Send, address: str
    ) -> Answer | None:
        """What a mount answers to a call; None where it has by itself."""
        if self._stopping:
            raise stopping()
        if scope["method"] == "POST":
            scope[_ROUTE] = f"/{door}"
        call = self._call(receive, _NOBODY, headers.token, {})
        call.base = self._base(scope, headers)
        try:
            who = await self._callers.authenticate(headers.token, address, door)
        except Unauthenticated as refusal:
            return problem_answer(refusal, signin.challenge(call, door))
        call.who = who if headers.instance is None else auth.as_instance(who, headers.instance)
        media_type, encoding = headers.content_type, headers.content_encoding
        raw, size = await read_bytes(receive, self._sizes["bulk"], None, media_type, encoding)
        if len(raw) > THREAD_BYTES:
            await asyncio.to_thread(refuse_crowded, raw, size)
        return await self._mounts[door](call, scope, raw, send)

    def _call(self, receive: Receive, who: Principal, token: str | None, params: Mapping[str, str]) -> Call:
        return Call(self._core, self._callers, self._polls, self._waits, receive, who, token, params)

    def _base(self, scope: Scope, headers: _Headers) -> str:
        scheme = "https" if self._behind_proxy else scope.get("scheme", "http")
        return f"{scheme}://{headers.hosts[0].decode('ascii')}"

    async def _answer(
        self, scope: Scope, path: str, headers: _Headers, receive: Receive, address: str
    ) -> Answer | Stream:
        if self._stopping:
            raise stopping()
        route, params, allowed = self._paths.find(scope["method"], path)
        if route is None:
            return Answer(b"", 204, ((b"allow", ", ".join(allowed).encode()),))
        scope[_ROUTE] = route.path
        token, who = await self._who(route, headers, self._base(scope, headers), address)
        if route.needs is not None:
            auth.require(who, route.needs)
        call = self._call(receive, who, None if self._local else token, params)
        if route.open:
            call.base, call.doors = self._base(scope, headers), self._mounts.keys()
        call.metrics = self._metrics
        call.traceparent = traceparent.read(headers.traceparent)
        call.last_event_id = headers.last_event_id
        if headers.idempotency_key is not None and route.writes:
            call.idempotency_key = read(_Key, {"Idempotency-Key": headers.idempotency_key}).key
        query = read_query(scope["query_string"])
        if not route.has_body:
            data, asked = query, read(route.takes, query)
        else:
            data = await self._body(route, query, headers, receive)
            asked = read(route.model_for(data), data)
        if call.idempotency_key is None or route.repeats == "key":
            return await route.handler(call, asked)
        return await self._once(call, route, call.idempotency_key, path, asked, data)

    async def _who(self, route: Route, headers: _Headers, base: str, address: str) -> tuple[str | None, Principal]:
        """What the caller came with, and who that is. A session reads; for writing a token is needed, which no browser sends by itself."""
        if self._local is not None or route.open:
            return None, self._local or _NOBODY
        if headers.token is None and not route.writes and headers.cookie is not None and headers.same_origin:
            secret = cookie.find(headers.cookie, base)
            if secret is not None:
                return secret, (await self._callers.session(secret)).who
        return headers.token, await self._callers.authenticate(headers.token, address)

    async def _show(
        self, cockpit: Cockpit, scope: Scope, path: str, headers: _Headers, receive: Receive, address: str
    ) -> Answer | Stream:
        """A page of the cockpit. A call that is refused before, or fails, is answered with one, too."""
        call = self._call(receive, _NOBODY, headers.token, {})
        visit = Visit(
            call,
            scope["method"],
            path,
            scope["query_string"],
            address,
            headers.cookie,
            headers.origin,
            headers.fetch_site,
            b"text/html" in headers.accept,
            self._sizes["small"],
            headers.content_type,
        )
        try:
            # The file that brings a code is no page of ours, and the code says enough.
            from_file = path == CODE_PATH and headers.origin == b"null"
            self._guard.check(headers.hosts, None if from_file else headers.origin)
            if self._stopping:
                raise stopping()
            call.base = self._base(scope, headers)
            answer, page = await cockpit.answer(visit)
        except OakenError as refusal:
            return cockpit.refused(visit, refusal)
        except ClientGone:
            raise
        except Exception:
            log.exception("a call failed")
            return cockpit.refused(visit, OakenError(_INTERNAL))
        if page is not None:
            scope[_ROUTE] = page.path
        return answer

    async def _body(self, route: Route, query: dict[str, Any], headers: _Headers, receive: Receive) -> Any:
        """The fields of a call, from a body of JSON, or from one that is a text and the query."""
        if route.text is not None and is_text(headers.content_type):
            text = await read_text(receive, self._text_size, headers.content_encoding)
            if route.text in query:
                raise InvalidRequest(f"{route.text}: is the body itself; leave it out of the query.")
            return {**query, route.text: text}
        size, many = self._sizes[route.size], self._many.get(route.path)
        data = await read_json(
            receive,
            size,
            many,
            headers.content_type,
            headers.content_encoding,
            self._threads,
            texts=route.text is not None,
        )
        if query:
            raise InvalidRequest(f"{route.method} {route.path} takes no query with JSON; put the fields into the body.")
        return data

    async def _once(self, call: Call, route: Route, key: str, path: str, asked: Request, data: Any) -> Answer | Stream:
        """The answer of a call under a key, or its first answer again."""
        repeats, again = self._core.repeats, route.repeats == "itself"
        mark, kept = await repeats.begin(call.who, key, route.method, path, data, again=again)
        if kept is not None:
            return replayed(kept)
        try:
            given = await route.handler(call, asked)
        except (OakenError, ClientGone) as error:
            if not isinstance(error, Unavailable):  # of that it is not known whether anything was done
                await repeats.refused(mark)
            raise
        if isinstance(given, Answer) and not route.secret:
            await repeats.ended(mark, kept_answer(given))
        return given


def _at_once(send_whole: SendWhole | None, answer: Answer) -> bool:
    """Sends an answer in one piece, where the server can."""
    return send_whole is not None and send_whole(
        answer.status, _HEAD % (answer.media_type, len(answer.body)), answer.body
    )


async def _in_parts(send: Send, answer: Answer) -> None:
    kept = any(name == b"cache-control" for name, _ in answer.headers)
    start = [*(_ALWAYS[1:] if kept else _ALWAYS), *answer.headers]
    if answer.body or answer.status != 204:
        start += ((b"content-type", answer.media_type), (b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": start})
    await send({"type": "http.response.body", "body": answer.body})


class _Key(Request):
    """The header of that name."""

    key: Annotated[str, Field(alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[\x20-\x7e]+$")]


_INTERNAL = "Something went wrong inside Oaken; the server's log says what."


class _Headers:
    """The headers that matter here, from one pass over them all."""

    __slots__ = (
        "accept",
        "content_encoding",
        "content_type",
        "cookie",
        "fetch_site",
        "forwarded_for",
        "hosts",
        "idempotency_key",
        "instance",
        "last_event_id",
        "origin",
        "token",
        "traceparent",
    )

    def __init__(self, scope: Scope) -> None:
        self.hosts: list[bytes] = []
        self.origin: bytes | None = None
        self.token: str | None = None
        self.content_type: bytes | None = None
        self.content_encoding: bytes | None = None
        self.idempotency_key: str | None = None
        self.instance: str | None = None
        self.last_event_id: str | None = None
        self.forwarded_for: bytes | None = None
        self.accept: bytes = b""
        self.cookie: bytes | None = None
        self.fetch_site: bytes | None = None
        self.traceparent: str | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                self.hosts.append(value)
            elif name == b"authorization":
                scheme, _, token = value.partition(b" ")
                self.token = token.strip().decode("latin-1") if scheme.lower() == b"bearer" else None
            elif name == b"content-type":
                self.content_type = value
            elif name == b"content-encoding":
                self.content_encoding = value
            elif name == b"origin":
                self.origin = value
            elif name == b"idempotency-key":
                self.idempotency_key = value.decode("latin-1")
            elif name == INSTANCE_HEADER:
                self.instance = value.decode("latin-1")
            elif name == b"last-event-id":
                self.last_event_id = value.decode("latin-1")
            elif name == b"traceparent":
                self.traceparent = value.decode("latin-1")
            elif name == b"cookie":
                self.cookie = value if self.cookie is None else self.cookie + b"; " + value
            elif name == b"accept":
                self.accept = value
            elif name == b"sec-fetch-site":
                self.fetch_site = value
            elif name == b"x-forwarded-for":
                self.forwarded_for = value  # of several the last, which the nearest proxy has added

    @property
    def same_origin(self) -> bool:
        """Whether no page of another origin asks, as far as its browser says. Another port of this machine is another origin, though not
        another site, to which cookies would not be sent."""
        return self.fetch_site in (None, b"same-origin", b"none")


def _sizes(core: Core) -> dict[BodySize, Size]:
    rules = core.jobs.rules
    # Written with escapes for everything beyond ASCII, a text takes three times its UTF-8 at most.
    payload = 3 * rules.max_payload_bytes + SMALL_BYTES
    result = 3 * rules.max_result_bytes + SMALL_BYTES
    bulk = max(BULK_BYTES, payload, result)
    # Each takes two bytes at least, so that one payload or result of the size allowed never has more.
    containers = max(MOST_CONTAINERS, rules.max_payload_bytes, rules.max_result_bytes)
    elsewhere = "Keep large things elsewhere and send where they are."
    return {
        "small": Size(SMALL_BYTES, None, "This call needs only a few fields.", containers),
        "payload": Size(payload, "[jobs] max_payload_bytes", elsewhere, containers),
        "result": Size(result, "[jobs] max_result_bytes", elsewhere, containers),
        "bulk": Size(bulk, None, "Send it in parts.", containers),
    }


__all__ = ["App", "Route"]

"""The HTTP server: a socket, and uvicorn on the caller's own event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import orjson
import uvicorn

from oaken_jobs.errors import ConfigError
from oaken_swarm.app import WHOLE, App
from oaken_swarm.exposure import Tls

_HTTPTOOLS = find_spec("httptools") is not None
if TYPE_CHECKING or _HTTPTOOLS:
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
else:  # it is not a dependency everywhere; the connections below are not used then
    from uvicorn.protocols.http.h11_impl import STATUS_LINE
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpToolsProtocol

GRACE_SECONDS = 5
"""How long calls that are under way may go on after a stop was asked for. Those that only wait are answered at once."""
KEEP_ALIVE_SECONDS = 30
BACKLOG = 2048
MAX_HEAD_BYTES = 64 << 10
"""Request line and headers."""
HEAD_SECONDS = 10.0
"""How long a head may take, from the connection or its own first byte on."""
BODY_SECONDS = 30.0
"""How long a body may stand still."""
UNREAD_SECONDS = 60.0
"""How long an answer or stream may lie here without its client reading any of it."""
UNREAD_AT_STOP_SECONDS = 2.0
"""The same while the server stops, shorter than the grace: what is cut off so ends as any client that goes away."""
LOOK_SECONDS = 1.0
"""How often connections are looked at for these."""
LINGER_SECONDS = 1.0
"""How long a connection that was refused is still read from, so that its client gets to hear why."""


class Server:
    """Serves one application at one address. `bind`, then `start`; `stop` is idempotent."""

    def __init__(self, app: App, host: str, port: int, tls: Tls | None = None) -> None:
        self._app = app
        self._tls = tls
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._ticks: asyncio.Task[None] | None = None
        self._looks: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Takes the address, so that it is known and taken before anything else is begun. Raises `ConfigError`."""
        try:
            self._socket = _listening(self._host, self._port)
        except (OSError, UnicodeError) as error:
            raise ConfigError(_why_not(self._host, self._port, error), setting="[server] host, [server] port") from None
        self._port = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """`http://host:port`, or with `https`, with the port that was taken."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    async def start(self) -> None:
        """Returns when calls are answered."""
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        config = uvicorn.Config(
            self._app,
            http=_Connection if _HTTPTOOLS else "h11",
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ssl_certfile=self._tls.cert if self._tls else None,
            ssl_keyfile=self._tls.key if self._tls else None,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        config.load()
        # Not `serve`: signals are the process's business, and a stop need not wait for its next look.
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[self._socket])
        self._uvicorn = server
        loop = asyncio.get_running_loop()
        self._ticks = loop.create_task(server.main_loop(), name="uvicorn")
        self._looks = loop.create_task(_look_after(server), name="connections")

    def refuse(self) -> None:
        """Takes no new calls and answers those that wait. Streams go on until `stop`."""
        self._app.stop()
        if self._uvicorn is not None:
            for listening in self._uvicorn.servers:
                listening.close()

    async def stop(self) -> None:
        """Ends streams, and gives calls under way their grace; takes no new ones, whether told so before or not."""
        server, self._uvicorn = self._uvicorn, None
        ticks, self._ticks = self._ticks, None
        looks, self._looks = self._looks, None
        taken, self._socket = self._socket, None
        self._app.stop()
        self._app.end_streams()
        if server is not None and ticks is not None:
            ticks.cancel()
            await asyncio.wait((ticks,))
            await server.shutdown(sockets=[taken] if taken is not None else None)
            if looks is not None:
                looks.cancel()
                await asyncio.wait((looks,))
            if server.server_state.tasks:  # cancelled after their grace
                await asyncio.wait(server.server_state.tasks, timeout=GRACE_SECONDS)
        elif taken is not None:
            taken.close()


async def _look_after(server: uvicorn.Server) -> None:
    """Ends connections that stand still. One look at all of them costs less than a timer for every request."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = loop.time()
        connections: list[object] = [*server.server_state.connections]
        for connection in connections:
            if isinstance(connection, _Connection):
                connection.look(now)


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, with bounds on what needs no token: the size of a head, and the time of heads and bodies."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_since: float | None = None
        """Since when a head has been awaited; None while none is: in a body, and between two requests."""
        self._head_bytes = 0
        """What has come of a head before what is read now."""
        self._uncounted = 0
        """What has come of it, perhaps, behind the end of another message."""
        self._whole = True
        """Whether all of what is read now belongs to one message."""
        self._may_be_long = False
        self._spaced = False
        """A value of this head may have spaces behind it."""
        self._in_body = False
        self._heard = 0.0
        self._refused = False
        self._running: RequestResponseCycle | None = None
        """Of several requests sent at once the one that is being answered."""
        self._unread = 0
        self._read_at = 0.0
        self._unread_seconds = UNREAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_gone()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        # The connection is closed now, but said to be lost a little later; what is written meanwhile reaches nobody.
        self._client_gone()

    def _client_gone(self) -> None:
        # Only the last request is told by the class above; the others would wait on, and answer nobody.
        self.pipeline.clear()
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._heard = self.loop.time()
        self._whole = not self._in_body
        # Looked for once, for a look at each header is felt at ten thousand calls a second.
        apart = not self._whole or self._head_bytes > 0 or self._uncounted > 0
        self._spaced = apart or b" \r\n" in data or b"\t\r\n" in data
        self._may_be_long = self._head_bytes + self._uncounted + len(data) > MAX_HEAD_BYTES
        super().data_received(data)
        if self._in_body or self._refused:
            return
        if self._head_since is not None:
            if self._whole:
                self._head_bytes += len(data)
            else:
                self._uncounted = len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
        elif self.timeout_keep_alive_task is None and not self._answering:
            self._head_since = self._heard  # between two requests, but not silent

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_since is None:
            self._head_since = self._heard

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        if self._spaced:  # the parser takes away only what stands before a value
            self.headers[:] = [(name, value.rstrip(b" \t")) for name, value in self.headers]
            if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers):
                self.expect_100_continue = True
        # What was read with the head may be its body, so the head is measured.
        if self._may_be_long and len(self.url) + sum(map(_bytes_of, self.headers)) > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        upgrade: bool = cast("Any", self.parser).should_upgrade()
        if upgrade and any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
            # The parser stops at the head of such a request, and its body would be taken for none.
            self._refuse(
                400, "bad_request", "Bad request", "No upgrade is made here; send the request without Upgrade."
            )
            return
        super().on_headers_complete()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and cycle.scope is self.scope:  # else it is an upgrade, which is not answered
            cast("dict[str, Any]", self.scope)[WHOLE] = partial(_send_whole, cycle)
        if cycle is not None and upgrade:
            cycle.keep_alive = False
        if not self.pipeline:
            self._running = cycle
        self._head_since = None
        self._head_bytes = self._uncounted = 0
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = self._whole = False
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        if self._head_since is not None:
            self._head_since = self.loop.time()  # nobody waited for it while the one before was answered

    def shutdown(self) -> None:
        self._unread_seconds = UNREAD_AT_STOP_SECONDS
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(400, "bad_request", "Bad request", "This is not HTTP/1.1 as this server reads it.")

    def look(self, now: float) -> None:
        """Ends the connection if it has stood still for too long."""
        unread = self.transport.get_write_buffer_size()
        if not unread or not self._unread or unread < self._unread:
            self._read_at = now
        elif now - self._read_at > self._unread_seconds:
            self.transport.abort()  # a close would wait until it is read
            return
        self._unread = unread
        if self._refused or self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._heard = now  # it is not the client that stands still
            return
        if self._in_body:
            if now - self._heard > BODY_SECONDS:
                self._refuse_late(f"The body stood still for {BODY_SECONDS:g} s. Send it without pauses.")
        elif self._head_since is None or self._answering or now - self._head_since <= HEAD_SECONDS:
            return
        elif not self._head_bytes and not self._uncounted:
            self.transport.close()  # it never asked for anything
        else:
            self._refuse_late(f"The head of the request was not there after {HEAD_SECONDS:g} s. Send it at once.")

    @property
    def _answering(self) -> bool:
        return cast("Any", self.cycle) is not None and not self.cycle.response_complete

    def _refuse_head(self) -> None:
        self._refuse(
            431,
            "head_too_large",
            "Request head too large",
            f"The request line and headers are more than {MAX_HEAD_BYTES} bytes; send what is large in a body.",
        )

    def _refuse_late(self, detail: str) -> None:
        self._refuse(408, "timeout", "Request timeout", detail)

    def _refuse(self, status: int, code: str, title: str, detail: str) -> None:
        """Answers, unless an answer has begun, and ends the connection."""
        self._refused = True
        self._unset_keepalive_if_required()
        answering, cycle = self._answering, self.cycle
        # What would not be the answer to the request at fault is not said.
        silent = bool(self.pipeline) or answering != self._in_body or (answering and cycle.response_started)
        if answering:  # whoever answers finds the client gone
            cycle.disconnected = True
            cycle.message_event.set()
        if silent:
            self.transport.close()
            return
        body = orjson.dumps(
            {
                "type": f"urn:oaken:problem:{code}",
                "title": title,
                "status": status,
                "detail": detail,
                "code": code,
            }
        )
        self.transport.write(
            b"%bcontent-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[status], len(body), body)
        )
        # Closed with bytes unread, it would be reset, and the answer with it.
        if self.transport.can_write_eof():  # TLS has no such thing
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


def _send_whole(cycle: RequestResponseCycle, status: int, head: bytes, body: bytes) -> bool:
    """What `cycle.send` does with the two messages of an answer, in one write."""
    if cycle.disconnected or cycle.response_started or cycle.flow.write_paused or cycle.scope["method"] == "HEAD":
        return False
    always = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    close = b"" if cycle.keep_alive else b"connection: close\r\n"
    cycle.transport.write(b"%b%b%b%b\r\n%b" % (STATUS_LINE[status], always, head, close, body))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def _bytes_of(header: tuple[bytes, bytes]) -> int:
    return len(header[0]) + len(header[1]) + 4


def _listening(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    # With the protocol named: asyncio turns delays off (TCP_NODELAY) only where it is, and they cost 40 ms a call.
    taken = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers have one address
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(address)
        # At once: until one of them listens, two processes may bind the same address.
        taken.listen(BACKLOG)
        taken.setblocking(False)
    except BaseException:
        taken.close()
        raise
    return taken


def _why_not(host: str, port: int, error: OSError | UnicodeError) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return (
            f"The address {host}:{port} is in use. Perhaps Oaken runs already; otherwise take another port "
            "(--port or [server] port; 0 takes a free one)."
        )
    if code == errno.EACCES:
        return f"The port {port} may not be taken by this user; ports from 1024 on may."
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"Cannot listen on {host}:{port}: {why}. [server] host must be a name or address of this machine."


# Its access log has paths, and with them lease ids and queries; whatever else is set up, it stays silent.
for _name in ("uvicorn.access", "uvicorn.error"):
    logging.getLogger(_name).setLevel(logging.WARNING)

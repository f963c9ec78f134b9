"""The HTTP server: a socket, and uvicorn on the caller's own event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket

import uvicorn

from oaken_jobs.errors import ConfigError
from oaken_swarm.app import App

GRACE_SECONDS = 5
"""How long calls that are under way may go on after a stop was asked for. Those that only wait are answered at once."""
KEEP_ALIVE_SECONDS = 30
BACKLOG = 2048


class Server:
    """Serves one application at one address. `bind`, then `start`; `stop` is idempotent."""

    def __init__(self, app: App, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._ticks: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Takes the address, so that it is known and taken before anything else is begun. Raises `ConfigError`."""
        try:
            self._socket = _listening(self._host, self._port)
        except (OSError, UnicodeError) as error:
            raise ConfigError(_why_not(self._host, self._port, error), setting="[server] host, [server] port") from None
        self._port = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """`http://host:port`, with the port that was taken."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Returns when calls are answered."""
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        config = uvicorn.Config(
            self._app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
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
        self._ticks = asyncio.get_running_loop().create_task(server.main_loop(), name="uvicorn")

    async def stop(self) -> None:
        """Takes no new calls, answers those that wait, and gives those under way their grace."""
        server, self._uvicorn = self._uvicorn, None
        ticks, self._ticks = self._ticks, None
        taken, self._socket = self._socket, None
        self._app.stop()
        if server is not None and ticks is not None:
            ticks.cancel()
            await asyncio.wait((ticks,))
            await server.shutdown(sockets=[taken] if taken is not None else None)
            if server.server_state.tasks:  # cancelled after their grace
                await asyncio.wait(server.server_state.tasks, timeout=GRACE_SECONDS)
        elif taken is not None:
            taken.close()


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

"""The process's stdin and stdout, taken for the protocol: whatever else prints goes to stderr, whatever else reads finds the end."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections.abc import AsyncIterator, Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

from oaken_jobs.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 1 << 16
MAX_LINE = 128 << 20
"""Bytes of one message. Payloads have their own, smaller limit; this one keeps a client without newlines from taking all memory."""


class Wire(NamedTuple):
    """Descriptors that lead to the client and to nothing else."""

    reading: int
    writing: int


def claim() -> Wire:
    """Takes stdin and stdout away from the rest of the process. To be called before anything is imported that might print.

    Raises `ConfigError` where they are closed.
    """
    try:
        wire = Wire(os.dup(0), os.dup(1))
    except OSError:
        raise ConfigError(
            "MCP on stdio needs an open stdin and stdout; a client that starts this command gives it both."
        ) from None
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without stderr
        os.dup2(nothing, 1)
    os.close(nothing)
    sys.stdout = sys.stderr
    return wire


def hung_up(fd: int) -> bool:
    """Whether nobody can read what is written any more. Never where the system cannot tell."""
    if sys.platform == "win32":
        return False
    looking = select.poll()
    looking.register(fd, 0)
    return bool(looking.poll(0))


class Blocking:
    """One thread for calls that may block for ever. Such a call holds up neither the event loop nor the end of the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]]] = (
            SimpleQueue()
        )
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns or raises; calls are carried out one after another."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((loop, future, lambda: function(*args, **kwargs)))
        return await future

    def _work(self) -> None:
        while True:
            loop, future, function = self._calls.get()
            result, error = None, None
            try:
                result = function()
            except OSError as caught:
                error = caught
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop has ended
                return


def _settle(future: asyncio.Future[Any], result: Any, error: OSError | None) -> None:
    if future.done():  # its caller gave up
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


async def lines(fd: int) -> AsyncIterator[bytes | None]:
    """The lines that come in, without their ends and without empty ones, until the client closes.

    None stands for a line over `MAX_LINE`, which was passed over.
    """
    reader = Blocking("stdin")
    pending = bytearray()
    skipping = False
    while True:
        try:
            chunk = await reader.call(os.read, fd, CHUNK)
        except OSError:  # gone as good as closed
            chunk = b""
        seen = len(pending)
        pending += chunk
        start = 0
        while (end := pending.find(b"\n", max(start, seen))) >= 0:
            line = bytes(pending[start:end]).strip()
            start = end + 1
            if skipping:
                skipping = False
                yield None
            elif line:
                yield line
        del pending[:start]
        if len(pending) > MAX_LINE:
            skipping = True
        if skipping:
            pending.clear()
        if not chunk:
            if skipping:
                yield None
            elif line := bytes(pending).strip():
                yield line
            return


class Writer:
    """Writes whole lines, in order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread = Blocking("stdout")

    async def line(self, text: bytes) -> None:
        """Returns when the line is on its way. Raises `OSError` when the client has gone."""
        await self._thread.call(_write_all, self._fd, text + b"\n")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

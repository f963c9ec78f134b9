"""One HTTP call as a route sees it, and what the route answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

import orjson
from starlette.types import Receive, Scope, Send

from oaken_jobs.core import Core
from oaken_jobs.errors import NotFound
from oaken_jobs.model import Principal
from oaken_jobs.redaction import clean
from oaken_jobs.requests import MAX_ID
from oaken_swarm.callers import Callers
from oaken_swarm.polls import Polls
from oaken_swarm.waits import Waited, Waits

if TYPE_CHECKING:
    from oaken_swarm.metrics import Metrics

_ID = re.compile(r"[0-9]{1,16}", re.ASCII)


class Answer(NamedTuple):
    """A response: a body of JSON (empty for none), its status, and headers besides those that every response has."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"


EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # proxies that hold answers back are asked not to
)


class Stream(NamedTuple):
    """A response that goes on: parts, of an event stream unless `headers` say otherwise, until they end, the client goes, `ended` returns
    or the server stops."""

    parts: AsyncGenerator[bytes]
    ended: Callable[[], Coroutine[Any, Any, None]]
    headers: tuple[tuple[bytes, bytes], ...] = EVENT_STREAM


REPLAYED = ((b"idempotency-replayed", b"true"),)
"""Marks an answer that was given before, to the same call under the same idempotency key."""


def kept_answer(given: Answer) -> str:
    """A response as text, for `replayed`."""
    return f"{given.status} {given.body.decode()}"


def replayed(kept: str) -> Answer:
    """A response that was given before."""
    status, _, body = kept.partition(" ")
    return Answer(body.encode(), int(status), REPLAYED)


def answer(value: Any, status: int = 200) -> Answer:
    """A JSON value as a response."""
    return Answer(orjson.dumps(value), status)


class ClientGone(Exception):
    """The client has closed the connection; there is nobody to answer."""


@dataclass(slots=True)
class Call:
    """What a route gets besides its body or query: the core, who calls, and the parameters in the path."""

    core: Core
    callers: Callers
    polls: Polls
    waits: Waits
    receive: Receive
    who: Principal
    token: str | None
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    idempotency_key: str | None = None
    last_event_id: str | None = None
    traceparent: str | None = None
    """As `traceparent.read` gives it."""
    base: str = ""
    """Scheme and host as the client sees them; only for open routes and mounts."""
    doors: Collection[str] = ()
    """First segments of the paths of mounts."""
    metrics: Metrics | None = None
    """None where no port is served."""

    @property
    def job_id(self) -> int:
        """The `{id}` of the path. Raises `NotFound` for what cannot be one."""
        text = self.params["id"]
        if not _ID.fullmatch(text) or not 0 < int(text) <= MAX_ID:
            raise NotFound(f"There is no job {clean(text, 40)!r}; the id of a job is a whole number from 1.")
        return int(text)

    async def wait(self, work: Coroutine[Any, Any, Any]) -> Waited:
        """Does `work` as `Waits.run` does, until the token is good no more at the latest; then `check_token` raises."""
        return await self.waits.run(self.receive, work, self.ended())

    async def ended(self) -> None:
        """Returns when the token is good no more; never for a local caller."""
        if self.token is None:
            await asyncio.get_running_loop().create_future()
        else:
            await self.callers.ended(self.token)

    async def check_token(self) -> None:
        """Raises `Unauthenticated` where the token was revoked or has expired since the call began."""
        if self.token is None:
            return  # a local caller
        await self.callers.check(self.token)


Mount = Callable[[Call, Scope, bytes, Send], Awaitable[Answer | None]]
"""Another application behind the same checks. It gets a call, which is of no route, with its whole body; None says that it has answered by
itself. The door of the caller is the first segment of its path."""


def unquoted(segment: str) -> str:
    """A segment of a path as the caller meant it. Raises `NotFound` for one that is not UTF-8."""
    try:
        return unquote_to_bytes(segment).decode() if "%" in segment else segment
    except UnicodeDecodeError:
        raise NotFound("There is nothing under this path: it is not UTF-8 where it is percent-encoded.") from None

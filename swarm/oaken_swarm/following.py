"""Following what happens on a server: its event stream as typed events, without a gap over lost connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import orjson

from oaken_jobs.errors import OakenError
from oaken_swarm.connection import LONGEST_RETRY_AFTER, Connection, Json, asked_wait, passing

MOST_BYTES = 16 << 20
"""One event with more than this is none."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `id` is the cursor to go on from, `ts` an ISO time; `docs/http.md` has the kinds and their `data`."""

    id: str
    ts: str
    kind: str
    data: Json


@dataclass(frozen=True, slots=True)
class Resync:
    """Events were forgotten before they were read: read anew what you follow. The stream goes on from `cursor`."""

    cursor: str


async def events(connection: Connection, cursor: str, query: Mapping[str, Any]) -> AsyncGenerator[Event | Resync]:
    """Each event after `cursor`, for ever. A stream that ends or is lost is taken up where it was; raises refusals."""
    failures = 0
    while True:
        wait = None
        try:
            async with (
                connection.stream("/v1/events", query, {"Last-Event-ID": cursor}) as parts,
                aclosing(messages(parts)) as stream,
            ):
                async for said in stream:
                    failures, cursor = 0, said.id or cursor
                    if said.kind == "resync":
                        yield Resync(cursor)
                    else:
                        told = said.json
                        yield Event(told["id"], told["ts"], told["kind"], told["data"])
        except OakenError as error:
            wait = asked_wait(error)
            if not passing(error) or (wait or 0) > LONGEST_RETRY_AFTER:
                raise
        failures += 1
        await connection.pause(failures, wait)


async def rows(connection: Connection, query: Mapping[str, Any]) -> AsyncGenerator[Json]:
    """Each row of the trace as it comes, until the server ends the stream. Raises `Unavailable` where it is lost."""
    async with connection.stream("/v1/trace/stream", query) as parts, aclosing(messages(parts)) as stream:
        async for said in stream:
            yield said.json


class Message(NamedTuple):
    """One server-sent event."""

    id: str | None
    kind: str
    data: bytes

    @property
    def json(self) -> Json:
        try:
            return cast(Json, orjson.loads(self.data))
        except orjson.JSONDecodeError:
            raise OakenError(
                f"An event of the stream is no JSON: {self.data[:60]!r}. Is that an Oaken server?"
            ) from None


async def messages(parts: AsyncIterator[bytes]) -> AsyncGenerator[Message]:
    """The server-sent events of a stream that comes in parts. Raises `OakenError` for one without end."""
    rest = b""
    fields: dict[bytes, bytes] = {}
    async for part in parts:
        # Lines end with the bytes of a line feed alone: what else splits lines of a text may stand inside of JSON.
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name:
                fields[name] = value.removeprefix(b" ")
            elif b"data" in fields and not value:
                mark = fields.get(b"id")
                yield Message(
                    mark.decode() if mark is not None else None,
                    fields.get(b"event", b"message").decode(),
                    fields[b"data"],
                )
                fields = {}
        if len(rest) > MOST_BYTES:
            raise OakenError(f"An event of the stream has over {MOST_BYTES} bytes. Is that an Oaken server?")

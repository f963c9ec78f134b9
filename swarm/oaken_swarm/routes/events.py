"""What has happened: public events, as a stream (server-sent events) or by long poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

import orjson
from pydantic import Field

from oaken_jobs import views
from oaken_jobs.errors import Unauthenticated
from oaken_jobs.events.bus import Missed
from oaken_jobs.events.event import Event
from oaken_jobs.model import Json
from oaken_jobs.reading import Events
from oaken_jobs.requests import Request
from oaken_swarm.call import Answer, Call, ClientGone, Stream, answer
from oaken_swarm.paths import Route
from oaken_swarm.query import DEFAULT_LIMIT, Limit, QueryId, Wait, Words

HEARTBEAT_SECONDS = 15.0
"""Between two signs of life of a stream on which nothing happens: proxies close what is silent."""
PAGE = 500

EventKind = Annotated[str, Field(min_length=1, max_length=100)]
EventCursor = Annotated[str, Field(min_length=1, max_length=100)]


class StreamQuery(Request):
    """Of these kinds, of one job; after `after`, the id of an event, or after the header Last-Event-ID; else from now on."""

    kinds: Words[EventKind] = ()
    job_id: QueryId | None = None
    after: EventCursor | None = None


class EventsQuery(StreamQuery):
    """The same as a page, waiting up to `seconds` for the first."""

    limit: Limit = DEFAULT_LIMIT
    seconds: Wait = 30


async def wait(call: Call, asked: EventsQuery) -> Answer:
    page = await _page(call, asked, asked.after, asked.limit)
    if page.events or page.resync or asked.seconds <= 0:
        return _answer(page)
    waited = await call.wait(_page(call, asked, page.cursor, asked.limit, asked.seconds))
    if waited.gone:
        raise ClientGone
    await call.check_token()
    # A server that stops tells how things stand now.
    return _answer(waited.value if waited.done else await _page(call, asked, page.cursor, asked.limit))


def _answer(page: Events) -> Answer:
    events = [views.event(one) for one in page.events]
    return answer({"events": events, "cursor": page.cursor, "resync": page.resync})


async def _page(call: Call, asked: StreamQuery, after: str | None, limit: int, seconds: float = 0) -> Events:
    return await call.core.jobs.events(
        call.who, after=after, kinds=asked.kinds, job_id=asked.job_id, limit=limit, seconds=seconds
    )


async def stream(call: Call, asked: StreamQuery) -> Stream:
    after = call.last_event_id or asked.after
    begin = await _page(call, asked, after, 1)  # refused before anything is sent
    return Stream(_parts(call, asked, begin.cursor if after is None else after), call.ended)


async def _parts(call: Call, asked: StreamQuery, cursor: str) -> AsyncGenerator[bytes]:
    """Everything after the cursor: what the table has, then what happens. A client that was too slow for that gets from the table what
    it has missed, so that no gap is left."""
    core, kinds = call.core, asked.kinds or None
    yield b": oaken\n\n"
    with core.bus.stream(
        core.jobs.rules.stream_buffer, kinds, job_id=asked.job_id, workspace=call.who.workspace
    ) as live:
        await core.follower.ready()
        behind = True
        while True:
            while behind:
                page = await _page(call, asked, cursor, PAGE)
                if page.resync:
                    cursor = (await _page(call, asked, None, 1)).cursor
                    yield sse("resync", {"cursor": cursor}, cursor)
                    continue
                if page.events:
                    yield b"".join(_sse(one) for one in page.events)
                cursor, behind = page.cursor, len(page.events) == PAGE
            try:
                found = await asyncio.wait_for(live.take(), HEARTBEAT_SECONDS)
            except TimeoutError:
                found = None
            try:
                await call.check_token()
            except Unauthenticated:
                return
            if found is None:
                yield b":\n\n"
                continue
            if not found:
                return
            behind = isinstance(found[0], Missed)
            new = [one for one in found if isinstance(one, Event) and one.id > int(cursor)]
            if new and not behind:
                cursor = str(new[-1].id)
                yield b"".join(_sse(one) for one in new)


def _sse(happened: Event) -> bytes:
    return sse(happened.kind, views.event(happened), str(happened.id))


def sse(kind: str, data: Json, cursor: str | None = None) -> bytes:
    """One server-sent event."""
    mark = f"id: {cursor}\n".encode() if cursor is not None else b""
    return b"%bevent: %b\ndata: %b\n\n" % (mark, kind.encode(), orjson.dumps(data))


ROUTES = (
    Route(
        "GET",
        "/v1/events",
        stream,
        StreamQuery,
        needs="read",
        says="Follow what happens, as server-sent events",
        streams=True,
    ),
    Route(
        "GET",
        "/v1/events/wait",
        wait,
        EventsQuery,
        needs="read",
        says="Read what has happened, waiting for it if wanted",
        gives="Events",
    ),
)

"""Streams of events as the client reads them, from bytes that each test scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from oaken_jobs.errors import Forbidden, OakenError, Unavailable
from oaken_swarm import Event, Resync
from tests.unit.test_client import REFUSED, Server, ok, problem


def event(number: int, **data: Any) -> bytes:
    told = httpx2.Response(200, json={"id": str(number), "ts": "t", "kind": "job_progress", "data": data}).content
    return b"id: %d\nevent: job_progress\ndata: %b\n\n" % (number, told)


class Parts(httpx2.AsyncByteStream):
    """Bytes in parts; then the connection is lost, if so wanted."""

    def __init__(self, *parts: bytes, lost: bool = False) -> None:
        self.parts = parts
        self.lost = lost

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part
        if self.lost:
            raise httpx2.ReadError("lost")


def stream(*parts: bytes, lost: bool = False) -> httpx2.Response:
    return httpx2.Response(200, stream=Parts(*parts, lost=lost))


BEGIN = ok({"events": [], "cursor": "4", "resync": False})


async def read(server: Server, count: int, **options: Any) -> list[Event | Resync]:
    found: list[Event | Resync] = []
    async with server.client() as client:
        async for one in client.follow(**options):
            found.append(one)
            if len(found) == count:
                break
    return found


async def test_a_stream_is_taken_up_where_it_was_however_it_ended() -> None:
    server = Server(
        BEGIN,
        stream(event(5), event(6)[:20], lost=True),
        REFUSED,
        problem("unavailable", 503, {"Retry-After": "7"}),
        stream(b": oaken\n\n", event(6), event(7)),
        stream(event(8)),
    )
    told = await read(server, 4)
    assert [one.id for one in told if isinstance(one, Event)] == ["5", "6", "7", "8"]
    marks = [request.headers.get("Last-Event-ID") for request in server.requests]
    assert marks == [None, "4", "5", "5", "5", "7"]
    assert max(server.clock.slept) > 7


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_it_does_not_matter_how_the_bytes_come(size: int) -> None:
    said = b": oaken\r\n\r\n" + event(5, text="a\u2028b\x85c") + event(6).replace(b"\n", b"\r\n") + b":\n\n" + event(7)
    parts = [said[at : at + size] for at in range(0, len(said), size)]
    first, *others = await read(Server(BEGIN, stream(*parts)), 3)
    assert first == Event("5", "t", "job_progress", {"text": "a\u2028b\x85c"})
    assert [one.id for one in others if isinstance(one, Event)] == ["6", "7"]


async def test_what_was_forgotten_is_told_as_such_and_goes_on_behind_it() -> None:
    server = Server(BEGIN, stream(b'id: 90\nevent: resync\ndata: {"cursor": "90"}\n\n'), stream(event(91)))
    assert await read(server, 2, after="3") == [Resync("90"), Event("91", "t", "job_progress", {})]
    assert [request.headers.get("Last-Event-ID") for request in server.requests[1:]] == ["3", "90"]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((problem("forbidden", 403),), Forbidden),
        ((BEGIN, problem("forbidden", 403)), Forbidden),
        ((REFUSED,), Unavailable),
        ((BEGIN, problem("unavailable", 503, {"Retry-After": "3600"})), Unavailable),
        ((BEGIN, stream(b"data: <p>\n\n")), OakenError),
    ],
)
async def test_what_will_not_pass_is_raised(answers: tuple[Any, ...], error: type[OakenError]) -> None:
    with pytest.raises(error):
        await read(Server(*answers), 1)


async def test_the_trace_has_no_cursor_so_a_lost_stream_is_told() -> None:
    server = Server(stream(b'id: a\nevent: trace_row\ndata: {"id": "a"}\n\n', lost=True))
    async with server.client() as client:
        rows = client.follow_trace(job_id=5)
        assert await anext(rows) == {"id": "a"}
        with pytest.raises(Unavailable):
            await anext(rows)
    assert server.asked == [("GET", "/v1/trace/stream?job_id=5")]

"""What only admins read: the trace, who read it, and the log lines. Who may is decided by the core, which also writes down who tried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from pydantic import Field

from oaken_jobs import spans, views
from oaken_jobs.errors import InvalidRequest, Unauthenticated
from oaken_jobs.model import Json
from oaken_jobs.requests import Request
from oaken_swarm.call import Answer, Call, Stream, answer
from oaken_swarm.paths import Route
from oaken_swarm.query import DEFAULT_LIMIT, Limit, QueryId
from oaken_swarm.routes.events import HEARTBEAT_SECONDS, sse

Agent = Annotated[str, Field(min_length=1, max_length=200)]
Cursor = Annotated[str, Field(min_length=1, max_length=200)]


class TraceStreamQuery(Request):
    """Rows of one job, of one agent (`name`, or `name/instance`)."""

    job_id: QueryId | None = None
    agent: Agent | None = None


class TraceQuery(TraceStreamQuery):
    """The same as a page, newest first."""

    cursor: Cursor | None = None
    limit: Limit = DEFAULT_LIMIT


class AuditQuery(Request):
    """A page, newest first."""

    cursor: Cursor | None = None
    limit: Limit = DEFAULT_LIMIT


class LogsQuery(Request):
    """Lines of `level` or above: the newest first, on from `cursor`; or those after the line `after`, the oldest first."""

    level: Literal["debug", "info", "warning", "error"] = "debug"
    cursor: QueryId | None = None
    after: QueryId | None = None
    limit: Limit = DEFAULT_LIMIT


async def trace(call: Call, asked: TraceQuery) -> Answer:
    page = await call.core.traces.list(
        call.who, job_id=asked.job_id, agent=asked.agent, cursor=asked.cursor, limit=asked.limit
    )
    return answer({"rows": [_shown(row) for row in page.rows], "next_cursor": page.next_cursor})


async def trace_stream(call: Call, asked: TraceStreamQuery) -> Stream:
    rows = await call.core.traces.follow(call.who, job_id=asked.job_id, agent=asked.agent)
    return Stream(_parts(call, rows), call.ended)


async def _parts(call: Call, rows: AsyncGenerator[list[Json]]) -> AsyncGenerator[bytes]:
    yield b": oaken\n\n"
    coming = asyncio.ensure_future(anext(rows, None))
    try:
        while True:
            await asyncio.wait((coming,), timeout=HEARTBEAT_SECONDS)
            try:
                await call.check_token()
            except Unauthenticated:
                return
            if not coming.done():
                yield b":\n\n"
                continue
            found = coming.result()
            if found is None:
                return
            coming = asyncio.ensure_future(anext(rows, None))
            if found:
                yield b"".join(sse("trace_row", _shown(row), row["id"]) for row in found)
    finally:
        coming.cancel()
        await asyncio.wait((coming,))
        await rows.aclose()


def _shown(row: Json) -> Json:
    return {**row, "attributes": spans.attributes(row)}


async def audit(call: Call, asked: AuditQuery) -> Answer:
    page = await call.core.audits.list(call.who, cursor=asked.cursor, limit=asked.limit)
    return answer({"audit": [views.audit(row) for row in page.rows], "next_cursor": page.next_cursor})


async def logs(call: Call, asked: LogsQuery) -> Answer:
    if asked.cursor is not None and asked.after is not None:
        raise InvalidRequest("cursor and after: give one of them; cursor goes back in time, after forward.")
    rows = await call.core.logs.list(
        call.who, level=asked.level, before=asked.cursor, after=asked.after, limit=asked.limit
    )
    more = asked.after is None and len(rows) == asked.limit
    return answer({"logs": [views.log_line(row) for row in rows], "next_cursor": str(rows[-1].id) if more else None})


ROUTES = (
    Route(
        "GET",
        "/v1/trace",
        trace,
        TraceQuery,
        says="Read what models and agents were told and answered",
        gives="Trace",
    ),
    Route(
        "GET",
        "/v1/trace/stream",
        trace_stream,
        TraceStreamQuery,
        says="Follow the trace, as server-sent events",
        streams=True,
    ),
    Route(
        "GET",
        "/v1/audit",
        audit,
        AuditQuery,
        needs="administer",
        says="Read who did or read what is private",
        gives="Audit",
    ),
    Route("GET", "/v1/logs", logs, LogsQuery, needs="administer", says="Read log lines", gives="Logs"),
)

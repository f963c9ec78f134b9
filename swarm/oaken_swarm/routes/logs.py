"""Log lines, for admins."""

from __future__ import annotations

from typing import Literal

from oaken_jobs import views
from oaken_jobs.errors import InvalidRequest
from oaken_jobs.requests import Request
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route
from oaken_swarm.query import DEFAULT_LIMIT, Limit, QueryId


class LogsQuery(Request):
    """Lines of `level` or above: the newest first, on from `cursor`; or those after the line `after`, the oldest first."""

    level: Literal["debug", "info", "warning", "error"] = "debug"
    cursor: QueryId | None = None
    after: QueryId | None = None
    limit: Limit = DEFAULT_LIMIT


async def logs(call: Call, asked: LogsQuery) -> Answer:
    if asked.cursor is not None and asked.after is not None:
        raise InvalidRequest("cursor and after: give one of them; cursor goes back in time, after forward.")
    rows = await call.core.logs.list(
        call.who, level=asked.level, before=asked.cursor, after=asked.after, limit=asked.limit
    )
    more = asked.after is None and len(rows) == asked.limit
    return answer({"logs": [views.log_line(row) for row in rows], "next_cursor": str(rows[-1].id) if more else None})


ROUTES = (Route("GET", "/v1/logs", logs, LogsQuery, needs="administer"),)

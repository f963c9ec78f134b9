"""What has happened: public events, by long poll."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from oaken_jobs import views
from oaken_jobs.reading import Events
from oaken_jobs.requests import Request
from oaken_swarm.call import Answer, Call, ClientGone, answer
from oaken_swarm.paths import Route
from oaken_swarm.query import DEFAULT_LIMIT, Limit, QueryId, Wait, Words

EventKind = Annotated[str, Field(min_length=1, max_length=100)]


class EventsQuery(Request):
    """Events after `after`, the id of an event or a cursor; without it, from now on."""

    kinds: Words[EventKind] = ()
    job_id: QueryId | None = None
    after: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    limit: Limit = DEFAULT_LIMIT
    seconds: Wait = 30


async def wait(call: Call, asked: EventsQuery) -> Answer:
    page = await _page(call, asked, asked.after, 0)
    if page.events or page.resync or asked.seconds <= 0:
        return _answer(page)
    waited = await call.wait(_page(call, asked, page.cursor, asked.seconds))
    if waited.gone:
        raise ClientGone
    await call.check_token()
    # A server that stops tells how things stand now.
    return _answer(waited.value if waited.done else await _page(call, asked, page.cursor, 0))


async def _page(call: Call, asked: EventsQuery, after: str | None, seconds: float) -> Events:
    return await call.core.jobs.events(
        call.who, after=after, kinds=asked.kinds, job_id=asked.job_id, limit=asked.limit, seconds=seconds
    )


def _answer(page: Events) -> Answer:
    events = [views.event(one) for one in page.events]
    return answer({"events": events, "cursor": page.cursor, "resync": page.resync})


ROUTES = (Route("GET", "/v1/events/wait", wait, EventsQuery),)

"""What happens, as it happens."""

from __future__ import annotations

from oaken_jobs import views
from oaken_jobs.events.event import PUBLIC
from oaken_jobs.requests import Request
from oaken_swarm.call import Answer
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.query import QueryId, Words
from oaken_swarm.routes.events import EventKind

LATEST = 100


class EventsQuery(Request):
    """Of these kinds, of one job."""

    kinds: Words[EventKind] = ()
    job_id: QueryId | None = None


async def events(view: View, asked: EventsQuery) -> Answer:
    page = await view.core.jobs.latest_events(view.who, kinds=asked.kinds, job_id=asked.job_id, limit=LATEST)
    return view.render(
        "events.html",
        title="Events",
        cursor=page.cursor,
        events=[views.event(one) for one in page.events],
        job_id=asked.job_id,
        known=sorted(PUBLIC),
        most=LATEST,
        wanted=asked.kinds,
    )


PAGES = (Page("GET", "/events", events, EventsQuery, needs="read"),)

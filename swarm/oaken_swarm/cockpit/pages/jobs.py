"""The jobs there are, by everything the interface filters by."""

from __future__ import annotations

from typing import Any

from oaken_jobs import views
from oaken_jobs.model import STATES
from oaken_swarm.call import Answer, Stream
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.saying import Said
from oaken_swarm.routes.jobs import JobsQuery, filter_of, shown_read

GRADES = ("bad", "warn", "note", "ok")
FIELDS = tuple(name for name in JobsQuery.model_fields if name not in ("cursor", "limit", "full"))
"""What one filters by."""
MOMENTS = ("created_after", "created_before", "finished_after", "finished_before")
"""Those of them that are times."""


class JobsPage(Said, JobsQuery):
    """As the list of the interface."""


async def jobs(view: View, asked: JobsPage) -> Answer | Stream:
    return await view.render_soon("jobs.html", "Jobs", _found(view, asked))


async def _found(view: View, asked: JobsPage) -> dict[str, Any]:
    page = await view.core.jobs.list(view.who, filter_of(asked), cursor=asked.cursor, limit=asked.limit)
    said = said_of(asked)
    return {
        "filter": said,
        "filtered": any(value not in (None, (), False) for value in said.values()),
        "grades": GRADES,
        "jobs": await shown_read(view.call, page.jobs),
        "kinds": sorted({kind.name for kind in view.core.jobs.kinds(view.who)}),
        "next_cursor": page.next_cursor,
        "cursor": asked.cursor,
        "queues": sorted(view.core.jobs.rules.queues),
        "said": asked.said,
        "states": STATES,
    }


def said_of(asked: JobsQuery) -> dict[str, Any]:
    """A filter as its fields have it: moments as text."""
    said = {name: getattr(asked, name) for name in FIELDS}
    for name in MOMENTS:
        said[name] = views.iso(said[name])
    return said


PAGES = (Page("GET", "/jobs", jobs, JobsPage),)

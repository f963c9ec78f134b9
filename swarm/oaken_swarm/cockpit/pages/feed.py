"""What ended last, and how well."""

from __future__ import annotations

from typing import Any

from oaken_jobs.store.base import JobFilter
from oaken_swarm.call import Answer, Stream
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.pages.jobs import GRADES
from oaken_swarm.cockpit.saying import Said
from oaken_swarm.query import Words
from oaken_swarm.routes.jobs import Level, shown_read

LATEST = 60


class FeedQuery(Said):
    """Only these grades."""

    grade: Words[Level] = ()


async def feed(view: View, asked: FeedQuery) -> Answer | Stream:
    async def found() -> dict[str, Any]:
        rows = await view.core.jobs.ended(view.who, JobFilter(grades=tuple(asked.grade)), LATEST)
        return {"jobs": await shown_read(view.call, rows), "grades": GRADES, "wanted": asked.grade, "most": LATEST}

    return await view.render_soon("feed.html", "Feed", found())


PAGES = (Page("GET", "/feed", feed, FeedQuery),)

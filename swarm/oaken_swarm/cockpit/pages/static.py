"""Style and scripts, for everyone."""

from __future__ import annotations

from oaken_jobs.errors import NotFound
from oaken_jobs.redaction import clean
from oaken_jobs.requests import EmptyRequest
from oaken_swarm.call import Answer
from oaken_swarm.cockpit import assets
from oaken_swarm.cockpit.page import HEADERS, Page, View


async def static(view: View, asked: EmptyRequest) -> Answer:
    found = assets.files().get(view.params["name"])
    # Scripts name one another: those of another version would not fit.
    if found is None or view.params["version"] != assets.version():
        raise NotFound(f"There is no {clean(view.params['name'], 60)!r} of this version. Load the page again.")
    return Answer(found.body, 200, (assets.FOR_EVER, *HEADERS), found.media_type)


PAGES = (Page("GET", "/static/{version}/{name}", static, open=True),)

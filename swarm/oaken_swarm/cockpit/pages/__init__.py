"""The pages, one file each. Each lists its own in `PAGES`."""

from oaken_swarm.cockpit.page import Page
from oaken_swarm.cockpit.pages import (
    activity,
    agents,
    bulk,
    events,
    feed,
    jobs,
    login,
    overview,
    queues,
    schedules,
    static,
    tokens,
    trace,
)

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *jobs.PAGES,
    *bulk.PAGES,
    *activity.PAGES,
    *feed.PAGES,
    *agents.PAGES,
    *queues.PAGES,
    *schedules.PAGES,
    *events.PAGES,
    *trace.PAGES,
    *tokens.PAGES,
    *login.PAGES,
    *static.PAGES,
)

"""The routes, one file a group. Each lists its own in `ROUTES`."""

from oaken_swarm.paths import Route
from oaken_swarm.routes import (
    about,
    batch,
    events,
    health,
    interface,
    jobs,
    leases,
    private,
    queues,
    schedules,
    subjects,
    tokens,
)

ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES,
    *leases.ROUTES,
    *batch.ROUTES,
    *queues.ROUTES,
    *schedules.ROUTES,
    *subjects.ROUTES,
    *events.ROUTES,
    *private.ROUTES,
    *about.ROUTES,
    *tokens.ROUTES,
    *health.ROUTES,
    *interface.ROUTES,
)

"""What walks along an index have found, kept where walking costs too much.

While somebody holds a snapshot open, rows that were jobs stay in the indexes, and whoever looks for the first job that lives walks over all
of them: tens of milliseconds after two minutes at 500 jobs a second. Then what was found is used for a while that is many times as long
as the walk took. Until it is over, who looks may miss what another process put before the place where the walk ended: a job of another
lane, one that was due longer, a lease that was given by a transaction that took seconds. Nothing is kept of a walk that was short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from oaken_jobs.model import Job
from oaken_jobs.store.sql.lane import Filter, Lane, Place

LONG_MS = 2.0
"""A walk that takes the server longer is not made each time."""
REST = 10
"""A walk is made again when so many times as long as it took have passed: walking takes a tenth of the time at most."""
MARGIN_MS = 2000
"""So long before a walk something may have become due of which it could not see: its transaction was not committed yet."""
FORGET_MS = 60_000
"""How long a lane is remembered in which no job was found any more. The next one may come at any moment."""
MOST = 1000
"""Lanes, and sorts of walks, that are remembered."""


class _Kept(NamedTuple):
    found: Any
    until: float
    """By the clock."""


class Walks:
    """Of one store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds of real time: it is about how fast the server is."""
        self._clock = clock
        self._kept: dict[Hashable, _Kept] = {}
        """By what was looked for."""

    def lanes(self, filter: Filter) -> list[Lane] | None:
        """The lanes of a request as they were found a moment ago; None where it is time to look."""
        found = self._found(filter)
        return None if found is None else [Lane._make((*place, since)) for place, (since, _) in found.items()]

    def keep_lanes(self, filter: Filter, lanes: Iterable[Lane], ms: float, now: int) -> None:
        """Lanes were found by a walk of so many milliseconds. `now` is the store's time."""
        before = self._kept.get(filter)
        since = now - MARGIN_MS
        found: dict[Place, tuple[int, int]] = {lane[:-1]: (min(lane.since, since), now) for lane in lanes}
        if before is not None and len(found) < MOST:
            gone = {place: seen for place, (_, seen) in before.found.items() if place not in found}
            found |= {place: (since, seen) for place, seen in gone.items() if now - seen < FORGET_MS}
        self._keep(filter, found, ms)

    def runnable(self, jobs: Iterable[Job], now: int) -> None:
        """This process has made these jobs runnable: who looks at what is known shall not pass them over."""
        if not self._kept:
            return
        first: dict[Place, int] = {}  # there are many filters at times, and many jobs, but few lanes
        for job in jobs:
            place = (job.workspace, job.queue, job.kind, job.priority)
            first[place] = min(first.get(place, job.run_at), job.run_at)
        for filter, kept in self._kept.items():
            if isinstance(filter, Filter):
                for place, run_at in first.items():
                    if filter.takes(place):
                        since, _ = kept.found.get(place, (run_at, now))
                        kept.found[place] = (min(since, run_at), now)

    def nothing_due(self, now: int) -> int:
        """A time (ms) until which nothing has ended that was not dealt with; 0 where it is time to look from the beginning."""
        since: int = self._found("due") or 0
        return since if since < now else 0  # or the clock has gone back

    def keep_nothing_due(self, ms: float, now: int) -> None:
        """Of all that ends until now nothing was found."""
        self._keep("due", now - MARGIN_MS, ms)

    def next_expiry(self, now: int) -> tuple[int | None] | None:
        """When the next lease ends, None in a tuple where there is none; None where it is time to look."""
        found: tuple[int | None] | None = self._found("expiry")
        return None if found is None or (found[0] is not None and found[0] <= now) else found

    def keep_next_expiry(self, at: int | None, ms: float) -> None:
        self._keep("expiry", (at,), ms)

    def leased(self, until: int) -> None:
        """A lease was given."""
        kept = self._kept.get("expiry")
        if kept is not None and (kept.found[0] is None or until < kept.found[0]):
            self._kept["expiry"] = kept._replace(found=(until,))

    def forget(self) -> None:
        self._kept.clear()

    def _found(self, what: Hashable) -> Any:
        kept = self._kept.get(what)
        return kept.found if kept is not None and self._clock() < kept.until else None

    def _keep(self, what: Hashable, found: Any, ms: float) -> None:
        if ms < LONG_MS or len(self._kept) >= MOST:
            self._kept.pop(what, None)
            return
        # All sorts of walks together take that share of the time.
        self._kept[what] = _Kept(found, self._clock() + REST * ms / 1000 * (len(self._kept) + 1))

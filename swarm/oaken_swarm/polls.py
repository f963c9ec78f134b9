"""Lease requests that come back empty without waiting: an agent that asks in a tight loop is told to wait instead."""

from __future__ import annotations

from oaken_jobs.clock import Clock
from oaken_jobs.errors import RateLimited
from oaken_swarm.rates import Rate

EMPTY_POLLS = 100
EMPTY_POLL_SECONDS = 10
BRIEF_SECONDS = 0.5
"""Who waits for less asks in a loop."""


class Polls:
    """Counts them for each agent, `name` or `name/instance`; one that got a job starts anew."""

    def __init__(self, clock: Clock) -> None:
        self._empty = Rate(clock, EMPTY_POLLS, EMPTY_POLL_SECONDS)

    def check(self, agent: str, wait_seconds: float) -> None:
        """Raises `RateLimited` for a request that does not wait, after too many that brought nothing."""
        wait = self._empty.wait(agent) if wait_seconds < BRIEF_SECONDS else 0
        if wait:
            raise RateLimited(
                f"{agent} has asked over and over and got nothing. Ask again in {wait} s, or with wait_seconds, which is answered "
                "as soon as there is a job.",
                retry_after=wait,
            )

    def count(self, agent: str, wait_seconds: float, leases: int) -> None:
        """Says what a request brought."""
        if leases:
            self._empty.forgive(agent)
        elif wait_seconds < BRIEF_SECONDS:
            self._empty.add(agent)

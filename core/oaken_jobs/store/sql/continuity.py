"""Notices that the clock leases are judged by has jumped, or that this process stood still, before anything is judged by it: healthy
workers would lose their leases."""

from __future__ import annotations

from typing import NamedTuple

from oaken_jobs.clock import Clock

STALL_SECONDS = 6.0
"""A store that is written to every second and was not for so long stood still, with its whole process, or could not be reached."""
JUMP_MS = 2000
"""A clock that moved by so much more or less than time passed has jumped, or the machine has slept."""


class Break(NamedTuple):
    """How time has not gone on as it should."""

    what: str
    """For the log."""
    since: int | None
    """When this process stood still (ms); others may have gone on."""


class Continuity:
    """What one store has seen of time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._less_monotonic(clock.now())
        self._at = clock.monotonic()

    def broken(self, now: int, *, steady: bool) -> Break | None:
        """What has happened since it last went on. `steady`: somebody writes every second."""
        jump, silence = self._less_monotonic(now) - self._offset, self._clock.monotonic() - self._at
        if abs(jump) > JUMP_MS:
            return Break(f"the clock jumped by {jump / 1000:.0f} s", None)
        if steady and silence > STALL_SECONDS:
            return Break(f"stood still for {silence:.0f} s", now - round(silence * 1000))
        return None

    def went_on(self, now: int) -> None:
        """All is well at this moment."""
        self._offset = self._less_monotonic(now)
        self._at = self._clock.monotonic()

    def _less_monotonic(self, now: int) -> float:
        """Constant but for jumps, in milliseconds."""
        return now - self._clock.monotonic() * 1000

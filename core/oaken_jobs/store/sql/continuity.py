"""Notices that the clock leases are judged by has jumped, or that this process stood still, before anything is judged by it: healthy
workers would lose their leases."""

from __future__ import annotations

from oaken_jobs.clock import Clock

STALL_SECONDS = 6.0
"""A store that is written to every second and was not for so long stood still, with its whole process, or could not be reached."""
JUMP_MS = 2000
"""A clock that moved by so much more or less than time passed has jumped, or the machine has slept."""


class Continuity:
    """What one store has seen of time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._less_monotonic(clock.now())
        self._at = clock.monotonic()

    def broken(self, now: int, *, steady: bool) -> str | None:
        """What has happened since it last went on, for the log; None for nothing. `steady`: somebody writes every second."""
        jump, silence = self._less_monotonic(now) - self._offset, self.silence
        if abs(jump) > JUMP_MS:
            return f"the clock jumped by {jump / 1000:.0f} s"
        if steady and silence > STALL_SECONDS:
            return f"stood still for {silence:.0f} s"
        return None

    @property
    def silence(self) -> float:
        """Seconds since it last went on."""
        return self._clock.monotonic() - self._at

    def went_on(self, now: int) -> None:
        """All is well at this moment."""
        self._offset = self._less_monotonic(now)
        self._at = self._clock.monotonic()

    def _less_monotonic(self, now: int) -> float:
        """Constant but for jumps, in milliseconds."""
        return now - self._clock.monotonic() * 1000

"""The seam to the record of what models and agents were told and what they answered. Who writes to it need not know where it is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, Protocol

from oaken_jobs.kinds import Rules
from oaken_jobs.model import Job, Json, Leased, Principal
from oaken_jobs.moves import Finish


class End(NamedTuple):
    """A finish as it was asked for, and what became of it."""

    op: Finish
    job: Job | None
    """As it is now; None where it is not known."""
    refusal: str | None
    """The code of the refusal; None where it was accepted."""


class TracePage(NamedTuple):
    """Rows, newest first, and where to go on; None at the end."""

    rows: list[Json]
    next_cursor: str | None


def matches(row: Json, job_id: int | None, agent: str | None) -> bool:
    """Whether a row is of this job and of this agent, or an instance of that name; None for any."""
    found = str(row.get("agent", ""))
    return (job_id is None or row.get("job_id") == job_id) and (
        agent is None or found == agent or found.startswith(f"{agent}/")
    )


class Trace(Protocol):
    """A private record, written when it is `recording`. Writing never raises: what cannot be kept is counted and dropped."""

    recording: bool
    told: Callable[[Json], None]
    """Called with each row that is written; whoever composes a process sets it."""

    async def leased(self, who: Principal, leases: Sequence[Leased], rules: Rules) -> None:
        """What the caller is about to be told."""
        ...

    async def finished(self, who: Principal, ends: Sequence[End], rules: Rules) -> None:
        """What the caller answered."""
        ...

    async def said(self, who: Principal, job: Job, rows: Sequence[Json], rules: Rules) -> None:
        """What the holder of a job adds: fields of `TraceRow`."""
        ...

    async def read(self, *, job_id: int | None, agent: str | None, before: str | None, limit: int) -> TracePage:
        """Rows, newest first, from behind the row with the id `before`. Raises `Unavailable`."""
        ...

    def follow(self) -> AsyncGenerator[list[Json]]:
        """Rows as they are written by any process of this data folder or database, from now on. Raises `Unavailable`."""
        ...

    async def forget(self) -> None:
        """Drops what is older than it is kept, whether recording or not. Raises `Unavailable`."""
        ...

    async def stop(self) -> None:
        """Writes what is left, and takes nothing more."""
        ...

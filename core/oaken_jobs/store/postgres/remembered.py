"""Jobs as this process read or wrote them last, with the version that their rows had: a job that was just enqueued is claimed, one that was
just claimed is finished, and of each only the lock and the version go over the wire again.

A version is the number of the transaction that wrote the row (`xmin`). Whoever else writes it gives it another one, and what a
transaction that was rolled back had written never comes to be, so what is here is right wherever the version is.
"""

from __future__ import annotations

from typing import NamedTuple

from oaken_jobs.model import Job
from oaken_jobs.store.sql.cache import JOBS, PAYLOAD_CHARACTERS


class Entry(NamedTuple):
    version: int
    job: Job
    payload: str | None
    """None where it is too long to be kept, or was not at hand."""


class Remembered:
    """What one store remembers; emptied when it is full."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def get(self, job_id: int) -> Entry | None:
        return self._entries.get(job_id)

    def keep(self, version: int, job: Job, payload: str | None = None) -> None:
        """A job as it is in a row of that version. Its payload is only replaced together with its row."""
        if job.final:
            self._entries.pop(job.id, None)
            return
        if len(self._entries) >= JOBS:
            self._entries.clear()
        short = payload is not None and len(payload) <= PAYLOAD_CHARACTERS
        self._entries[job.id] = Entry(version, job, payload if short else None)

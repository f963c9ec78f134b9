"""Rows that this process wrote last, kept for the next transaction: a job that was just enqueued is claimed, one that was just claimed
is finished, and neither is read again.

Right only as long as nobody else has committed, which SQLite's `data_version` tells inside each write transaction; otherwise it is
emptied first. Holds nothing that is not committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from oaken_jobs.model import Job

JOBS = 4096
PAYLOAD_CHARACTERS = 2048
"""Longer payloads are read again; together this bounds what is held to some 20 MB."""


class RowCache:
    """Live jobs as last committed, and the payloads of those that are queued."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.payloads: dict[int, str] = {}
        self._version: int | None = None

    def valid_for(self, data_version: int) -> bool:
        """Whether nobody else has committed since the last call; empties it if somebody has."""
        if data_version == self._version:
            return True
        self.clear()
        self._version = data_version
        return False

    def clear(self) -> None:
        self.jobs.clear()
        self.payloads.clear()

    def committed(self, jobs: Mapping[int, Job], payloads: Mapping[int, str]) -> None:
        """Takes over what a transaction knew when it was committed."""
        if len(self.jobs) + len(jobs) > JOBS:
            self.clear()
        for job_id, job in jobs.items():
            if job.state in ("queued", "running"):
                self.jobs[job_id] = job
            else:
                self.jobs.pop(job_id, None)
            if job.state != "queued":
                self.payloads.pop(job_id, None)
        for job_id, body in payloads.items():
            if len(body) <= PAYLOAD_CHARACTERS:
                self.payloads[job_id] = body
            else:
                self.payloads.pop(job_id, None)  # a shorter one may have been replaced by it

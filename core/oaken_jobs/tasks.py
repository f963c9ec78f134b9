"""Tasks: jobs under an id that only their caller knows, which asks by it later for what its call would have answered.

Only the handle is kept. How a task stands is read off its jobs, each time and in any process.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from oaken_jobs import auth
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.errors import Forbidden, NotFound
from oaken_jobs.model import Job, Json, Principal
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import TASK_MS, AddTask, Cancel

_BYTES = 24
_ID = re.compile(r"[A-Za-z0-9_-]{32}", re.ASCII)


class Task(NamedTuple):
    """A task as it stands. Times in milliseconds."""

    id: str
    job_ids: tuple[int, ...]
    said: Json
    """What its answer says whatever becomes of the jobs."""
    created_at: int
    changed_at: int
    jobs: list[Job]
    """By id, without those that are forgotten; at least one."""

    @property
    def ended(self) -> bool:
        """Whether all its jobs are final. Their requeue begins it anew."""
        return all(job.final for job in self.jobs)

    @property
    def expires_at(self) -> int | None:
        """When it is forgotten: a day after the last of its jobs ended. None before that."""
        return max(job.finished_at or 0 for job in self.jobs) + TASK_MS if self.ended else None


class Tasks:
    """Every method takes the caller first. To all but the one who made it there is no such task."""

    def __init__(self, store: Store, commit: Committer, clock: Clock) -> None:
        self._store = store
        self._commit = commit
        self._clock = clock

    async def add(self, who: Principal, job_ids: Sequence[int], said: Json) -> Task:
        """A task of jobs that the caller may see. `said` is kept for its answer."""
        task_id = secrets.token_urlsafe(_BYTES)
        text = orjson.dumps(said).decode()
        await self._commit.call(AddTask(task_id, who.actor, tuple(job_ids), text, who.workspace))
        return await self.get(who, task_id)

    async def get(self, who: Principal, task_id: str) -> Task:
        """Raises `NotFound`, with one message whether it is not known, another's, or forgotten."""
        row = await self._store.task(task_id) if _ID.fullmatch(task_id) else None
        owner = (who.actor.kind, who.actor.id, who.workspace)
        if row is not None and (row.actor_kind, row.actor_id, row.workspace) == owner:
            jobs = await self._store.jobs(row.job_ids)
            if jobs:
                task = Task(row.id, row.job_ids, orjson.loads(row.said), row.created_at, row.changed_at, jobs)
                if task.expires_at is None or task.expires_at > self._clock.now():
                    return task
        raise NotFound("There is no such task, or not any more: it is forgotten a day after its jobs ended.")

    async def cancel(self, who: Principal, task_id: str) -> None:
        """Cancels those of its jobs that the caller enqueued; one that it only found there, under the same key, goes on for whom
        it was meant. Raises `NotFound`, and `Forbidden` where none may be cancelled."""
        live = [job for job in (await self.get(who, task_id)).jobs if not job.final]
        if not live:
            return
        auth.require(who, "manage")
        own = [job for job in live if (job.actor_kind, job.actor_id) == who.actor[:2]]
        if not own:
            raise Forbidden(
                f"Job {live[0].id} was enqueued by {live[0].actor_id} and goes on. Cancel it by its id if that is meant.",
                job_id=live[0].id,
            )
        for reply in await self._commit.call_all([Cancel(job.id, who.actor, who.workspace) for job in own]):
            if isinstance(reply, BaseException) and not isinstance(reply, NotFound):
                raise reply

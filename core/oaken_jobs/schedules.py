"""Schedules: jobs that come by the clock. What callers may do with them, and when each runs next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oaken_jobs import auth, cron, payloads
from oaken_jobs.commit import Committer
from oaken_jobs.errors import NotFound
from oaken_jobs.kinds import Rules
from oaken_jobs.model import SYSTEM, Enqueued, Job, Principal, Schedule
from oaken_jobs.requests import ScheduleRequest
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import FireOne, PutSchedule, RemoveSchedule

PRIORITY = 50


class Put(NamedTuple):
    """A schedule as it stands, and whether the call changed anything."""

    schedule: Schedule
    changed: bool


def checked(rules: Rules, who: Principal, name: str, request: ScheduleRequest, owner: str | None = None) -> Schedule:
    """The schedule that a caller asks for. Raises `InvalidRequest`, and what its payload is refused with."""
    rules.require_queue(request.queue)
    text, _ = payloads.checked(rules, request.kind, request.payload)
    if request.timezone is not None:
        cron.zone(request.timezone)
    return Schedule(
        workspace=auth.workspace_of(who, request.workspace),
        name=name,
        queue=request.queue,
        kind=request.kind,
        payload=text,
        priority=request.priority if request.priority is not None else PRIORITY,
        every_ms=round(request.every_seconds * 1000) if request.every_seconds is not None else None,
        cron=cron.parse(request.cron) if request.cron is not None else None,
        timezone=request.timezone,
        owner=owner,
        actor_kind=who.actor.kind,
        actor_id=who.actor.id,
        actor_via=who.actor.via,
    )


class Schedules:
    """What callers may do with schedules. Every method takes the caller first."""

    def __init__(self, store: Store, commit: Committer) -> None:
        self._store = store
        self._commit = commit

    @property
    def _rules(self) -> Rules:
        return self._store.rules

    async def list(self, who: Principal, workspace: str | None = None) -> Sequence[Schedule]:
        """By name. A caller that is bound to a workspace sees its own."""
        auth.require(who, "read")
        if who.workspace is not None:
            workspace = auth.workspace_of(who, workspace)
        return await self._store.schedules(workspace)

    async def get(self, who: Principal, name: str, workspace: str | None = None) -> Schedule:
        """One of them. Raises `NotFound`."""
        auth.require(who, "read")
        workspace = auth.workspace_of(who, workspace)
        found = [one for one in await self._store.schedules(workspace) if one.name == name]
        if not found:
            raise NotFound(f"There is no schedule {name!r} in the workspace {workspace}. See the list of schedules.")
        return found[0]

    async def put(self, who: Principal, name: str, request: ScheduleRequest, *, owner: str | None = None) -> Put:
        """Adds a schedule, or changes the one of that name. One that says the same keeps its next run."""
        auth.require(who, "manage")
        schedule = checked(self._rules, who, name, request, owner)
        put, changed = await self._commit.call(PutSchedule(schedule, who.actor))
        return Put(put, changed)

    async def remove(self, who: Principal, name: str, workspace: str | None = None) -> None:
        """Removes it; jobs that it has enqueued stay. Raises `NotFound`."""
        auth.require(who, "manage")
        await self._commit.call(RemoveSchedule(auth.workspace_of(who, workspace), name, who.actor))

    async def keep_owned(self, owners: Mapping[Principal, Mapping[str, ScheduleRequest]]) -> None:
        """Makes the schedules that have an owner these and no others; each owner's go by its principal's name. One that says the
        same keeps its next run."""
        wanted = {(who.name, name) for who, requests in owners.items() for name in requests}
        for old in await self._store.schedules():
            if old.owner is not None and (old.owner, old.name) not in wanted:
                try:
                    await self._commit.call(RemoveSchedule(old.workspace, old.name, SYSTEM))
                except NotFound:
                    pass  # another process that starts has removed it
        for who, requests in owners.items():
            for name, request in requests.items():
                await self.put(who, name, request, owner=who.name)

    async def run(self, who: Principal, name: str, workspace: str | None = None) -> Job:
        """Enqueues its job now, besides its times; its next run stays. Raises `NotFound`."""
        auth.require(who, "manage")
        enqueued: Enqueued = await self._commit.call(FireOne(auth.workspace_of(who, workspace), name, who.actor))
        return enqueued.job

"""The reading half of `Store`, alike on both engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from oaken_jobs.kinds import Rules
from oaken_jobs.model import Activity, AgentRow, Attempt, Job, LogRow, ProgressRow, Question, Schedule
from oaken_jobs.store.base import (
    EVERYTHING,
    ActivityFilter,
    AuditRow,
    Counts,
    Depth,
    Document,
    Finishes,
    HealthRow,
    JobFilter,
    Leases,
    Surroundings,
    TaskRow,
    Waiting,
)
from oaken_jobs.store.operations import ProcessRow, SessionRow, TokenRow
from oaken_jobs.store.sql import backlog, finishes, prune, reads, schedules, sessions
from oaken_jobs.store.sql.database import Database

P = ParamSpec("P")
T = TypeVar("T")


class Reading(ABC):
    """Answers each question of `Store` with one function of `reads`, on a connection that an engine gives."""

    rules: Rules

    @abstractmethod
    async def _find(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what is found by a key, and does not wait behind lists and counts. Raises `Unavailable`."""

    @abstractmethod
    async def _read(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what may take a while. Raises `Unavailable`."""

    async def jobs(self, ids: Sequence[int]) -> list[Job]:
        return await self._find(reads.jobs, ids)

    async def payloads(self, ids: Sequence[int]) -> dict[int, str]:
        return await self._read(reads.bodies, "payloads", ids)

    async def results(self, ids: Sequence[int]) -> dict[int, str]:
        return await self._read(reads.bodies, "results", ids)

    async def list_jobs(self, where: JobFilter, before: int | None, limit: int) -> list[Job]:
        return await self._read(reads.list_jobs, where, before, limit)

    async def attempts(self, job_id: int) -> list[Attempt]:
        return await self._find(reads.attempts, job_id)

    async def progress(self, job_id: int, limit: int = 200) -> list[ProgressRow]:
        return await self._find(reads.progress, job_id, limit)

    async def activity(self, after: int, limit: int, where: ActivityFilter = EVERYTHING) -> list[Activity]:
        return await self._find(reads.activity, after, limit, where)

    async def latest_activity(self, limit: int, where: ActivityFilter = EVERYTHING) -> list[Activity]:
        return await self._read(reads.latest_activity, limit, where)

    async def old_activity(self, after: int, before: int, replayable: int, limit: int) -> list[int]:
        return await self._read(prune.old_activity, after, before, replayable, limit)

    async def activity_behind(self, newest: int) -> int:
        return await self._find(reads.activity_behind, newest)

    async def activity_forgotten(self) -> int:
        return await self._find(reads.activity_forgotten)

    async def activity_of(self, job_id: int, limit: int = 1000, *, reports: bool = True) -> list[Activity]:
        return await self._find(reads.activity_of, job_id, limit, reports)

    async def log_lines(self, levels: Sequence[str], before: int | None, after: int | None, limit: int) -> list[LogRow]:
        return await self._read(reads.log_lines, levels, before, after, limit)

    async def activity_head(self) -> int:
        return await self._find(reads.activity_head)

    async def concerns(self, job_id: int, principal: str) -> bool:
        return await self._find(reads.concerns, job_id, principal)

    async def held(self, holder: str) -> list[Job]:
        return await self._read(reads.held, holder)

    async def ended(self, where: JobFilter, limit: int) -> list[Job]:
        return await self._read(reads.ended, where, limit)

    async def late_result(self, job_id: int, epoch: int) -> str | None:
        return await self._find(reads.late_result, job_id, epoch)

    async def matching(self, where: JobFilter, after: int, up_to: int, limit: int) -> list[int]:
        return await self._read(reads.matching, where, after, up_to, limit)

    async def count(self, where: JobFilter, after: int, up_to: int) -> int:
        return await self._read(reads.count, where, after, up_to)

    async def last_id(self) -> int:
        return await self._find(reads.last_id)

    async def surroundings(self, jobs: Sequence[Job], now: int) -> Surroundings:
        return await self._find(reads.surroundings, jobs, self.rules.caps, now)

    async def questions(self, job_id: int) -> list[Question]:
        return await self._find(reads.questions, job_id)

    async def open_questions(self, where: JobFilter, limit: int) -> list[Question]:
        return await self._read(reads.open_questions, where, limit)

    async def counts(self, workspace: str | None = None) -> list[Counts]:
        return await self._read(reads.counts, workspace)

    async def backlog(self, where: JobFilter, now: int) -> list[Waiting]:
        return await self._read(backlog.backlog, where, now)

    async def finishes(self, since: int, workspace: str | None = None) -> list[Finishes]:
        return await self._read(finishes.finishes, since, workspace)

    async def session(self, digest: str) -> SessionRow | None:
        return await self._find(sessions.session, digest)

    async def sessions(self) -> list[SessionRow]:
        return await self._read(sessions.sessions)

    async def states(self, where: JobFilter) -> dict[str, int]:
        return await self._read(reads.states, where)

    async def depths(self, now: int) -> list[Depth]:
        return await self._read(reads.depths, now)

    async def paused(self) -> set[str]:
        return await self._find(reads.paused)

    async def agents(self, workspace: str | None = None) -> list[AgentRow]:
        return await self._read(reads.agents, workspace)

    async def leased_kinds(self) -> set[str]:
        return set(await self._find(reads.leased_kinds))

    async def labels(self, workspace: str, subject: str) -> dict[str, dict[str, str]]:
        return await self._find(reads.labels, workspace, subject)

    async def tokens(self) -> list[TokenRow]:
        return await self._find(reads.tokens)

    async def leases_of(self, holder: str, now: int) -> Leases:
        return await self._find(reads.leases_of, holder, now)

    async def audit(self, before: int | None, limit: int) -> list[AuditRow]:
        return await self._read(reads.audit, before, limit)

    async def schedules(self, workspace: str | None = None) -> list[Schedule]:
        return await self._read(reads.schedules, workspace)

    async def next_schedule(self) -> int | None:
        return await self._find(reads.next_schedule)

    async def schedules_ahead(self, now: int) -> bool:
        return bool(await self._find(schedules.ahead, now))

    async def task(self, task_id: str) -> TaskRow | None:
        return await self._find(reads.task, task_id)

    async def documents(self, workspace: str, ids: Sequence[str]) -> list[Document]:
        return await self._read(reads.documents, workspace, ids)

    async def vectors(self, workspace: str, model: str | None = None) -> list[tuple[str, str, list[float]]]:
        return await self._read(reads.vectors, workspace, model)

    async def processes(self) -> list[ProcessRow]:
        return await self._read(reads.processes)

    async def plugin_health(self) -> list[HealthRow]:
        return await self._find(reads.plugin_health)

    async def check(self) -> list[str]:
        return await self._read(reads.check)

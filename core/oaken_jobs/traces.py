"""Reading the trace: for admins, and never without an audit row."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from oaken_jobs import auth
from oaken_jobs.audit import Audits
from oaken_jobs.errors import Forbidden, InvalidRequest
from oaken_jobs.model import Json, Principal
from oaken_jobs.redaction import clean
from oaken_jobs.store.operations import Audit
from oaken_jobs.tracing import Trace, TracePage, matches

MAX_ROWS = 100
_ROW_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_AGENT = re.compile(r"[A-Za-z0-9._@:-]{1,64}(/[A-Za-z0-9._@:-]{1,128})?", re.ASCII)


class Traces:
    """What callers may do with the trace."""

    def __init__(self, trace: Trace | None, audits: Audits) -> None:
        self._trace = trace
        self._audits = audits

    async def list(
        self,
        who: Principal,
        *,
        job_id: int | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: int = MAX_ROWS,
    ) -> TracePage:
        """A page of at most `limit` rows, newest first, of a job or an agent (`name` for all its instances). Raises `Forbidden` unless the
        caller is an admin, `InvalidRequest` for an agent or a cursor that cannot be one, `Unavailable`."""
        row = await self._asked(who, "trace.read", job_id, agent, cursor)
        page = TracePage([], None)
        if self._trace is not None:
            page = await self._trace.read(job_id=job_id, agent=agent, before=cursor, limit=min(limit, MAX_ROWS))
        row.outcome, row.rows = "allowed", len(page.rows)
        await self._audits.add(row)  # before anything is shown
        return page

    async def follow(
        self, who: Principal, *, job_id: int | None = None, agent: str | None = None
    ) -> AsyncGenerator[list[Json]]:
        """Rows as they come, of a job or an agent; raises as `list`. The audit row is written when it begins."""
        row = await self._asked(who, "trace.stream", job_id, agent)
        row.outcome, row.rows = "allowed", 0
        await self._audits.add(row)
        return self._matching(job_id, agent)

    async def _matching(self, job_id: int | None, agent: str | None) -> AsyncGenerator[list[Json]]:
        if self._trace is not None:
            async for rows in self._trace.follow():
                yield [row for row in rows if matches(row, job_id, agent)]

    async def _asked(
        self, who: Principal, action: str, job_id: int | None, agent: str | None, cursor: str | None = None
    ) -> Audit:
        """The audit row of a call that may be; one that is refused is written down first, without what cannot be an agent."""
        sound = agent is None or _AGENT.fullmatch(agent) is not None
        row = Audit(who.actor, action, "refused", job_id, agent if sound else None)
        try:
            auth.require(who, "administer")
            if not sound:
                raise InvalidRequest(
                    f"agent {clean(str(agent)[:60])!r} cannot be an agent; give `name` or `name/instance`."
                )
            if cursor is not None and not _ROW_ID.fullmatch(cursor):
                raise InvalidRequest("cursor: it is not one of ours. Start again without a cursor.")
        except (Forbidden, InvalidRequest):
            await self._audits.add(row)
            raise
        return row

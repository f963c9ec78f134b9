"""Who read what is private, or tried to: rows of ids and numbers, kept longer than what they are about."""

from __future__ import annotations

from oaken_jobs import auth
from oaken_jobs.commit import Committer
from oaken_jobs.model import Principal
from oaken_jobs.reading import cursor_of, mark_of, read_cursor
from oaken_jobs.store.base import AuditPage, Store
from oaken_jobs.store.operations import Audit

_MARK = mark_of("audit")


class Audits:
    """Writes and lists the audit rows."""

    def __init__(self, store: Store, commit: Committer) -> None:
        self._store = store
        self._commit = commit

    async def add(self, row: Audit) -> None:
        """Writes a row, durably."""
        await self._commit.call(row)

    async def list(self, who: Principal, *, cursor: str | None = None, limit: int = 50) -> AuditPage:
        """A page of rows, newest first. Raises `Forbidden` unless the caller is an admin."""
        auth.require(who, "administer")
        before = read_cursor(cursor, _MARK, 1)[0] if cursor is not None else None
        rows = await self._store.audit(before, limit + 1)
        more = len(rows) > limit
        rows = rows[:limit]
        return AuditPage(rows, cursor_of(_MARK, rows[-1].id) if more else None)

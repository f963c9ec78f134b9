"""Calls that come again under the same idempotency key: they are carried out once, and a repeat gets the first answer.

For calls that do not keep their answer in their own transaction, as enqueue and lease do. A process that dies between the two leaves a
key that began and did not end; whether such a call may simply be made again is its caller's to know.
"""

from __future__ import annotations

from typing import Any

from oaken_jobs.commit import Committer
from oaken_jobs.errors import Conflict
from oaken_jobs.leasing import once
from oaken_jobs.model import Principal
from oaken_jobs.store.operations import Begin, Once, Settle

MAX_KEPT = 256 << 10
"""The longest answer that is kept, in characters."""
UNKNOWN = ""


class Repeats:
    """Remembers answers by key."""

    def __init__(self, commit: Committer) -> None:
        self._commit = commit

    async def begin(self, who: Principal, key: str, *request: Any, again: bool) -> tuple[Once, str | None]:
        """The mark of a call, and its first answer if it was made before.

        `again` says that a call of which it is not known how it ended may be made again. Raises `IdempotencyConflict` for another request
        under the key, `Conflict` for a call that began and must not be made again.
        """
        mark = once(who, key, *request)
        kept: str | None = await self._commit.call(Begin(mark))
        if kept == UNKNOWN:
            if not again:
                raise Conflict(
                    f"A call under the idempotency key {key!r} has begun and not ended. If it is still under way, ask again in a moment; "
                    "otherwise it is not known whether it was carried out: look, then call under a new key.",
                    retry_after=1,
                )
            kept = None
        return mark, kept

    async def ended(self, mark: Once, answer: str) -> None:
        """Keeps the answer. One that is too long is not kept: it stays known that the call began."""
        if len(answer) <= MAX_KEPT:
            await self._commit.call(Settle(mark, answer))

    async def refused(self, mark: Once) -> None:
        """The call changed nothing; the key is free again."""
        await self._commit.call(Settle(mark, None))

"""Idempotency keys: the first answer to a request, kept for a day in the transaction that carried it out."""

from __future__ import annotations

from oaken_jobs.errors import IdempotencyConflict
from oaken_jobs.store.operations import IDEMPOTENT_MS, Begin, Once, Settle
from oaken_jobs.store.sql.unit import Unit

_KEY = ("holder", "key")
_COLUMNS = (*_KEY, "hash", "at", "answer")
_FORGET = (
    "delete from idempotency where (holder, key) in "
    "(select holder, key from idempotency where at <= ?1 order by at limit ?2 for update skip locked)"
)


def recall(unit: Unit, once: Once) -> str | None:
    """The answer that was kept under this key; None where there is none. Raises `IdempotencyConflict` for another request."""
    row = unit.db.one(
        "select hash, answer from idempotency where holder = ?1 and key = ?2 and at > ?3",
        once.holder,
        once.key,
        unit.now - IDEMPOTENT_MS,
    )
    if row is None:
        return None
    if row[0] != once.hash:
        raise IdempotencyConflict(
            f"The idempotency key {once.key!r} was used for another request within the last 24 hours. Use a new key for each new "
            "request, and the same one only to repeat it unchanged."
        )
    return row[1]


def remember(unit: Unit, once: Once, answer: str) -> None:
    """Keeps an answer, at once, so that a repeat in the same group finds it."""
    unit.db.replace("idempotency", _KEY, _COLUMNS, [(once.holder, once.key, once.hash, unit.now, answer)])


def begin(unit: Unit, op: Begin) -> str | None:
    """As `Begin` says."""
    kept = recall(unit, op.once)
    if kept is None:
        remember(unit, op.once, "")
    return kept


def settle(unit: Unit, op: Settle) -> None:
    """As `Settle` says."""
    if op.answer is not None:
        remember(unit, op.once, op.answer)
    else:
        unit.db.run("delete from idempotency where holder = ?1 and key = ?2", op.once.holder, op.once.key)


def forget(unit: Unit, limit: int) -> int:
    """Drops keys that are older than a day, at most `limit`; how many."""
    return unit.db.run(_FORGET, unit.now - IDEMPOTENT_MS, limit)

"""Idempotency keys: the first answer to a request, kept for a day in the transaction that carried it out."""

from __future__ import annotations

from oaken_jobs.errors import IdempotencyConflict
from oaken_jobs.store.base import IDEMPOTENT_MS, Begin, Once, Settle
from oaken_jobs.store.sqlite.unit import Unit


def recall(unit: Unit, once: Once) -> str | None:
    """The answer that was kept under this key; None where there is none. Raises `IdempotencyConflict` for another request."""
    row = unit.db.execute(
        "select hash, answer from idempotency where holder = ? and key = ? and at > ?",
        (once.holder, once.key, unit.now - IDEMPOTENT_MS),
    ).fetchone()
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
    unit.db.execute(
        "insert or replace into idempotency values (?, ?, ?, ?, ?)",
        (once.holder, once.key, once.hash, unit.now, answer),
    )


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
        unit.db.execute("delete from idempotency where holder = ? and key = ?", (op.once.holder, op.once.key))


def forget(unit: Unit, limit: int) -> int:
    """Drops keys that are older than a day, at most `limit`; how many."""
    done = unit.db.execute(
        "delete from idempotency where (holder, key) in (select holder, key from idempotency where at <= ? limit ?)",
        (unit.now - IDEMPOTENT_MS, limit),
    )
    return done.rowcount

"""Rows that belong to no single job: queues, tokens, agents, processes, and what finishes leave behind."""

from __future__ import annotations

import orjson

from oaken_jobs.errors import Conflict
from oaken_jobs.model import KeepDocument, KeepSource, KeepVector, SetLabels
from oaken_jobs.store.base import (
    AddToken,
    KeepLabels,
    ProcessRow,
    Recover,
    Register,
    Reply,
    SeeAgents,
    SetPaused,
    TokenRow,
    Unregister,
)
from oaken_jobs.store.sqlite.schema import LIVING_MS
from oaken_jobs.store.sqlite.unit import Unit

Administration = SetPaused | KeepLabels | Recover | AddToken | SeeAgents | Register | Unregister
Kept = KeepDocument | KeepSource | KeepVector | SetLabels


def administer(unit: Unit, op: Administration) -> Reply:
    """Carries out what concerns no single job. Raises `Conflict` for a token's name that was used before."""
    db, now = unit.db, unit.now
    if isinstance(op, SetPaused):
        row = db.execute("select paused from queue_state where queue = ?", (op.queue,)).fetchone()
        if bool(row and row[0]) == op.paused:
            return False
        db.execute(
            "insert into queue_state values (?1, ?2, ?3) on conflict do update set paused = ?2, at = ?3",
            (op.queue, int(op.paused), now),
        )
        unit.note_other("queue_state_changed", "pause" if op.paused else "resume", op.queue, op.actor)
        unit.all_touched |= not op.paused
        return True
    if isinstance(op, KeepLabels):
        _label(unit, op.labels)
        return None
    if isinstance(op, Recover):
        done = db.execute(
            "update jobs set lease_expires = max(?1 + ?2, min(lease_expires, ?1 + lease_ms)) where state = 'running'",
            (now, op.grace_ms),
        )
        unit.forget()
        return done.rowcount
    if isinstance(op, AddToken):
        return _add_token(unit, op)
    if isinstance(op, SeeAgents):
        db.executemany(
            "insert into agents values (?1, ?2, ?3, ?3, ?4, ?5, ?6) on conflict do update set last_seen = max(last_seen, ?3), "
            "leased = leased + ?4, succeeded = succeeded + ?5, failed = failed + ?6",
            op.agents,
        )
        return None
    if isinstance(op, Register):
        db.execute("delete from processes where seen_at <= ?", (now - LIVING_MS,))
        db.execute(
            "insert into processes values (?, ?, ?, ?, ?, ?, ?) on conflict do update set seen_at = excluded.seen_at",
            op.row,
        )
        return [ProcessRow._make(row) for row in db.execute("select * from processes").fetchall()]
    assert isinstance(op, Unregister)
    db.execute("delete from processes where process = ?", (op.process,))
    return None


def _add_token(unit: Unit, op: AddToken) -> TokenRow:
    if unit.db.execute("select 1 from tokens where name = ?", (op.name,)).fetchone():
        raise Conflict(f"A token named {op.name} exists or existed; a name is never used again. Choose another name.")
    row = TokenRow(op.name, op.kind, ",".join(op.roles), op.hash, unit.now, op.expires_at, None)
    unit.db.execute("insert into tokens values (?, ?, ?, ?, ?, ?, ?)", row)
    unit.note_other("token_changed", "create", op.name, op.actor)
    return row


def keep(unit: Unit, effect: Kept) -> None:
    """Writes what a finish leaves behind."""
    db, now = unit.db, unit.now
    if isinstance(effect, KeepDocument):
        db.execute(
            "insert into documents values (?, ?, ?, ?, ?) on conflict do nothing",
            (effect.document, effect.title, len(effect.text), effect.text, now),
        )
    elif isinstance(effect, KeepSource):
        db.execute(
            "insert into document_sources values (?, ?, ?) on conflict do nothing",
            (effect.document, effect.source, now),
        )
    elif isinstance(effect, KeepVector):
        db.execute(
            "insert into embeddings values (?1, ?2, ?3, ?4) on conflict do update set vector = ?3, at = ?4",
            (effect.subject, effect.model, orjson.dumps(effect.vector).decode(), now),
        )
    else:
        _label(unit, effect)


def stored(unit: Unit, document: str) -> bool:
    """Whether the document is stored."""
    return unit.db.execute("select 1 from documents where document = ?", (document,)).fetchone() is not None


def _label(unit: Unit, labels: SetLabels) -> None:
    for key, value in labels.labels.items():
        if value:
            unit.db.execute(
                "insert into labels values (?1, ?2, ?3, ?4, ?5) on conflict do update set value = ?4, at = ?5",
                (labels.subject, labels.layer, key, value, unit.now),
            )
        else:
            unit.db.execute(
                "delete from labels where subject = ? and layer = ? and key = ?",
                (labels.subject, labels.layer, key),
            )

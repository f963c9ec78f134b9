"""Browsers that are logged in, and the codes by which they are without a token."""

from __future__ import annotations

from collections.abc import Sequence

from oaken_jobs.errors import NotFound
from oaken_jobs.model import Actor
from oaken_jobs.store.operations import AddCode, AddSession, Audit, EndSession, Reply, SeeSession, SessionRow, UseCode
from oaken_jobs.store.sql.database import Database, Row
from oaken_jobs.store.sql.records import audit
from oaken_jobs.store.sql.unit import Unit

SESSION_OPS = AddSession | SeeSession | EndSession | AddCode | UseCode
_COLUMNS = ", ".join(SessionRow._fields)
_CODE = ("hash", "token", "token_hash", "expires_at")


def apply(unit: Unit, op: SESSION_OPS) -> Reply:
    """Raises `NotFound` for a session that is not there."""
    db, now = unit.db, unit.now
    if isinstance(op, AddSession):
        _add(unit, op)
        return None
    if isinstance(op, SeeSession):
        db.run("update sessions set seen_at = greatest(seen_at, ?1) where hash = ?2", op.at, op.hash)
        return None
    if isinstance(op, EndSession):
        if not _end(unit, db.all(f"select {_COLUMNS} from sessions where id = ?1", op.id), op.actor):
            raise NotFound(f"There is no session {op.id}; it may have ended.")
        return None
    if isinstance(op, AddCode):
        db.run("delete from login_codes where expires_at <= ?1", now)
        db.insert("login_codes", _CODE, [(op.hash, op.token, op.token_hash, op.expires_at)])
        return None
    found = db.one("select token, token_hash from login_codes where hash = ?1 and expires_at > ?2", op.hash, now)
    # Of two who come with it at once only one has deleted it.
    if found is None or not db.run("delete from login_codes where hash = ?1", op.hash):
        return None
    return str(found[0]), str(found[1])


def _add(unit: Unit, op: AddSession) -> None:
    db, now = unit.db, unit.now
    db.lock([f"sessions {op.token}"])
    db.run("delete from sessions where expires_at <= ?1", now)
    if op.instead_of is not None:
        _end(unit, db.all(f"select {_COLUMNS} from sessions where hash = ?1", op.instead_of), op.actor)
    # Room is made before it comes: after a clock was set back, the new one itself would be the one unused longest.
    others = f"select {_COLUMNS} from sessions where token_hash = ?1 order by seen_at desc, id desc"
    _end(unit, db.all(others, op.token_hash)[op.most - 1 :], op.actor)
    row = (op.hash, op.token, op.token_hash, now, now, op.expires_at)
    db.insert("sessions", SessionRow._fields[1:], [row])
    audit(unit, Audit(op.actor, "session.create", "allowed", agent=op.token))


def _end(unit: Unit, rows: Sequence[Row], actor: Actor) -> int:
    """Ends the sessions of these rows; how many there still were."""
    ended = 0
    for row in map(SessionRow._make, rows):
        if unit.db.run("delete from sessions where id = ?1", row.id):
            audit(unit, Audit(actor, "session.end", "allowed", agent=row.token))
            ended += 1
    return ended


def session(db: Database, digest: str) -> SessionRow | None:
    row = db.one(f"select {_COLUMNS} from sessions where hash = ?1", digest)
    return None if row is None else SessionRow._make(row)


def sessions(db: Database) -> list[SessionRow]:
    return [SessionRow._make(row) for row in db.all(f"select {_COLUMNS} from sessions order by id")]

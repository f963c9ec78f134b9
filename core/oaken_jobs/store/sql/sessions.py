"""Browsers that are logged in, and the codes by which they are without a token."""

from __future__ import annotations

from oaken_jobs.errors import NotFound
from oaken_jobs.store.operations import AddCode, AddSession, Audit, EndSession, Reply, SeeSession, SessionRow, UseCode
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.records import audit
from oaken_jobs.store.sql.unit import Unit

SESSION_OPS = AddSession | SeeSession | EndSession | AddCode | UseCode
_COLUMNS = ", ".join(SessionRow._fields)
_CODE = ("hash", "token", "token_hash", "expires_at")


def apply(unit: Unit, op: SESSION_OPS) -> Reply:
    """Raises `NotFound` for a session that is not there."""
    db, now = unit.db, unit.now
    if isinstance(op, AddSession):
        db.run("delete from sessions where expires_at <= ?1", now)
        row = (op.hash, op.token, op.token_hash, now, now, op.expires_at)
        db.insert("sessions", SessionRow._fields[1:], [row])
        audit(unit, Audit(op.actor, "session.create", "allowed", agent=op.token))
        return None
    if isinstance(op, SeeSession):
        db.run("update sessions set seen_at = greatest(seen_at, ?1) where hash = ?2", op.at, op.hash)
        return None
    if isinstance(op, EndSession):
        row = db.one(f"select {_COLUMNS} from sessions where id = ?1", op.id)
        if row is None or not db.run("delete from sessions where id = ?1", op.id):
            raise NotFound(f"There is no session {op.id}; it may have ended.")
        audit(unit, Audit(op.actor, "session.end", "allowed", agent=SessionRow._make(row).token))
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


def session(db: Database, digest: str) -> SessionRow | None:
    row = db.one(f"select {_COLUMNS} from sessions where hash = ?1", digest)
    return None if row is None else SessionRow._make(row)


def sessions(db: Database) -> list[SessionRow]:
    return [SessionRow._make(row) for row in db.all(f"select {_COLUMNS} from sessions order by id")]

"""Rows that belong to no single job: queues, tokens, agents, processes, plugins, and what finishes leave behind."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from oaken_jobs import moves
from oaken_jobs.errors import Conflict, NotFound
from oaken_jobs.model import Actor, KeepDocument, KeepSource, KeepVector, LogRow, SetLabels
from oaken_jobs.routing import QUEUE_LABEL
from oaken_jobs.store.base import (
    TASK_MS,
    AddTask,
    AddToken,
    Audit,
    AuditRow,
    Drain,
    Emit,
    ForgetHealth,
    KeepLabels,
    KeepLog,
    ProcessRow,
    Recover,
    Register,
    Reply,
    RotateToken,
    SeeAgents,
    SetHealth,
    SetPaused,
    TaskRow,
    TokenRow,
    Unregister,
    UseTokens,
)
from oaken_jobs.store.sqlite import rows
from oaken_jobs.store.sqlite.schema import LIVING_MS
from oaken_jobs.store.sqlite.unit import Unit, json_array

Administration = (
    SetPaused
    | KeepLabels
    | KeepLog
    | Audit
    | Drain
    | Recover
    | AddTask
    | AddToken
    | RotateToken
    | UseTokens
    | SeeAgents
    | SetHealth
    | ForgetHealth
    | Emit
    | Register
    | Unregister
)
_TASK = (*TaskRow._fields[:-1], "look_at")
Kept = KeepDocument | KeepSource | KeepVector | SetLabels


def administer(unit: Unit, op: Administration) -> Reply:
    """Carries out what changes no job. Raises `Conflict` for a token's name that was used before."""
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
        _label(unit, op.workspace, op.labels)
        return None
    if isinstance(op, KeepLog):
        rows.insert(db, "insert into log_lines", LogRow._fields[1:], [row[1:] for row in op.rows])
        return None
    if isinstance(op, Audit):
        audit(unit, op)
        return None
    if isinstance(op, Drain):
        return _drain(unit, op)
    if isinstance(op, Recover):
        done = db.execute(
            "update jobs set lease_expires = max(?1 + ?2, min(lease_expires, ?1 + lease_ms)), "
            "cancel_deadline = max(?1 + ?2, min(cancel_deadline, ?3)) where state = 'running'",
            (now, op.grace_ms, moves.stop_by(now, unit.rules)),
        )
        unit.forget()
        return done.rowcount
    if isinstance(op, AddTask):
        kept = (op.id, *op.actor[:2], op.within, json_array(op.job_ids), op.said, now, now + TASK_MS)
        rows.insert(db, "insert into tasks", _TASK, [kept])
        return None
    if isinstance(op, AddToken):
        return _add_token(unit, op)
    if isinstance(op, RotateToken):
        return _rotate_token(unit, op)
    if isinstance(op, UseTokens):
        db.executemany(
            "update tokens set last_used_at = max(coalesce(last_used_at, 0), ?) where name = ?",
            [(at, name) for name, at in op.used.items()],
        )
        return None
    if isinstance(op, SeeAgents):
        db.executemany(
            "insert into agents values (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7) on conflict do update set last_seen = max(last_seen, ?3), "
            "leased = leased + ?4, succeeded = succeeded + ?5, failed = failed + ?6, workspace = ?7",
            op.agents,
        )
        return None
    if isinstance(op, SetHealth):
        return _set_health(unit, op)
    if isinstance(op, ForgetHealth):
        gone = "delete from plugin_health where plugin not in (select value from json_each(?))"
        db.execute(gone, (json_array(op.plugins),))
        return None
    if isinstance(op, Emit):
        _emit(unit, op)
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
    queues, kinds, max_leases, max_per_hour = op.limits
    row = TokenRow(
        op.name,
        op.kind,
        ",".join(op.roles),
        op.hash,
        unit.now,
        op.expires_at,
        None,
        op.workspace,
        None if queues is None else json_array(queues),
        None if kinds is None else json_array(kinds),
        max_leases,
        max_per_hour,
    )
    rows.insert(unit.db, "insert into tokens", TokenRow._fields, [row])
    token_changed(unit, "create", row, op.actor)
    return row


def token_named(unit: Unit, name: str) -> TokenRow:
    """The row of a token. Raises `NotFound`."""
    row = unit.db.execute("select * from tokens where name = ?", (name,)).fetchone()
    if row is None:
        raise NotFound(f"There is no token named {name}. See `oaken token list`.")
    return TokenRow._make(row)


def _rotate_token(unit: Unit, op: RotateToken) -> TokenRow:
    token = token_named(unit, op.name)
    if token.revoked_at is not None:
        raise Conflict(f"The token {op.name} was revoked, for good. Make one of another name.")
    expires_at = token.expires_at if op.expires_at is None else op.expires_at
    if expires_at is not None and expires_at <= unit.now:
        raise Conflict(f"The token {op.name} has expired. Say with expires_in how long it is to last from now.")
    token = token._replace(hash=op.hash, expires_at=expires_at, rotated_at=unit.now)
    unit.db.execute(
        "update tokens set hash = ?, expires_at = ?, rotated_at = ? where name = ?",
        (token.hash, token.expires_at, token.rotated_at, token.name),
    )
    token_changed(unit, "rotate", token, op.actor)
    return token


def token_changed(unit: Unit, verb: str, token: TokenRow, actor: Actor) -> None:
    """Tells of a change of a token, in the activity and in the audit."""
    unit.note_other("token_changed", verb, token.name, actor, token.workspace)
    audit(unit, Audit(actor, f"token.{verb}", "allowed", agent=token.name))


def audit(unit: Unit, op: Audit) -> None:
    """Writes an audit row."""
    values = (unit.now, *op.actor, op.action, op.outcome, op.job_id, op.agent, op.rows)
    rows.insert(unit.db, "insert into audit", AuditRow._fields[1:], [values])


def _set_health(unit: Unit, op: SetHealth) -> bool:
    row = unit.db.execute("select healthy from plugin_health where plugin = ?", (op.plugin,)).fetchone()
    unit.db.execute(
        "insert or replace into plugin_health values (?, ?, ?, ?)",
        (op.plugin, int(op.healthy), op.reason, unit.now),
    )
    if row is not None and bool(row[0]) == op.healthy:
        return False
    before = None if row is None else _HEALTH[bool(row[0])]
    unit.note_other("plugin_health_changed", "health", op.plugin, op.actor, states=(before, _HEALTH[op.healthy]))
    return True


_HEALTH = {True: "healthy", False: "unhealthy"}


def _emit(unit: Unit, op: Emit) -> None:
    workspace = op.workspace
    if op.job_id is not None:
        unit.load([op.job_id])
        workspace = unit.known(op.job_id, None).workspace
    unit.note_other(f"{op.plugin}.{op.event}", "emit", op.plugin, op.actor, workspace, job_id=op.job_id, data=op.data)


def _drain(unit: Unit, op: Drain) -> bool:
    if op.draining:
        done = unit.db.execute("insert into drained values (?, ?) on conflict do nothing", (op.agent, unit.now))
    else:
        done = unit.db.execute("delete from drained where agent = ?", (op.agent,))
        unit.all_touched = True
    if done.rowcount:
        unit.note_other("agent_changed", "drain" if op.draining else "undrain", op.agent, op.actor)
    return done.rowcount > 0


def drained(unit: Unit) -> frozenset[str]:
    """Agents, by `name` or `name/instance`, that get nothing new."""
    return frozenset(row[0] for row in unit.db.execute("select agent from drained").fetchall())


def keep(unit: Unit, effect: Kept, workspace: str) -> None:
    """Writes what a finish leaves behind."""
    db, now = unit.db, unit.now
    if isinstance(effect, KeepDocument):
        db.execute(
            "insert into documents values (?, ?, ?, ?, ?, ?) on conflict do nothing",
            (workspace, effect.document, effect.title, len(effect.text), effect.text, now),
        )
    elif isinstance(effect, KeepSource):
        db.execute(
            "insert into document_sources values (?, ?, ?, ?) on conflict do nothing",
            (workspace, effect.document, effect.source, now),
        )
    elif isinstance(effect, KeepVector):
        db.execute(
            "insert into embeddings values (?1, ?2, ?3, ?4, ?5) on conflict do update set vector = ?4, at = ?5",
            (workspace, effect.subject, effect.model, orjson.dumps(effect.vector).decode(), now),
        )
    else:
        _label(unit, workspace, effect)


def stored(unit: Unit, workspace: str, document: str) -> bool:
    """Whether the document is stored."""
    found = unit.db.execute("select 1 from documents where workspace = ? and document = ?", (workspace, document))
    return found.fetchone() is not None


def queue_labels(
    unit: Unit, subjects: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """Of each (workspace, subject) the queue that people's label names, and the machine's."""
    wanted = list(subjects)
    if not wanted:
        return {}
    rows = unit.db.execute(
        "select l.workspace, l.subject, l.layer, l.value from json_each(?) o cross join labels l "
        "on l.workspace = o.value ->> 0 and l.subject = o.value ->> 1 and l.layer in ('human', 'machine') and l.key = ?",
        (json_array(wanted), QUEUE_LABEL),
    ).fetchall()
    found: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    for workspace, subject, layer, value in rows:
        human, machine = found.get((workspace, subject), (None, None))
        found[(workspace, subject)] = (value, machine) if layer == "human" else (human, value)
    return found


def clear_machine_labels(unit: Unit, workspace: str, subject: str) -> None:
    """Takes away what the machine said of a subject; people's labels stay."""
    unit.db.execute(
        "delete from labels where workspace = ? and subject = ? and layer = 'machine'", (workspace, subject)
    )


def want_retriage(unit: Unit, workspace: str, subject: str) -> None:
    """Remembers that a subject is to be triaged again when its text is taken in the next time."""
    unit.db.execute("insert or replace into retriage values (?, ?, ?)", (workspace, subject, unit.now))


def take_retriage(unit: Unit, workspace: str, subject: str) -> bool:
    """Whether a subject is to be triaged again; says so once."""
    done = unit.db.execute("delete from retriage where workspace = ? and subject = ?", (workspace, subject))
    return done.rowcount > 0


def _label(unit: Unit, workspace: str, labels: SetLabels) -> None:
    for key, value in labels.labels.items():
        if value:
            unit.db.execute(
                "insert into labels values (?1, ?2, ?3, ?4, ?5, ?6) on conflict do update set value = ?5, at = ?6",
                (workspace, labels.subject, labels.layer, key, value, unit.now),
            )
        else:
            unit.db.execute(
                "delete from labels where workspace = ? and subject = ? and layer = ? and key = ?",
                (workspace, labels.subject, labels.layer, key),
            )

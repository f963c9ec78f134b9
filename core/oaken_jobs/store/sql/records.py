"""Rows that belong to no single job: queues, tokens, agents, processes, plugins, and what finishes leave behind."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from oaken_jobs import moves
from oaken_jobs.errors import Conflict, NotFound
from oaken_jobs.model import Actor, KeepDocument, KeepSource, KeepVector, LogRow, SetLabels
from oaken_jobs.routing import QUEUE_LABEL
from oaken_jobs.store.base import AuditRow, HealthRow, TaskRow
from oaken_jobs.store.operations import (
    TASK_MS,
    AddTask,
    AddToken,
    Audit,
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
    TokenRow,
    Unregister,
    UseTokens,
)
from oaken_jobs.store.sql.unit import Unit

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
_LABEL = ("workspace", "subject", "layer", "key", "value", "at")
_EMBEDDING = ("workspace", "subject", "model", "vector", "at")
_RECOVER = (
    "update jobs set lease_expires = greatest(?2, least(lease_expires, ?1 + lease_ms)), "
    "cancel_deadline = case when cancel_deadline is not null then greatest(?2, least(cancel_deadline, ?3)) end where state = 'running'"
)
_SEE = (
    "insert into agents (agent, name, first_seen, last_seen, leased, succeeded, failed, workspace) values (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7) "
    "on conflict (agent) do update set last_seen = greatest(agents.last_seen, excluded.last_seen), "
    "leased = agents.leased + excluded.leased, succeeded = agents.succeeded + excluded.succeeded, "
    "failed = agents.failed + excluded.failed, workspace = excluded.workspace"
)
LIVING_MS = 30_000
"""A process that has not been seen for so long is taken for dead."""
Kept = KeepDocument | KeepSource | KeepVector | SetLabels


def administer(unit: Unit, op: Administration) -> Reply:
    """Carries out what changes no job. Raises `Conflict` for a token's name that was used before."""
    db, now = unit.db, unit.now
    if isinstance(op, SetPaused):
        db.lock([f"queue {op.queue}"])
        row = db.one("select paused from queue_state where queue = ?1", op.queue)
        if bool(row and row[0]) == op.paused:
            return False
        db.replace("queue_state", ("queue",), ("queue", "paused", "at"), [(op.queue, int(op.paused), now)])
        unit.note_other("queue_state_changed", "pause" if op.paused else "resume", op.queue, op.actor)
        unit.all_touched |= not op.paused
        return True
    if isinstance(op, KeepLabels):
        _label(unit, op.workspace, op.labels)
        return None
    if isinstance(op, KeepLog):
        db.insert("log_lines", LogRow._fields[1:], [row[1:] for row in op.rows])
        return None
    if isinstance(op, Audit):
        audit(unit, op)
        return None
    if isinstance(op, Drain):
        return _drain(unit, op)
    if isinstance(op, Recover):
        unit.forget()
        return db.run(_RECOVER, now, now + op.grace_ms, moves.stop_by(now, unit.rules))
    if isinstance(op, AddTask):
        kept = (op.id, *op.actor[:2], op.within, _json(op.job_ids), op.said, now, now + TASK_MS)
        db.insert("tasks", _TASK, [kept])
        return None
    if isinstance(op, AddToken):
        return _add_token(unit, op)
    if isinstance(op, RotateToken):
        return _rotate_token(unit, op)
    if isinstance(op, UseTokens):
        for name, at in sorted(op.used.items()):
            used = "update tokens set last_used_at = greatest(coalesce(last_used_at, 0), ?1) where name = ?2"
            db.run(used, at, name)
        return None
    if isinstance(op, SeeAgents):
        for agent in sorted(op.agents):
            db.run(_SEE, *agent)
        return None
    if isinstance(op, SetHealth):
        return _set_health(unit, op)
    if isinstance(op, ForgetHealth):
        db.run("delete from plugin_health where not plugin in texts(?1)", db.array(op.plugins))
        return None
    if isinstance(op, Emit):
        _emit(unit, op)
        return None
    if isinstance(op, Register):
        db.run("delete from processes where seen_at <= ?1", now - LIVING_MS)
        db.replace("processes", ("process",), ProcessRow._fields, [op.row])
        return [ProcessRow._make(row) for row in db.all("select * from processes")]
    assert isinstance(op, Unregister)
    db.run("delete from processes where process = ?1", op.process)
    return None


def _add_token(unit: Unit, op: AddToken) -> TokenRow:
    unit.db.lock([f"token {op.name}"])
    if unit.db.one("select 1 from tokens where name = ?1", op.name):
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
        None if queues is None else _json(queues),
        None if kinds is None else _json(kinds),
        max_leases,
        max_per_hour,
    )
    unit.db.insert("tokens", TokenRow._fields, [row])
    token_changed(unit, "create", row, op.actor)
    return row


def token_named(unit: Unit, name: str) -> TokenRow:
    """The row of a token. Raises `NotFound`."""
    unit.db.lock([f"token {name}"])
    row = unit.db.one(f"select {', '.join(TokenRow._fields)} from tokens where name = ?1", name)
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
    unit.db.run(
        "update tokens set hash = ?1, expires_at = ?2, rotated_at = ?3 where name = ?4",
        token.hash,
        token.expires_at,
        token.rotated_at,
        token.name,
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
    unit.db.insert("audit", AuditRow._fields[1:], [values])


def _set_health(unit: Unit, op: SetHealth) -> bool:
    unit.db.lock([f"plugin {op.plugin}"])
    row = unit.db.one("select healthy from plugin_health where plugin = ?1", op.plugin)
    unit.db.replace(
        "plugin_health", ("plugin",), HealthRow._fields, [(op.plugin, int(op.healthy), op.reason, unit.now)]
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
        done = unit.db.run("insert into drained values (?1, ?2) on conflict do nothing", op.agent, unit.now)
    else:
        done = unit.db.run("delete from drained where agent = ?1", op.agent)
        unit.all_touched = True
    if done:
        unit.note_other("agent_changed", "drain" if op.draining else "undrain", op.agent, op.actor)
    return done > 0


def keep(unit: Unit, effect: Kept, workspace: str) -> None:
    """Writes what a finish leaves behind."""
    db, now = unit.db, unit.now
    if isinstance(effect, KeepDocument):
        db.run(
            "insert into documents values (?1, ?2, ?3, ?4, ?5, ?6) on conflict do nothing",
            workspace,
            effect.document,
            effect.title,
            len(effect.text),
            effect.text,
            now,
        )
    elif isinstance(effect, KeepSource):
        db.run(
            "insert into document_sources values (?1, ?2, ?3, ?4) on conflict do nothing",
            workspace,
            effect.document,
            effect.source,
            now,
        )
    elif isinstance(effect, KeepVector):
        row = (workspace, effect.subject, effect.model, orjson.dumps(effect.vector).decode(), now)
        db.replace("embeddings", _EMBEDDING[:3], _EMBEDDING, [row])
    else:
        _label(unit, workspace, effect)


def _json(values: Iterable[str | int]) -> str:
    return orjson.dumps(list(values)).decode()


def stored(unit: Unit, workspace: str, document: str) -> bool:
    """Whether the document is stored."""
    return (
        unit.db.one("select 1 from documents where workspace = ?1 and document = ?2", workspace, document) is not None
    )


def queue_labels(
    unit: Unit, subjects: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """Of each (workspace, subject) the queue that people's label names, and the machine's."""
    wanted = list(subjects)
    if not wanted:
        return {}
    rows = unit.db.all(unit.db.queries.queue_labels, *unit.db.columns(wanted, 2), QUEUE_LABEL)
    found: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    for workspace, subject, layer, value in rows:
        human, machine = found.get((workspace, subject), (None, None))
        found[(workspace, subject)] = (value, machine) if layer == "human" else (human, value)
    return found


def clear_machine_labels(unit: Unit, workspace: str, subject: str) -> None:
    """Takes away what the machine said of a subject; people's labels stay."""
    unit.db.run("delete from labels where workspace = ?1 and subject = ?2 and layer = 'machine'", workspace, subject)


def want_retriage(unit: Unit, workspace: str, subject: str) -> None:
    """Remembers that a subject is to be triaged again when its text is taken in the next time."""
    columns = ("workspace", "subject", "at")
    unit.db.replace("retriage", columns[:2], columns, [(workspace, subject, unit.now)])


def take_retriage(unit: Unit, workspace: str, subject: str) -> bool:
    """Whether a subject is to be triaged again; says so once."""
    return unit.db.run("delete from retriage where workspace = ?1 and subject = ?2", workspace, subject) > 0


def _label(unit: Unit, workspace: str, labels: SetLabels) -> None:
    for key, value in labels.labels.items():
        if value:
            row = (workspace, labels.subject, labels.layer, key, value, unit.now)
            unit.db.replace("labels", _LABEL[:4], _LABEL, [row])
        else:
            unit.db.run(
                "delete from labels where workspace = ?1 and subject = ?2 and layer = ?3 and key = ?4",
                workspace,
                labels.subject,
                labels.layer,
                key,
            )

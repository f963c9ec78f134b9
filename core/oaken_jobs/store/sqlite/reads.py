"""What is read from SQLite: functions that run on a reader connection's thread, each one statement and fetched to its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from oaken_jobs.model import CHILDREN, Activity, AgentRow, Attempt, Job, LogRow, ProgressRow, Question, Schedule
from oaken_jobs.store.base import (
    ActivityFilter,
    AuditRow,
    Counts,
    Depth,
    Document,
    HealthRow,
    JobFilter,
    Leases,
    ProcessRow,
    Surroundings,
    TaskRow,
    TokenRow,
)
from oaken_jobs.store.sqlite import claim
from oaken_jobs.store.sqlite.driver import Database
from oaken_jobs.store.sqlite.prune import FORGOTTEN
from oaken_jobs.store.sqlite.unit import (
    ACTIVITY_WRITTEN,
    ATTEMPT_COLUMNS,
    JOB_COLUMNS,
    QUESTION_COLUMNS,
    SCHEDULE_COLUMNS,
)

_IN = "in (select value from json_each(?))"
_ACTIVITY = (
    f"select {', '.join(f'a.{name}' for name in ACTIVITY_WRITTEN)}, j.kind, j.queue "
    "from activity a left join jobs j on j.id = a.job_id"
)


def _json(values: Sequence[Any]) -> str:
    return orjson.dumps(list(values)).decode()


def jobs(db: Database, ids: Sequence[int]) -> list[Job]:
    rows = db.execute(f"select {JOB_COLUMNS} from jobs j where j.id {_IN} order by j.id", (_json(ids),)).fetchall()
    return [Job._make(row) for row in rows]


def bodies(db: Database, table: str, ids: Sequence[int]) -> dict[int, str]:
    return dict(db.execute(f"select job_id, body from {table} where job_id {_IN}", (_json(ids),)).fetchall())


def _where(where: JobFilter) -> tuple[list[str], list[Any]]:
    """The conditions of a filter on `jobs j`, and what they bind."""
    clauses: list[str] = []
    values: list[Any] = []

    def add(clause: str, *bound: Any) -> None:
        clauses.append(clause)
        values.extend(bound)

    for column, wanted in (
        ("state", where.states),
        ("kind", where.kinds),
        ("queue", where.queues),
        ("grade", where.grades),
    ):
        if wanted:
            add(f"j.{column} {_IN}", _json(wanted))
    if where.not_queues:
        add(f"j.queue not {_IN}", _json(where.not_queues))
    for column, one in (
        ("actor_id", where.actor),
        ("subject", where.subject),
        ("parent_id", where.parent_id),
        ("workspace", where.workspace),
    ):
        if one is not None:
            add(f"j.{column} = ?", one)
    if where.asking:
        add("j.question is not null")
    if where.agent is not None:
        # `name` means the agent with all its instances.
        add("(j.agent = ? or (j.agent >= ? || '/' and j.agent < ? || '0'))", where.agent, where.agent, where.agent)
    if where.tag is not None:
        add("exists (select 1 from json_each(j.tags) where value = ?)", where.tag)
    for clause, moment in (
        ("j.created_at >= ?", where.created_after),
        ("j.created_at < ?", where.created_before),
        ("j.finished_at >= ?", where.finished_after),
        ("j.finished_at < ?", where.finished_before),
    ):
        if moment is not None:
            add(clause, moment)
    if where.query is not None:
        like = "%" + where.query.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        fields = ("title", "kind", "subject", "tags", "last_error")
        add("(" + " or ".join(f"j.{f} like ? escape '\\'" for f in fields) + ")", *([like] * len(fields)))
    if where.concerns is not None:
        add(
            "((j.actor_id = ? and j.actor_kind <> 'system') or j.holder = ? "
            "or exists (select 1 from attempts a where a.job_id = j.id and a.holder = ?))",
            *([where.concerns] * 3),
        )
    return clauses, values


def list_jobs(db: Database, where: JobFilter, before: int | None, limit: int) -> list[Job]:
    clauses, values = _where(where)
    if before is not None:
        clauses.append("j.id < ?")
        values.append(before)
    text = f" where {' and '.join(clauses)}" if clauses else ""
    rows = db.execute(f"select {JOB_COLUMNS} from jobs j{text} order by j.id desc limit ?", (*values, limit)).fetchall()
    return [Job._make(row) for row in rows]


def ended(db: Database, where: JobFilter, limit: int) -> list[Job]:
    clauses, values = _where(where)
    text = " and ".join(["j.finished_at is not null", *clauses])
    rows = db.execute(
        f"select {JOB_COLUMNS} from jobs j where {text} order by j.finished_at desc, j.id desc limit ?",
        (*values, limit),
    ).fetchall()
    return [Job._make(row) for row in rows]


def late_result(db: Database, job_id: int, epoch: int) -> str | None:
    row = db.execute("select body from late_results where job_id = ? and epoch = ?", (job_id, epoch)).fetchone()
    return row[0] if row else None


def matching(db: Database, where: JobFilter, after: int, up_to: int, limit: int) -> list[int]:
    clauses, values = _where(where)
    text = " and ".join(["j.id > ?", "j.id <= ?", *clauses])
    bound = (after, up_to, *values, limit)
    return [
        row[0] for row in db.execute(f"select j.id from jobs j where {text} order by j.id limit ?", bound).fetchall()
    ]


def count(db: Database, where: JobFilter, after: int, up_to: int) -> int:
    clauses, values = _where(where)
    text = " and ".join(["j.id > ?", "j.id <= ?", *clauses])
    return int(db.execute(f"select count(*) from jobs j where {text}", (after, up_to, *values)).fetchone()[0])


def last_id(db: Database) -> int:
    row = db.execute("select seq from sqlite_sequence where name = 'jobs'").fetchone()
    return int(row[0]) if row else 0


def states(db: Database, where: JobFilter) -> dict[str, int]:
    clauses, values = _where(where)
    text = f" where {' and '.join(clauses)}" if clauses else ""
    return dict(db.execute(f"select j.state, count(*) from jobs j{text} group by j.state", values).fetchall())


def surroundings(db: Database, jobs: Sequence[Job], caps: Mapping[str, int], now: int) -> Surroundings:
    """Of the queued ones among `jobs`."""
    waiting = [job for job in jobs if job.state == "queued"]
    kinds = {job.kind for job in waiting}
    keys = {(job.workspace, job.serial_key) for job in waiting if job.serial_key is not None}
    parents = [job.id for job in waiting if job.blocked == CHILDREN]
    running = {kind: int(db.execute(claim.RUNNING, (kind, now)).fetchone()[0]) for kind in kinds if kind in caps}
    serial = db.execute(
        "select j.workspace, j.serial_key, j.id, j.agent from json_each(?) o cross join jobs j "
        "on j.workspace = o.value ->> 0 and j.serial_key = o.value ->> 1 where j.state = 'running'",
        (_json(list(keys)),),
    ).fetchall()
    children = db.execute(
        "select value, (select count(*) from jobs where parent_id = value and state in ('queued', 'running')), "
        "(select count(*) from jobs where parent_id = value) from json_each(?)",
        (_json(parents),),
    ).fetchall()
    leased = db.execute(f"select kind, at from leased_kinds where kind {_IN}", (_json(list(kinds)),)).fetchall()
    at_work = db.execute(
        "select value from json_each(?) where exists (select 1 from jobs where state = 'running' and kind = value)",
        (_json(list(kinds)),),
    ).fetchall()
    return Surroundings(
        frozenset(paused(db)),
        running,
        {(workspace, key): (job_id, agent) for workspace, key, job_id, agent in serial},
        {parent: (live, total) for parent, live, total in children},
        dict(leased),
        frozenset(row[0] for row in at_work),
    )


def questions(db: Database, job_id: int) -> list[Question]:
    rows = db.execute(
        f"select {QUESTION_COLUMNS} from questions where job_id = ? order by id desc limit 200", (job_id,)
    ).fetchall()
    return [Question._make(row) for row in reversed(rows)]


def open_questions(db: Database, where: JobFilter, limit: int) -> list[Question]:
    clauses, values = _where(where)
    text = " and ".join(["j.question is not null", *clauses])
    columns = ", ".join(f"q.{name}" for name in Question._fields)
    rows = db.execute(
        f"select {columns} from jobs j join questions q on q.id = (select max(id) from questions where job_id = j.id) "
        f"where {text} order by q.id limit ?",
        (*values, limit),
    ).fetchall()
    return [Question._make(row) for row in rows]


def attempts(db: Database, job_id: int) -> list[Attempt]:
    rows = db.execute(f"select {ATTEMPT_COLUMNS} from attempts where job_id = ? order by epoch", (job_id,)).fetchall()
    return [Attempt._make(row) for row in rows]


def progress(db: Database, job_id: int, limit: int) -> list[ProgressRow]:
    rows = db.execute(
        "select at, percent, message, epoch from progress where job_id = ? order by id desc limit ?", (job_id, limit)
    ).fetchall()
    return [ProgressRow._make(row) for row in reversed(rows)]


def activity(db: Database, after: int, limit: int, where: ActivityFilter) -> list[Activity]:
    terms: list[str] = ["a.id > ?"]
    bound: list[Any] = [after]
    for column, words in (("verb", where.verbs), ("event", where.events)):
        if words:
            terms.append(f"a.{column} {_IN}")
            bound.append(_json(words))
    for column, value in (("job_id", where.job_id), ("workspace", where.workspace)):
        if value is not None:
            terms.append(f"a.{column} = ?")
            bound.append(value)
    rows = db.execute(f"{_ACTIVITY} where {' and '.join(terms)} order by a.id limit ?", (*bound, limit)).fetchall()
    return [Activity._make(row) for row in rows]


def activity_of(db: Database, job_id: int, limit: int) -> list[Activity]:
    return activity(db, 0, limit, ActivityFilter(job_id=job_id))


def activity_forgotten(db: Database) -> int:
    row = db.execute("select value from marks where name = ?", (FORGOTTEN,)).fetchone()
    return row[0] if row else 0


def log_lines(db: Database, levels: Sequence[str], before: int | None, after: int | None, limit: int) -> list[LogRow]:
    bound, order = ("id > ?", "id") if after is not None else ("id < ?", "id desc")
    mark = after if after is not None else before if before is not None else 2**63 - 1
    rows = db.execute(
        f"select {', '.join(LogRow._fields)} from log_lines where {bound} and level {_IN} order by {order} limit ?",
        (mark, _json(levels), limit),
    ).fetchall()
    return [LogRow._make(row) for row in rows]


def activity_head(db: Database) -> int:
    newest = db.execute("select coalesce(max(id), 0) from activity").fetchone()[0]
    return max(int(newest), activity_forgotten(db))  # where all there was is forgotten, ids go on behind it


def concerns(db: Database, job_id: int, principal: str) -> bool:
    row = db.execute(
        "select 1 from jobs where id = ?1 and ((actor_id = ?2 and actor_kind <> 'system') or holder = ?2) "
        "union all select 1 from attempts where job_id = ?1 and holder = ?2 limit 1",
        (job_id, principal),
    ).fetchall()
    return bool(row)


def held(db: Database, holder: str) -> list[Job]:
    rows = db.execute(
        f"select {JOB_COLUMNS} from jobs j where j.state = 'running' and j.holder = ? order by j.id desc", (holder,)
    ).fetchall()
    return [Job._make(row) for row in rows]


def counts(db: Database, workspace: str | None) -> list[Counts]:
    rows = db.execute(
        "select queue, state, count(*) from jobs where ?1 is null or workspace = ?1 group by queue, state "
        "order by queue, state",
        (workspace,),
    ).fetchall()
    return [Counts._make(row) for row in rows]


def depths(db: Database, now: int) -> list[Depth]:
    rows = db.execute(
        "select state, queue, kind, count(*), max(case when state = 'queued' and blocked = 0 and run_at <= ?1 then ?1 - run_at end) "
        "from jobs group by state, queue, kind",
        (now,),
    ).fetchall()
    return [Depth._make(row) for row in rows]


def paused(db: Database) -> set[str]:
    return {row[0] for row in db.execute("select queue from queue_state where paused").fetchall()}


def agents(db: Database, workspace: str | None) -> list[AgentRow]:
    holding: dict[str, list[int]] = defaultdict(list)
    for agent, job_id in db.execute("select agent, id from jobs where state = 'running'").fetchall():
        holding[agent].append(job_id)
    drained = {row[0] for row in db.execute("select agent from drained").fetchall()}
    rows = db.execute(
        "select agent, name, first_seen, last_seen, leased, succeeded, failed from agents where ?1 is null or workspace = ?1 "
        "order by last_seen desc, agent",
        (workspace,),
    ).fetchall()
    return [
        AgentRow(
            agent,
            name,
            first,
            last,
            leased,
            succeeded,
            failed,
            tuple(sorted(holding.get(agent, ()))),
            not drained.isdisjoint((agent, name)),
        )
        for agent, name, first, last, leased, succeeded, failed in rows
    ]


def leased_kinds(db: Database) -> dict[str, int]:
    """By kind: when one was last leased, to within a minute."""
    return dict(db.execute("select kind, at from leased_kinds").fetchall())


def labels(db: Database, workspace: str, subject: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"human": {}, "machine": {}}
    for layer, key, value in db.execute(
        "select layer, key, value from labels where workspace = ? and subject = ? order by key", (workspace, subject)
    ).fetchall():
        found[layer][key] = value
    return found


LIVE_LEASES = "select count(*) from jobs where state = 'running' and holder = ? and lease_expires > ?"
LAST_HOUR = (
    "select coalesce(sum(leases), 0), min(at) from token_leases where token = ?1 and at > ?2 - 3600000 and at <= ?2"
)


def leases_of(db: Database, holder: str, now: int) -> Leases:
    """What a token has leased, and how much of it in the last hour."""
    return Leases(
        db.execute(LIVE_LEASES, (holder, now)).fetchone()[0], db.execute(LAST_HOUR, (holder, now)).fetchone()[0]
    )


def tokens(db: Database) -> list[TokenRow]:
    return [TokenRow._make(row) for row in db.execute("select * from tokens order by created_at, name").fetchall()]


def audit(db: Database, before: int | None, limit: int) -> list[AuditRow]:
    if before is None:
        found = db.execute("select * from audit order by id desc limit ?", (limit,))
    else:
        found = db.execute("select * from audit where id < ? order by id desc limit ?", (before, limit))
    return [AuditRow._make(row) for row in found.fetchall()]


def schedules(db: Database, workspace: str | None) -> list[Schedule]:
    rows = db.execute(
        f"select {SCHEDULE_COLUMNS} from schedules where ?1 is null or workspace = ?1 order by workspace, name",
        (workspace,),
    ).fetchall()
    return [Schedule._make(row) for row in rows]


def next_schedule(db: Database) -> int | None:
    return db.execute("select min(next_run) from schedules").fetchone()[0]


def task(db: Database, task_id: str) -> TaskRow | None:
    row = db.execute(
        "select id, actor_kind, actor_id, workspace, job_ids, said, created_at, "
        "max(created_at, (select coalesce(max(a.at), 0) from json_each(t.job_ids) o join activity a on a.job_id = o.value)) "
        "from tasks t where id = ?",
        (task_id,),
    ).fetchone()
    return None if row is None else TaskRow._make(row)._replace(job_ids=tuple(orjson.loads(row[4])))


def documents(db: Database, workspace: str, ids: Sequence[str]) -> list[Document]:
    sources: dict[str, list[str]] = defaultdict(list)
    for document, source in db.execute(
        f"select document, source from document_sources where workspace = ? and document {_IN} order by at, source",
        (workspace, _json(ids)),
    ).fetchall():
        sources[document].append(source)
    rows = db.execute(
        f"select document, title, characters, created_at from documents where workspace = ? and document {_IN} "
        "order by document",
        (workspace, _json(ids)),
    ).fetchall()
    return [
        Document(document, title, characters, created_at, tuple(sources.get(document, ())))
        for document, title, characters, created_at in rows
    ]


def vectors(db: Database, workspace: str, model: str | None) -> list[tuple[str, str, list[float]]]:
    rows = db.execute(
        "select subject, model, vector from embeddings where workspace = ?1 and (?2 is null or model = ?2) "
        "order by subject, model",
        (workspace, model),
    ).fetchall()
    return [(subject, name, orjson.loads(vector)) for subject, name, vector in rows]


def processes(db: Database) -> list[ProcessRow]:
    return [ProcessRow._make(row) for row in db.execute("select * from processes order by started_at").fetchall()]


def plugin_health(db: Database) -> list[HealthRow]:
    rows = db.execute("select plugin, healthy, reason, at from plugin_health order by plugin").fetchall()
    return [HealthRow(plugin, bool(healthy), reason, at) for plugin, healthy, reason, at in rows]


def data_version(db: Database) -> int:
    return int(db.execute("pragma data_version").fetchone()[0])


def check(db: Database) -> list[str]:
    rows = [row[0] for row in db.execute("pragma integrity_check(20)").fetchall()]
    return [] if rows == ["ok"] else rows

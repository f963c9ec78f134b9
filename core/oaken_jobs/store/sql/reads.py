"""What is read from SQLite: functions that run on a reader connection's thread, each one statement and fetched to its end."""

from __future__ import annotations

import re
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
    Surroundings,
    TaskRow,
)
from oaken_jobs.store.operations import ProcessRow, TokenRow
from oaken_jobs.store.sql import claim
from oaken_jobs.store.sql.database import Database
from oaken_jobs.store.sql.unit import (
    ACTIVITY_WRITTEN,
    ATTEMPT_COLUMNS,
    JOB_COLUMNS,
    QUESTION_COLUMNS,
    SCHEDULE_COLUMNS,
)

_ACTIVITY = (
    f"select {', '.join(f'a.{name}' for name in ACTIVITY_WRITTEN)}, j.kind, j.queue "
    "from {} a left join jobs j on j.id = a.job_id"
)
_ACTIVITY_COLUMNS = (*ACTIVITY_WRITTEN, "kind", "queue")
_ALL_ACTIVITY = _ACTIVITY.format("activity")


def jobs(db: Database, ids: Sequence[int]) -> list[Job]:
    rows = db.all(f"select {JOB_COLUMNS} from jobs j where j.id in ids(?1) order by j.id", db.array(ids))
    return [Job._make(row) for row in rows]


def bodies(db: Database, table: str, ids: Sequence[int]) -> dict[int, str]:
    """Texts of `payloads` or `results`, by job."""
    return {
        row[0]: row[1] for row in db.all(f"select job_id, body from {table} where job_id in ids(?1)", db.array(ids))
    }


_ILL = frozenset(("warn", "bad"))


class Where:
    """The conditions of a filter on `jobs j`, and what they bind."""

    def __init__(self, db: Database, where: JobFilter) -> None:
        self._clauses: list[str] = []
        self.values: list[Any] = []
        for column, wanted in (
            ("state", where.states),
            ("kind", where.kinds),
            ("queue", where.queues),
            ("grade", where.grades),
        ):
            if wanted:
                self.add(f"j.{column} in texts(?0)", db.array(wanted))
        if where.grades and _ILL.issuperset(where.grades):
            self.add("j.grade in ('warn', 'bad')")  # of which there is an index
        if where.not_queues:
            self.add("not j.queue in texts(?0)", db.array(where.not_queues))
        for column, one in (
            ("actor_id", where.actor),
            ("subject", where.subject),
            ("parent_id", where.parent_id),
            ("workspace", where.workspace),
        ):
            if one is not None:
                self.add(f"j.{column} = ?0", one)
        if where.asking:
            self.add("j.question is not null")
        if where.agent is not None:
            # `name` means the agent with all its instances.
            self.add(
                "(j.agent = ?0 or (j.agent >= ?1 and j.agent < ?2))", where.agent, f"{where.agent}/", f"{where.agent}0"
            )
        if where.tag is not None:
            self.add(db.queries.tagged, where.tag)
        for clause, moment in (
            ("j.created_at >= ?0", where.created_after),
            ("j.created_at < ?0", where.created_before),
            ("j.finished_at >= ?0", where.finished_after),
            ("j.finished_at < ?0", where.finished_before),
        ):
            if moment is not None:
                self.add(clause, moment)
        if where.query is not None:
            like = "%" + where.query.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
            fields = ("title", "kind", "subject", "tags", "last_error")
            self.add("(" + " or ".join(f"j.{f} ilike ?0 escape '\\'" for f in fields) + ")", like)
        if where.concerns is not None:
            self.add(
                "((j.actor_id = ?0 and j.actor_kind <> 'system') or j.holder = ?0 "
                "or exists (select 1 from attempts a where a.job_id = j.id and a.holder = ?0))",
                where.concerns,
            )

    def add(self, clause: str, *values: Any) -> None:
        """One more condition; `?0` is the first of its values."""
        self._clauses.append(self.numbered(clause, *values))

    def numbered(self, text: str, *values: Any) -> str:
        """The text with the numbers that its values have in the whole statement."""
        first = len(self.values) + 1
        self.values.extend(values)
        return _PARAMETER.sub(lambda found: f"?{first + int(found[1])}", text)

    def __str__(self) -> str:
        return f" where {' and '.join(self._clauses)}" if self._clauses else ""


FORGOTTEN = "activity_forgotten"
"""The mark of the newest row of activity that is forgotten."""
_PARAMETER = re.compile(r"\?(\d+)")


def list_jobs(db: Database, where: JobFilter, before: int | None, limit: int) -> list[Job]:
    found = Where(db, where)
    if before is not None:
        found.add("j.id < ?0", before)
    last = found.numbered("order by j.id desc limit ?0", limit)
    return [Job._make(row) for row in db.all(f"select {JOB_COLUMNS} from jobs j{found} {last}", *found.values)]


def ended(db: Database, where: JobFilter, limit: int) -> list[Job]:
    found = Where(db, where)
    found.add("j.finished_at is not null")
    last = found.numbered("order by j.finished_at desc, j.id desc limit ?0", limit)
    return [Job._make(row) for row in db.all(f"select {JOB_COLUMNS} from jobs j{found} {last}", *found.values)]


def late_result(db: Database, job_id: int, epoch: int) -> str | None:
    row = db.one("select body from late_results where job_id = ?1 and epoch = ?2", job_id, epoch)
    return row[0] if row else None


def matching(db: Database, where: JobFilter, after: int, up_to: int, limit: int) -> list[int]:
    found = Where(db, where)
    found.add("j.id > ?0 and j.id <= ?1", after, up_to)
    last = found.numbered("order by j.id limit ?0", limit)
    return [row[0] for row in db.all(f"select j.id from jobs j{found} {last}", *found.values)]


def count(db: Database, where: JobFilter, after: int, up_to: int) -> int:
    found = Where(db, where)
    found.add("j.id > ?0 and j.id <= ?1", after, up_to)
    return int(db.all(f"select count(*) from jobs j{found}", *found.values)[0][0])


def last_id(db: Database) -> int:
    row = db.one(db.queries.last_job)
    return int(row[0] or 0) if row else 0


def states(db: Database, where: JobFilter) -> dict[str, int]:
    found = Where(db, where)
    return {
        row[0]: row[1] for row in db.all(f"select j.state, count(*) from jobs j{found} group by j.state", *found.values)
    }


def surroundings(db: Database, jobs: Sequence[Job], caps: Mapping[str, int], now: int) -> Surroundings:
    """Of the queued ones among `jobs`."""
    waiting = [job for job in jobs if job.state == "queued"]
    kinds = {job.kind for job in waiting}
    keys = {(job.workspace, job.serial_key) for job in waiting if job.serial_key is not None}
    parents = [job.id for job in waiting if job.blocked == CHILDREN]
    running = {kind: int(db.all(claim.RUNNING, kind, now)[0][0]) for kind in kinds if kind in caps}
    serial = db.all(db.queries.busy_keys, *db.columns(keys, 2))
    children = db.all(db.queries.children, db.array(parents))
    leased = db.all("select kind, at from leased_kinds where kind in texts(?1)", db.array(kinds))
    at_work = db.all(db.queries.at_work, db.array(kinds))
    return Surroundings(
        frozenset(paused(db)),
        running,
        {(workspace, key): (job_id, agent) for workspace, key, job_id, agent in serial},
        {parent: (live, total) for parent, live, total in children},
        {row[0]: row[1] for row in leased},
        frozenset(row[0] for row in at_work),
    )


def questions(db: Database, job_id: int) -> list[Question]:
    rows = db.all(f"select {QUESTION_COLUMNS} from questions where job_id = ?1 order by id desc limit 200", job_id)
    return [Question._make(row) for row in reversed(rows)]


def open_questions(db: Database, where: JobFilter, limit: int) -> list[Question]:
    found = Where(db, where)
    found.add("j.question is not null")
    last = found.numbered("order by q.id limit ?0", limit)
    columns = ", ".join(f"q.{name}" for name in Question._fields)
    rows = db.all(
        f"select {columns} from jobs j join questions q on q.id = (select max(id) from questions where job_id = j.id)"
        f"{found} {last}",
        *found.values,
    )
    return [Question._make(row) for row in rows]


_UNDER_WAY = (
    f"select {JOB_COLUMNS}, (select 1 from late_results l where l.job_id = j.id and l.epoch = j.epoch) "
    "from jobs j where j.id = ?1 and j.state = 'running'"
)


def attempts(db: Database, job_id: int) -> list[Attempt]:
    # The one that goes on first: it may end between the two.
    row = db.one(_UNDER_WAY, job_id)
    rows = db.all(f"select {ATTEMPT_COLUMNS} from attempts where job_id = ?1 order by epoch", job_id)
    found = [Attempt._make(row) for row in rows]
    if row is not None:
        last = Attempt.of(Job._make(row[:-1]))._replace(late=row[-1])
        if not found or found[-1].epoch < last.epoch:
            found.append(last)
    return found


def progress(db: Database, job_id: int, limit: int) -> list[ProgressRow]:
    rows = db.all(
        "select at, percent, message, epoch from progress where job_id = ?1 order by id desc limit ?2", job_id, limit
    )
    return [ProgressRow._make(row) for row in reversed(rows)]


def activity(db: Database, after: int, limit: int, where: ActivityFilter) -> list[Activity]:
    head = _activity_end(db)
    terms = ["a.id > ?1 and a.id <= ?2"]
    values: list[Any] = [after, head]
    _add_activity(db, where, terms, values)
    values.append(limit)
    page = f"{_ALL_ACTIVITY} where {' and '.join(terms)} order by a.id limit ?{len(values)}"
    rows = db.many(_ACTIVITY_COLUMNS, page, *values)
    return [Activity._make(row) for row in rows]


def latest_activity(db: Database, limit: int, where: ActivityFilter) -> list[Activity]:
    values: list[Any] = [_activity_end(db), LATEST]
    of_job = ""
    if where.job_id is not None:
        values.append(where.job_id)
        of_job = " and a.job_id = ?3"
    newest = f"(select a.* from activity a where a.id <= ?1{of_job} order by a.id desc limit ?2)"
    terms = ["true"]
    _add_activity(db, where, terms, values)
    values.append(limit)
    last = f"where {' and '.join(terms)} order by a.id desc limit ?{len(values)}"
    return [Activity._make(row) for row in db.all(f"{_ACTIVITY.format(newest)} {last}", *values)]


LATEST = 5_000
"""Rows of activity that are looked through for the latest ones that match."""


def _activity_end(db: Database) -> int:
    """Rows beyond this may be followed by some with lower ids, of transactions that are still under way."""
    return int(db.all(db.queries.activity_head)[0][0])


def _add_activity(db: Database, where: ActivityFilter, terms: list[str], values: list[Any]) -> None:
    """The conditions of a filter on `activity a`."""
    for column, words in (("verb", where.verbs), ("event", where.events)):
        if words:
            values.append(db.array(words))
            terms.append(f"a.{column} in texts(?{len(values)})")
    for column, value in (("job_id", where.job_id), ("workspace", where.workspace)):
        if value is not None:
            values.append(value)
            terms.append(f"a.{column} = ?{len(values)}")


def activity_of(db: Database, job_id: int, limit: int, reports: bool) -> list[Activity]:
    which = "" if reports else " and a.verb <> 'progress'"
    rows = db.all(f"{_ALL_ACTIVITY} where a.job_id = ?1{which} order by a.id desc limit ?2", job_id, limit)
    return [Activity._make(row) for row in reversed(rows)]


def activity_behind(db: Database, newest: int) -> int:
    """The cursor behind which come the newest so many rows; 0 where there are not more."""
    return max(0, db.all(db.queries.activity_behind, newest)[0][0] or 0)


def activity_forgotten(db: Database) -> int:
    row = db.one("select value from marks where name = ?1", FORGOTTEN)
    return row[0] if row else 0


def log_lines(db: Database, levels: Sequence[str], before: int | None, after: int | None, limit: int) -> list[LogRow]:
    bound, order = ("id > ?1", "id") if after is not None else ("id < ?1", "id desc")
    mark = after if after is not None else before if before is not None else 2**63 - 1
    rows = db.all(
        f"select {', '.join(LogRow._fields)} from log_lines where {bound} and level in texts(?2) order by {order} limit ?3",
        mark,
        db.array(levels),
        limit,
    )
    return [LogRow._make(row) for row in rows]


def activity_head(db: Database) -> int:
    newest = db.all(db.queries.activity_head)[0][0]
    return max(int(newest), activity_forgotten(db))  # where all there was is forgotten, ids go on behind it


def concerns(db: Database, job_id: int, principal: str) -> bool:
    row = db.one(
        "select 1 from jobs where id = ?1 and ((actor_id = ?2 and actor_kind <> 'system') or holder = ?2) "
        "union all select 1 from attempts where job_id = ?1 and holder = ?2 limit 1",
        job_id,
        principal,
    )
    return row is not None


def held(db: Database, holder: str) -> list[Job]:
    rows = db.all(
        f"select {JOB_COLUMNS} from jobs j where j.state = 'running' and j.holder = ?1 order by j.id desc", holder
    )
    return [Job._make(row) for row in rows]


def counts(db: Database, workspace: str | None) -> list[Counts]:
    rows = db.all(
        "select queue, state, count(*) from jobs where workspace = ?1 or ?1 is null group by queue, state "
        "order by queue, state",
        workspace,
    )
    return [Counts._make(row) for row in rows]


def depths(db: Database, now: int) -> list[Depth]:
    rows = db.all(
        "select state, queue, kind, count(*), max(case when state = 'queued' and blocked = 0 and run_at <= ?1 then ?1 - run_at end) "
        "from jobs group by state, queue, kind",
        now,
    )
    return [Depth._make(row) for row in rows]


def paused(db: Database) -> set[str]:
    return {row[0] for row in db.all("select queue from queue_state where paused <> 0")}


def agents(db: Database, workspace: str | None) -> list[AgentRow]:
    holding: dict[str, list[int]] = defaultdict(list)
    for agent, job_id in db.all("select agent, id from jobs where state = 'running'"):
        holding[agent].append(job_id)
    drained = {row[0] for row in db.all("select agent from drained")}
    rows = db.all(
        "select agent, name, first_seen, last_seen, leased, succeeded, failed from agents where workspace = ?1 or ?1 is null "
        "order by last_seen desc, agent",
        workspace,
    )
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
    return {row[0]: row[1] for row in db.all("select kind, at from leased_kinds")}


def labels(db: Database, workspace: str, subject: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"human": {}, "machine": {}}
    for layer, key, value in db.all(
        "select layer, key, value from labels where workspace = ?1 and subject = ?2 order by key", workspace, subject
    ):
        found[layer][key] = value
    return found


LIVE_LEASES = "select count(*) from jobs where state = 'running' and holder = ?1 and lease_expires > ?2"
LAST_HOUR = (
    "select cast(coalesce(sum(leases), 0) as bigint), min(at) from token_leases "
    "where token = ?1 and at > ?2 - cast(3600000 as bigint) and at <= ?2"
)


def leases_of(db: Database, holder: str, now: int) -> Leases:
    """What a token has leased, and how much of it in the last hour."""
    return Leases(db.all(LIVE_LEASES, holder, now)[0][0], db.all(LAST_HOUR, holder, now)[0][0])


def tokens(db: Database) -> list[TokenRow]:
    rows = db.all(f"select {', '.join(TokenRow._fields)} from tokens order by created_at, name")
    return [TokenRow._make(row) for row in rows]


def audit(db: Database, before: int | None, limit: int) -> list[AuditRow]:
    below = before if before is not None else 2**63 - 1
    rows = db.all(
        f"select {', '.join(AuditRow._fields)} from audit where id < ?1 order by id desc limit ?2", below, limit
    )
    return [AuditRow._make(row) for row in rows]


def schedules(db: Database, workspace: str | None) -> list[Schedule]:
    rows = db.all(
        f"select {SCHEDULE_COLUMNS} from schedules where workspace = ?1 or ?1 is null order by workspace, name",
        workspace,
    )
    return [Schedule._make(row) for row in rows]


def next_schedule(db: Database) -> int | None:
    return db.all("select min(next_run) from schedules")[0][0]


def task(db: Database, task_id: str) -> TaskRow | None:
    row = db.one(db.queries.task, task_id)
    return None if row is None else TaskRow._make(row)._replace(job_ids=tuple(orjson.loads(row[4])))


def documents(db: Database, workspace: str, ids: Sequence[str]) -> list[Document]:
    sources: dict[str, list[str]] = defaultdict(list)
    for document, source in db.all(
        "select document, source from document_sources where workspace = ?1 and document in texts(?2) order by at, source",
        workspace,
        db.array(ids),
    ):
        sources[document].append(source)
    rows = db.all(
        "select document, title, characters, created_at from documents where workspace = ?1 and document in texts(?2) "
        "order by document",
        workspace,
        db.array(ids),
    )
    return [
        Document(document, title, characters, created_at, tuple(sources.get(document, ())))
        for document, title, characters, created_at in rows
    ]


def vectors(db: Database, workspace: str, model: str | None) -> list[tuple[str, str, list[float]]]:
    rows = db.all(
        "select subject, model, vector from embeddings where workspace = ?1 and (model = ?2 or ?2 is null) "
        "order by subject, model",
        workspace,
        model,
    )
    return [(subject, name, orjson.loads(vector)) for subject, name, vector in rows]


def processes(db: Database) -> list[ProcessRow]:
    return [ProcessRow._make(row) for row in db.all("select * from processes order by started_at")]


def plugin_health(db: Database) -> list[HealthRow]:
    rows = db.all("select plugin, healthy, reason, at from plugin_health order by plugin")
    return [HealthRow(plugin, bool(healthy), reason, at) for plugin, healthy, reason, at in rows]


def check(db: Database) -> list[str]:
    found = [row[0] for row in db.all(db.queries.damage)]
    return [] if found == ["ok"] else found

"""How PostgreSQL finds jobs: every hot query seeks, and touches few pages, in a table that was analysed while it was empty and has been
filled with jobs since, most of them finished. `OAKEN_PLAN_ROWS` says how many there are."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import orjson
import pytest

from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.store.postgres import store
from oaken_jobs.store.postgres.dialect import own
from oaken_jobs.store.postgres.queries import (
    ACTIVITY_HEAD,
    LANES_STILL_OPEN,
    LOCK_FREE_JOBS,
    LOCK_JOBS,
    QUERIES,
    RESERVE,
    TAKE_HEAD,
    WALK_DUE,
    WALK_LANES,
    WALK_LANES_WITHIN,
    WALK_NEXT_EXPIRY,
)
from oaken_jobs.store.postgres.rows import update
from oaken_jobs.store.postgres.server import SETTINGS, WRITING
from oaken_jobs.store.sql import blocked, claim, prune, reads, unit
from tests.contract.statements import watch
from tests.contract.world import World

ROWS = int(os.environ.get("OAKEN_PLAN_ROWS", "50000"))
LIVE = 1000
"""Of them are queued or running; the others have ended."""
PAGES = 700
"""So many pages a query may touch: those of all that runs; the table has thousands."""
NOW = 2_000_000_000_000
LANE = ("default", "default", "work", 50, 0)
LANES = tuple([value] for value in LANE)
KEY = ("default", "key 3")

FILL = f"""
insert into jobs (id, workspace, kind, queue, routed_by, state, priority, dedupe_key, serial_key, parent_id, max_attempts, created_at,
  run_at, actor_kind, actor_id, actor_via, finished_at, lease_expires, holder, epoch)
select n, 'default', case when n % 7 = 0 then 'capped' else 'work' end, 'default', 'default',
  case when n <= {ROWS - LIVE} then 'succeeded' when n % 2 = 0 then 'queued' else 'running' end, 50, 'dedupe ' || n,
  case when n % 50 = 0 then 'key ' || n % 300 / 50 end, nullif(n / 20, 0), 5, {NOW} - 1000, {NOW} - 1000, 'user', 'x', 'http',
  case when n <= {ROWS - LIVE} then {NOW} - 500 end, case when n > {ROWS - LIVE} and n % 2 = 1 then {NOW} + 60000 + n end,
  case when n > {ROWS - LIVE} and n % 2 = 1 then 'holder ' || n % 10 end, 1
from generate_series(1, {ROWS}) n where n <= {ROWS - LIVE} or n % 50 <> 0 or n % 2 = 0"""
OTHERS = (
    "insert into payloads select id, '{}' from jobs",
    "insert into attempts (job_id, epoch, attempt, agent, holder, nonce, started_at) select id, 1, 1, 'a', 'h', 'n', 0 from jobs",
    "insert into activity (at, event, verb, job_id, actor_kind, actor_id, actor_via) "
    "select 0, 'job_state_changed', 'enqueue', id, 'user', 'x', 'http' from jobs",
)


def _update(table: str, column: str) -> str:
    return update(
        {(table, "id"): "bigint", (table, column): "text"}, table, ("id",), (column,), [(1, "a"), (2, "b")]
    ).statement


HOT: dict[str, tuple[str, tuple[Any, ...]]] = {
    "lanes": (WALK_LANES, (None, None, None, None)),
    "lanes of some": (WALK_LANES, (["default"], ["work"], ["other"], None)),
    "lanes of a workspace": (WALK_LANES_WITHIN, (None, None, None, "default")),
    "lanes that were found": (LANES_STILL_OPEN, LANES),
    "head of a lane": (QUERIES.head, (*LANE, NOW, 10, [])),
    "firsts of lanes": (QUERIES.firsts, (*LANES, NOW, [])),
    "heads of lanes": (QUERIES.heads, (*LANES, NOW, 10, [])),
    "next run": (QUERIES.next_run, (*LANES,)),
    "running of a kind": (claim.RUNNING, ("capped", NOW + 61_000 + ROWS)),
    "what time ends": (WALK_DUE, (NOW, 500, 0)),
    "next expiry": (WALK_NEXT_EXPIRY, ()),
    "jobs of busy keys": (QUERIES.busy_keys, tuple([value] for value in KEY)),
    "before a newcomer of a key": (blocked.BEFORE, (*KEY, "default", "work", 50, NOW)),
    "firsts of a key": (QUERIES.firsts_of_key, KEY),
    "due ones of a key": (QUERIES.hide, (*KEY, NOW, 0)),
    "parents without live children": (QUERIES.childless, ([1, 2],)),
    "live dedupe keys": (QUERIES.live_keys, (["default"], [f"dedupe {ROWS}"])),
    "live targets": (QUERIES.live_targets, (["default"], ["work"], ["t"])),
    "versions of jobs": (LOCK_JOBS, ([1, 2, 3],)),
    "what a transaction takes first": (RESERVE, ([1, 2, 3], 5)),
    "head of a lane, taken": (TAKE_HEAD, (*LANE, NOW, 10, [])),
    "update of jobs": (_update("jobs", "state"), ([1, 2, 3], ["queued", "queued", "queued"])),
    "versions of free jobs": (LOCK_FREE_JOBS, ([1, 2, 3],)),
    "jobs by id": (unit.JOBS_BY_ID, ([1, 2, 3],)),
    "payloads by id": (unit.PAYLOADS_BY_ID, ([1, 2, 3],)),
    "leases of a holder": (reads.LIVE_LEASES, ("nobody", NOW)),
    "old jobs": (prune.OLD_JOBS, (NOW, 50)),
    "head of the activity": (ACTIVITY_HEAD, ()),
    "activity behind a cursor": (
        "select * from activity a where a.id > ?1 and a.id <= ?2 order by a.id limit 100",
        (9, ROWS),
    ),
}


@pytest.fixture
async def full(emptied_url: str, tmp_path: Any) -> AsyncIterator[Any]:
    core = Core.on_folder(tmp_path, Rules(), "cli", database=DatabaseSettings(url=emptied_url))
    await core.open()
    await core.close()
    connection: Any = await asyncpg.connect(emptied_url, server_settings=WRITING)
    tables = ("jobs", "payloads", "attempts", "activity")
    for table in tables:
        await connection.execute(
            f"alter table {table} set (autovacuum_enabled = false); truncate {table}; analyze {table}"
        )
    for statement in (FILL, *OTHERS):
        await connection.execute(statement)
    yield connection
    for table in tables:
        await connection.execute(f"truncate {table}; alter table {table} reset (autovacuum_enabled)")
    await connection.close()


@pytest.mark.parametrize("settings", [SETTINGS, WRITING], ids=["planned for each call", "planned for all calls"])
async def test_every_hot_query_seeks_and_touches_few_pages(full: Any, settings: dict[str, str]) -> None:
    wrong: list[str] = []
    for name, value in settings.items():
        await full.execute(f"set {name} = '{value}'")
    for number, (name, (statement, values)) in enumerate(HOT.items()):
        await full.execute(f"prepare hot{number} as {own(statement)}")
        await full.execute("begin")
        told = await full.fetchval(f"explain (analyze, buffers, format json) {_execute(number, values)}")
        await full.execute("rollback")
        plan = orjson.loads(told)[0]["Plan"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        scans = [node["Relation Name"] for node in _nodes(plan) if node["Node Type"] == "Seq Scan"]
        if {"jobs", "payloads", "attempts", "activity"} & set(scans):
            wrong.append(f"{name}: goes through {scans}")
        if pages > PAGES:
            wrong.append(f"{name}: touches {pages} pages")
    assert not wrong, "\n".join(wrong)


async def test_what_time_ends_is_found_by_its_time_or_not_at_all(full: Any) -> None:
    """Other indexes of what runs looked as good to the planner where little runs, and are full of dead rows while a snapshot is held."""
    for name, value in WRITING.items():
        await full.execute(f"set {name} = '{value}'")
    await full.execute("begin; drop index jobs_running")
    used: set[str] = set()
    for number, name in enumerate(("what time ends", "next expiry")):
        statement, values = HOT[name]
        await full.execute(f"prepare ends{number} as {own(statement)}")
        told = await full.fetchval(f"explain (format json) {_execute(number, values).replace('hot', 'ends')}")
        used |= {node["Index Name"] for node in _nodes(orjson.loads(told)[0]["Plan"]) if "Index Name" in node}
    await full.execute("rollback")
    assert not used & {"jobs_running_kind", "jobs_holder", "jobs_serial_running"}
    assert {"jobs_overruled", "jobs_expiring"} <= used


def _execute(number: int, values: tuple[Any, ...]) -> str:
    """The prepared statement, with its values written out."""
    return f"execute hot{number}" + (f"({', '.join(map(_literal, values))})" if values else "")


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "'{" + ", ".join(str(item) for item in value) + "}'"
    return "null" if value is None else f"'{value}'"


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in _nodes(part))]


@pytest.mark.engine("postgres")
async def test_what_writes_makes_its_plans_anew_now_and_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was made for an empty table is no good for a full one."""
    begun: list[str] = []

    async def note(_: Any, statement: str, call: Any) -> Any:
        if "begin" in statement:
            begun.append(statement)
        return await call()

    monkeypatch.setattr(store, "PLANS_SECONDS", 3600.0)
    watch(world.core, note)
    for _ in range(3):
        await world.add()
    assert [statement.startswith("discard plans") for statement in begun] == [True, False, False]
    monkeypatch.setattr(store, "PLANS_SECONDS", 0.0)
    await world.add()
    assert begun[-1].startswith("discard plans")

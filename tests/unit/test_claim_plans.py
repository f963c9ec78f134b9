"""How SQLite finds jobs: every hot query seeks, on every adverse shape, whatever the table's statistics say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shapes import CAPS, KINDS, NOW, SHAPES
from oaken_jobs.store.sql import blocked, claim, unit
from oaken_jobs.store.sqlite import rows, schema
from oaken_jobs.store.sqlite.dialect import own
from oaken_jobs.store.sqlite.driver import Database, connect, create_file
from oaken_jobs.store.sqlite.queries import QUERIES

FILTER = claim.Filter(None, None, (), None)
LANE = ("default", "default", "work", 50, 0)
LANES = '[["default","default","work",50,0],["default","closed","work",900,0]]'
KEY = ("default", "key-1")

HOT: dict[str, tuple[str, Any]] = {
    "lanes": (QUERIES.lanes, (None, None, None, None)),
    "lanes of some": (QUERIES.lanes, ('["default"]', '["work"]', '["x"]', None)),
    "lanes of a workspace": (QUERIES.lanes_within, (None, None, None, "default")),
    "head of a lane": (QUERIES.head, (*LANE, NOW, 10, "[]")),
    "first of each lane": (QUERIES.firsts, (LANES, NOW, "[]")),
    "heads of lanes": (QUERIES.heads, (LANES, NOW, 10, "[]")),
    "next run": (QUERIES.next_run, (LANES,)),
    "running of a kind": (claim.RUNNING, ("capped", NOW)),
    "what time ends": (claim.DUE, (NOW, 500, 0)),
    "running of serial keys": (QUERIES.busy_keys, ('[["default","key-1"]]',)),
    "before a newcomer of a serial key": (blocked.BEFORE, (*KEY, "default", "work", 50, NOW)),
    "firsts of a serial key": (QUERIES.firsts_of_key, KEY),
    "due ones of a serial key": (QUERIES.hide, (*KEY, NOW, 0)),
    "parents without live children": (QUERIES.childless, ("[1,2]",)),
    "next expiry": (claim.NEXT_EXPIRY, ()),
    "jobs by id": (unit.JOBS_BY_ID, ("[1,2,3]",)),
    "payloads by id": (unit.PAYLOADS_BY_ID, ("[1,2,3]",)),
    "update of jobs": (
        rows._update("jobs", ("id",), ("state", "run_at"), (False, False, False), 4),
        [1, "queued", NOW] * 4,
    ),
    "live dedupe keys": (QUERIES.live_keys, ('[["default","k"]]',)),
    "live targets": (QUERIES.live_targets, ('[["default","work","t"]]',)),
}
TABLES = ("jobs", "payloads", "attempts", "j")


@pytest.fixture(params=SHAPES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    shape: str = request.param

    async def opened() -> Any:
        create_file(tmp_path / "core.db")
        connection = await connect(tmp_path / "core.db")

        def fill(database: Database) -> None:
            schema.migrate(database, "plans", 0)
            SHAPES[shape](database, 2000)
            database.execute("insert into payloads select id, '{}' from jobs")
            database.execute("analyze")

        await connection.run(fill)
        return connection

    with asyncio.Runner() as runner:
        connection = runner.run(opened())
        yield shape, lambda function: runner.run(connection.run(function))
        runner.run(connection.close())


def test_every_hot_query_seeks_and_never_scans_a_table(database: tuple[str, Any]) -> None:
    _, run = database

    def plans(db: Database) -> list[tuple[str, str]]:
        return [
            (name, row[3])
            for name, (sql, bound) in HOT.items()
            for row in db.execute(f"explain query plan {own(sql)}", bound).fetchall()
        ]

    for name, step in run(plans):
        words = step.split()
        if words[0] == "SCAN" and words[1] in TABLES:
            # The first lane and the next expiry are the first entry of an index, found with LIMIT 1 or min().
            assert "INDEX jobs_run" in step, f"{name}: {step}"
        assert not (name in ("head of a lane", "first of each lane") and "TEMP B-TREE" in step), f"{name}: {step}"


def test_heads_of_lanes_come_from_the_index_alone(database: tuple[str, Any]) -> None:
    _, run = database
    for name in ("head of a lane", "first of each lane"):
        sql, bound = HOT[name]
        steps = run(
            lambda db, sql=sql, bound=bound: [r[3] for r in db.execute(f"explain query plan {own(sql)}", bound)]
        )
        assert any("COVERING INDEX jobs_runnable" in step for step in steps), (name, steps)


def test_each_shape_hands_out_what_is_due_in_order(database: tuple[str, Any]) -> None:
    shape, run = database

    def pick(db: Database) -> list[tuple[Any, ...]]:
        lanes = claim.lanes(db, FILTER._replace(kinds=KINDS.get(shape)), NOW).lanes
        ids = claim.pick(db, lanes, 10, CAPS, NOW)
        sql = "select -priority, run_at, id from jobs where id = ?"
        return [db.execute(sql, (job_id,)).fetchone() for job_id in ids]

    picked = run(pick)
    assert len(picked) == 10
    assert picked == sorted(picked)


@pytest.mark.parametrize("seed", range(20))
def test_the_pick_equals_the_obvious_query(tmp_path: Path, seed: int) -> None:
    import random

    rng = random.Random(seed)
    caps = {f"k{n}": rng.randint(0, 3) for n in range(3)}

    async def compare() -> None:
        create_file(tmp_path / "core.db")
        connection = await connect(tmp_path / "core.db")

        def both(db: Database) -> None:
            schema.migrate(db, "pick", 0)
            for _ in range(120):
                db.execute(
                    "insert into jobs (workspace, kind, queue, routed_by, state, priority, max_attempts, created_at, run_at, "
                    "actor_kind, actor_id, actor_via, lease_expires) values ('default', ?, ?, 'default', ?, ?, 5, 0, ?, 'user', 'x', "
                    "'http', ?)",
                    (
                        f"k{rng.randint(0, 4)}",
                        f"q{rng.randint(0, 2)}",
                        "running" if rng.random() < 0.03 else "queued",
                        rng.choice([10, 50, 100]),
                        NOW + rng.randint(-5, 2),
                        NOW + rng.choice([-1, 1]),
                    ),
                )
            for count in (1, 3, 10, 200):
                lanes = claim.lanes(db, FILTER, NOW).lanes
                assert claim.pick(db, lanes, count, caps, NOW) == obvious(db, count)

        def obvious(db: Database, count: int) -> list[int]:
            room = {
                kind: max(
                    0,
                    cap
                    - db.execute(
                        "select count(*) from jobs where state = 'running' and kind = ? and lease_expires > ?",
                        (kind, NOW),
                    ).fetchone()[0],
                )
                for kind, cap in caps.items()
            }
            taken: list[int] = []
            for job_id, kind in db.execute(
                "select id, kind from jobs where state = 'queued' and run_at <= ? order by priority desc, run_at, id",
                (NOW,),
            ).fetchall():
                if len(taken) < count and room.get(kind, 1):
                    taken.append(job_id)
                    if kind in room:
                        room[kind] -= 1
            return taken

        try:
            await connection.run(both)
        finally:
            await connection.close()

    asyncio.run(compare())

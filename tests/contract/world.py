"""What tests of the service share: callers of each role, rules, and a core on a fake clock with short words for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from oaken_jobs import pipeline
from oaken_jobs.clock import FakeClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from oaken_jobs.files import DATABASE
from oaken_jobs.kinds import Kind, Rules, Schema
from oaken_jobs.model import Actor, Enqueued, Job, Leased, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.routing import QueueRule
from oaken_jobs.store.sqlite.driver import sqlite3
from tests.contract.invariants import connect

ME = Principal(Actor("user", "me", "http"), frozenset({"user", "agent"}))
VIEWER = Principal(Actor("user", "viewer", "http"), frozenset({"viewer"}))
AGENT = Principal(Actor("agent", "worker", "http"), frozenset({"agent"}), "a")
TWIN = Principal(Actor("agent", "worker", "http"), frozenset({"agent"}), "b")
OTHER = Principal(Actor("agent", "other", "http"), frozenset({"agent"}))
RUNNER = Principal(Actor("system", "runner", "worker"), frozenset(), runner=True)

QUEUES = {
    "default": QueueRule("default", workers=2),
    "store": QueueRule("store", kind="store", by_label=False, hidden=True),
    "embed": QueueRule("embed", kind="embed", by_label=False, hidden=True),
    "triage": QueueRule("triage", kind="triage"),
    "mail": QueueRule("mail"),
    "closed": QueueRule("closed", by_label=False),
}
NUMBERS = Schema.compile(
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "the test's schema"
)
KINDS = {
    **pipeline.kinds(),
    "capped": Kind("capped", limit=2),
    "sum": Kind("sum", payload_schema=NUMBERS, result_schema=NUMBERS),
    "strict": Kind("strict", result_schema=NUMBERS, invalid_result="fail"),
    "fragile": Kind("fragile", on_lost="fail"),
}
RULES = Rules(kinds=KINDS, queues=QUEUES, backoff_jitter=0.0)


def alter(folder: Path, settings: DatabaseSettings, *statements: str) -> None:
    """Changes a database behind Oaken's back."""
    database = sqlite3.connect(folder / DATABASE) if settings.url is None else psycopg.connect(settings.url)
    with closing(database), database:
        for statement in statements:
            database.execute(statement)


class World:
    """A core under test, with short words for what tests do all the time."""

    def __init__(self, core: Core, clock: FakeClock, folder: Path, database: DatabaseSettings) -> None:
        self.core = core
        self.clock = clock
        self.folder = folder
        self.database = database
        self._looking: Any = None

    def another(self, role: str, rules: Rules | None = None) -> Core:
        """The core of another process on the same database, not open yet."""
        return Core.on_folder(self.folder, rules or self.jobs.rules, role, self.clock, database=self.database)

    @property
    def raw(self) -> Any:
        """The database as it is, on a connection of the engine's own library that only looks: `execute(sql).fetchall()`."""
        if self._looking is None:
            url = self.database.url
            self._looking = connect(self.folder / DATABASE) if url is None else psycopg.connect(url, autocommit=True)
        return self._looking

    @property
    def event_ids(self) -> list[int]:
        """Of all events there are."""
        return [row[0] for row in self.raw.execute("select id from activity order by id").fetchall()]

    @property
    def tables(self) -> list[str]:
        """All there are."""
        sqlite = "select name from sqlite_master where type = 'table'"
        named = sqlite if self.database.url is None else "select tablename from pg_tables where schemaname = 'public'"
        return [row[0] for row in self.raw.execute(named).fetchall()]

    def alter(self, *statements: str) -> None:
        """Changes the database behind Oaken's back."""
        alter(self.folder, self.database, *statements)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.close()
        await self.core.close()

    @property
    def jobs(self) -> Any:
        return self.core.jobs

    async def restart(self, **rules: Any) -> None:
        """Closes everything and opens the same database again, by changed rules where given."""
        changed = replace(self.core.jobs.rules, **rules)
        await self.core.close()
        self.core = self.another("serve", changed)
        await self.core.open()

    async def add(self, kind: str = "work", who: Principal = ME, **fields: Any) -> Job:
        enqueued = await self.enqueue(kind, who, **fields)
        return enqueued.job

    async def enqueue(self, kind: str = "work", who: Principal = ME, **fields: Any) -> Enqueued:
        return await self.jobs.enqueue(who, NewJobRequest.model_validate({"kind": kind, **fields}))

    async def take(self, who: Principal = AGENT, **fields: Any) -> Leased:
        """Leases exactly one job."""
        leases = await self.jobs.lease(who, **fields)
        assert len(leases) == 1, f"{len(leases)} leases"
        return leases[0]

    async def none(self, who: Principal = AGENT, **fields: Any) -> None:
        assert await self.jobs.lease(who, **fields) == []

    async def job(self, job_id: int) -> Job:
        return await self.jobs.get(ME, job_id)

    async def attempts(self, job_id: int) -> list[Any]:
        return await self.jobs.attempts(ME, job_id)

    async def tick(self, seconds: float = 0) -> None:
        """Time passes and duties are done, each second."""
        await self.core.maintenance.tick()
        while seconds > 0:
            self.clock.advance(min(seconds, 1))
            await self.core.maintenance.tick()
            seconds -= 1


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Lets the loop run until `condition` holds; fails after `seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, "the condition never came true"
        await asyncio.sleep(0.001)

"""What tests of the service share: callers of each role, rules, and a core on a fake clock with short words for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from oaken_jobs import pipeline
from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from oaken_jobs.kinds import Kind, Rules, Schema
from oaken_jobs.model import Actor, Enqueued, Job, Leased, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.routing import QueueRule

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


class World:
    """A core under test, with short words for what tests do all the time."""

    def __init__(self, core: Core, clock: FakeClock, reopen: Callable[[Rules], Awaitable[Core]]) -> None:
        self.core = core
        self.clock = clock
        self._reopen = reopen

    @property
    def jobs(self) -> Any:
        return self.core.jobs

    async def restart(self, **rules: Any) -> None:
        """Closes everything and opens the same database again, by changed rules where given."""
        changed = replace(self.core.jobs.rules, **rules)
        await self.core.close()
        self.core = await self._reopen(changed)

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

"""Runs the process's own handlers: for each queue as many workers as it has, all by the same loop as outside workers."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket

from oaken_jobs.activity import Follower
from oaken_jobs.clock import Clock
from oaken_jobs.handlers import Handlers
from oaken_jobs.jobs import Jobs
from oaken_jobs.local import LocalTransport
from oaken_jobs.model import Actor, Principal
from oaken_jobs.worker import Worker


def runner_principal() -> Principal:
    """Who a runner is: the system's own, told apart from other runners by host, process and a random part."""
    instance = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    return Principal(Actor("system", "runner", "worker"), frozenset(), instance, runner=True)


class Runner:
    """`start` and `stop` are idempotent. A handler that ignores cancellation keeps `stop` pending."""

    def __init__(self, jobs: Jobs, follower: Follower, clock: Clock, handlers: Handlers, grace: float) -> None:
        who = runner_principal()
        self._workers = [
            Worker(
                LocalTransport(jobs, follower, who),
                handlers,
                queues=[queue.name],
                slots=queue.workers,
                grace=grace,
                clock=clock,
            )
            for queue in jobs.rules.queues.values()
            if queue.workers
        ]

    async def start(self) -> None:
        """Begins to take jobs."""
        for worker in self._workers:
            await worker.start()

    async def stop(self) -> None:
        """Takes nothing new, gives handlers their grace, then releases what is left."""
        ends = [worker.begin_stop() for worker in self._workers if worker.state != "stopped"]
        if ends:
            await asyncio.wait(ends)
        for end in ends:
            end.result()

    async def drain(self) -> int:
        """Runs until nothing can be leased; how many jobs were taken. For tests and one-shot commands."""
        total = 0
        while True:
            taken = sum([await worker.drain() for worker in self._workers])
            total += taken
            if not taken:
                return total

"""A worker process that exists to be killed, beside others like it and several servers.

    python -m tests.process.hand NAME TOLD CONCURRENCY

The server and the token come from `OAKEN_URL` and `OAKEN_TOKEN`. What a server has said yes to goes into the file TOLD, one line of JSON
each, before the worker learns of it:

    {"job": 7, "by": "hand-3.12"}           the job's result names who it is by
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from oaken_swarm import Client, JobContext, Worker

LEASE_SECONDS = 3.0


class Witness(Client):
    """A client that writes down which results were taken."""

    def __init__(self, told: Path) -> None:
        super().__init__(tries=1)
        self._told = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def complete(self, lease_id: str, result: Any = None, **more: Any) -> Any:
        answer = await super().complete(lease_id, result, **more)
        self._write([result])
        return answer

    async def batch(self, ops: Sequence[Any]) -> Any:
        answer = await super().batch(ops)
        said = zip(ops, answer["results"], strict=True)
        self._write([op["result"] for op, one in said if op["op"] == "complete" and "error" not in one])
        return answer

    def _write(self, results: list[Any]) -> None:
        os.write(self._told, b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in results))


async def work(name: str, told: Path, concurrency: int) -> None:
    rng = random.Random(name)
    worker = Worker(agent="hand", instance=name, lease_seconds=LEASE_SECONDS, client=Witness(told))
    done = 0

    async def do(job: JobContext) -> dict[str, Any]:
        nonlocal done
        await asyncio.sleep(rng.random() / 50)
        if rng.random() < 0.02:
            raise ValueError("it fails now and then")
        done += 1
        return {"job": job.id, "by": f"{name}.{done}"}

    worker.handler("work", concurrency)(do)
    await worker.run_async()


if __name__ == "__main__":
    logging.basicConfig(level="WARNING")
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))

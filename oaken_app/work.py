"""`oaken work`: any command line becomes a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import Annotated

import typer

from oaken_app.backend import connected
from oaken_app.command import Command
from oaken_app.options import DataDir
from oaken_jobs.errors import InvalidRequest
from oaken_swarm import Worker

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"ignore_unknown_options": True})
def work(
    kind: Annotated[list[str], typer.Option(help="Jobs of this kind; may be given several times.")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, behind --.")],
    queue: Annotated[list[str] | None, typer.Option(help="Only from this queue; may be given several times.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Commands at once, of each kind.")] = 1,
    lease_seconds: Annotated[float | None, typer.Option(min=1, help="Length of a lease. Default: the kind's.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that running commands have when it stops.")] = 30.0,
    instance: Annotated[str | None, typer.Option(help="Its name under the token's. Default: host and chance.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Lease jobs and run COMMAND for each: payload on stdin, result from stdout.

    What stands on stdout is the result: a JSON object, or text. Exit code 0 completes the job, 65 fails it for good, any other
    fails the attempt with what stood on stderr. OAKEN_JOB_ID, _KIND, _ATTEMPT, _SUBJECT and _INSTRUCTIONS are in its environment.
    A cancelled job, or a second Ctrl-C, ends the command (TERM, then KILL).

        oaken work --kind shout -- tr a-z A-Z
    """
    if not command or not command[0].strip():
        raise InvalidRequest("There is no command; put it behind --: `oaken work --kind shout -- tr a-z A-Z`.")
    if shutil.which(command[0]) is None:
        raise InvalidRequest(
            f"There is no program {command[0]!r}, or it may not be run. Check its name, or give its path."
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("oaken").setLevel(logging.INFO)
    asyncio.run(_work(kind, command, queue, concurrency, lease_seconds, grace, instance, data_dir))


async def _work(
    kinds: list[str],
    words: list[str],
    queues: list[str] | None,
    concurrency: int,
    lease_seconds: float | None,
    grace: float,
    instance: str | None,
    data_dir: Path | None,
) -> None:
    async with connected(data_dir, stays=True) as client:
        me, meta = await client.me(), await client.meta()
        command = Command(words, meta["limits"]["max_result_bytes"])
        worker = Worker(
            agent=f"{me['name']}/{instance or f'work-{os.getpid()}-{secrets.token_hex(2)}'}",
            queues=queues,
            lease_seconds=lease_seconds,
            grace=grace,
            client=client,
        )
        for kind in kinds:
            worker.handler(kind, concurrency=concurrency)(command.run)
        await worker.run_until_signalled(command.kill)

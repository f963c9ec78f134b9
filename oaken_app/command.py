"""A command line as a handler: the payload on its standard input, the result from its standard output.

Exit code 0 completes the job; 65 (bad data, as `sysexits.h` has it) fails it for good; any other fails the attempt, with the end of what
stood on standard error. A job that is cancelled, or a worker that stops, ends the command and all it has started: TERM, then KILL.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import orjson

from oaken_jobs import jsontext
from oaken_jobs.errors import BadJson
from oaken_jobs.handlers import JobContext, JobError, PermanentJobError

TERM_SECONDS = 10.0
"""Between the polite signal and the other one."""
LOOK_SECONDS = 0.1
"""Between two looks whether a command, or the last of its group, has ended."""
BAD_DATA = 65
ERROR_BYTES = 16_384
"""Of standard error that are kept: its end."""
OUTPUT_SECONDS = 2.0
"""How long what the command has left running may hold its output open after it has ended."""


class CommandFailed(JobError):
    """The command ended with another code than 0."""

    def __init__(self, told: str) -> None:
        super().__init__(told)

    def __str__(self) -> str:
        return str(self.args[0])


class Command:
    """`words` is the program and its arguments; no shell looks at them. `most` bounds what its result may have, in bytes."""

    def __init__(self, words: Sequence[str], most: int) -> None:
        self._words = list(words)
        self._most = most
        self._running: set[int] = set()
        """Commands that run, by their process groups."""

    def kill(self) -> None:
        """Ends all commands that run, with all they have started, at once. May be called by a signal's handler."""
        for group in {*self._running, *_starting()}:
            _signal(group, signal.SIGKILL)

    async def run(self, job: JobContext) -> dict[str, Any]:
        """Runs it once for a job. Raises `CommandFailed`, `PermanentJobError`; cancelled, it ends the command first."""
        process = await self._started(job)
        self._running.add(process.pid)
        try:
            out, err = await self._outcome(process, orjson.dumps(job.payload))
        except BaseException:
            await _end(process)
            raise
        finally:
            self._running.discard(process.pid)
        assert process.returncode is not None
        return self._result(out, err, process.returncode)

    async def _started(self, job: JobContext) -> asyncio.subprocess.Process:
        """The command, once it runs. Cancelled, it is ended as soon as that is so: asyncio would end the program alone, and wait for what
        that has started as long as it holds the output open."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | _told(job),
                start_new_session=True,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _end(await starting)
            raise

    async def _outcome(self, process: asyncio.subprocess.Process, payload: bytes) -> tuple[bytes, bytes]:
        """What it wrote until it ended, and a moment longer where others hold its output open."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = bytearray(), bytearray()
        work = asyncio.gather(
            _feed(process.stdin, payload),
            _read(process.stdout, out, self._most),
            _tail(process.stderr, err),
            process.wait(),
        )
        try:
            while process.returncode is None and not work.done():
                await asyncio.wait((work,), timeout=LOOK_SECONDS)
            await asyncio.wait((work,), timeout=OUTPUT_SECONDS)
            if work.done():
                work.result()
        finally:
            work.cancel()
        return bytes(out), bytes(err)

    def _result(self, out: bytes, err: bytes, code: int) -> dict[str, Any]:
        if code != 0:
            how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            said = err.decode("utf-8", "replace").strip()
            told = f"{how}: {said}" if said else how
            raise PermanentJobError(told) if code == BAD_DATA else CommandFailed(told)
        if len(out) > self._most:
            raise PermanentJobError(f"it wrote more than {self._most} bytes, the most that a result may have")
        return result_of(out)


def result_of(out: bytes) -> dict[str, Any]:
    """What stood on standard output as a result: a JSON object as it is, other JSON under `value`, anything else as `text`.

    >>> result_of(b'{"n": 1}'), result_of(b'[1]'), result_of(b'done\\n'), result_of(b'')
    ({'n': 1}, {'value': [1]}, {'text': 'done'}, {})
    """
    text = out.decode("utf-8", "replace").strip()
    if not text:
        return {}
    try:
        value: object = jsontext.parse(text.encode())
    except BadJson:
        return {"text": text}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"value": value}


def _told(job: JobContext) -> dict[str, str]:
    """What the command's environment says of its job."""
    told = {"OAKEN_JOB_ID": str(job.id), "OAKEN_JOB_KIND": job.kind, "OAKEN_JOB_ATTEMPT": str(job.attempt)}
    if job.subject is not None:
        told["OAKEN_JOB_SUBJECT"] = job.subject
    if job.instructions is not None:
        told["OAKEN_JOB_INSTRUCTIONS"] = job.instructions
    return told


async def _feed(stdin: asyncio.StreamWriter, payload: bytes) -> None:
    try:
        stdin.write(payload)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it does not want to know


async def _read(stdout: asyncio.StreamReader, kept: bytearray, most: int) -> None:
    """All of it, or one byte more than `most`: what comes then is thrown away, so that the command is not held up."""
    while chunk := await stdout.read(65_536):
        kept += chunk[: most + 1 - len(kept)]


async def _tail(stderr: asyncio.StreamReader, kept: bytearray) -> None:
    while chunk := await stderr.read(65_536):
        kept += chunk
        del kept[:-ERROR_BYTES]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the command with its whole group; returns when all of it is gone."""
    _signal(process.pid, signal.SIGTERM)
    left = TERM_SECONDS
    # The command itself may be gone before what it has started.
    while left > 0 and (process.returncode is None or _signal(process.pid, 0)):
        await asyncio.sleep(LOOK_SECONDS)
        left -= LOOK_SECONDS
    _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _starting() -> list[int]:
    """All children of this process, where the system tells: one that is just being started is not known otherwise."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _signal(group: int, number: int) -> bool:
    """Whether there was anybody in the group to be told."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True

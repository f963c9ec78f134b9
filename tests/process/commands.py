"""Oaken's commands as real processes, in a test's own loop."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.hosts import Host
from tests.processes import clean_environ

PATIENCE = 60.0
READY = "oaken ready on "


def _environ(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    return {**clean_environ(), "OAKEN_DATA_DIR": str(folder), **settings}


async def serve(
    folder: Path, settings: Mapping[str, str], port: int = 0, host: Host | None = None
) -> tuple[Process, str]:
    """A server without a runner that is ready, and its address. Its log is added to the file `log_of(folder)`."""
    command = [sys.executable, "-m", "oaken_app.main", "serve", "--port", str(port), "--no-runner"]
    if host is not None:
        settings = {**settings, "OAKEN_SERVER__HOST": host.address, "OAKEN_SERVER__BEHIND_PROXY": "true"}
        command = host.command(*command)
    with log_of(folder).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, env=_environ(folder, settings), stdout=PIPE, stderr=log
        )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
        assert line.startswith(READY), log_of(folder).read_text()[-3000:]
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        raise
    return process, line.removeprefix(READY).strip()


def log_of(folder: Path) -> Path:
    return folder.with_suffix(".log")


async def token(folder: Path, settings: Mapping[str, str], name: str) -> str:
    """A token that may do what users and agents may."""
    command = [sys.executable, "-m", "oaken_app.main", "token", "create", name, "--role", "user", "--role", "agent"]
    process = await asyncio.create_subprocess_exec(*command, env=_environ(folder, settings), stdout=PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0
    return out.decode().strip()

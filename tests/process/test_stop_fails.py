"""Stops whose writes fail, and starts that another process holds up: real processes, and a lock on the database."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules

BRIEF = "from oaken_jobs.store.sqlite import driver; driver.BUSY_SECONDS = 0.3; from oaken_app.main import main; main()"
"""The command line, with a store that waits for another process's lock for a moment only."""


class Commands:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, code: str = BRIEF) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OAKEN_")}
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words, "--data-dir", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self.started.append(process)
        return process


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    found = Commands(tmp_path)
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def lock(folder: Path) -> sqlite3.Connection:
    database = sqlite3.connect(folder / "core.db", isolation_level=None)
    database.execute("begin immediate")
    return database


def wait_for(stream: Any, text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"{text!r} never came")


async def made(folder: Path) -> None:
    core = Core.on_folder(folder, Rules(), "cli")
    await core.open()
    await core.close()


@pytest.mark.parametrize("words", [("serve", "--port", "0"), ("runner",)], ids=" ".join)
def test_a_stop_that_cannot_write_ends_all_the_same_and_says_so(commands: Commands, words: tuple[str, ...]) -> None:
    process = commands.start(*words)
    wait_for(process.stdout if words[0] == "serve" else process.stderr, "ready")
    held = lock(commands.folder)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    held.close()
    assert process.returncode == 1, err
    assert "leaving the list of processes failed, the rest goes on: Unavailable" in err
    assert "oaken: The stop was not complete" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_an_assistants_server_that_cannot_write_at_its_end_ends_all_the_same(commands: Commands) -> None:
    process = commands.start("mcp")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "server/discover"}\n')
    process.stdin.flush()
    process.stdout.readline()
    held = lock(commands.folder)
    _, err = process.communicate(timeout=30)
    held.close()
    assert process.returncode == 1, err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("serve", "--port", "0"), ("runner",), ("mcp",)], ids=lambda words: words[0])
async def test_a_signal_ends_a_start_that_waits_for_another_process(commands: Commands, words: tuple[str, ...]) -> None:
    await made(commands.folder)
    held = lock(commands.folder)
    shout = (
        "import sys; from oaken_jobs.store.sqlite.store import SqliteStore as Store; real = Store.write\n"
        "async def write(self, *asked):\n"
        "    print('first write', file=sys.stderr, flush=True)\n"
        "    return await real(self, *asked)\n"
        "Store.write = write; from oaken_app.main import main; main()"
    )
    process = commands.start(*words, code=shout)
    assert process.stderr is not None
    wait_for(process.stderr, "first write")
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    held.close()
    assert process.returncode == 130


async def test_the_error_of_a_start_that_failed_stands_alone(commands: Commands) -> None:
    await made(commands.folder)
    held = lock(commands.folder)
    process = commands.start("serve", "--port", "0")
    _, err = process.communicate(timeout=30)
    held.close()
    assert process.returncode == 1
    assert "oaken: The database cannot answer now" in err.splitlines()[-1]
    assert not [
        line for line in err.splitlines() if line.endswith(("ended", "closed", "requests")) or "stopping" in line
    ]

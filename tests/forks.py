"""Commands of Oaken, each a process of its own, forked from one that has imported everything: that is most of what a start takes.

    said = oaken("job", "list", "--json", data=folder)
    process = subprocess.Popen(command("oaken_app.main", "watch"), stdout=subprocess.PIPE)

What is about a start itself, or about a process that is killed, starts it anew.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from oaken_app.main import COMMANDS
from tests.processes import clean_environ

STAND_IN = Path(__file__).with_name("standin.py")
LATE = (
    "anyio._backends._asyncio",
    "httpcore2",
    "oaken_jobs.moving",
    "oaken_jobs.store.postgres.archive",
    "oaken_jobs.store.postgres.condition",
    "oaken_mcp.__main__",
    "oaken_mcp.remote",
    "oaken_mcp.server",
    "oaken_swarm.plugins.embedder",
    "typer._adapters",
)
"""What commands import when they run. Not the keyring: it looks into the environment when it is imported."""


class Said(NamedTuple):
    """How a command ended, and what it wrote; the code is negative where a signal ended it."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def oaken(*arguments: str, data: Path | None = None, stdin: bytes = b"", **environment: str) -> Said:
    """Runs a command to its end, on the folder `data`, with no variables of Oaken's but those that are told here."""
    folder = {} if data is None else {"OAKEN_DATA_DIR": str(data)}
    done = subprocess.run(
        command("oaken_app.main", *arguments),
        env=clean_environ() | folder | environment,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def command(module: str, *arguments: str) -> list[str]:
    """What does the same as `python -m MODULE ARGUMENT...`, in the environment and the folder that it is started in."""
    return [sys.executable, "-I", "-S", str(STAND_IN), _forks()[0], module, *arguments]


@cache
def _forks() -> tuple[str, subprocess.Popen[str]]:
    """Where the process listens that forks for this one, and ends when this one has."""
    forks = subprocess.Popen(
        [sys.executable, "-m", "tests.forks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        start_new_session=True,  # Ctrl-C is handed on by those who stand in
    )
    assert forks.stdout is not None
    with forks.stdout:
        return forks.stdout.readline().strip(), forks


def _listen() -> str:
    """Forks for whoever connects. Returns in each process that is to be a command: the module whose `main` it is to call."""
    for module in (*{command.module for command in COMMANDS.values()}, *LATE):
        import_module(module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who waits for a command is not this process
    folder = tempfile.mkdtemp(prefix="oaken-forks-")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/socket")
        listening.listen(64)
        print(f"{folder}/socket", flush=True)
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                return _become(connection)
            connection.close()
    shutil.rmtree(folder)
    sys.exit()


def _become(connection: socket.socket) -> str:
    """Minds the command in one process, and returns in the other."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, given, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not told.endswith(b"\n"):
        told += connection.recv(1 << 16)
    if child := os.fork():
        for descriptor in given:
            os.close(descriptor)
        threading.Thread(target=_hand_on, args=(connection, child), daemon=True).start()
        connection.sendall(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    connection.close()
    for number, descriptor in enumerate(given):
        os.dup2(descriptor, number)
        os.close(descriptor)
    module, arguments, environ, folder = json.loads(told)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [str(import_module(module).__file__), *arguments]
    return module


def _hand_on(connection: socket.socket, child: int) -> None:
    """Signals that the one who stands in got, and its end."""
    while got := connection.recv(1):
        os.kill(child, got[0])
    os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(import_module(_listen()).main())

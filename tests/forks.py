"""Commands of Oaken, each a process of its own, forked from one that has imported everything: that is most of what a start takes.

said = oaken("job", "list", "--json", data=folder)
assert said.code == 0, said.err
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from oaken_app import main
from tests.processes import clean_environ

PATIENCE = 60
"""Seconds after which a command is ended by SIGALRM."""
LATE = (
    "anyio._backends._asyncio",
    "httpcore2",
    "oaken_jobs.moving",
    "oaken_jobs.store.postgres.archive",
    "oaken_jobs.store.postgres.condition",
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
    """Runs a command to its end, in the folder `data` and with nothing in its environment but what is told here."""
    folder = {} if data is None else {"OAKEN_DATA_DIR": str(data)}
    with TemporaryFile() as asked, TemporaryFile() as out, TemporaryFile() as err:
        asked.write(json.dumps([arguments, clean_environ() | folder | environment, os.getcwd()]).encode())
        asked.seek(0)
        given, to = os.pipe()
        ended, end = os.pipe()
        socket.send_fds(_forks(), [b"+"], [asked.fileno(), given, out.fileno(), err.fileno(), end])
        os.close(given)
        os.close(end)
        with suppress(BrokenPipeError), open(to, "wb") as pipe:
            pipe.write(stdin)
        with open(ended, "rb") as pipe:
            code = int(pipe.read())
        for file in (out, err):
            file.seek(0)
        return Said(code, out.read().decode(), err.read().decode())


@cache
def _forks() -> socket.socket:
    """That of the process which forks for this one, and ends when this one has."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[1],
        )
    return ours


def _fork_for(asks: socket.socket) -> None:
    """Returns in each process that is to be a command."""
    for module in (*{command.module for command in main.COMMANDS.values()}, *LATE):
        import_module(module)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for commands
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who waits for a command is not this process
    while ends := socket.recv_fds(asks, 1, 5)[1]:
        if os.fork() == 0:
            asks.close()
            return _become(*ends)
        for fd in ends:
            os.close(fd)
    sys.exit()


def _become(asked: int, given: int, out: int, err: int, end: int) -> None:
    """Waits in one process, and tells how the other ended, in which it returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if command := os.fork():
        os.close(given)
        os.write(end, str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])).encode())
        os._exit(0)
    os.close(end)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(PATIENCE)
    for fd, name in ((given, 0), (out, 1), (err, 2)):
        os.dup2(fd, name)
        os.close(fd)
    with open(asked) as file:
        arguments, environ, folder = json.load(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [str(main.__file__), *arguments]


if __name__ == "__main__":
    _fork_for(socket.socket(fileno=int(sys.argv[1])))
    main.main()

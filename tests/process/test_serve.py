"""`oaken serve` as a real process."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from tests.processes import Processes


def test_serve_prints_one_line_when_it_is_ready_and_answers(processes: Processes) -> None:
    process, url = processes.serve()
    assert httpx2.get(f"{url}/readyz", trust_env=False).json() == {"status": "ok"}
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out == ""
    assert err.rstrip("\n").split("\n")[-1].endswith("oaken.process: stopped")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_and_leaves_a_sound_database(processes: Processes, number: signal.Signals) -> None:
    process, _ = processes.serve()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    files = {path.name for path in processes.folder.iterdir()}
    assert files == {"core.db", "admin-token", "events.jsonl", "events.jsonl.lock"}, (
        files
    )  # the log was written back and closed
    assert (processes.folder / "core.db").stat().st_mode & 0o077 == 0
    _, url = processes.serve()
    assert httpx2.get(f"{url}/readyz", trust_env=False).status_code == 200


def test_a_second_server_on_the_same_port_is_refused_kindly(processes: Processes) -> None:
    first, url = processes.serve()
    port = url.rsplit(":", 1)[1]
    second = processes.start("serve", "--port", port)
    out, err = second.communicate(timeout=20)
    assert second.returncode == 1
    assert out == ""
    assert err == (
        f"oaken: The address 127.0.0.1:{port} is in use. Perhaps Oaken runs already; otherwise take another port "
        "(--port or [server] port; 0 takes a free one).\n"
    )
    assert first.poll() is None


def test_two_servers_may_share_a_data_folder(processes: Processes) -> None:
    _, one = processes.serve()
    _, two = processes.serve("--no-runner")
    assert one != two
    for url in (one, two):
        assert httpx2.get(f"{url}/readyz", trust_env=False).status_code == 200


def test_a_second_signal_leaves_at_once(processes: Processes) -> None:
    process, url = processes.serve()
    token = asyncio.run(token_for(processes.folder))
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 10\r\n\r\n"
    # A call whose body never ends gets its grace, so the first signal's stop takes a while.
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(head.encode() + b"{")
        # Answered on the next connection only after the call was begun.
        assert httpx2.get(f"{url}/healthz", trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        wait_for_line(process.stderr, "stopping")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 130


async def token_for(folder: Path) -> str:
    core = Core.on_folder(folder, Rules(), "cli")
    await core.open()
    _, token = await core.tokens.create(Actor("user", "root", "cli"), "root", ["admin"])
    await core.close()
    return token


def wait_for_line(stream: Any, text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"the line {text!r} never came")


def test_a_runner_says_on_stderr_that_it_is_ready_and_stops_cleanly(processes: Processes) -> None:
    process = processes.start("runner")
    assert process.stderr is not None
    wait_for_line(process.stderr, "oaken runner ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "told"),
    [
        (("serve", "--port", "70000"), {}, 1, "oaken: --port is 70000; it must be a whole number"),
        (("serve", "--port", "x"), {}, 2, "--port"),
        (("serve", "--prot", "1"), {}, 2, "--prot"),
        (("srve",), {}, 2, "Did you mean 'serve'?"),
        (("serve",), {"OAKEN_SERVER__PORT": "no"}, 1, "oaken: OAKEN_SERVER__PORT: [server] port"),
        (("serve",), {"OAKEN_CONFIG": "/nowhere/config.toml"}, 1, "oaken: /nowhere/config.toml: there is no such file"),
        (("runner", "--data-dir", "/proc/nowhere"), {}, 1, "oaken: "),
    ],
)
def test_what_a_user_does_wrong_is_one_line_and_never_a_traceback(
    processes: Processes, arguments: tuple[str, ...], environ: dict[str, str], code: int, told: str
) -> None:
    process = processes.start(*arguments, **environ)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert told in err
    assert "Traceback" not in err
    assert out == ""
    if code == 1:
        assert err.count("\n") == 1


def test_help_and_version_come_at_once_and_load_no_server(processes: Processes) -> None:
    process = processes.start("--help")
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "serve" in out
    process = processes.start("--version")
    assert re.fullmatch(r"oaken \d+\.\d+\S*\n", process.communicate(timeout=20)[0])
    code = "import sys, oaken_app.main; print([n for n in ('pydantic', 'uvicorn', 'aiosqlite', 'mcp', 'httpx2') if n in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert loaded.stdout == "[]\n"

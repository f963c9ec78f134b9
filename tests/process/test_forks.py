"""What runs the commands of tests: they are what they are when they are started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.forks import Said, command, oaken
from tests.processes import READY, clean_environ


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["--version"], b""),
        (["job", "enqueue", "greet", "--payload", "-"], '{"text": "🦉"}'.encode()),
        (["job", "enqueue", "greet", "--payload", "-"], b'{"text": "' + b"x" * 600_000 + b'"}'),
        (["job", "list"], b"x" * 600_000),
        (["job", "status", "99"], b""),
        (["job", "frob"], b""),
        (["mcp"], b"{}\n"),
    ],
    ids=["version", "text", "long text", "unread", "refused", "wrong", "mcp"],
)
def test_a_command_does_and_says_the_same_as_one_that_is_started(
    tmp_path: Path, arguments: list[str], stdin: bytes
) -> None:
    environ = {"OAKEN_DATA_DIR": str(tmp_path / "data")}
    started = subprocess.run(
        [sys.executable, "-m", "oaken_app.main", *arguments],
        input=stdin,
        env=clean_environ() | environ,
        capture_output=True,
        check=False,
        timeout=60,
    )
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    expected = Said(started.returncode, started.stdout.decode(), started.stderr.decode())
    assert oaken(*arguments, data=tmp_path / "data", stdin=stdin) == expected


def test_it_is_a_process_of_its_own_in_the_folder_and_the_environment_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAKEN_LOG__LEVEL", "debug")
    said = oaken("config", "show", OAKEN_DATA_DIR="here", OAKEN_JOBS__MAX_ATTEMPTS="4")
    assert said.code == 0, said.err
    assert "OAKEN_JOBS__MAX_ATTEMPTS" in said.out
    assert "OAKEN_LOG__LEVEL" not in said.out
    assert str(tmp_path / "here") in oaken("config", "path", OAKEN_DATA_DIR="here").out
    assert not any(name.startswith("OAKEN_JOBS") for name in os.environ)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_comes_to_the_command_and_an_end_from_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        command("oaken_app.main", "serve", "--port", "0", "--no-runner"),
        env=clean_environ() | {"OAKEN_DATA_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = READY.fullmatch(process.stdout.readline())
        assert ready is not None
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.stdout.read() == "", "nobody has it open any more"
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(ready[1], trust_env=False)


FORKING = """
from tests.forks import oaken
import psutil
assert oaken("--version").code == 0
print(psutil.Process().children()[0].pid, flush=True)
input()
"""


def test_who_forks_goes_with_the_one_it_forks_for_also_when_that_is_killed() -> None:
    for end in (subprocess.Popen.kill, lambda process: process.communicate("\n")):
        owner = subprocess.Popen(
            [sys.executable, "-c", FORKING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        with owner:
            assert owner.stdout is not None
            forks = psutil.Process(int(owner.stdout.readline()))
            end(owner)
            owner.wait(20)
        gone, _ = psutil.wait_procs([forks], 20)
        assert gone == [forks]

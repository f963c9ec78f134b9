"""`oaken work`: real commands as workers of a real data folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oaken_app import command
from oaken_app.command import result_of
from tests import forks
from tests.forks import Said, oaken

Run = Callable[..., Said]


class Bench:
    """A data folder, and commands that work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._workers: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str) -> Said:
        return oaken(*arguments, data=self.folder)

    def enqueue(self, kind: str, payload: dict[str, Any], **fields: str) -> int:
        options = [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", value)]
        text = json.dumps(payload).encode()
        said = oaken("job", "enqueue", kind, "--payload", "-", *options, "--json", data=self.folder, stdin=text)
        return said.json["job"]["id"]

    def work(self, kind: str, *command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OAKEN_")}
        worker = subprocess.Popen(
            forks.command("oaken_app.main", "work", "--kind", kind, *options, "--", *command),
            env=clean | {"OAKEN_DATA_DIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._workers.append(worker)
        return worker

    def job(self, job_id: int) -> dict[str, Any]:
        return self.run("job", "status", str(job_id), "--json").json["job"]

    def until(self, job_id: int, *states: str, seconds: float = 20) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            job = self.job(job_id)
            if job["state"] in states:
                return job
            assert time.monotonic() < deadline, job

    def stop(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.communicate(timeout=20)
            worker.kill()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path / "data")
    yield found
    found.stop()


def test_a_command_does_jobs_of_its_kind_and_no_others(bench: Bench) -> None:
    script = (
        "import json, os, sys; p = json.load(sys.stdin); "
        "print(json.dumps({'n': p['n'] + 1, 'job': os.environ['OAKEN_JOB_ID'], 'subject': os.environ['OAKEN_JOB_SUBJECT']}))"
    )
    first = bench.enqueue("add", {"n": 1}, subject="note:1")
    other = bench.enqueue("other", {})
    bench.work("add", sys.executable, "-c", script)
    assert bench.run("job", "wait", str(first), "--seconds", "30").code == 0
    job = bench.job(first)
    assert job["result"] == {"n": 2, "job": str(first), "subject": "note:1"}
    assert "/work-" in job["agent"]
    assert bench.job(other)["state"] == "queued"


@pytest.mark.parametrize(
    ("script", "state", "reason", "error"),
    [
        ("echo oops >&2; exit 3", "failed", "out_of_attempts", "exit code 3: oops"),
        ("echo bad input >&2; exit 65", "failed", "permanent", "exit code 65: bad input"),
        ("kill -9 $$", "failed", "out_of_attempts", "ended by signal 9"),
        ("echo token=abcdefghijklmnop123456 >&2; exit 1", "failed", "out_of_attempts", "[redacted]"),
        ("head -c 3000000 /dev/zero | tr '\\0' x", "failed", "permanent", "more than 1048576 bytes"),
    ],
)
def test_what_a_command_says_on_its_way_out_is_kept(
    bench: Bench, script: str, state: str, reason: str, error: str
) -> None:
    job_id = bench.enqueue("shell", {}, max_attempts="1")
    bench.work("shell", "sh", "-c", script)
    job = bench.until(job_id, "failed", "succeeded")
    assert (job["state"], job["reason"]) == (state, reason)
    assert error in job["last_error"]


def test_a_command_that_does_not_read_its_payload_is_no_trouble(bench: Bench) -> None:
    job_id = bench.enqueue("shell", {"text": "x" * 500_000})
    bench.work("shell", "sh", "-c", "exec <&-; echo done")
    assert bench.until(job_id, "succeeded")["result"] == {"text": "done"}


def test_a_cancelled_job_ends_its_command_and_what_that_has_started(bench: Bench, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job_id = bench.enqueue("shell", {})
    bench.work("shell", "sh", "-c", f"sleep 600 & echo $$ $! > {pids}; wait", options=("--lease-seconds", "1"))
    bench.until(job_id, "running")
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    bench.run("job", "cancel", str(job_id))
    assert bench.until(job_id, "cancelled")["reason"] == "cancelled_by_user"
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: not _alive(pid))


def test_what_a_command_has_started_and_will_not_stop_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TERM_SECONDS", 0.3)
    pids = tmp_path / "pids"
    script = f"sh -c 'trap \"\" TERM; echo $$ > {pids}; while :; do sleep 1; done' & wait"

    async def cancelled() -> None:
        job: Any = SimpleNamespace(id=1, kind="shell", attempt=1, subject=None, instructions=None, payload={})
        running = asyncio.ensure_future(command.Command(["sh", "-c", script], 1000).run(job))
        await asyncio.to_thread(wait_for, lambda: pids.exists() and bool(pids.read_text()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    wait_for(lambda: not _alive(int(pids.read_text())))


@pytest.mark.skipif(not Path("/proc").exists(), reason="what runs is looked for in /proc")
def test_a_command_that_is_given_up_while_it_starts_is_ended_with_all_it_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "TERM_SECONDS", 0.3)
    mark = f"sleep 600.{os.getpid()}"

    def alive() -> list[str]:
        found = (
            path.read_bytes().replace(b"\0", b" ").decode()
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if path.exists()
        )
        return [line for line in found if line.startswith(mark)]

    connect = BaseSubprocessTransport._connect_pipes  # type: ignore[attr-defined]

    async def cancelled() -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def held(transport: Any, waiter: Any) -> None:
            started.set()
            await go.wait()
            await connect(transport, waiter)

        monkeypatch.setattr(BaseSubprocessTransport, "_connect_pipes", held)
        job: Any = SimpleNamespace(id=1, kind="shell", attempt=1, subject=None, instructions=None, payload={})
        running = asyncio.ensure_future(command.Command(["sh", "-c", f"{mark} & {mark} & wait"], 1000).run(job))
        await started.wait()
        await asyncio.to_thread(wait_for, lambda: len(alive()) == 2)
        running.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10)

    asyncio.run(cancelled())
    wait_for(lambda: not alive())


def test_a_worker_that_is_told_to_stop_ends_its_command_and_gives_the_job_back(bench: Bench, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job_id = bench.enqueue("shell", {})
    worker = bench.work("shell", "sh", "-c", f"echo $$ > {pids}; exec sleep 600", options=("--grace", "0"))
    wait_for(lambda: pids.exists() and bool(pids.read_text()))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    job = bench.job(job_id)
    assert (job["state"], job["attempts"]) == ("queued", 0)
    assert not _alive(int(pids.read_text()))


def test_a_command_that_is_not_there_is_told_before_any_job_is_taken(bench: Bench) -> None:
    job_id = bench.enqueue("shell", {}, max_attempts="1")
    said = bench.run("work", "--kind", "shell", "--", "no-such-program-anywhere")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert "no-such-program-anywhere" in said.err
    assert bench.job(job_id)["state"] == "queued"


def test_a_second_signal_ends_the_commands_with_all_they_have_started(bench: Bench, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    bench.enqueue("shell", {})
    bench.enqueue("shell", {})
    script = f"trap '' TERM INT; sleep 600 & echo $$ $! >> {pids}; wait"
    worker = bench.work("shell", "sh", "-c", script, options=("--concurrency", "2"))
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 4)
    worker.send_signal(signal.SIGINT)
    assert worker.stdout is not None
    while "again leaves at once" not in worker.stdout.readline():
        pass
    worker.send_signal(signal.SIGINT)
    assert worker.wait(10) == -signal.SIGINT
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: not _alive(pid))


def test_what_a_command_leaves_running_does_not_keep_its_job(bench: Bench) -> None:
    job_id = bench.enqueue("shell", {})
    bench.work("shell", "sh", "-c", "sleep 60 & echo done")
    assert bench.until(job_id, "succeeded", seconds=15)["result"] == {"text": "done"}


def test_an_exit_code_is_told_without_a_traceback(bench: Bench) -> None:
    job_id = bench.enqueue("shell", {}, max_attempts="1")
    worker = bench.work("shell", "sh", "-c", "exit 3")
    bench.until(job_id, "failed")
    worker.send_signal(signal.SIGTERM)
    told, _ = worker.communicate(timeout=20)
    assert "exit code 3" in told
    assert "Traceback" not in told


def test_without_a_command_the_usage_is_said(bench: Bench) -> None:
    said = bench.run("work", "--kind", "x")
    assert said.code == 2
    assert "Missing argument" in said.err


@pytest.mark.parametrize(
    ("out", "result"),
    [
        (b"", {}),
        (b" \n", {}),
        (b'{"a": 1}\n', {"a": 1}),
        (b"[1, 2]", {"value": [1, 2]}),
        (b"17\n", {"value": 17}),
        (b"null", {"value": None}),
        (b"two\nlines\n", {"text": "two\nlines"}),
        (b"\xff\xfe", {"text": "\ufffd\ufffd"}),
        (b'{"a": NaN}', {"text": '{"a": NaN}'}),
    ],
)
def test_what_stands_on_standard_output_is_the_result(out: bytes, result: dict[str, Any]) -> None:
    assert result_of(out) == result


def wait_for(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False

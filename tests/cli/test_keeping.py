"""`oaken backup`, `config`, `trace`, `events`, `log` and `watch` as a person meets them."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oaken_app import log as log_module
from oaken_app.backend import connected
from oaken_jobs.config import KindSettings, LogSettings
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, LogRow, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.operations import KeepLog
from oaken_jobs.store.sqlite.driver import sqlite3
from tests.contract.world import until
from tests.forks import Said, command, oaken
from tests.processes import clean_environ

Run = Callable[..., Said]
ME = Principal(Actor("user", "me", "cli"), frozenset({"user", "agent", "admin"}))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return lambda *arguments, **more: oaken(*arguments, data=tmp_path / "data", **more)


# Backup.


async def test_a_copy_made_under_load_is_sound_whole_and_starts_a_new_folder(run: Run, tmp_path: Path) -> None:
    core = Core.on_folder(tmp_path / "data", Rules(), "serve")
    await core.open()
    await core.start_duties()
    for _ in range(20):
        await core.jobs.enqueue(ME, NewJobRequest(kind="work"))
    copy = tmp_path / "copy.db"
    copying = asyncio.ensure_future(asyncio.to_thread(run, "backup", str(copy)))
    while not copying.done():
        await core.jobs.enqueue(ME, NewJobRequest(kind="more"))
    said = await copying
    await core.stop_duties()
    await core.close()
    assert (said.code, "checked" in said.out) == (0, True), said.err
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [name for name in os.listdir(tmp_path) if name.startswith(".copy")] == []
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    copy.rename(fresh / "core.db")
    listed = json.loads(oaken("job", "list", "--kind", "work", "--json", data=fresh).out)
    assert len(listed["jobs"]) == 20
    doctor = oaken("doctor", data=fresh)
    assert (doctor.code, "runs as process" in doctor.out) == (0, False), (
        "no process of the folder that was copied has the copy open"
    )


def test_a_file_that_is_there_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    run("job", "enqueue", "work")
    (tmp_path / "copy.db").write_text("mine")
    said = run("backup", str(tmp_path / "copy.db"))
    assert (said.code, "is there already" in said.err) == (1, True)
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told_kindly(run: Run, tmp_path: Path) -> None:
    run("job", "enqueue", "work")
    said = run("backup", str(tmp_path / "no" / "such" / "folder" / "copy.db"))
    assert (said.code, "There is no folder" in said.err) == (1, True)
    assert not (tmp_path / "no").exists()
    (tmp_path / "file").write_text("")
    said = run("backup", str(tmp_path / "file" / "copy.db"))
    assert (said.code, said.err.count("\n"), "There is no folder" in said.err) == (1, 1, True), said.err


def test_the_trace_goes_along_only_where_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    traced = {"OAKEN_TRACE__ENABLED": "true"}
    run("job", "enqueue", "work", "--payload", '{"text": "said in private"}', **traced)
    worked = subprocess.Popen(
        command("oaken_app.main", "work", "--kind", "work", "--", "cat"),
        env={**clean_environ(), **traced, "OAKEN_DATA_DIR": str(tmp_path / "data")},
    )
    assert run("job", "wait", "1").code == 0
    worked.send_signal(signal.SIGTERM)
    worked.wait(20)
    run("backup", str(tmp_path / "without.db"))
    run("backup", str(tmp_path / "with.db"), "--trace")
    assert not (tmp_path / "without.db.trace.jsonl").exists()
    rows = [json.loads(line) for line in (tmp_path / "with.db.trace.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows] == ["lease", "finish"]
    assert stat.S_IMODE((tmp_path / "with.db.trace.jsonl").stat().st_mode) == 0o600
    told = run("trace", "tail")
    assert "said in private" in told.out
    assert json.loads(run("trace", "tail", "--json").out.splitlines()[0])["event"] == "lease"
    assert run("trace", "tail", "--job", "2").out.startswith("There are no such rows")
    database = sqlite3.connect(tmp_path / "data" / "core.db")
    assert [row[0] for row in database.execute("select outcome from audit").fetchall()] == ["allowed"] * 3
    database.close()


# Settings.


def test_what_is_set_is_shown_with_who_says_so_and_secrets_are_not(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.toml").write_text(
        '[jobs]\nmax_attempts = 3\n[plugins.settings.embedder]\nurl = "http://user:hunter2@host"\n'
    )
    said = run("config", "show", OAKEN_LOG__LEVEL="debug", OAKEN_TOKEN="oak_secret-token")
    assert "[jobs] max_attempts" in said.out
    assert "config.toml" in said.out
    assert "OAKEN_LOG__LEVEL" in said.out
    assert "hunter2" not in said.out
    assert "secret-token" not in said.out
    assert "[server] port" not in said.out
    assert "[server] port" in run("config", "show", "--all").out
    found = json.loads(run("config", "show", "--json").out)["settings"]
    assert {"key": "[jobs] max_attempts", "value": 3, "origin": str(tmp_path / "data" / "config.toml")} in found


def test_settings_are_shown_in_one_order_and_as_they_would_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.toml").write_text(
        '[jobs]\nkind_limits = {embed = 4}\n[kinds.a]\nlimit = 2\ninstructions = "Count."\nlease_seconds = 300\n'
    )
    said = run("config", "show").out
    assert '{"embed": 4}' in said
    assert " 300 " in said
    keys = [line.split("]")[1].split()[0] for line in said.splitlines() if line.startswith("[kinds.a]")]
    assert keys == [key for key in KindSettings.model_fields if key in keys]
    assert len(keys) == 3


def test_the_path_is_where_settings_are_read_from_or_would_be(run: Run, tmp_path: Path) -> None:
    assert run("config", "path").out.strip() == str(tmp_path / "data" / "config.toml")
    (tmp_path / "other.toml").write_text("")
    assert run("config", "path", OAKEN_CONFIG=str(tmp_path / "other.toml")).out.strip() == str(tmp_path / "other.toml")


# Events, logs, watching.


async def _happen(folder: Path, count: int) -> None:
    core = Core.on_folder(folder, Rules(), "cli", log=LogSettings(file_max_bytes=2_000))
    await core.open()
    for _ in range(count):
        await core.jobs.enqueue(ME, NewJobRequest(kind="work"))
    assert core.event_log is not None
    await core.event_log.tick()
    await core.close()


async def test_the_newest_events_are_shown_across_a_rotation_oldest_first(run: Run, tmp_path: Path) -> None:
    await _happen(tmp_path / "data", 30)
    assert (tmp_path / "data" / "events.jsonl.2").exists()
    said = run("events", "tail", "-n", "25")
    jobs = [line.split("job ")[1].split()[0] for line in said.out.splitlines()]
    assert jobs == [str(n) for n in range(6, 31)]
    assert run("events", "tail", "--kind", "queue_state_changed").out.startswith("There are no such events")
    assert json.loads(run("events", "tail", "-n", "1", "--json").out)["data"]["job_id"] == 30
    wrong = run("events", "tail", "--kind", "job_state_change")
    assert (wrong.code, "Did you mean job_state_changed" in wrong.err) == (1, True)


def test_where_there_is_no_event_log_that_is_said(run: Run) -> None:
    run("job", "enqueue", "work")
    assert "There are no such events" in run("events", "tail").out
    off = run("events", "tail", OAKEN_LOG__EVENTS_FILE="")
    assert (off.code, "The event log is off" in off.err) == (1, True)
    remote = oaken("events", "tail", OAKEN_URL="http://127.0.0.1:1")
    assert (remote.code, "oaken watch" in remote.err) == (1, True)


def test_what_happens_is_shown_as_it_happens(run: Run, tmp_path: Path) -> None:
    run("job", "enqueue", "first")
    watching = subprocess.Popen(
        command("oaken_app.main", "watch", "--json"),
        env={**clean_environ(), "OAKEN_DATA_DIR": str(tmp_path / "data")},
        stdout=subprocess.PIPE,
        text=True,
    )
    stop = threading.Event()

    def happen() -> None:
        while not stop.is_set():
            run("job", "enqueue", "work")

    busy = threading.Thread(target=happen)
    busy.start()
    assert watching.stdout is not None
    told = json.loads(watching.stdout.readline())
    stop.set()
    busy.join()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 0
    watching.stdout.close()
    assert (told["kind"], told["data"]["job_kind"]) == ("job_state_changed", "work")


async def test_log_lines_are_shown_oldest_first_and_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    core = Core.on_folder(tmp_path / "data", Rules(), "cli")
    await core.open()
    rows = [
        LogRow(0, core.clock.now(), level, "oaken.test", text, "serve 1")
        for level, text in (("info", "first"), ("debug", "hidden"), ("error", "second\x1b[2J\nTraceback"))
    ]
    await core.commit.call(KeepLog(rows))
    await core.close()
    said = run("log", "tail")
    assert [line.split("oaken.test: ")[-1] for line in said.out.splitlines()] == [
        "first",
        "second [2J",
        "    Traceback",
    ]
    assert "\x1b" not in said.out
    assert [json.loads(line)["message"] for line in run("log", "tail", "--level", "debug", "--json").out.splitlines()][
        1
    ] == "hidden"


class Watch:
    """A command that goes on, and what it writes."""

    def __init__(self, *words: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            command("oaken_app.main", *words),
            env={**clean_environ(), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next(self, err: bool = False) -> str:
        stream = self.process.stderr if err else self.process.stdout
        assert stream is not None
        return stream.readline()

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        return err


@pytest.fixture
def start() -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def begin(*words: str, **environ: str) -> Watch:
        started.append(Watch(*words, **environ))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.communicate()


async def test_an_empty_log_is_followed_from_its_first_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LOOK_SECONDS", 0.01)
    run("job", "enqueue", "work")
    core = Core.on_folder(tmp_path / "data", Rules(), "cli")
    await core.open()
    async with connected(tmp_path / "data") as client:
        looked, look = [0], client.logs

        async def logs(**asked: Any) -> dict[str, Any]:
            looked[0] += 1
            return await look(**asked)

        monkeypatch.setattr(client, "logs", logs)
        following = asyncio.ensure_future(log_module._tail(client, 50, True, "info", False))
        await until(lambda: looked[0] > 2)
        rows = [LogRow(0, core.clock.now(), "info", "oaken.test", text, "serve 1") for text in ("first", "second")]
        await core.commit.call(KeepLog(rows))
        told = ""

        def shown(word: str) -> bool:
            nonlocal told
            told += capsys.readouterr().out
            return word in told

        await until(lambda: shown("second"))
        await core.commit.call(KeepLog([rows[0]._replace(message="third")]))
        await until(lambda: shown("third"))
        following.cancel()
        await asyncio.wait((following,))
    await core.close()
    assert [line.rsplit(" ", 1)[1] for line in told.splitlines()] == ["first", "second", "third"]


@pytest.mark.parametrize("follow", [(), ("-f",)])
@pytest.mark.parametrize("make", ["folder", "pipe"])
def test_an_event_log_that_cannot_be_read_is_told_kindly(
    run: Run, tmp_path: Path, make: str, follow: tuple[str, ...]
) -> None:
    run("job", "enqueue", "work")
    place = tmp_path / "data" / "events.jsonl"
    place.mkdir() if make == "folder" else os.mkfifo(place)
    said = run("events", "tail", *follow)
    assert (said.code, said.err.count("\n"), "events.jsonl" in said.err) == (1, 1, True)


def test_watching_goes_on_when_the_server_comes_back_and_leaves_nothing_out(
    tmp_path: Path, start: Callable[..., Watch]
) -> None:
    data = str(tmp_path / "data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def serve() -> Watch:
        server = start("serve", "--port", port, "--no-runner", OAKEN_DATA_DIR=data)
        assert "ready" in server.next()
        return server

    server = serve()
    token = oaken("token", "create", "root", "--role", "admin", data=tmp_path / "data").out.strip()
    watch = start("watch", "--json", OAKEN_URL=f"http://127.0.0.1:{port}", OAKEN_TOKEN=token)
    first: dict[str, Any] = {}
    while not first:  # until it listens
        oaken("job", "enqueue", "before", data=tmp_path / "data")
        ready, _, _ = select.select([watch.process.stdout], [], [], 0.2)
        first = json.loads(watch.next()) if ready else {}
    assert first["kind"] == "job_state_changed"
    server.end()
    assert "does not answer" in watch.next(err=True)
    oaken("job", "enqueue", "meanwhile", data=tmp_path / "data")
    server = serve()
    assert "answers again" in watch.next(err=True)
    told = json.loads(watch.next())
    while told["data"].get("job_kind") == "before":
        told = json.loads(watch.next())
    assert told["data"]["job_kind"] == "meanwhile"
    watch.end()
    server.end()


def test_a_server_that_was_never_there_is_told_at_once(tmp_path: Path) -> None:
    said = oaken("watch", OAKEN_URL="http://127.0.0.1:9", OAKEN_TOKEN="oak_" + "x" * 40)
    assert (said.code, said.err.count("\n")) == (1, 1)

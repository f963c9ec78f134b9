"""Two servers on one PostgreSQL, each with a folder of its own: what one records the other shows, and each logs all events."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from oaken_swarm import SyncClient
from tests.forks import Said, oaken
from tests.processes import Processes

PRIVATE = "said in private"


@pytest.fixture
def servers(database_url: str, tmp_path: Path) -> Iterator[list[tuple[Processes, str]]]:
    """Two, with their addresses; the settings name the database."""
    found: list[tuple[Processes, str]] = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.toml").write_text(f'[database]\nurl = "{database_url}"\n[trace]\nenabled = true\n')
        processes = Processes(folder)
        found.append((processes, processes.serve("--no-runner")[1]))
    yield found
    for processes, _ in found:
        for process in processes.started:
            process.kill()
            process.communicate()


def test_the_trace_of_one_server_is_shown_by_the_other_and_events_are_in_each_ones_log(
    servers: list[tuple[Processes, str]], database_url: str
) -> None:
    (one, first), (two, second) = servers

    def ask(*arguments: str) -> Said:
        return oaken(*arguments, data=two.folder)

    token = ask("token", "create", "boss", "--role", "admin", "--role", "user", "--role", "agent").out.strip()
    with SyncClient(first, token) as client:
        job = client.enqueue("work", {"text": PRIVATE})["job"]["id"]
        (lease,) = client.lease(kinds=["work"])["leases"]
    with SyncClient(second, token) as client:
        client.complete(lease["lease_id"], {"ok": True})
        told = client.trace_rows(job_id=job)["rows"]
    assert [row["event"] for row in told] == ["finish", "lease"]
    assert told[1]["input"]["payload"] == {"text": PRIVATE}
    assert PRIVATE in ask("trace", "tail").out
    audits = oaken("trace", "tail", data=one.folder, OAKEN_URL=first, OAKEN_TOKEN=token)
    assert audits.code == 0

    errors = []
    for processes, _ in servers:
        (process,) = processes.started
        process.send_signal(signal.SIGTERM)
        errors.append(process.communicate(timeout=30)[1])
        assert process.returncode == 0
    for processes, _ in servers:
        lines = (processes.folder / "events.jsonl").read_text().splitlines()
        moved = [line["data"]["verb"] for line in map(json.loads, lines) if line["data"].get("job_id") == job]
        assert moved == ["enqueue", "claim", "complete"]
        holding = {path.name for path in processes.folder.iterdir() if PRIVATE.encode() in path.read_bytes()}
        assert holding == set(), "the trace is in the database alone"
    assert all(PRIVATE not in said and "database open in postgresql://" in said for said in errors)

"""The trace of whole processes: each way in that works on a data folder records when it is told to, and keeps it to the trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forks import oaken
from tests.mcp.process import server

SECRET = "canary-77aa"
MCP = "import sys; sys.argv[:1] = ['oaken', 'mcp']; from oaken_app.main import main; sys.exit(main())"


@pytest.fixture(params=[True, False], ids=["on", "off"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(f"[trace]\nenabled = {str(request.param).lower()}\n")
    return tmp_path


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "trace.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def holding(folder: Path) -> set[str]:
    """The files with the secret in them."""
    return {path.name for path in folder.iterdir() if path.is_file() and SECRET.encode() in path.read_bytes()}


def recorded(folder: Path) -> bool:
    return "true" in (folder / "config.toml").read_text()


async def test_an_assistants_jobs_are_recorded(folder: Path) -> None:
    async with server(folder, program=MCP) as peer:
        await peer.initialize()
        await peer.call("enqueue", kind="echo", payload={"text": "told"})
        [lease] = (await peer.call("lease"))["leases"]
        await peer.call("fail", lease_id=lease["lease_id"], error=f"token={SECRET}")
        code, rest = await peer.end()
        said = rest + "".join(peer.lines) + await peer.stderr()
    assert code == 0
    assert SECRET not in said
    found = [(row["event"], row["actor"]["via"]) for row in rows(folder)]
    assert found == ([("lease", "mcp"), ("finish", "mcp")] if recorded(folder) else [])
    assert holding(folder) == ({"trace.jsonl"} if recorded(folder) else set())


async def test_the_bare_module_says_that_it_records_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[trace]\nenabled = true\n")
    async with server(tmp_path) as peer:
        await peer.initialize()
        await peer.end()
        assert "start `oaken mcp`" in await peer.stderr()


def test_a_command_that_works_on_the_folder_is_recorded(folder: Path) -> None:
    job = oaken("job", "enqueue", "shout", "--payload", '{"text": "told"}', "--json", data=folder).json["job"]["id"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "oaken_app.main", "work", "--kind", "shout", "--data-dir", str(folder), "--", "cat"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert oaken("job", "wait", str(job), "--seconds", "30", data=folder).code == 0
    finally:
        worker.terminate()
        worker.wait(20)
    found = [(row["event"], row.get("output")) for row in rows(folder)]
    assert found == ([("lease", None), ("finish", {"text": "told"})] if recorded(folder) else [])

"""Putting Oaken into the lists of MCP servers of assistants and editors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from oaken_app.install import CLIENTS, Place, changed, entry_of, place_of
from oaken_jobs.errors import ConfigError

HOME = Path("/home/ann")
OAKEN = Path(sys.executable).parent / "oaken"
PLACE = Place(Path("mcp.json"), "mcpServers", False)


@pytest.mark.parametrize(
    ("client", "platform", "environ", "path", "key"),
    [
        ("claude-code", "linux", {}, ".claude.json", "mcpServers"),
        ("claude-code", "darwin", {}, ".claude.json", "mcpServers"),
        ("cursor", "win32", {}, ".cursor/mcp.json", "mcpServers"),
        ("claude-desktop", "linux", {}, ".config/Claude/claude_desktop_config.json", "mcpServers"),
        (
            "claude-desktop",
            "linux",
            {"XDG_CONFIG_HOME": "/home/ann/x"},
            "x/Claude/claude_desktop_config.json",
            "mcpServers",
        ),
        (
            "claude-desktop",
            "darwin",
            {},
            "Library/Application Support/Claude/claude_desktop_config.json",
            "mcpServers",
        ),
        ("claude-desktop", "win32", {}, "AppData/Roaming/Claude/claude_desktop_config.json", "mcpServers"),
        ("vscode", "linux", {}, ".config/Code/User/mcp.json", "servers"),
        ("vscode", "darwin", {}, "Library/Application Support/Code/User/mcp.json", "servers"),
        ("vscode", "win32", {"APPDATA": "/home/ann/R"}, "R/Code/User/mcp.json", "servers"),
    ],
)
def test_each_client_has_its_file(client: str, platform: str, environ: dict[str, str], path: str, key: str) -> None:
    found = place_of(client, HOME, environ, platform)
    assert (found.path, found.key) == (HOME / path, key)


def test_claude_from_the_store_of_windows_has_a_folder_of_its_own(tmp_path: Path) -> None:
    package = tmp_path / "Packages" / "Claude_pzs8sxrjxfjjc"
    package.mkdir(parents=True)
    found = place_of("claude-desktop", HOME, {"LOCALAPPDATA": str(tmp_path)}, "win32")
    assert found.path == package / "LocalCache" / "Roaming" / "Claude" / "claude_desktop_config.json"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", {"mcpServers": {"oaken": {"a": 1}}}),
        ("{}", {"mcpServers": {"oaken": {"a": 1}}}),
        (
            '{"z": 1, "mcpServers": {"b": {"x": [1]}}, "a": "é"}',
            {"z": 1, "mcpServers": {"b": {"x": [1]}, "oaken": {"a": 1}}, "a": "é"},
        ),
        ('{"mcpServers": {"oaken": {"old": true}}}', {"mcpServers": {"oaken": {"a": 1}}}),
    ],
)
def test_what_else_is_in_a_file_stays_in_its_order(before: str, after: object) -> None:
    text = changed(before, PLACE, "oaken", {"a": 1}).after
    assert json.loads(text) == after
    assert json.dumps(json.loads(text)) == json.dumps(after)
    assert changed(text, PLACE, "oaken", {"a": 1}) == (text, text)


def test_halves_of_characters_stay_as_they_were_written() -> None:
    assert r'"s": "\ud800 ok"' in changed(r'{"s": "\ud800 ok"}', PLACE, "oaken", {"a": 1}).after


def test_the_indent_of_a_file_stays() -> None:
    assert '\n\t"mcpServers": {\n\t\t"oaken"' in changed('{\n\t"z": 1\n}', PLACE, "oaken", {"a": 1}).after


@pytest.mark.parametrize(
    "before",
    ["{ // mine\n}", "[]", '{"mcpServers": []}', "nonsense", '{"a": 1, "a": 2}', '{"a": 1e400}', "[" * 100_000],
)
def test_a_file_that_is_not_understood_is_refused(before: str) -> None:
    with pytest.raises(ConfigError, match=r"mcp\.json"):
        changed(before, PLACE, "oaken", {"a": 1})


def test_a_client_on_stdio_is_told_so_where_it_wants_to_be() -> None:
    told = entry_of(Path("/bin/oaken"), Path("/data"), says_type=True)
    assert told == {"type": "stdio", "command": "/bin/oaken", "args": ["mcp", "--data-dir", "/data"]}


def run(
    tmp_path: Path, *arguments: str, answer: str = "", environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [OAKEN, "mcp", "install", *arguments],
        input=answer,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config"), **(environ or {})},
    )


async def test_what_was_installed_starts_and_works(tmp_path: Path) -> None:
    done = run(tmp_path, "cursor", "--data-dir", str(tmp_path / "data"), "--yes")
    assert done.returncode == 0, done.stderr
    entry = json.loads((tmp_path / ".cursor" / "mcp.json").read_text())["mcpServers"]["oaken"]
    async with Client(StdioServerParameters(command=entry["command"], args=entry["args"])) as client:
        result = await client.call_tool("enqueue", {"kind": "shout"})
    assert not result.is_error
    assert (tmp_path / "data" / "core.db").exists()


def test_the_change_is_shown_first_and_the_file_as_it_was_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"other": {"command": "x"}}}')
    file.chmod(0o640)
    asked = run(tmp_path, "claude-code", "--config", str(file), "--data-dir", "data", answer="n\n")
    assert asked.returncode == 0, asked.stderr
    assert '+    "oaken": {' in asked.stdout
    assert "Nothing was changed" in asked.stdout
    assert "oaken" not in file.read_text()
    assert run(tmp_path, "claude-code", "--config", str(file), "--data-dir", "data", answer="y\n").returncode == 0
    servers = json.loads(file.read_text())["mcpServers"]
    assert list(servers) == ["other", "oaken"]
    assert Path(servers["oaken"]["args"][-1]).is_absolute()
    assert file.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "mcp.json.before-oaken-1").read_text() == '{"mcpServers": {"other": {"command": "x"}}}'
    assert "has it already" in run(tmp_path, "claude-code", "--config", str(file), "--data-dir", "data").stdout


def test_a_question_that_nobody_answers_changes_nothing_and_says_how_to_go_without(tmp_path: Path) -> None:
    given = run(tmp_path, "cursor")
    assert given.returncode != 0
    assert "Give --yes" in given.stderr
    assert not (tmp_path / ".cursor").exists()


def test_an_unknown_client_is_refused_with_those_there_are(tmp_path: Path) -> None:
    refused = run(tmp_path, "zed")
    assert refused.returncode == 1
    assert all(client in refused.stderr for client in CLIENTS)


def test_a_file_that_changed_while_the_question_was_open_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{}")
    asking = subprocess.Popen(
        [OAKEN, "mcp", "install", "cursor", "--config", str(file), "--data-dir", str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asking.stderr is not None
    assert asking.stderr.read(len("Write it?")) == "Write it?"
    file.write_text('{"session": 1}')
    _, told = asking.communicate("y\n", timeout=30)
    assert (asking.returncode, "changed meanwhile" in told) == (1, True)
    assert file.read_text() == '{"session": 1}'


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mcp.json")
    refused = run(tmp_path, "cursor", "--config", str(tmp_path / "mcp.json"), "--data-dir", str(tmp_path))
    assert (refused.returncode, "is no file" in refused.stderr) == (1, True)


def test_options_before_the_command_are_refused_and_not_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [OAKEN, "mcp", "--data-dir", "elsewhere", "install", "cursor", "--config", str(tmp_path / "mcp.json"), "--yes"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, "behind the command" in done.stderr) == (1, True)
    assert not (tmp_path / "mcp.json").exists()


def test_the_change_shows_nothing_that_stands_beside_it_and_the_ends_of_lines_stay(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    other = '{"command": "x", "env": {"TOKEN": "obviously-fake"}}'
    for text in (
        f'{{"mcpServers": {{"other": {other}}}}}',
        f'{{\r\n  "mcpServers": {{\r\n    "other": {other}\r\n  }}\r\n}}\r\n',
    ):
        file.write_bytes(text.encode())
        done = run(tmp_path, "cursor", "--config", str(file), "--data-dir", "data", "--yes")
        assert "fake" not in done.stdout + done.stderr
        assert '+    "oaken": {' in done.stdout
        written = file.read_bytes()
        assert b"obviously-fake" in written
        assert written.count(b"\r\n") == (written.count(b"\n") if "\r" in text else 0)


def test_a_file_that_may_not_be_written_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{}")
    file.chmod(0o444)
    refused = run(tmp_path, "cursor", "--config", str(file), "--data-dir", "data", "--yes")
    assert (refused.returncode, "read-only" in refused.stderr) == (1, True)
    assert file.read_text() == "{}"


def test_a_server_elsewhere_is_put_in_where_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    for more, environ, where in (
        (["--url", "https://oaken.example/"], {}, ["--url", "https://oaken.example"]),
        ([], {"OAKEN_URL": "http://127.0.0.1:8787"}, ["--url", "http://127.0.0.1:8787"]),
        (["--data-dir", str(tmp_path)], {"OAKEN_URL": "http://127.0.0.1:8787"}, ["--data-dir", str(tmp_path)]),
    ):
        done = run(tmp_path, "cursor", "--config", str(file), "--yes", *more, environ=environ)
        assert done.returncode == 0, done.stderr
        assert json.loads(file.read_text())["mcpServers"]["oaken"]["args"] == ["mcp", *where]
    refused = run(tmp_path, "cursor", "--config", str(file), "--yes", "--url", "ftp://x")
    assert (refused.returncode, "ftp" in refused.stderr) == (1, True)

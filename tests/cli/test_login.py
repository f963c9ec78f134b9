"""Tokens by the command line, and servers elsewhere: `oaken login`, after which `OAKEN_URL` alone suffices."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Said, oaken
from tests.service import Service


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a keyring in `ring`, and a configuration folder of the test's own."""
    return {
        "PYTHON_KEYRING_BACKEND": "tests.keyrings.InFile",
        "TEST_KEYRING": str(tmp_path / "ring"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
    }


async def run(environment: dict[str, str], *arguments: str, stdin: str = "", **more: str) -> Said:
    return await asyncio.to_thread(oaken, *arguments, stdin=stdin.encode(), **{**environment, **more})


async def test_after_a_login_the_url_alone_suffices_until_the_logout(
    server: Service, environment: dict[str, str], tmp_path: Path
) -> None:
    token = await server.token("ann", "user", "agent")
    said = await run(environment, "login", server.url + "/", "--token-stdin", stdin=token + "\n")
    assert (said.code, said.err) == (0, "")
    assert said.out == f"Logged in to {server.url} as ann (user, agent). The token is in the system's keyring.\n"
    assert not (tmp_path / "config").exists()
    said = await run(environment, "job", "enqueue", "echo", OAKEN_URL=server.url)
    assert (said.code, said.out) == (0, "Job 1 (echo) is queued on default.\n")
    assert (await run(environment, "logout", server.url)).out == f"Logged out of {server.url}.\n"
    said = await run(environment, "job", "list", OAKEN_URL=server.url)
    assert (said.code, f"`oaken login {server.url}`" in said.err) == (1, True)
    assert (await run(environment, "logout", server.url)).out == f"There was no token for {server.url}.\n"


async def test_without_a_keyring_the_login_keeps_the_token_in_an_owner_only_file(
    server: Service, environment: dict[str, str], tmp_path: Path
) -> None:
    environment["PYTHON_KEYRING_BACKEND"] = "tests.keyrings.Dropping"
    token = await server.token("ann", "user")
    said = await run(environment, "login", server.url, "--token-stdin", stdin=token)
    assert (said.code, "does not keep what is written" in said.err) == (0, True)
    (file,) = [path for path in (tmp_path / "config").rglob("*") if path.is_file()]
    assert str(file) in said.out
    assert token not in said.out + said.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (await run(environment, "job", "list", "--json", OAKEN_URL=server.url)).code == 0


async def test_a_token_that_is_not_good_there_is_not_kept(
    server: Service, environment: dict[str, str], tmp_path: Path
) -> None:
    for given, told in (("oak_wrong", "not known here"), ("", "No token was given")):
        said = await run(environment, "login", server.url, "--token-stdin", stdin=given, OAKEN_TOKEN="oak_other")
        assert (said.code, said.out, told in said.err) == (1, "", True)
    assert not (tmp_path / "ring").exists()


async def test_only_what_needs_a_keyring_loads_one(
    server: Service, environment: dict[str, str], tmp_path: Path
) -> None:
    environment |= {"PYTHON_KEYRING_BACKEND": "tests.keyrings.Marking", "OAKEN_DATA_DIR": str(tmp_path / "data")}
    mark = tmp_path / "ring.touched"
    assert (await run(environment, "job", "enqueue", "echo")).code == 0
    assert (await run(environment, "token", "list")).code == 0
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    said = await run(environment, "mcp", stdin=json.dumps(asked) + "\n")
    assert '"serverInfo"' in said.out
    token = await server.token("ann", "user")
    assert (await run(environment, "job", "list", OAKEN_URL=server.url, OAKEN_TOKEN=token)).code == 0
    assert not mark.exists()
    await run(environment, "job", "list", OAKEN_URL=server.url)
    assert mark.exists()


async def test_a_token_is_made_with_limits_rotated_and_revoked(environment: dict[str, str], tmp_path: Path) -> None:
    environment["OAKEN_DATA_DIR"] = str(tmp_path / "data")
    limits = ["--kinds", "embed", "--kinds", "triage", "--queues", "slow", "--max-leases", "2", "--max-per-hour", "9"]
    made = await run(environment, "token", "create", "bot", "--role", "agent", *limits)
    assert made.out.startswith("oak_"), made.err
    rotated = await run(environment, "token", "rotate", "bot", "--expires-in", "3600")
    assert rotated.out.startswith("oak_")
    assert rotated.out != made.out
    row: dict[str, Any] = (await run(environment, "token", "list", "--json")).json["tokens"][0]
    assert (row["kinds"], row["queues"], row["max_leases"], row["max_per_hour"]) == (
        ["embed", "triage"],
        ["slow"],
        2,
        9,
    )
    assert row["expires_at"] is not None
    shown = (await run(environment, "token", "list", COLUMNS="200")).out
    assert "queues slow; kinds embed, triage; 2 at a time; 9 an hour" in shown
    assert (await run(environment, "token", "revoke", "bot")).code == 0
    said = await run(environment, "token", "rotate", "bot")
    assert (said.code, "revoked, for good" in said.err) == (1, True)

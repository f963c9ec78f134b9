"""The first start of a server on a new data folder makes an admin token, and says where it is."""

from __future__ import annotations

import logging
import os
import signal
import stat
from pathlib import Path
from typing import Any

import httpx2
import pytest

from oaken_app import admin, vault
from oaken_app.process import Process
from oaken_jobs import auth
from oaken_jobs.config import load
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from oaken_swarm import Client
from tests.processes import Processes
from tests.service import eventually


def process_for(folder: Path, **options: Any) -> Process:
    return Process(load(folder, environ={}, server={"port": 0}), runner=False, **options)


async def test_without_a_keyring_the_first_start_leaves_an_admin_token_in_an_owner_only_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = process_for(tmp_path)
    await process.start()
    file = tmp_path / "admin-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text().strip()
    async with Client(process.address, token) as client:
        me = await client.me()
    assert (me["name"], me["roles"]) == ("local-admin", ["admin"])
    await process.stop()
    (told,) = [record for record in caplog.records if "admin token" in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert str(file) in told.getMessage()
    assert token not in caplog.text
    assert vault.of_folder(tmp_path).find() == token


async def test_a_later_start_makes_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        process = process_for(tmp_path)
        await process.start()
        token = (tmp_path / "admin-token").read_text()
        await process.stop()
    assert caplog.text.count("made the admin token") == 1
    assert (tmp_path / "admin-token").read_text() == token


async def test_where_there_is_a_token_none_is_made_even_if_it_was_revoked(tmp_path: Path) -> None:
    core = Core.on_folder(tmp_path, Rules(), "cli")
    await core.open()
    actor = Actor("user", "me", "cli")
    await core.tokens.create(actor, "bot", ["agent"])
    await core.tokens.revoke(actor, "bot")
    await core.close()
    process = process_for(tmp_path)
    await process.start()
    assert [row.name for row in await process.core.tokens.list()] == ["bot"]
    await process.stop()
    assert not (tmp_path / "admin-token").exists()


async def test_of_two_servers_that_start_at_the_same_moment_one_makes_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Core.on_folder(tmp_path, Rules(), "serve")
    await core.open()
    read = core.tokens.list

    async def before_the_other() -> Any:
        rows = await read()
        if not rows:
            await core.tokens.create(Actor("system", "other", "worker"), admin.NAME, ["admin"])
        return rows

    monkeypatch.setattr(core.tokens, "list", before_the_other)
    await admin.make_admin(core.tokens, tmp_path)
    await core.close()
    assert not (tmp_path / "admin-token").exists()


async def test_a_token_that_can_be_kept_nowhere_is_told_with_what_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "admin-token").mkdir()
    process = process_for(tmp_path)
    await process.start()
    await process.stop()
    assert "cannot be kept" in caplog.text
    assert "oaken token rotate local-admin" in caplog.text


async def test_a_runner_makes_no_token(tmp_path: Path) -> None:
    process = Process(load(tmp_path, environ={}), role="runner")
    await process.start()
    assert await process.core.tokens.list() == []
    await process.stop()


@pytest.mark.parametrize(("backend", "in_file"), [("InFile", False), ("Dropping", True), ("Hanging", True)])
def test_a_real_first_start_keeps_the_token_where_it_says(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, in_file: bool
) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", f"tests.keyrings.{backend}")
    monkeypatch.setenv("TEST_KEYRING", str(tmp_path / "ring"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    process, url = processes.serve("--no-runner")
    file = processes.folder / "admin-token"
    assert file.exists() == in_file
    token = file.read_text().strip() if in_file else (tmp_path / "ring").read_text().split('"')[3]
    answer = httpx2.get(f"{url}/v1/me", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    assert answer.json()["roles"] == ["admin"]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert (str(file) in err, "the system's keyring" in err) == (in_file, True)
    assert token not in err


async def test_a_token_revoked_by_another_process_is_not_taken_until_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CACHE_SECONDS", 3600)
    process = process_for(tmp_path)
    await process.start()
    actor = Actor("user", "me", "cli")
    _, token = await process.core.tokens.create(actor, "bot", ["user"])
    other = Core.on_folder(tmp_path, Rules(), "cli")
    await other.open()
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=str(process.address), headers=headers, trust_env=False) as http:
        assert (await http.get("/v1/me")).status_code == 200
        await other.tokens.revoke(actor, "bot")

        async def refused() -> bool:
            return (await http.get("/v1/me")).status_code == 401

        await eventually(refused)
    await other.close()
    await process.stop()

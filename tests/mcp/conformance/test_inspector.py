"""The protocol's Inspector on Oaken itself: it lists the tools, and finds nothing in their schemas that clients stumble over."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from oaken_mcp.catalogue import TOOLS
from oaken_mcp.http import PATH
from tests.mcp.conformance import node
from tests.service import Service

pytestmark = pytest.mark.skipif(node.missing() is not None, reason=str(node.missing()))

ERAS = ("legacy", "modern")
SECONDS = 60


async def inspect(home: Path, era: str, *target: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *node.command("@modelcontextprotocol/inspector", "clients/launcher/build/index.js"),
        *("--cli", "--method", "tools/list", "--strict", "--protocol-era", era, *target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(home), "USERPROFILE": str(home)},  # it keeps files there
    )
    try:
        said, wrong = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, wrong.decode()) == (0, "")
    assert [tool["name"] for tool in json.loads(said)["tools"]] == [tool.name for tool in TOOLS]


@pytest.mark.parametrize("era", ERAS)
async def test_the_inspector_has_nothing_to_say_over_stdio(era: str, tmp_path: Path) -> None:
    server = (sys.executable, "-m", "oaken_app.main", "mcp", "--data-dir", str(tmp_path / "data"))
    path = f"PYTHONPATH={os.pathsep.join(sys.path)}"
    await inspect(tmp_path, era, "--transport", "stdio", "-e", path, "--", *server)


@pytest.mark.parametrize("era", ERAS)
async def test_the_inspector_has_nothing_to_say_over_http(era: str, tmp_path: Path, service: Service) -> None:
    token = f"Authorization: Bearer {await service.token('inspector', 'user', 'agent')}"
    await inspect(tmp_path, era, service.url + PATH, "--transport", "http", "--header", token)

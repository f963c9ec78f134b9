"""A core on a fake clock, and clients of the server on it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from oaken_mcp.http import Endpoint
from tests.contract.world import RULES
from tests.mcp.door import Door
from tests.service import Service, serve


@pytest.fixture
async def door(tmp_path: Path, left_folder: Path) -> AsyncIterator[Door]:
    shutil.copytree(left_folder, tmp_path, dirs_exist_ok=True)
    clock = FakeClock()
    core = Core.on_folder(tmp_path, RULES, "mcp", clock)
    await core.open()
    yield Door(core, clock)
    await core.close()


@pytest.fixture
async def service(core: Core) -> AsyncIterator[Service]:
    """A server with MCP over HTTP."""
    endpoint = Endpoint(core)
    service = await serve(core, mounts={"mcp": endpoint})
    yield service
    await endpoint.stop()
    await service.close()

"""A core on a fake clock, and clients of the server on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from tests.contract.world import RULES
from tests.mcp.door import Door


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    clock = FakeClock()
    core = Core.on_folder(tmp_path, replace(RULES, lease_seconds=1800), "mcp", clock)
    await core.open()
    yield Door(core, clock)
    await core.close()

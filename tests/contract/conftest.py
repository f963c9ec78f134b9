"""One suite for all engines: another engine is one more parameter here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from tests.contract.world import RULES, World

ENGINES = ["sqlite"]


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    clock = FakeClock()

    async def open_core(rules: Rules) -> Core:
        core = Core.on_folder(tmp_path, rules, "serve", clock)
        await core.open()
        return core

    found = World(await open_core(RULES), clock, open_core)
    yield found
    await found.core.close()

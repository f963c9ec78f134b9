"""One suite for all engines: another engine is one more parameter here."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from tests.contract.world import RULES, World

ENGINES = ["sqlite", "postgres"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of what one engine alone has says so: `@pytest.mark.engine("sqlite")`."""
    items[:] = [item for item in items if _concerns(item)]


def _concerns(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("engine")
    run = getattr(item, "callspec", None)
    return mark is None or run is None or run.params.get("database") in (None, mark.args[0])


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest) -> DatabaseSettings:
    """Where the test keeps its jobs: in its folder, or in an empty PostgreSQL database."""
    return DatabaseSettings(url=None if request.param == "sqlite" else request.getfixturevalue("emptied_url"))


@pytest.fixture
async def world(database: DatabaseSettings, tmp_path: Path, left_folder: Path) -> AsyncIterator[World]:
    if database.url is None:
        shutil.copytree(left_folder, tmp_path, dirs_exist_ok=True)
    clock = FakeClock()
    core = Core.on_folder(tmp_path, RULES, "serve", clock, database=database)
    await core.open()
    found = World(core, clock, tmp_path, database)
    yield found
    await found.close()


@pytest.fixture
async def other(world: World) -> AsyncIterator[Core]:
    """Another process on the same database, as far as the database can tell."""
    core = world.another("serve")
    await core.open()
    yield core
    await core.close()

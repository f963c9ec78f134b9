"""A core on a folder of the test's own, and a server over it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core
from tests import postgres
from tests.processes import Processes
from tests.service import RULES, Service, serve

# No test writes into the keyring of whoever runs it, nor do the processes it starts.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever starts the tests in the background has its children ignore Ctrl-C; they would hand that on to every command they try it on.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """What the test starts on a folder of its own, until its end."""
    found = Processes(tmp_path / "data")
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


ENGINE = os.environ.get("OAKEN_TEST_ENGINE", "sqlite")
"""What tests of the service keep their jobs in, `sqlite` or `postgres`; tests of the store itself are run on both."""


@pytest.fixture
def database(request: pytest.FixtureRequest) -> DatabaseSettings:
    """Where a test of the service keeps its jobs: in its folder, or in an empty PostgreSQL database."""
    return DatabaseSettings(url=request.getfixturevalue("emptied_url") if ENGINE == "postgres" else None)


@pytest.fixture(scope="session")
def left_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that a core has opened and left: with Oaken's tables and nothing in them. A copy of it is opened in a third
    of the time of a new one."""

    async def leave(folder: Path) -> None:
        core = Core.on_folder(folder, RULES, "serve")
        await core.open()
        await core.close()

    folder = tmp_path_factory.mktemp("left")
    with asyncio.Runner() as runner:
        runner.run(leave(folder))
    return folder


@pytest.fixture
async def core(database: DatabaseSettings, tmp_path: Path, left_folder: Path) -> AsyncIterator[Core]:
    """Open, without duties, on the machine's clock or its database's."""
    if database.url is None:
        shutil.copytree(left_folder, tmp_path / "data")
    rules = replace(RULES, kinds=dict(RULES.kinds))  # a test may add kinds
    found = Core.on_folder(tmp_path / "data", rules, "serve", database=database)
    await found.open()
    yield found
    await found.close()


@pytest.fixture
async def server(core: Core) -> AsyncIterator[Service]:
    """Serving on a free port of loopback."""
    service = await serve(core)
    yield service
    await service.close()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """A PostgreSQL of this process's own; `postgres.fresh` makes databases on it. With other processes' transactions on it, a follower
    would hear of a change when theirs have ended, too, and a test could not say when."""
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.shared(tmp_path_factory.getbasetemp()) as url:
        yield url


@pytest.fixture(scope="session")
def oaken_database(postgres_url: str) -> Iterator[str]:
    """A database with Oaken's tables, for tests that follow each other."""

    async def make() -> tuple[AbstractAsyncContextManager[str], str]:
        made = postgres.fresh(postgres_url)
        return made, await made.__aenter__()

    with asyncio.Runner() as runner:
        made, url = runner.run(make())
        yield url
        runner.run(made.__aexit__(None, None, None))


@pytest.fixture
async def emptied_url(oaken_database: str) -> str:
    """A PostgreSQL database of the test's own with Oaken's tables and nothing in them, in a few milliseconds."""
    await postgres.empty(oaken_database)
    return oaken_database


@pytest.fixture
async def database_url(postgres_url: str) -> AsyncIterator[str]:
    """An empty PostgreSQL database of the test's own."""
    async with postgres.fresh(postgres_url) as url:
        yield url


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged goes to another process as UTF-8, which halves of characters are not."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start processes come first: they take longest, and who runs beside them has the others to do."""
    first = ("/process/", "/cli/", "/conformance/", "test_rules")
    items.sort(key=lambda item: not any(name in str(item.path) for name in first))

"""The conformance suites of the protocol, on Oaken itself and on a server of fixtures behind Oaken's transport."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core
from oaken_jobs.model import Actor
from oaken_jobs.runner import Runner
from oaken_mcp.http import PATH, Endpoint
from oaken_swarm.app import App
from oaken_swarm.server import Server
from tests.mcp.conformance import fixture, jobs, node
from tests.mcp.conformance.suites import SUITES, Check, Suite, run

pytestmark = pytest.mark.skipif(node.missing() is not None, reason=str(node.missing()))

EXPECTED = tomllib.loads(Path(__file__).with_name("expected.toml").read_text())


class WithToken:
    """The application for callers that cannot send a token."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._header = (b"authorization", f"Bearer {token}".encode())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["headers"] = [*scope["headers"], self._header]
        await self._app(scope, receive, send)


@asynccontextmanager
async def serving(core: Core, endpoint: Endpoint) -> AsyncIterator[str]:
    """The address of MCP on a server with this mount."""
    await core.start_duties()
    _, token = await core.tokens.create(Actor("user", "root", "cli"), "suite", ["user", "agent"])
    app = App(core, ServerSettings(host="127.0.0.1", port=0), {"mcp": endpoint})
    server = Server(WithToken(app, token), "127.0.0.1", 0)  # type: ignore[arg-type]
    await server.start()
    yield server.address + PATH
    await endpoint.stop()
    await server.stop()


def compare(checks: list[Check], listed: list[dict[str, Any]]) -> None:
    """Fails unless exactly those are not good that are listed; a suite does not come to all checks."""
    expected = {key for reason in listed for key in reason["checks"]}
    bad = {check.key: check.message for check in checks if not check.good}
    assert {key: message for key, message in bad.items() if key not in expected} == {}, "not listed"
    assert expected & {check.key for check in checks} - bad.keys() == set(), "listed, but good"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
async def test_the_fixtures_fail_in_nothing_but_what_is_listed(core: Core, suite: Suite, tmp_path: Path) -> None:
    core.jobs.rules.kinds["lost"] = jobs.LOST
    runner = Runner(core.jobs, core.follower, core.clock, jobs.handlers, 1)
    await runner.start()
    async with serving(core, Endpoint(core, fixture.fixture)) as url:
        checks = await run(suite, url, tmp_path / "results")
    await runner.stop()
    compare(checks, EXPECTED["fixture"])


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
async def test_oaken_fails_in_nothing_but_what_is_listed(core: Core, suite: Suite, tmp_path: Path) -> None:
    async with serving(core, Endpoint(core)) as url:
        checks = await run(suite, url, tmp_path / "results")
    about = [check for check in checks if check.scenario in EXPECTED["oaken"]["scenarios"]]
    assert len({check.scenario for check in about}) >= 10
    compare(about, EXPECTED["oaken"]["failures"])

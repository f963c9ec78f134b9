"""A browser on the cockpit. Each page fails its test where anything breaks the policy of what it may load, or raises."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import async_playwright, expect

from oaken_jobs.archive import JournalArchive
from oaken_jobs.config import DatabaseSettings
from oaken_jobs.core import Core, clock_for
from oaken_jobs.files import TRACE
from oaken_jobs.journal import Journal
from oaken_jobs.model import Actor, Leased, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.trace import Recorder
from oaken_swarm import cookie
from tests.service import ROOT, RULES, Service, serve

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_WATCH = "document.addEventListener('securitypolicyviolation', (e) => broken(`${e.violatedDirective} ${e.blockedURI} ${e.sample}`))"

# A figure is counted anew after a multiple of the time that it took, so beside other tests it may come late.
expect.set_options(timeout=15_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        mark = pytest.mark.skip(reason="there is no Chromium: apt-get install chromium")
        for item in items:
            if "/browser/" in str(item.path):
                item.add_marker(mark)


def agent(name: str) -> Principal:
    return Principal(Actor("agent", name, "worker"), frozenset({"agent"}))


USER = Principal(Actor("user", "ann", "http"), frozenset({"user", "admin"}))


@dataclass
class Cockpit:
    """A server, and a browser that looks at it."""

    core: Core
    service: Service
    browser: Any
    wrong: list[str] = field(default_factory=list[str])
    expected: list[str] = field(default_factory=list[str])
    """Parts of what may go wrong all the same."""
    roles: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])

    @property
    def url(self) -> str:
        return self.service.url

    async def context(self, *roles: str, **options: Any) -> Any:
        """A browser's profile, logged in with a token of these roles; without any, not logged in."""
        context = await self.browser.new_context(
            base_url=self.url, **{"locale": "en-GB", "timezone_id": "Europe/Berlin", **options}
        )
        context.set_default_timeout(10_000)
        await context.expose_binding("broken", lambda source, said: self.wrong.append(f"policy: {said}"))
        await context.add_init_script(_WATCH)
        context.on("weberror", lambda error: self.wrong.append(f"error: {error.error}"))
        context.on("console", lambda said: self.wrong.append(f"console: {said.text}") if said.type == "error" else None)
        if roles:
            await self.log_in(context, await self.service.token("-".join(roles), *roles))
        return context

    async def log_in(self, context: Any, token: str) -> str:
        """Gives a profile a session of this token; its secret."""
        secret = await self.core.sessions.open(token)
        await context.add_cookies([{"name": cookie.name(self.url), "value": secret, "url": self.url}])
        return secret

    async def page(self, path: str, *roles: str, **options: Any) -> Any:
        """A page in a profile of its own."""
        page = await (await self.context(*(roles or ("user",)), **options)).new_page()
        await page.goto(path)
        return page

    async def enqueue(self, kind: str = "checked", **fields: Any) -> int:
        return (await self.core.jobs.enqueue(USER, NewJobRequest(kind=kind, **fields))).job.id

    async def lease(self, kind: str = "checked", name: str = "bot") -> Leased:
        [lease] = await self.core.jobs.lease(agent(name), kinds=[kind])
        return lease

    async def serve(self, port: int) -> None:
        """A server on this port, after the one before was closed."""
        self.service = await serve(self.core, port=port)


@pytest.fixture
def database() -> DatabaseSettings:
    """In the test's folder; `test_postgres.py` has another."""
    return DatabaseSettings()


@pytest.fixture
async def core(database: DatabaseSettings, tmp_path: Path) -> AsyncIterator[Core]:
    clock = clock_for(database)
    trace = Recorder(JournalArchive(Journal(tmp_path / TRACE, 1 << 24, 1)), clock, recording=True, keep_days=30)
    rules = replace(RULES, kinds=dict(RULES.kinds))
    found = Core.on_folder(tmp_path / "data", rules, "serve", clock, database=database, trace=trace)
    await found.open()
    yield found
    await found.close()


@pytest.fixture
async def cockpit(core: Core) -> AsyncIterator[Cockpit]:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = Cockpit(core, await serve(core), browser)
        yield found
        await browser.close()
        await found.service.close()
    wrong = [one for one in found.wrong if not any(part in one for part in found.expected)]
    assert not wrong, "\n".join(wrong[:10])


async def root_token(core: Core, name: str, *roles: str) -> str:
    return (await core.tokens.create(ROOT, name, list(roles)))[1]

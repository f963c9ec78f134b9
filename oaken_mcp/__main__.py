"""`python -m oaken_mcp`: the server on stdio, for clients that start a module rather than a command."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from oaken_jobs.errors import OakenError
from oaken_mcp import serve_stdio


def main() -> int:
    """A refusal is one line on stderr and exit code 1."""
    parser = argparse.ArgumentParser(prog="oaken_mcp", description="Oaken's MCP server on stdio.")
    parser.add_argument("--data-dir", type=Path, help="the data folder (else OAKEN_DATA_DIR, else the user's own)")
    parser.add_argument(
        "--actor", help="who calls: agent:NAME, user:NAME or NAME; else an agent with the client's name"
    )
    parser.add_argument("--role", action="append", default=[], help="viewer, user or agent; may be given several times")
    given = parser.parse_args()
    try:
        serve_stdio(given.data_dir, actor=given.actor, roles=given.role)
    except OakenError as refusal:
        sys.stderr.write(f"oaken: {' '.join(refusal.message.split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

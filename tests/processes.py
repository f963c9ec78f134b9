"""Oaken's commands as real processes that a test starts, and that end with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

READY = re.compile(r"oaken ready on (http://127\.0\.0\.1:\d+)\n")


class Processes:
    """Started commands, none of which outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "oaken_app.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean_environ(), "OAKEN_DATA_DIR": str(self.folder), **environ},
        )
        self.started.append(process)
        return process

    def serve(self, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        """A server that is ready, and its address."""
        process = self.start("serve", "--port", "0", *arguments)
        assert process.stdout is not None
        line = process.stdout.readline()
        match = READY.fullmatch(line)
        assert match, (line, process.stderr and process.stderr.read())
        return process, match[1]


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OAKEN_")}

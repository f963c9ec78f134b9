"""The numbered migrations of an engine: `migrations/NNNN_name.sql` in its package."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def numbered(package: str) -> list[tuple[int, str]]:
    """(number, statements) in order."""
    folder = resources.files(package) / "migrations"
    found = [(int(f.name[:4]), f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".sql")]
    return sorted(found)

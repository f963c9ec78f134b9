"""The files of a data folder by name, and whether a name that a setting gives is free for another."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DATABASE: Final = "core.db"
CONFIG: Final = "config.toml"
TRACE: Final = "trace.jsonl"

_BESIDE = re.compile(r"(\.(lock|tmp|[0-9]+))+\Z")
"""What a journal adds to its name for the files beside it."""


def refused(folder: Path, config: Path, journals: Mapping[str, str]) -> tuple[str, str] | None:
    """The first of the `journals`, names relative to the data folder by the keys of their settings, that cannot be kept there, and why;
    None where all can. `config` is the file of the settings."""
    database = _plain(folder / DATABASE)
    taken = {_plain(folder / TRACE): "the trace's"}
    taken |= {_plain(path): "for the settings" for path in (folder / CONFIG, config)}
    for key, name in journals.items():
        try:
            path = _plain(folder / name)
            folder_there = os.path.isdir(path)
        except (OSError, ValueError, RuntimeError):
            return key, "the name of a file"
        if folder_there or name.endswith(("/", os.sep)):
            return key, "a file, which a folder is not"
        if _BESIDE.search(path):
            return key, "a file whose name does not end as those beside a log do: .lock, .tmp or a number"
        if path in taken or path.startswith(database):
            owner = taken.get(path, "the database's")
            return key, f"another file: this one is {owner}"
        taken[path] = f"[log] {key}"
    return None


def _plain(path: Path) -> str:
    """The one name of a file that has several, also on a disk that does not tell capitals apart."""
    return os.path.normcase(path.resolve()).casefold()

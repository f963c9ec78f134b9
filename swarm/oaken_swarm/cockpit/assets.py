"""Style and scripts: small files of our own, read once, and kept by browsers under a name that changes with them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("static")
_TYPES = {".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8", ".svg": b"image/svg+xml"}
FOR_EVER = (b"cache-control", b"public, max-age=31536000, immutable")


class Asset(NamedTuple):
    body: bytes
    media_type: bytes


@cache
def files() -> dict[str, Asset]:
    """By name."""
    return {path.name: Asset(path.read_bytes(), _TYPES[path.suffix]) for path in sorted(FOLDER.iterdir())}


@cache
def version() -> str:
    """Changes with any of them: scripts name one another, and must be of one make."""
    return hashlib.blake2b(b"".join(asset.body for asset in files().values()), digest_size=6).hexdigest()


def base() -> str:
    """The folder they are under."""
    return f"/static/{version()}"

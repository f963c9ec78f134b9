"""A call to a page of the cockpit: what came, before anybody knows whose it is."""

from __future__ import annotations

from dataclasses import dataclass

from oaken_swarm.body import Size
from oaken_swarm.call import Call

CODE_PATH = "/login/code"
"""Where a login code is posted, by a file on the disk of whoever runs `oaken open`."""


@dataclass(slots=True)
class Visit:
    """`call` is of no route and of nobody yet."""

    call: Call
    method: str
    path: str
    query: bytes
    address: str
    cookie: bytes | None
    origin: bytes | None
    fetch_site: bytes | None
    """Where the page stands that asks, as the browser says: `same-origin`, `same-site`, `cross-site`, or `none` for nowhere."""
    browser: bool
    """Whether it wants a page, and not only what one says."""
    size: Size
    """The most that a form may have."""
    content_type: bytes | None

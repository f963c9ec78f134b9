"""The cookie of a session. It is named with the port, since a browser sends the cookies of a host to all its ports: so two servers on one
machine do not log each other out."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_VALUE = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_PORTS = {"http": 80, "https": 443}


def name(base: str) -> str:
    """Of the server that a browser reaches at `base`, scheme and host.

    >>> name("http://localhost:8787"), name("https://oaken.example")
    ('oaken_8787', 'oaken_443')
    """
    scheme, host = urlsplit(base)[:2]
    port = re.search(r":(\d{1,5})$", host)
    return f"oaken_{port[1] if port else _PORTS[scheme]}"


def find(header: bytes, base: str) -> str | None:
    """The secret in a Cookie header; None where there is none of ours."""
    wanted = name(base)
    for part in header.decode("latin-1").split(";"):
        found, _, value = part.strip().partition("=")
        if found == wanted and _VALUE.fullmatch(value):
            return value
    return None


def keep(secret: str, base: str, seconds: int) -> tuple[bytes, bytes]:
    """The header that has a browser keep it: for pages of this server alone, never told to scripts or to other sites."""
    secure = "; Secure" if base.startswith("https:") else ""
    value = f"{name(base)}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", value.encode()


def forget(base: str) -> tuple[bytes, bytes]:
    """The header that has a browser drop it."""
    return keep("", base, 0)

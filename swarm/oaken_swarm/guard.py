"""Which Host and Origin headers are taken: a page somewhere on the web can reach a server on loopback, and must not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oaken_jobs.errors import Forbidden, Misdirected
from oaken_jobs.redaction import clean

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?", re.ASCII)
_KNOWN_LIMIT = 100


class Guard:
    """Checks the headers of one server. `host` is what it listens on; names are compared without case and port."""

    def __init__(self, host: str, allowed_hosts: Sequence[str], allowed_origins: Sequence[str]) -> None:
        names = (*LOOPBACK, host, *allowed_hosts)
        self._names = frozenset(_bare(name) for name in names)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in allowed_origins)
        self._known: set[bytes] = set()

    def check(self, hosts: Sequence[bytes], origin: bytes | None) -> None:
        """Raises `Misdirected` for a host that is not ours, `Forbidden` for an origin that is not."""
        if len(hosts) != 1 or hosts[0] not in self._known:
            self._check_hosts(hosts)
        if origin is not None:
            self._check_origin(hosts[0].decode("latin-1").lower(), origin.decode("latin-1").lower())

    def _check_hosts(self, hosts: Sequence[bytes]) -> None:
        if len(hosts) != 1:
            raise Misdirected(f"A request names one Host; this one names {len(hosts)}.")
        text = hosts[0].decode("latin-1").lower()
        match = _HOST.fullmatch(text)
        if match is None or match[1].rstrip(".") not in self._names:
            raise Misdirected(
                f"This server does not answer for the host {clean(text, 100)!r}. Use localhost or 127.0.0.1, "
                "or add the name to [server] allowed_hosts.",
                setting="[server] allowed_hosts",
            )
        if len(self._known) < _KNOWN_LIMIT:  # names with any port are ours
            self._known.add(hosts[0])

    def _check_origin(self, host: str, origin: str) -> None:
        if origin in (f"http://{host}", f"https://{host}") or origin in self._origins:
            return
        raise Forbidden(
            f"Pages of {clean(origin, 100)!r} may not call this server. Add the origin to [server] allowed_origins "
            "if they should.",
            setting="[server] allowed_origins",
        )


def _bare(name: str) -> str:
    """A configured name as it stands in a Host header, without port: an IPv6 address has brackets there."""
    name = name.lower().strip()
    if name.count(":") > 1 and not name.startswith("["):
        return f"[{name}]"
    match = _HOST.fullmatch(name)
    return (match[1] if match else name).rstrip(".")

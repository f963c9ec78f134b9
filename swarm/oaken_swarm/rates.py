"""How often something may happen: a count for each key that runs down as time passes, in a table of bounded size."""

from __future__ import annotations

import ipaddress
import math
from typing import NamedTuple

from oaken_jobs.clock import Clock

MOST_KEYS = 10_000


class _Level(NamedTuple):
    height: float
    at: float


class Rate:
    """At most `most` at once, and in the long run as many in `seconds`. Where more keys come than are kept, those that were
    counted longest ago start anew."""

    def __init__(self, clock: Clock, most: int, seconds: float) -> None:
        self._clock = clock
        self._most = most
        self._each = seconds / most
        self._levels: dict[str, _Level] = {}

    def add(self, key: str) -> int:
        """Counts one more. 0 where that may be, else the seconds until the next one may, and it is not counted."""
        wait = self.wait(key)
        if not wait:
            count = self._count(key) + 1
            self._levels.pop(key, None)  # the newest stand last
            self._levels[key] = _Level(count, self._clock.monotonic())
            if len(self._levels) > MOST_KEYS:
                del self._levels[next(iter(self._levels))]
        return wait

    def wait(self, key: str) -> int:
        """Whole seconds until the next one may be; 0 for now."""
        over = self._count(key) + 1 - self._most
        return math.ceil(over * self._each) if over > 0 else 0

    def forgive(self, key: str) -> None:
        """Starts the key anew."""
        self._levels.pop(key, None)

    def _count(self, key: str) -> float:
        level = self._levels.get(key)
        if level is None:
            return 0
        return max(0.0, level.height - (self._clock.monotonic() - level.at) / self._each)


def place(address: str) -> str:
    """What is counted together: an address, of IPv6 the network of a single customer. Anything else is one place."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if found.version == 6 and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return LOOPBACK
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


LOOPBACK = "loopback"

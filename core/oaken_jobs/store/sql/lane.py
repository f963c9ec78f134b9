"""Where jobs that may run stand: in lanes, and what a request would take of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Lane(NamedTuple):
    """Jobs that are handed out one after the other. The columns go into statements in this order."""

    workspace: str
    queue: str
    kind: str
    priority: int
    since: int
    """No search begins before this `run_at` (ms), at which the first job was found: what lies there may be many rows that were jobs."""


WIDTH = len(Lane._fields)
Place = tuple[str, str, str, int]
"""Of a lane: workspace, queue, kind, priority."""


class Filter(NamedTuple):
    """What a request would take: of queues and kinds (None for any), not of these kinds, and in one workspace alone."""

    queues: tuple[str, ...] | None
    kinds: tuple[str, ...] | None
    not_kinds: tuple[str, ...]
    within: str | None

    def takes(self, place: Place) -> bool:
        """Whether it would take jobs of the lane that stands there."""
        workspace, queue, kind, _ = place
        return (
            (self.queues is None or queue in self.queues)
            and (self.kinds is None or kind in self.kinds)
            and kind not in self.not_kinds
            and self.within in (None, workspace)
        )

    def values(self, array: Callable[[Iterable[str]], Any]) -> tuple[Any, ...]:
        """As they go into `Queries.lanes`, lists by `array`."""
        return (
            None if self.queues is None else array(self.queues),
            None if self.kinds is None else array(self.kinds),
            array(self.not_kinds) if self.not_kinds else None,
            self.within,
        )

"""Throughput as a picture: a bar a minute, in the units of its own box, so that any width will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oaken_jobs.store.base import SPENT, Finishes
from oaken_swarm.cockpit.template import counted

MINUTE = 60_000
MINUTES = 60
STEP = 10
HEIGHT = 100
_ORDER = ("succeeded", "cancelled", "failed")
"""From the bottom up."""


class Bar(NamedTuple):
    """A part of a minute's bar."""

    x: int
    y: float
    width: int
    height: float
    state: str


class Chart(NamedTuple):
    """`top` is how many the highest bar stands for; `says` tells the same to who cannot see it."""

    bars: list[Bar]
    top: int
    says: str
    finished: dict[str, int]
    """In all of it, by state."""


def drawn(rows: Sequence[Finishes], now: int) -> Chart:
    """The last hour."""
    last = now // MINUTE
    counts: dict[int, dict[str, int]] = {
        minute: dict.fromkeys(_ORDER, 0) for minute in range(last - MINUTES + 1, last + 1)
    }
    for row in rows:
        if row.minute in counts and row.state != SPENT:
            counts[row.minute][row.state] += row.jobs
    top = max(1, *(sum(one.values()) for one in counts.values()))
    bars: list[Bar] = []
    for place, one in enumerate(counts.values()):
        below = 0.0
        for state in _ORDER:
            height = HEIGHT * one[state] / top
            if height:
                height = max(height, 1.5)
                bars.append(Bar(place * STEP, round(HEIGHT - below - height, 2), STEP - 2, round(height, 2), state))
                below += height
    finished = {state: sum(one[state] for one in counts.values()) for state in _ORDER}
    return Chart(bars, top, _says(finished, top), finished)


def _says(finished: Mapping[str, int], top: int) -> str:
    total = sum(finished.values())
    if not total:
        return "Nothing ended in the last hour."
    parts = ", ".join(f"{count:,} {state}" for state, count in finished.items() if count)
    return f"In the last hour {counted(total, 'job', 'jobs')} ended: {parts}. The busiest minute had {top:,}."

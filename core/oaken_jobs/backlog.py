"""What waits and why, over many jobs: those that wait for the same thing are one cause. Pure; the reasons are those of each single job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oaken_jobs.model import Job
from oaken_jobs.store.base import Waiting
from oaken_jobs.waits import Wait


class Cause(NamedTuple):
    """Why some jobs wait. `text` is what a single one is told, or what several have in common; `queue` or `kind` is what the cause is
    about, None where it is about each job for itself."""

    code: str
    text: str
    queue: str | None
    kind: str | None
    jobs: int
    since: int
    """When the first of them could have run, or will (ms)."""
    job: Job


class Oldest(NamedTuple):
    """Of a queue: the job that could run and has waited longest, since when (ms), and how many wait beside it."""

    queue: str
    job: Job
    since: int
    jobs: int


class Backlog(NamedTuple):
    """Causes, those that somebody must see to first, and of each queue the longest waiting."""

    causes: list[Cause]
    oldest: list[Oldest]


SOMEBODY: tuple[str, ...] = ("paused", "no_agent", "answer", "limit", "serial", "children", "retry", "delayed")
"""Causes by how likely it is that they end only when somebody does something."""
_OF_QUEUE = frozenset({"paused"})
_OF_KIND = frozenset({"no_agent", "limit"})
_TOGETHER = {
    "answer": "wait for an answer to what they asked",
    "serial": "wait for another job of their serial key",
    "children": "wait for their children",
    "retry": "wait for their next attempt",
    "delayed": "were enqueued for later",
}


def backlog(lanes: Iterable[tuple[Waiting, Job, Sequence[Wait]]]) -> Backlog:
    """Of lanes, one job of each, and why that waits."""
    causes: dict[tuple[str, str | None, str | None], Cause] = {}
    oldest: dict[str, Oldest] = {}
    for lane, job, waits in lanes:
        for wait in waits:
            queue = job.queue if wait.code in _OF_QUEUE else None
            kind = job.kind if wait.code in _OF_KIND else None
            key = (wait.code, queue, kind)
            text = wait.text if lane.jobs == 1 else _TOGETHER.get(wait.code, wait.text)
            new = Cause(wait.code, text, queue, kind, lane.jobs, lane.since, job)
            causes[key] = _together(causes[key], new) if key in causes else new
        if lane.due:
            first = oldest.get(lane.queue)
            jobs = lane.jobs + (first.jobs if first else 0)
            if first is None or lane.since < first.since:
                oldest[lane.queue] = Oldest(lane.queue, job, lane.since, jobs)
            else:
                oldest[lane.queue] = first._replace(jobs=jobs)
    ordered = sorted(causes.values(), key=lambda cause: (SOMEBODY.index(cause.code), -cause.jobs))
    return Backlog(ordered, sorted(oldest.values(), key=lambda one: one.since))


def _together(one: Cause, other: Cause) -> Cause:
    first = one if one.since <= other.since else other
    return first._replace(text=_TOGETHER.get(one.code, first.text), jobs=one.jobs + other.jobs)

"""Why a queued job is not running: a pure function of its row and of what surrounds it."""

from __future__ import annotations

from typing import NamedTuple

from oaken_jobs.kinds import Rules
from oaken_jobs.model import CHILDREN, SERIAL, Job
from oaken_jobs.store.base import Surroundings


class Wait(NamedTuple):
    """One reason. `until` (ms) where the clock ends it."""

    code: str
    """`paused`, `limit`, `serial`, `retry`, `delayed`, `children`, `answer` or `no_agent`."""
    text: str
    until: int | None = None


def waits(job: Job, rules: Rules, around: Surroundings | None, now: int) -> list[Wait]:
    """All that keeps the job from running; empty for one that is next in its line, or not queued.

    Without `around` only what the row itself says.
    """
    if job.state != "queued":
        return []
    found: list[Wait] = []
    if job.blocked == CHILDREN:
        found.append(_children(job, around))
    elif job.run_at > now:
        found.append(_later(job, now))
    if around is None:
        return found
    if job.queue in around.paused:
        found.append(Wait("paused", f"queue {job.queue} is paused"))
    cap = rules.caps.get(job.kind)
    running = around.running.get(job.kind, 0)
    if cap is not None and running >= cap:
        found.append(Wait("limit", f"{running} of {cap} {job.kind} slots are busy"))
    if job.serial_key is not None:
        busy = around.serial.get((job.workspace, job.serial_key))
        if busy is not None:
            other, agent = busy
            found.append(Wait("serial", f"job {other} of the same serial key runs ({agent} has it)"))
        elif job.blocked == SERIAL:
            found.append(Wait("serial", "another job of the same serial key goes before it"))
    if not found and _nobody(job, around, now):
        found.append(_no_agent(job, rules, around, now))
    return found


def _children(job: Job, around: Surroundings | None) -> Wait:
    if around is None or job.id not in around.children:
        return Wait("children", "its children are not all final")
    live, total = around.children[job.id]
    return Wait("children", f"{live} of {total} children are not final")


def _later(job: Job, now: int) -> Wait:
    left = span(job.run_at - now)
    if job.question is not None:
        return Wait("answer", f"asks a question; goes on without an answer in {left}", job.run_at)
    if job.attempts:
        return Wait("retry", f"retry in {left}", job.run_at)
    return Wait("delayed", f"runs in {left}", job.run_at)


KNOWN_MS = 60_000
"""When a kind was last leased is known to within a minute."""


def _nobody(job: Job, around: Surroundings, now: int) -> bool:
    """Whether nobody has taken a job of this kind since this one became runnable, nor works on one."""
    if job.kind in around.at_work:
        return False
    last = around.leased.get(job.kind)
    return last is None or (last <= job.run_at and now - job.run_at > KNOWN_MS)


def _no_agent(job: Job, rules: Rules, around: Surroundings, now: int) -> Wait:
    kind = rules.kinds.get(job.kind)
    who = "runner" if kind is not None and kind.internal else "agent"
    last = around.leased.get(job.kind)
    if last is None:
        return Wait("no_agent", f"no {who} has ever leased a job of kind {job.kind}")
    return Wait("no_agent", f"no {who} has leased a job of kind {job.kind} for {span(now - last)}")


def span(ms: int) -> str:
    """A length of time for people: `40 s`, `5 min`, `3 h`, `2 d`.

    >>> span(39_600), span(3_600_000)
    ('40 s', '1 h')
    """
    seconds = max(ms, 0) / 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"

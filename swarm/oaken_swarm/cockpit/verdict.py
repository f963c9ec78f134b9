"""Whether work flows, in one sentence: what a person reads first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oaken_jobs.backlog import Cause
from oaken_jobs.store.base import Finishes
from oaken_swarm.cockpit.template import counted

MINUTES = 5
"""What is recent."""
SEEN_TO = frozenset({"paused", "no_agent", "answer"})
"""Causes that end only when somebody does something."""
NAMED = 3
"""Causes that are named, where there are more."""


class Verdict(NamedTuple):
    """`level` as a grade has it: ok, note, warn or bad."""

    level: str
    head: str
    rest: str


def verdict(counts: Mapping[str, int], causes: Sequence[Cause], finishes: Sequence[Finishes], now: int) -> Verdict:
    """Of jobs by state, why some wait, and what has ended. Work flows where jobs run, or were worked on to their end."""
    recent = _recent(finishes, now)
    failed = recent["failed"]
    finished = recent["succeeded"] + failed  # cancelling is no work
    queued, running = counts.get("queued", 0), counts.get("running", 0)
    runs, waits = counted(running, "runs", "run"), counted(queued, "waits", "wait")
    jobs_wait = counted(queued, "job waits", "jobs wait")
    ends = _ends(finished, failed, recent["cancelled"])
    blocked = [cause for cause in causes if cause.code in SEEN_TO]
    stuck = sum(cause.jobs for cause in blocked)
    stands = counted(stuck, "job waits until somebody sees to it", "jobs wait until somebody sees to them")
    seen_to = f"{stands}. {_why(blocked)}"
    if failed and 2 * failed >= finished:
        rest = f"{failed:,} of {finished:,} failed in the last {MINUTES} minutes."
        return Verdict("bad", "Much of what ends fails", f"{rest} {seen_to}" if stuck else rest)
    if not queued and not running:
        return Verdict("ok", "Nothing to do", f"No job is queued or running; {ends}.")
    flows = running or finished
    if stuck and not flows:
        return Verdict("bad", "Nothing moves", f"{jobs_wait}, and {ends}. {_why(blocked)}")
    if stuck:
        return Verdict("warn", "Work flows, some is stuck", f"{runs}; {seen_to}")
    if not flows and causes:
        return Verdict("note", "Nothing runs now", f"{jobs_wait}: {causes[0].text}.")
    if not flows:
        turn = counted(queued, "job waits for its turn", "jobs wait for their turn")
        return Verdict("note", "Nothing runs now", f"{turn}; {ends}.")
    return Verdict("note" if failed else "ok", "Work flows", f"{runs}, {waits}; {ends}.")


def _recent(finishes: Sequence[Finishes], now: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in finishes:
        if row.minute > now // 60_000 - MINUTES:
            found[row.state] += row.jobs
    return found


def _ends(finished: int, failed: int, cancelled: int) -> str:
    jobs = counted(finished, "job", "jobs") if finished else "none"
    failures = f", {failed:,} of them failed" if failed else ""
    gone = f" ({counted(cancelled, 'was', 'were')} cancelled)" if cancelled else ""
    return f"{jobs} finished in the last {MINUTES} minutes{failures}{gone}"


def _why(causes: Sequence[Cause]) -> str:
    told = "; ".join(f"{cause.text} ({cause.jobs:,})" for cause in causes[:NAMED])
    return f"{told[:1].upper()}{told[1:]}{'; …' if len(causes) > NAMED else '.'}"

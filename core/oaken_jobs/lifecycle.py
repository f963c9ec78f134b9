"""The state machine as one table: which verb may move a job from which state to which, and who may use it.

Storage asks `allowed` before it writes; nothing else in Oaken decides whether a move is legal.
"""

from __future__ import annotations

from oaken_jobs.model import STATES

Verb = str

MOVES: dict[Verb, dict[str, frozenset[str]]] = {
    "enqueue": {"": frozenset({"queued"})},
    "claim": {"queued": frozenset({"running", "failed"})},  # failed: the payload no longer fits its kind
    "complete": {
        "running": frozenset({"succeeded", "failed", "cancelled"})
    },  # the last two: the result does not fit its kind
    "fail": {"running": frozenset({"queued", "failed", "cancelled"})},
    "defer": {"running": frozenset({"queued", "cancelled"})},
    "release": {"running": frozenset({"queued", "cancelled"})},
    "cancelled": {"running": frozenset({"cancelled"})},
    "lose": {"running": frozenset({"queued", "failed", "cancelled"})},
    "cancel": {"queued": frozenset({"cancelled"}), "running": frozenset({"running"})},
    "requeue": {state: frozenset({"queued"}) for state in ("queued", "failed", "cancelled")},
}
"""`""` stands for a job that does not exist yet."""

WHO: dict[Verb, frozenset[str]] = {
    "enqueue": frozenset({"user", "agent"}),
    "claim": frozenset({"agent"}),
    "complete": frozenset({"holder"}),
    "fail": frozenset({"holder"}),
    "defer": frozenset({"holder"}),
    "release": frozenset({"holder"}),
    "cancelled": frozenset({"holder"}),
    "lose": frozenset({"system"}),
    "cancel": frozenset({"user"}),
    "requeue": frozenset({"user"}),
}
"""Roles, besides `holder` (of the job's live lease) and `system` (Oaken itself). An admin may do what a user may."""

FINISHES: frozenset[Verb] = frozenset({"complete", "fail", "defer", "release", "cancelled"})
"""Verbs that end a lease by its holder's word."""


def allowed(verb: Verb, before: str, after: str) -> bool:
    """Whether `verb` may take a job from `before` to `after`.

    >>> allowed("complete", "running", "succeeded"), allowed("requeue", "succeeded", "queued")
    (True, False)
    """
    return after in MOVES[verb].get(before, frozenset())


def sources(verb: Verb) -> frozenset[str]:
    """The states in which `verb` may be used at all."""
    return frozenset(state for state in MOVES[verb] if state in STATES)

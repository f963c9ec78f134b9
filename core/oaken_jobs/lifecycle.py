"""The state machine as one table: which verb may move a job from which state to which.

Storage asks `allowed` before it writes; nothing else in Oaken decides whether a move is legal. Who may use a verb is `auth`'s business,
and for what ends a lease `moves.holds` is.
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
    "ask": {"running": frozenset({"queued", "cancelled"})},
    "answer": {"queued": frozenset({"queued"})},
    "resume": {"running": frozenset({"running"})},
    "cancelled": {"running": frozenset({"cancelled"})},
    "lose": {"running": frozenset({"queued", "failed", "cancelled"})},
    "overrule": {"running": frozenset({"cancelled"})},
    "expire": {"queued": frozenset({"cancelled"})},
    "adopt": {state: frozenset({"succeeded"}) for state in ("queued", "running", "failed", "cancelled")},
    "cancel": {"queued": frozenset({"cancelled"}), "running": frozenset({"running"})},
    "edit": {state: frozenset({state}) for state in STATES},
    "requeue": {state: frozenset({"queued"}) for state in ("queued", "failed", "cancelled")},
}
"""`""` stands for a job that does not exist yet."""


def allowed(verb: Verb, before: str, after: str) -> bool:
    """Whether `verb` may take a job from `before` to `after`.

    >>> allowed("complete", "running", "succeeded"), allowed("requeue", "succeeded", "queued")
    (True, False)
    """
    return after in MOVES[verb].get(before, frozenset())


def sources(verb: Verb) -> frozenset[str]:
    """The states in which `verb` may be used at all."""
    return frozenset(state for state in MOVES[verb] if state in STATES)

"""Which queue a job goes to. Callers never pick one: the subject's label, the kind's stage, or `default` decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

QUEUE_LABEL = "queue"
DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A configured queue: whose stage it is, how many workers a runner gives it, if labels may name it, who sees it."""

    name: str
    kind: str | None = None
    workers: int = 1
    by_label: bool = True
    hidden: bool = False


class Route(NamedTuple):
    """A queue and the rule that decided for it."""

    queue: str
    by: str


def route(kind: str, human: str | None, machine: str | None, queues: Mapping[str, QueueRule]) -> Route:
    """The queue of a job of `kind`, given its subject's queue labels in both layers.

    `intake` always goes to `default`, and the built-in stages `store` and `embed` to theirs. Otherwise the people's
    label wins over the machine's; one that names an unknown queue, or one with `by_label = false`, is passed over.
    """
    if kind == "intake":
        return Route(DEFAULT_QUEUE, "default")
    if kind not in ("store", "embed"):
        for label in (human, machine):
            rule = queues.get(label) if label else None
            if rule is not None and rule.by_label:
                return Route(rule.name, "label")
    for rule in queues.values():
        if rule.kind == kind:
            return Route(rule.name, "stage")
    return Route(DEFAULT_QUEUE, "default")

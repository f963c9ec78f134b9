"""Events: typed, frozen, in ids, states and numbers. Public ones are rows of the activity table; private ones never leave the process."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from oaken_jobs.errors import InvalidRequest
from oaken_jobs.model import Activity, Actor
from oaken_jobs.redaction import clean


@dataclass(frozen=True, slots=True)
class Event:
    """A public event. `id` is its place in the order of all; `at` milliseconds UTC; `kind` is the name others filter by; `job_id` is
    the job it is about, if it is about one."""

    id: int
    at: int
    kind: str
    verb: str
    actor: Actor
    workspace: str | None
    job_id: int | None


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """Something about a job, and its state before and after: `from_state` is None for a new one. `job_kind` and `queue` (the present
    one) are None once the job is gone."""

    job_kind: str | None
    queue: str | None
    from_state: str | None
    to_state: str | None
    epoch: int | None
    attempt: int | None


@dataclass(frozen=True, slots=True)
class JobStateChanged(JobEvent):
    """A job moved, or was asked to stop while it runs (`verb` is cancel)."""


@dataclass(frozen=True, slots=True)
class JobProgress(JobEvent):
    """A worker reported; `percent` is None where it did not say."""

    percent: int | None


@dataclass(frozen=True, slots=True)
class QuestionAsked(JobEvent):
    """A job asks whoever enqueued it, and waits."""


@dataclass(frozen=True, slots=True)
class NamedEvent(Event):
    """Something about what has a name."""

    name: str


@dataclass(frozen=True, slots=True)
class QueueStateChanged(NamedEvent):
    """A queue was paused or resumed."""


@dataclass(frozen=True, slots=True)
class ScheduleFired(NamedEvent):
    """A schedule enqueued its job."""


@dataclass(frozen=True, slots=True)
class ScheduleChanged(NamedEvent):
    """A schedule was put or removed."""


@dataclass(frozen=True, slots=True)
class AgentChanged(NamedEvent):
    """An agent is drained, or gets work again."""


@dataclass(frozen=True, slots=True)
class TokenChanged(NamedEvent):
    """A token was made, rotated or revoked."""


@dataclass(frozen=True, slots=True)
class PluginHealthChanged(NamedEvent):
    """A plugin is well, or is not any more: `from_state` and `to_state` are `healthy` or `unhealthy`."""

    from_state: str | None
    to_state: str | None


@dataclass(frozen=True, slots=True)
class PluginEvent(NamedEvent):
    """A plugin's own: `kind` is `PLUGIN.EVENT`, and `fields` are numbers, true or false, and short identifiers."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log, secrets redacted. Private."""

    kind = "log_line"
    at: int
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A row of the trace. Private."""

    kind = "trace_row"
    row: Mapping[str, Any]


PrivateEvent = LogLine | TraceRow

PRIVATE: Final = frozenset({LogLine.kind, TraceRow.kind})


def of(row: Activity) -> Event:
    """The event of a row of the activity table."""
    return _MAKERS.get(row.event, _plugin)(row)


def _head(row: Activity) -> tuple[Any, ...]:
    actor = Actor(row.actor_kind, row.actor_id, row.actor_via)  # pyright: ignore[reportArgumentType]
    return (row.id, row.at, row.event, row.verb, actor, row.workspace, row.job_id)


def _job(row: Activity) -> tuple[Any, ...]:
    states = (row.from_state, row.to_state)
    return (*_head(row), row.job_kind, row.queue, *states, row.epoch, row.attempt)


def _named(made: Callable[..., Event]) -> Callable[[Activity], Event]:
    return lambda row: made(*_head(row), row.name)


def _plugin(row: Activity) -> Event:
    return PluginEvent(*_head(row), name=row.name or "", fields=orjson.loads(row.data or "{}"))


_MAKERS: Final[dict[str, Callable[[Activity], Event]]] = {
    "job_state_changed": lambda row: JobStateChanged(*_job(row)),
    "job_progress": lambda row: JobProgress(*_job(row), percent=row.percent),
    "question_asked": lambda row: QuestionAsked(*_job(row)),
    "queue_state_changed": _named(QueueStateChanged),
    "schedule_fired": _named(ScheduleFired),
    "schedule_changed": _named(ScheduleChanged),
    "agent_changed": _named(AgentChanged),
    "token_changed": _named(TokenChanged),
    "plugin_health_changed": lambda row: PluginHealthChanged(
        *_head(row), name=row.name or "", from_state=row.from_state, to_state=row.to_state
    ),
}

_OWN = re.compile(r"[a-z][a-z0-9_-]{0,40}\.[a-z][a-z0-9_]{0,40}")
"""The kinds of plugins' own events."""
PUBLIC: Final = tuple(_MAKERS)
"""The kinds of public events that Oaken itself knows; plugins have their own."""


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises `InvalidRequest` for what is no kind of a public event."""
    for kind in kinds:
        if kind not in _MAKERS and not _OWN.fullmatch(kind):
            near = difflib.get_close_matches(kind, PUBLIC, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(PUBLIC)}."
            raise InvalidRequest(f"{clean(kind, 60)!r} is no kind of event. {hint}")

"""Events: typed, frozen, in ids, states and numbers. Public ones are rows of the activity table; private ones never leave the process."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
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

    row: Activity
    """All there is to it: thousands may come in a second, and few are looked at more closely."""

    @property
    def id(self) -> int:
        return self.row.id

    @property
    def at(self) -> int:
        return self.row.at

    @property
    def kind(self) -> str:
        return self.row.event

    @property
    def verb(self) -> str:
        return self.row.verb

    @property
    def actor(self) -> Actor:
        return Actor(self.row.actor_kind, self.row.actor_id, self.row.actor_via)  # pyright: ignore[reportArgumentType]

    @property
    def workspace(self) -> str | None:
        return self.row.workspace

    @property
    def job_id(self) -> int | None:
        return self.row.job_id


class _Stated(Event):
    """Something whose state may be another one afterwards."""

    __slots__ = ()

    @property
    def from_state(self) -> str | None:
        return self.row.from_state

    @property
    def to_state(self) -> str | None:
        return self.row.to_state


class JobEvent(_Stated):
    """Something about a job, and its state before and after: `from_state` is None for a new one. `job_kind` and `queue` (the present
    one) are None once the job is gone."""

    __slots__ = ()

    @property
    def job_kind(self) -> str | None:
        return self.row.job_kind

    @property
    def queue(self) -> str | None:
        return self.row.queue

    @property
    def epoch(self) -> int | None:
        return self.row.epoch

    @property
    def attempt(self) -> int | None:
        return self.row.attempt


class JobStateChanged(JobEvent):
    """A job moved, or was asked to stop while it runs (`verb` is cancel)."""

    __slots__ = ()


class JobProgress(JobEvent):
    """A worker reported; `percent` is None where it did not say."""

    __slots__ = ()

    @property
    def percent(self) -> int | None:
        return self.row.percent


class QuestionAsked(JobEvent):
    """A job asks whoever enqueued it, and waits."""

    __slots__ = ()


class NamedEvent(Event):
    """Something about what has a name."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.row.name or ""


class QueueStateChanged(NamedEvent):
    """A queue was paused or resumed."""

    __slots__ = ()


class ScheduleFired(NamedEvent):
    """A schedule enqueued its job."""

    __slots__ = ()


class ScheduleChanged(NamedEvent):
    """A schedule was put or removed."""

    __slots__ = ()


class AgentChanged(NamedEvent):
    """An agent is drained, or gets work again."""

    __slots__ = ()


class TokenChanged(NamedEvent):
    """A token was made, rotated or revoked."""

    __slots__ = ()


class PluginHealthChanged(NamedEvent, _Stated):
    """A plugin is well, or is not any more: `from_state` and `to_state` are `healthy` or `unhealthy`."""

    __slots__ = ()


class PluginEvent(NamedEvent):
    """A plugin's own: `kind` is `PLUGIN.EVENT`, and `fields` are numbers, true or false, and short identifiers."""

    __slots__ = ()

    @property
    def fields(self) -> Mapping[str, Any]:
        return orjson.loads(self.row.data or "{}")


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
    return _TYPES.get(row.event, PluginEvent)(row)


_TYPES: Final[dict[str, type[Event]]] = {
    "job_state_changed": JobStateChanged,
    "job_progress": JobProgress,
    "question_asked": QuestionAsked,
    "queue_state_changed": QueueStateChanged,
    "schedule_fired": ScheduleFired,
    "schedule_changed": ScheduleChanged,
    "agent_changed": AgentChanged,
    "token_changed": TokenChanged,
    "plugin_health_changed": PluginHealthChanged,
}

_OWN = re.compile(r"[a-z][a-z0-9_-]{0,40}\.[a-z][a-z0-9_]{0,40}")
"""The kinds of plugins' own events."""
PUBLIC: Final = tuple(_TYPES)
"""The kinds of public events that Oaken itself knows; plugins have their own."""


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises `InvalidRequest` for what is no kind of a public event."""
    for kind in kinds:
        if kind not in _TYPES and not _OWN.fullmatch(kind):
            near = difflib.get_close_matches(kind, PUBLIC, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(PUBLIC)}."
            raise InvalidRequest(f"{clean(kind, 60)!r} is no kind of event. {hint}")

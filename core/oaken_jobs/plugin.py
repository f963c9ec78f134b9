"""What the author of a plugin writes: its kinds, handlers, schedules, events and health check, gathered in a `Plugin`.

    plugin = Plugin("notes")
    plugin.kind("summarise", payload={"type": "object", "required": ["text"]})

    @plugin.handler("summarise", concurrency=2)
    async def summarise(job):
        return {"summary": job.payload["text"].split(". ")[0]}

Nothing happens before a process loads it; `plugins` does that, and `docs/plugins.md` tells the whole story.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from oaken_jobs import requests
from oaken_jobs.config import QUEUE_NAME, KindSettings, configured_kind
from oaken_jobs.errors import ConfigError, InvalidRequest, Unavailable
from oaken_jobs.events.event import check_kinds
from oaken_jobs.handlers import Handlers
from oaken_jobs.kinds import Kind
from oaken_jobs.model import Actor, Json, Principal
from oaken_jobs.requests import MAX_ID, ScheduleRequest
from oaken_jobs.routing import DEFAULT_QUEUE
from oaken_jobs.store.operations import Emit

NAME: Final = r"[a-z][a-z0-9_-]{0,40}"
"""Of plugins; the name of a schedule or an event goes behind it and a dot."""
EVENT_NAME: Final = r"[a-z][a-z0-9_]{0,40}"
"""Of events and their fields."""
MAX_FIELDS = 20

_IDENTIFIER = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_SCHEDULE_NAME: TypeAdapter[str] = TypeAdapter(requests.ScheduleName)
_KIND_NAME: TypeAdapter[str] = TypeAdapter(requests.Kind)

Check = Callable[[], Awaitable[str | None]]
F = TypeVar("F", bound=Callable[..., Any])


class NotConfigured(Exception):
    """Raised by a plugin that lacks a setting without which it is of no use; the text says what to set. The plugin is then
    absent, without a word of complaint."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a plugin's health is looked at: `check` returns None when all is well, otherwise the reason; or raises it."""

    check: Check
    every_seconds: float


@dataclass(frozen=True, slots=True)
class Listener:
    """A function to be called with each event of these kinds."""

    kinds: tuple[str, ...]
    function: Callable[..., Any]


class Plugin:
    """What one plugin adds. Its methods raise ValueError or an `OakenError` for what can never work, which is reported of the plugin
    when it is loaded."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(NAME, name):
            raise ValueError(f"{name!r} is no name for a plugin; it must match {NAME}")
        self.name = name
        self.kinds: dict[str, Kind] = {}
        self.handlers = Handlers()
        self.handler = self.handlers.handler
        """As a worker's: `@plugin.handler("summarise", concurrency=2)`. For a kind of its own, a configured one, or a built-in one
        that agents may lease."""
        self.batch_handler = self.handlers.batch_handler
        self.schedules: dict[str, ScheduleRequest] = {}
        """By full name: `PLUGIN.NAME`."""
        self.events: dict[str, tuple[str, ...]] = {}
        """Fields of each event of its own."""
        self.health_check: Health | None = None
        self.listeners: list[Listener] = []
        self._write: Callable[[Emit], Awaitable[Any]] | None = None

    @property
    def actor(self) -> Actor:
        """Who did what the plugin does by itself."""
        return Actor("system", self.name, "worker")

    @property
    def principal(self) -> Principal:
        """The plugin as a caller of the service: part of the system."""
        return Principal(self.actor, frozenset(), runner=True)

    def kind(
        self,
        name: str,
        *,
        payload: type[BaseModel] | Json | None = None,
        result: type[BaseModel] | Json | None = None,
        **fields: Any,
    ) -> None:
        """Declares a kind of job. `payload` and `result` are pydantic models or JSON Schemas; `fields` are those of `[kinds.NAME]`:
        `instructions`, `limit`, `lease_seconds`, `max_attempts`, `retry_delays`, `on_lost`, `invalid_result`, `expected_wait`,
        `requires_output`. What `[kinds.NAME]` says goes before this.
        """
        _require_name(_KIND_NAME, name, "kind")
        if name in self.kinds:
            raise ValueError(f"the kind {name!r} is declared twice")
        said = {**fields, "payload_schema": _schema(payload), "result_schema": _schema(result)}
        try:
            settings = KindSettings.model_validate({key: value for key, value in said.items() if value is not None})
        except ValidationError as error:
            field = str(error.errors(include_url=False)[0]["loc"][0])
            known = KindSettings.model_fields.get(field)
            wanted = f"must be {known.description}" if known is not None else "is no field of a kind"
            raise ValueError(f"kind {name!r}: {field} {wanted}") from None
        self.kinds[name] = configured_kind(Kind(name, plugin=self.name), settings, lambda key: f"kind {name!r}: {key}")

    def schedule(
        self,
        name: str,
        *,
        kind: str,
        queue: str = DEFAULT_QUEUE,
        payload: Json | None = None,
        every_seconds: float | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        priority: int | str | None = None,
    ) -> None:
        """Declares a schedule, `PLUGIN.NAME`; it is there while a process that runs the plugin's handlers has loaded it."""
        full = f"{self.name}.{name}"
        _require_name(_SCHEDULE_NAME, full, "schedule")
        if full in self.schedules:
            raise ValueError(f"the schedule {name!r} is declared twice")
        said = {"every_seconds": every_seconds, "cron": cron, "timezone": timezone, "priority": priority}
        body = {"kind": kind, "queue": queue, "payload": payload or {}, **said}
        self.schedules[full] = requests.read(ScheduleRequest, body, f"schedule {name}")

    def event(self, name: str, *fields: str) -> None:
        """Declares an event of the plugin's own, `PLUGIN.NAME`, with these fields."""
        if not re.fullmatch(EVENT_NAME, name) or name in self.events:
            raise ValueError(f"the event {name!r} is declared twice, or does not match {EVENT_NAME}")
        for field in fields:
            if not re.fullmatch(EVENT_NAME, field) or field in ("job_id", "workspace"):
                raise ValueError(f"event {name!r}: {field!r} is no name for a field, or has a meaning already")
        if len(set(fields)) != len(fields) or len(fields) > MAX_FIELDS:
            raise ValueError(f"event {name!r}: at most {MAX_FIELDS} fields, each once")
        self.events[name] = fields

    async def emit(
        self, event: str, *, job_id: int | None = None, workspace: str | None = None, **fields: float | str
    ) -> None:
        """Writes an event down, durably: about a job, in a workspace (the job's, where one is named), or for all.

        It has the fields that were declared, each a number, true or false, or a short identifier; never text of others. Raises
        `InvalidRequest` naming the field that is not so, `NotFound` for a job that is not there, `Unavailable` outside a process
        that runs the plugin's handlers.
        """
        declared = self.events.get(event)
        if declared is None:
            raise InvalidRequest(f"event {event!r} is not declared; plugin.event({event!r}, ...) does that.")
        for name in declared:
            if name not in fields:
                raise InvalidRequest(f"event {event}: the field {name} is missing.")
        for name, value in fields.items():
            if name not in declared:
                raise InvalidRequest(
                    f"event {event}: {name!r} is not among its fields: {', '.join(declared) or 'none'}."
                )
            if not _plain(value):
                raise InvalidRequest(
                    f"event {event}: the field {name} must be a number, true or false, or an identifier that matches "
                    f"{_IDENTIFIER.pattern}; texts do not belong into events."
                )
        if job_id is not None and not _is_id(job_id):
            raise InvalidRequest(f"event {event}: job_id must be the id of a job, a whole number from 1 to {MAX_ID}.")
        if workspace is not None and not re.fullmatch(QUEUE_NAME, workspace):
            raise InvalidRequest(f"event {event}: workspace must match {QUEUE_NAME}.")
        if self._write is None:
            raise Unavailable(
                f"The plugin {self.name} is not at work in this process; its events are written where it is."
            )
        await self._write(Emit(self.name, event, json.dumps(fields), self.actor, job_id, workspace))

    def health(self, every_seconds: float = 30) -> Callable[[Check], Check]:
        """Registers the health check: `async def check() -> str | None`, called so often where the plugin's handlers run."""
        if not 1 <= every_seconds <= 86_400:
            raise ValueError(f"health: every_seconds is {every_seconds}; it must be from 1 to 86400")

        def register(check: Check) -> Check:
            if not inspect.iscoroutinefunction(check):
                raise ValueError("health: the check must be an async function, for it may not hold up others")
            self.health_check = Health(check, every_seconds)
            return check

        return register

    def on(self, *kinds: str) -> Callable[[F], F]:
        """Registers a function to be called with each event of these kinds."""
        if not kinds:
            raise ValueError("on: name the kinds of events")
        check_kinds(kinds)

        def register(function: F) -> F:
            self.listeners.append(Listener(kinds, function))
            return function

        return register

    def attach(self, write: Callable[[Emit], Awaitable[Any]] | None) -> None:
        """Says where events are written; None for nowhere any more."""
        self._write = write


def _schema(given: type[BaseModel] | Json | None) -> Json | None:
    return given.model_json_schema() if isinstance(given, type) else given


def _require_name(names: TypeAdapter[str], name: str, what: str) -> None:
    try:
        names.validate_python(name)
    except ValidationError:
        raise ConfigError(
            f"{name!r} is no name for a {what}: it is too long or has a character that may not be there."
        ) from None


def _plain(value: object) -> bool:
    """Whether a value may stand in an event."""
    if isinstance(value, str):
        return _IDENTIFIER.fullmatch(value) is not None
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) <= MAX_ID
    return isinstance(value, float) and math.isfinite(value) and abs(value) <= MAX_ID


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ID

"""What tools take: one strict model for each, the flat schema a client is shown of it, and what is forgiven before it is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from oaken_jobs import jsontext
from oaken_jobs.errors import BadJson, InvalidRequest
from oaken_jobs.model import Json
from oaken_jobs.requests import (
    MAX_LEASE_SECONDS,
    Amounts,
    AnswerRequest,
    Id,
    Kind,
    Line,
    Money,
    NewJobRequest,
    QuestionText,
    QueueName,
    Request,
    RequeueRequest,
    Seconds,
    read,
)

MAX_WAIT = 15
"""Seconds that a call may wait: clients give up on calls that last much longer."""
MAX_LEASES = 10
"""Jobs that one call leases, so that all of them fit into its answer."""
MAX_PAYLOADS = 1000
MAX_WAITED = 50
MAX_PAGE = 100
PAGE = 20

NOISE = frozenset({"toolCallId", "sessionId", "action", "chatInput"})
"""What some clients put among the arguments; no tool has arguments of these names."""

Wait = Annotated[float, Field(ge=0, le=MAX_WAIT, allow_inf_nan=False)]
LeaseSeconds = Annotated[float, Field(ge=1, le=MAX_LEASE_SECONDS, allow_inf_nan=False)]
LeaseId = Annotated[str, Field(max_length=100)]
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Part = Literal["payload", "result", "last_error", "instructions", "question", "answers"]


class Enqueue(NewJobRequest):
    """One job, or with `payloads` one for each of them."""

    payloads: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_PAYLOADS)] | None = None
    lease_id: LeaseId | None = None
    wait: Wait = 0

    @model_validator(mode="after")
    def _one_or_many(self) -> Enqueue:
        if self.payloads is not None:
            for name in ("payload", "dedupe_key", "target"):
                if name in self.model_fields_set:
                    raise PydanticCustomError(
                        "both", "{name} is for one job; leave it out with payloads", {"name": name}
                    )
        return self


class Status(Request):
    """One job, a part of it, or without `job_id` how things stand."""

    job_id: Id | None = None
    part: Part | None = None
    offset: Annotated[int, Field(ge=0)] = 0


class ListJobs(Request):
    """Filters of a list, and where to go on."""

    state: State | None = None
    kind: Kind | None = None
    queue: QueueName | None = None
    parent_id: Id | None = None
    mine: bool = False
    query: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    cursor: Annotated[str, Field(max_length=200)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = PAGE


class WaitFor(Request):
    """One job or several, and how long."""

    job_id: Id | None = None
    job_ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_WAITED)] | None = None
    seconds: Wait = MAX_WAIT

    @model_validator(mode="after")
    def _named(self) -> WaitFor:
        if (self.job_id is None) == (self.job_ids is None):
            raise PydanticCustomError("one", "give either job_id or job_ids")
        return self


class Requeue(RequeueRequest):
    """A job, and where it goes if not to its own queue."""

    job_id: Id


class Cancel(Request):
    """A job."""

    job_id: Id


class Answer(AnswerRequest):
    """A job that asks, and what it is told."""

    job_id: Id


class Lease(Request):
    """Which jobs to take, how many and for how long; or, with `resume`, those that the caller holds."""

    queues: Annotated[list[QueueName], Field(min_length=1, max_length=100)] | None = None
    kinds: Annotated[list[Kind], Field(min_length=1, max_length=100)] | None = None
    max: Annotated[int, Field(ge=1, le=MAX_LEASES)] = 1
    lease_seconds: LeaseSeconds | None = None
    wait_seconds: Wait = 0
    resume: bool = False

    @model_validator(mode="after")
    def _all_of_them(self) -> Lease:
        if self.resume and (self.queues is not None or self.kinds is not None):
            raise PydanticCustomError("both", "resume gives all leases you hold; leave out queues and kinds")
        return self


class Heartbeat(Request):
    """A lease to keep, and how far the work is."""

    lease_id: LeaseId
    lease_seconds: LeaseSeconds | None = None
    percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    message: str | None = None


class Complete(Request):
    """A lease whose work is done."""

    lease_id: LeaseId
    result: dict[str, Any] | None = None
    usage: Amounts | None = None
    cost_usd: Money | None = None
    produced_by: Line | None = None


class Fail(Request):
    """A lease whose work failed."""

    lease_id: LeaseId
    error: str
    permanent: bool = False
    retry_after: Seconds | None = None
    usage: Amounts | None = None
    cost_usd: Money | None = None


class Release(Request):
    """A lease to give back: now, in some seconds, after the job's children, or with a question."""

    lease_id: LeaseId
    seconds: Seconds | None = None
    after_children: bool = False
    question: QuestionText | None = None

    @model_validator(mode="after")
    def _one_reason(self) -> Release:
        if self.after_children and (self.seconds is not None or self.question is not None):
            raise PydanticCustomError(
                "both",
                "after_children waits for children and nothing else; leave out seconds and question, or release without it",
            )
        if self.question is not None and self.seconds == 0:
            raise PydanticCustomError(
                "both", "seconds is how long the question may wait for its answer; give more than 0"
            )
        return self


M = TypeVar("M", bound=BaseModel)

_IDS = frozenset({"job_id", "parent_id", "job_ids"})
_BODIES = frozenset({"payload", "payloads", "result"})
_ID = re.compile(r"#?([0-9]{1,16})", re.ASCII)


def take(model: type[M], given: Mapping[str, Any] | None) -> M:
    """The arguments of a call as its model, with what models and clients commonly get wrong put right.

    Null is absent; a single value will do for a list; `"#1042"` for an id; JSON in a text for an object or a list; any other
    text for a payload or a result is `{"text": …}`; what clients add of their own is dropped. Raises `InvalidRequest`
    naming every argument at fault, an unknown one with the nearest known.
    """
    arguments = {name: value for name, value in (given or {}).items() if value is not None and name not in NOISE}
    # What JSON readers cannot keep is refused with its place, by whichever transport it came.
    jsontext.dump(arguments, what="arguments object", error=InvalidRequest)
    types = {name: field["type"] for name, field in properties(model).items()}
    return read(model, {name: _value(name, types.get(name), value) for name, value in arguments.items()})


def _value(name: str, wanted: str | None, value: Any) -> Any:
    if wanted == "array":
        items = _list(value)
        if name in _IDS:
            return [_id(item) for item in items]
        return [_object(name, item) for item in items] if name in _BODIES else items
    if wanted == "object":
        return _object(name, value)
    if wanted == "integer":
        value = _id(value) if name in _IDS else value
        # Some clients have only one type of number.
        return int(value) if isinstance(value, float) and value.is_integer() else value
    return value


def _list(value: Any) -> list[Any]:
    parsed = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    return cast("list[Any]", parsed) if isinstance(parsed, list) else [value]


def _object(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parsed = _parsed(value)
    if isinstance(parsed, dict) or name not in _BODIES:
        return cast(Any, parsed)
    return {"text": value}


def _parsed(text: str) -> Any:
    """The value of a JSON text; the text itself where it is not JSON. JSON that cannot be kept is refused."""
    try:
        return jsontext.parse(text)
    except BadJson as refusal:
        if "path" in refusal.details:
            raise
        return text


def _id(value: Any) -> Any:
    match = _ID.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) if match else value


# What a client is shown.

_KEPT = ("type", "enum", "minimum", "maximum")
_TELLING = (1, 10_000)
"""Bounds below and beyond these go without saying."""
_EXAMPLE_MEMBER: dict[str, Json] = {
    "usage": {"input_tokens": {"type": "integer"}},
    "": {"text": {"type": "string"}},
}
"""Some clients are refused an object without members, so each open object declares one."""


@cache
def properties(model: type[BaseModel]) -> dict[str, Json]:
    """The model's fields as JSON Schema without references, alternatives or nulls."""
    shown: dict[str, Json] = model.model_json_schema()["properties"]
    return {name: _flat(name, field) for name, field in shown.items()}


def _flat(name: str, field: Json) -> Json:
    default = field.get("default")
    options: list[Json] = field.get("anyOf", [field])
    field = next(option for option in options if option.get("type") != "null")
    flat: Json = {"type": field.get("type", "string")}
    flat |= {key: field[key] for key in _KEPT if key in field}
    if flat.get("minimum", 2) <= _TELLING[0]:
        del flat["minimum"]
    if flat.get("maximum", 0) >= _TELLING[1]:
        del flat["maximum"]
    if flat["type"] == "array":
        flat["items"] = _flat(name, field["items"])
    if flat["type"] == "object":
        flat["properties"] = _EXAMPLE_MEMBER.get(name, _EXAMPLE_MEMBER[""])
        flat["additionalProperties"] = True
    if default:  # no, none and nothing go without saying
        flat["default"] = default
    return flat


def input_schema(model: type[BaseModel], about: Mapping[str, str]) -> Json:
    """The schema of a tool's arguments. `about` describes each field."""
    shown = {name: {**field, "description": about[name]} for name, field in properties(model).items()}
    schema: Json = {"type": "object", "properties": shown, "additionalProperties": False}
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    return {**schema, "required": required} if required else schema

"""What tools take: one strict model for each, the flat schema a client is shown of it, and what is forgiven before it is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, Field, model_validator
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
    nearest,
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
_LEASE_ID = re.compile(r"[0-9]{1,16}-[0-9]{1,9}-[0-9a-f]{24}", re.ASCII)


def _lease_id(value: Any) -> Any:
    if isinstance(value, str) and _LEASE_ID.fullmatch(value):
        return value
    raise PydanticCustomError(
        "lease_id", "give the long id that lease gave you; if you lost it, call lease with resume"
    )


LeaseId = Annotated[str, BeforeValidator(_lease_id)]
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
_WORDS = frozenset({"queues", "kinds"})
"""Lists of what holds no comma."""
_ID = re.compile(
    r"[\s#\"'`(\[]*(?:oaken://jobs/|(?:the )?job(?:[ _-]?id)?[\s:=#_-]*)?([0-9]{1,16})[\s\"'`)\].]*",
    re.ASCII | re.IGNORECASE,
)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|h|d)(?:[a-z]*)", re.ASCII | re.IGNORECASE)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LENGTHS = frozenset({"wait", "seconds", "retry_after"})
"""Arguments in seconds that do not say so at their ends."""


def take(model: type[M], given: Mapping[str, Any] | None) -> M:
    """The arguments of a call as its model, with what models and clients commonly get wrong put right.

    Null is absent; a single value will do for a list; `"#1042"`, or `"job 1042"`, for an id; a text for the number or the switch that it
    spells; `"5 minutes"` for seconds; JSON in a text for an object or a list; any other text for a payload or a result is `{"text": …}`;
    what clients add of their own is dropped. Raises `InvalidRequest` naming every argument at fault, an unknown one with what may be meant.
    """
    arguments = {name: value for name, value in (given or {}).items() if value is not None and name not in NOISE}
    # What JSON readers cannot keep is refused with its place, by whichever transport it came.
    jsontext.dump(arguments, what="arguments object", error=InvalidRequest)
    fields = properties(model)
    return read(
        model, {name: _value(name, fields.get(name, {}), value) for name, value in arguments.items()}, hint=_meant
    )


def _value(name: str, field: Json, value: Any) -> Any:
    wanted = field.get("type")
    if wanted == "array":
        items = _list(name, value)
        if name in _IDS:
            return [_id(item) for item in items]
        return [_object(name, item) for item in items] if name in _BODIES else items
    if wanted == "object":
        return _object(name, value)
    if isinstance(value, str):
        value = _spelled(name, field, value)
    # Some clients have only one type of number.
    return int(value) if wanted == "integer" and isinstance(value, float) and value.is_integer() else value


def _spelled(name: str, field: Json, text: str) -> Any:
    """The value that a text spells; the text itself where it is none."""
    bare, wanted = text.strip(), field.get("type")
    if wanted in ("integer", "number"):
        if name in _IDS:
            return _id(text)
        if _NUMBER.fullmatch(bare):
            return float(bare)
        if (name in _LENGTHS or name.endswith("_seconds")) and (length := _DURATION.fullmatch(bare)):
            return float(length[1]) * _UNITS[length[2].lower()]
    elif wanted == "boolean":
        return {"true": True, "false": False}.get(bare.lower(), text)
    elif name == "lease_id":
        return text.strip(" \t\r\n\"'`")
    elif "enum" in field:
        return bare.lower()
    return text


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, str):
        parsed = _parsed(value) if value.lstrip().startswith("[") else value
        if isinstance(parsed, str) and (name in _WORDS or name in _IDS):
            return [word.strip() for word in parsed.split(",")]
        value = parsed
    return cast("list[Any]", value) if isinstance(value, list) else [value]


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


_SAME: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = tuple(
    (frozenset(words.split()), tuple(names.split()))
    for words, names in (
        ("id job task task_id number", "job_id lease_id"),
        ("ids jobs tasks task_ids", "job_ids payloads"),
        ("lease lease_token token handle receipt", "lease_id"),
        ("type job_type task_type function", "kind kinds"),
        (
            "data input inputs args arguments params parameters body content prompt instructions spec",
            "payload result text",
        ),
        ("items batch payload_list", "payloads"),
        ("output outputs response return value answer data", "result text"),
        ("text message description details", "payload result error message question text"),
        ("reason exception cause error_message", "error question"),
        ("percentage progress pct", "percent"),
        ("note comment", "message title"),
        ("timeout timeout_seconds max_wait wait_for", "wait seconds wait_seconds lease_seconds"),
        ("delay start_in after", "delay_seconds seconds after_children"),
        ("duration extend extend_seconds extension ttl", "lease_seconds ttl_seconds"),
        ("when at eta scheduled_for schedule_at start_at not_before", "run_at seconds"),
        ("deadline due expires expiry", "expires_at"),
        ("unique_key unique dedup_key key", "dedupe_key idempotency_key"),
        ("request_id client_id", "idempotency_key"),
        ("count n num limit max_jobs batch_size size", "max limit"),
        ("search q filter term", "query"),
        ("page page_token offset next", "cursor"),
        ("status states", "state"),
        ("queue_name", "queue queues"),
        ("retry_in backoff retry_delay retry_seconds", "retry_after"),
        ("retries max_retries attempts", "max_attempts"),
        ("fatal final no_retry", "permanent"),
        ("ask", "question"),
        ("wait_for_children children join", "after_children"),
        ("cost price", "cost_usd"),
        ("budget max_cost", "budget_usd"),
        ("model", "produced_by"),
        ("tokens token_usage", "usage"),
        ("label labels", "tags"),
        ("parent", "parent_id"),
        ("section field", "part"),
    )
)
"""What models call arguments, and the names of those that are meant, the likeliest first."""


def _meant(model: type[BaseModel], name: str) -> str | None:
    if model is Enqueue and name == "queue":
        return "a job goes to the queue of its kind or subject; leave it out, or move the job with requeue"
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for words, names in _SAME:
        if snake in words and (found := next((known for known in names if known in model.model_fields), None)):
            return f"did you mean {found}?"
    return nearest(model, snake)


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

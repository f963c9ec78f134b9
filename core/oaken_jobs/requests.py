"""What callers send, as models: one for each body, whichever door it comes through. Strict: nothing is guessed, nothing ignored.

`read` turns what pydantic finds into one `InvalidRequest` that names each field, what was wrong with it and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from oaken_jobs.errors import InvalidRequest
from oaken_jobs.model import MAX_PRIORITY, PRIORITIES, Limits
from oaken_jobs.redaction import clean

MAX_SECONDS = 366 * 86_400
"""The longest delay, deferral or wait that can be asked for: a year."""
MAX_LEASE_SECONDS = 86_400
MAX_TOKEN_SECONDS = 3_650 * 86_400
MAX_ID = 2**53
MAX_PAGE = 500
DEFAULT_PAGE = 50
MAX_WAIT_SECONDS = 60
MAX_LEASES = 1000
MAX_QUESTION = 4_000
"""The longest question, in characters: it is shown with its job in every list."""
MAX_TEXT = 20_000
"""The longest answer, in characters."""
MAX_AMOUNT = 1e15
"""The most of anything that one attempt can have used."""


def _text(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value


def _single_line(value: Any) -> Any:
    return clean(value).replace("\n", " ").replace("\t", " ") if isinstance(value, str) else value


def _inked(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("blank", "holds nothing but white space; there is nothing to take in")
    return value


def _no_control(value: Any) -> Any:
    if isinstance(value, str) and value != clean(value):
        raise PydanticCustomError("control", "it holds control characters or half a character; leave them out")
    return value


def _amount(value: Any) -> int | float:
    # Bounded so that the sums over many attempts are still numbers that JSON readers keep.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_AMOUNT:
        return value
    raise PydanticCustomError("amount", "must be a number from 0 to 1e15")


def _removable(value: Any) -> Any:
    return "" if value is None else _single_line(value)


def _priority(value: Any) -> Any:
    return PRIORITIES.get(value, value) if isinstance(value, str) else value


def _moment(value: Any) -> int:
    """Milliseconds since the epoch of an ISO 8601 time with its zone."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            at = None
        if at is not None and at.tzinfo is not None:
            ms = round(at.timestamp() * 1000)
            if 0 <= ms < 253_402_300_800_000:
                return ms
    raise PydanticCustomError("moment", "give a time with its zone, such as 2030-01-31T12:00:00Z")


Kind = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")]
QueueName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]
Tags = Annotated[
    list[Annotated[str, BeforeValidator(_single_line), Field(min_length=1, max_length=64)]], Field(max_length=20)
]
Workspace = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]
Key = Annotated[str, BeforeValidator(_no_control), Field(min_length=1, max_length=255)]
Line = Annotated[str, BeforeValidator(_single_line), Field(max_length=200)]
Name = Annotated[str, BeforeValidator(_single_line), Field(min_length=1, max_length=200)]
Text = Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=MAX_TEXT)]
QuestionText = Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=MAX_QUESTION)]
Id = Annotated[int, Field(gt=0, le=MAX_ID)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
TokenSeconds = Annotated[float, Field(gt=0, le=MAX_TOKEN_SECONDS, allow_inf_nan=False)]
MomentText = Annotated[str, Field(json_schema_extra={"format": "date-time"}, max_length=40)]
Moment = Annotated[int, PlainValidator(_moment, json_schema_input_type=MomentText)]
PriorityNumber = Annotated[int, Field(ge=0, le=MAX_PRIORITY)]
Priority = Annotated[
    PriorityNumber,
    BeforeValidator(_priority, json_schema_input_type=PriorityNumber | Literal["user", "ingest", "backfill"]),
]
Money = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Amount = Annotated[
    int | float, PlainValidator(_amount, json_schema_input_type=Annotated[float, Field(ge=0, le=MAX_AMOUNT)])
]
Amounts = Annotated[dict[Annotated[str, Field(min_length=1, max_length=64)], Amount], Field(max_length=32)]
ScheduleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]
AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@:-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._:@-]{0,63})?$")]


class Request(BaseModel):
    """A body: unknown fields are refused, numbers are numbers and text is text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NewJobRequest(Request):
    """One job to enqueue."""

    kind: Kind
    payload: dict[str, Any] = Field(default_factory=dict)
    subject: Key | None = None
    target: Key | None = None
    dedupe_key: Key | None = None
    on_duplicate: Literal["keep", "replace"] = "keep"
    serial_key: Key | None = None
    priority: Priority | None = None
    delay_seconds: Seconds | None = None
    run_at: Moment | None = None
    ttl_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)] | None = None
    expires_at: Moment | None = None
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    parent_id: Id | None = None
    title: Line | None = None
    tags: Tags = Field(default_factory=list[str])
    budget_usd: Money | None = None
    idempotency_key: Key | None = None
    workspace: Workspace | None = None

    @model_validator(mode="after")
    def _one_time(self) -> NewJobRequest:
        if self.delay_seconds is not None and self.run_at is not None:
            raise PydanticCustomError("both", "delay_seconds and run_at both say when to run; give one of them")
        if self.ttl_seconds is not None and self.expires_at is not None:
            raise PydanticCustomError("both", "ttl_seconds and expires_at both say when it expires; give one of them")
        if self.on_duplicate == "replace" and self.dedupe_key is None and self.target is None:
            raise PydanticCustomError("alone", "on_duplicate needs a dedupe_key or a target that could be a duplicate")
        return self


class LeaseRequest(Request):
    """Jobs wanted by an agent."""

    agent: AgentName | None = None
    queues: Annotated[list[QueueName], Field(min_length=1, max_length=100)] | None = None
    kinds: Annotated[list[Kind], Field(min_length=1, max_length=100)] | None = None
    max: Annotated[int, Field(ge=1, le=MAX_LEASES)] = 1
    lease_seconds: Annotated[float, Field(ge=1, le=MAX_LEASE_SECONDS, allow_inf_nan=False)] | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 0
    resume: bool = False
    """The caller's own leases again, and nothing new."""


class ProgressRequest(Request):
    """How far the work is: percent and a message (cut to 256 characters). A report whose `seq` is not above the last one's only
    keeps the lease: it was told before."""

    percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    message: str | None = None
    seq: Annotated[int, Field(ge=0, le=MAX_ID)] | None = None


class HeartbeatRequest(Request):
    """Keep the lease, for `lease_seconds` from now where given."""

    lease_seconds: Annotated[float, Field(ge=1, le=MAX_LEASE_SECONDS, allow_inf_nan=False)] | None = None
    progress: ProgressRequest | None = None


class CompleteRequest(Request):
    """The work is done; `result` must fit the schema of its kind."""

    result: dict[str, Any] | None = None
    usage: Amounts | None = None
    cost_usd: Money | None = None
    produced_by: Line | None = None


class FailRequest(Request):
    """The work failed; it is tried again later unless `permanent` or out of attempts."""

    error: str
    permanent: bool = False
    retry_after: Seconds | None = None
    usage: Amounts | None = None
    cost_usd: Money | None = None


class DeferRequest(Request):
    """Not now: try again in so many seconds, the attempt not counted."""

    seconds: Seconds


class ReleaseRequest(Request):
    """Given back unharmed; with `after_children` not to be leased before all its children are final."""

    after_children: bool = False


class AskRequest(Request):
    """A question to whoever enqueued the job, which waits for the answer, at most `timeout_seconds`."""

    text: QuestionText
    timeout_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)] | None = None


class AnswerRequest(Request):
    """The answer to a job's open question."""

    text: Text


class AdoptRequest(Request):
    """The attempt whose late result is taken as the job's."""

    epoch: Id


class TraceRow(Request):
    """One thing that a model or a tool was told, and what it answered. `input` and `output` are any JSON."""

    operation: Name | None = None
    provider: Name | None = None
    model: Name | None = None
    tool: Name | None = None
    input: Any = None
    output: Any = None
    usage: Amounts | None = None
    cost_usd: Money | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None

    @model_validator(mode="after")
    def _something(self) -> TraceRow:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise PydanticCustomError("empty", "a row says nothing; give at least one field")
        return self


class TraceRequest(Request):
    """Rows for the trace: what the holder's model was told and answered."""

    rows: Annotated[list[TraceRow], Field(min_length=1, max_length=100)]


class EmptyRequest(Request):
    """Nothing more to say."""


class EditRequest(Request):
    """What is to change of a job; the rest stays. An empty title, or no tags, takes them away."""

    priority: Priority | None = None
    title: Line | None = None
    tags: Tags | None = None

    @model_validator(mode="after")
    def _something(self) -> EditRequest:
        if not self.model_fields_set:
            raise PydanticCustomError("nothing", "name at least one of priority, title and tags")
        return self


class RequeueRequest(Request):
    """Where to put the job back; the same queue unless named. `retriage` clears the machine's labels of its subject, so that triage
    and routing decide again."""

    queue: QueueName | None = None
    retriage: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> RequeueRequest:
        if self.queue is not None and self.retriage:
            raise PydanticCustomError("both", "queue names a queue and retriage asks routing for one; give one of them")
        return self


class DrainRequest(Request):
    """Whether the agent is to get nothing new, or again."""

    drain: bool = True


class ScheduleRequest(Request):
    """What a schedule enqueues, and when: every so many seconds, or by a cron expression of five fields."""

    queue: QueueName
    kind: Kind
    payload: dict[str, Any] = Field(default_factory=dict)
    priority: Priority | None = None
    every_seconds: Annotated[float, Field(ge=1, le=MAX_SECONDS, allow_inf_nan=False)] | None = None
    cron: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    timezone: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    workspace: Workspace | None = None

    @model_validator(mode="after")
    def _one_time(self) -> ScheduleRequest:
        if (self.every_seconds is None) == (self.cron is None):
            raise PydanticCustomError("one", "give either every_seconds or cron")
        if self.timezone is not None and self.cron is None:
            raise PydanticCustomError("alone", "timezone is for cron; an interval has none")
        return self


class TokenRequest(Request):
    """A token to make."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    roles: Annotated[list[Literal["viewer", "user", "agent", "admin"]], Field(min_length=1, max_length=4)]
    kind: Literal["user", "agent"] | None = None
    workspace: Workspace | None = None
    queues: Annotated[list[QueueName], Field(min_length=1, max_length=100)] | None = None
    kinds: Annotated[list[Kind], Field(min_length=1, max_length=100)] | None = None
    max_leases: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_per_hour: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    expires_in: TokenSeconds | None = None

    @property
    def limits(self) -> Limits:
        """What bounds its leasing."""
        queues = None if self.queues is None else tuple(sorted(set(self.queues)))
        kinds = None if self.kinds is None else tuple(sorted(set(self.kinds)))
        return Limits(queues, kinds, self.max_leases, self.max_per_hour)


class RotateRequest(Request):
    """Another secret for a token; with `expires_in` it also lasts so many seconds from now."""

    expires_in: TokenSeconds | None = None


class LabelsRequest(Request):
    """Labels people give a subject; an empty value, or null, removes one."""

    human: Annotated[
        dict[
            Annotated[str, BeforeValidator(_no_control), Field(min_length=1, max_length=64)],
            Annotated[str, BeforeValidator(_removable), Field(max_length=200)],
        ],
        Field(min_length=1, max_length=50),
    ]
    workspace: Workspace | None = None


class IntakeRequest(Request):
    """A text to take in. `source` says where it came from."""

    text: Annotated[str, Field(min_length=1), AfterValidator(_inked)]
    title: Line | None = None
    source: Key | None = None
    workspace: Workspace | None = None


M = TypeVar("M", bound=BaseModel)


Hint = Callable[[type[BaseModel], str], str | None]


def nearest(model: type[BaseModel], name: str) -> str | None:
    """The field whose name is most like an unknown one, as a question; None where none is like it."""
    near = difflib.get_close_matches(name, list(model.model_fields), n=1)
    return f"did you mean {near[0]}?" if near else None


def read(model: type[M], data: Any, where: str = "", hint: Hint = nearest) -> M:
    """`data` as a `model`. Raises `InvalidRequest` naming every field at fault; `where` is put before their names. `hint` says what may
    be meant by an unknown one, given the model of the object that it stands in."""
    if not isinstance(data, (dict, Mapping)):  # the first is found at once
        raise InvalidRequest(f"{where or 'The body'} must be a JSON object with {_fields(model)}; got {_named(data)}.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_problem(model, e, hint) for e in error.errors(include_url=False)[:10]]
    if where:
        for problem in problems:
            problem["field"] = f"{where}.{problem['field']}" if problem["field"] else where
    text = "; ".join(f"{p['field']}: {p['problem']}" if p["field"] else p["problem"] for p in problems)
    raise InvalidRequest(text if text.endswith("?") else f"{text}.", errors=problems)


def _fields(model: type[BaseModel]) -> str:
    return ", ".join(model.model_fields) or "no fields"


def _inner(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """The model of the object that a path leads to, as far as there is one."""
    for name in path:
        field = model.model_fields.get(name)
        options = [field.annotation, *get_args(field.annotation)] if field is not None else []
        model = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), model)
    return model


def _problem(model: type[BaseModel], error: Any, hint: Hint) -> dict[str, str]:
    """One finding in our words. Values are the caller's own and cut short."""
    location = [str(part) for part in error["loc"] if not str(part).startswith(("function-", "constrained-"))]
    field = ".".join(location)
    kind: str = error["type"]
    ctx: dict[str, Any] = error.get("ctx", {})
    shown = _named(error.get("input"))
    if kind == "extra_forbidden":
        inner = _inner(model, location[:-1])
        told = hint(inner, location[-1]) or f"known are {_fields(inner)}"
        return {"field": field[:100], "problem": f"unknown field; {told}"}
    if kind == "missing":
        return {"field": field, "problem": "is required"}
    counted = ("be", "characters") if isinstance(error.get("input"), str) else ("have", "entries")
    wanted = {
        "string_type": "must be text",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_type": "must be a number",
        "bool_type": "must be true or false",
        "dict_type": "must be a JSON object",
        "list_type": "must be a list",
        "finite_number": "must be a finite number",
        "greater_than": f"must be more than {ctx.get('gt')}",
        "greater_than_equal": f"must be at least {ctx.get('ge')}",
        "less_than_equal": f"must be at most {ctx.get('le')}",
        "string_too_long": f"must be at most {ctx.get('max_length')} characters",
        "string_too_short": f"must be at least {ctx.get('min_length')} characters",
        "too_long": f"must {counted[0]} at most {ctx.get('max_length')} {counted[1]}",
        "too_short": f"must {counted[0]} at least {ctx.get('min_length')} {counted[1]}",
        "string_pattern_mismatch": f"must match {ctx.get('pattern')}",
        "literal_error": f"must be {ctx.get('expected')}",
        "control": error["msg"],
        "moment": error["msg"],
    }.get(kind, error["msg"])
    if field == "priority" and kind in ("int_type", "int_parsing"):
        wanted = f"must be a whole number from 0 to {MAX_PRIORITY}, or one of {', '.join(PRIORITIES)}"
    got = f" (got {shown})" if field else ""
    return {"field": field[:200], "problem": f"{wanted}{got}"}


def _named(value: Any) -> str:
    """A value as an error may show it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    text = clean(str(value))
    return repr(text if len(text) <= 60 else text[:60] + "…")

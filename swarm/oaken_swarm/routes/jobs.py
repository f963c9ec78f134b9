"""Jobs: adding, reading, waiting for, cancelling and requeueing them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from oaken_jobs import views
from oaken_jobs.errors import InvalidRequest, NotFound, OakenError, Unavailable
from oaken_jobs.model import Enqueued, Job, Json
from oaken_jobs.redaction import clean
from oaken_jobs.requests import (
    AdoptRequest,
    AgentName,
    AnswerRequest,
    EditRequest,
    EmptyRequest,
    Id,
    Key,
    Kind,
    Moment,
    NewJobRequest,
    QueueName,
    Request,
    RequeueRequest,
    Workspace,
    read,
)
from oaken_jobs.store.base import JobFilter
from oaken_swarm.call import REPLAYED, Answer, Call, ClientGone, answer
from oaken_swarm.paths import Route
from oaken_swarm.problems import problem
from oaken_swarm.query import DEFAULT_LIMIT, Flag, Ids, Limit, QueryId, Wait, Words

FULL_BYTES = 16 << 20
"""Payloads and results in one page of a full list; a page that would hold more ends early."""
_FULL_CHUNK = 10


State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Level = Literal["ok", "note", "warn", "bad"]


class NewJobsRequest(Request):
    """Many jobs to enqueue, each answered at its place."""

    jobs: Annotated[list[Any], Field(min_length=1)]


class JobsQuery(Request):
    """Which jobs to list."""

    state: Words[State] = ()
    kind: Words[Kind] = ()
    queue: Words[QueueName] = ()
    grade: Words[Level] = ()
    actor: Key | None = None
    agent: AgentName | None = None
    subject: Key | None = None
    tag: Key | None = None
    parent_id: QueryId | None = None
    workspace: Workspace | None = None
    asking: Flag = False
    created_after: Moment | None = None
    created_before: Moment | None = None
    finished_after: Moment | None = None
    finished_before: Moment | None = None
    q: Key | None = None
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    limit: Limit = DEFAULT_LIMIT
    full: Flag = False


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _OrOne:
    """Says of a list, in the description of the interface, that one alone will do."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(schema)
        return {"anyOf": [found, found["items"]]}


W = TypeVar("W")
OneOrMany = Annotated[list[W], Field(max_length=100), BeforeValidator(_listed), _OrOne()]


class JobsFilter(Request):
    """Which jobs to change, as in the query of a list; where one word will do, it may stand alone."""

    state: OneOrMany[State] = Field(default_factory=list[State])
    kind: OneOrMany[Kind] = Field(default_factory=list[Kind])
    queue: OneOrMany[QueueName] = Field(default_factory=list[QueueName])
    grade: OneOrMany[Level] = Field(default_factory=list[Level])
    actor: Key | None = None
    agent: AgentName | None = None
    subject: Key | None = None
    tag: Key | None = None
    parent_id: Id | None = None
    workspace: Workspace | None = None
    asking: bool = False
    created_after: Moment | None = None
    created_before: Moment | None = None
    finished_after: Moment | None = None
    finished_before: Moment | None = None
    q: Key | None = None


class BulkRequest(Request):
    """All jobs that match. `dry_run` only counts; `cursor` goes on from an answer that had some `remaining`."""

    filter: JobsFilter
    dry_run: bool = False
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class BulkRequeueRequest(RequeueRequest, BulkRequest):
    """All jobs that match, and where to put them."""


class WaitQuery(Request):
    """How long to wait."""

    seconds: Wait = 30


class WaitManyQuery(WaitQuery):
    """For which jobs to wait."""

    ids: Ids


def shown(call: Call, job: Job) -> Json:
    """A job that was just written, without its bodies; of what it waits for, what its own row says."""
    return views.job(job, call.core.jobs.rules, call.core.jobs.now())


async def shown_read(call: Call, jobs: Sequence[Job]) -> list[Json]:
    """Jobs that were read, without bodies, with all that they wait for."""
    rules, now = call.core.jobs.rules, call.core.jobs.now()
    waits = await call.core.jobs.waits(jobs)
    return [views.job(job, rules, now, waits=waits[job.id]) for job in jobs]


async def shown_full(call: Call, jobs: Sequence[Job]) -> list[Json]:
    """The same with payload and result."""
    rules, now = call.core.jobs.rules, call.core.jobs.now()
    payloads, results = await call.core.jobs.bodies(call.who, jobs)
    waits = await call.core.jobs.waits(jobs)
    return [
        views.job(
            job,
            rules,
            now,
            payload=payloads.get(job.id),
            result=results.get(job.id),
            bodies=True,
            waits=waits[job.id],
        )
        for job in jobs
    ]


def enqueued_answer(call: Call, enqueued: Enqueued) -> Answer:
    """201 for a new job, 200 for a live one with the same key; the first answer again where an idempotency key is repeated."""
    told = answer(_enqueued(call, enqueued), 201 if enqueued.created else 200)
    return told._replace(headers=REPLAYED) if enqueued.replayed else told


def _enqueued(call: Call, enqueued: Enqueued) -> Json:
    told: Json = {"job": shown(call, enqueued.job), "created": enqueued.created}
    if enqueued.warning is not None:
        told["warning"] = enqueued.warning
    if enqueued.replayed:
        told["replayed"] = True
    if enqueued.replaced is not None:
        told["replaced"] = enqueued.replaced
    return told


async def enqueue(call: Call, asked: NewJobRequest | NewJobsRequest) -> Answer:
    if isinstance(asked, NewJobRequest):
        request = keyed(asked, call.idempotency_key)
        show = partial(enqueued_answer, call)
        return await call.core.jobs.enqueue_shown(call.who, request, show, traceparent=call.traceparent)
    requests = _read_all(asked.jobs)
    if call.idempotency_key is not None:
        # Each under a key of its own, so that a repeat of a call that was cut short adds the rest.
        requests = [
            keyed(one, f"{call.idempotency_key}/{place}") if isinstance(one, NewJobRequest) else one
            for place, one in enumerate(requests)
        ]
    show = partial(_one_of_many, call)
    answers = await call.core.jobs.enqueue_many_shown(call.who, requests, show, traceparent=call.traceparent)
    away = [one for one in answers if isinstance(one, Unavailable)]
    if away and (call.idempotency_key is not None or len(away) == len(answers)):
        raise away[0]  # so that callers come again with all of them; what was added is not added twice
    told = answer({"jobs": [_refused(one) if isinstance(one, OakenError) else one for one in answers]})
    replayed = any(not isinstance(one, OakenError) and "replayed" in one for one in answers)
    return told._replace(headers=REPLAYED) if replayed else told


def keyed(request: NewJobRequest, key: str | None) -> NewJobRequest:
    """The request under the key that came in the header, unless it names its own."""
    if key is None or request.idempotency_key is not None:
        return request
    return request.model_copy(update={"idempotency_key": key})


def _read_all(jobs: Sequence[Any]) -> Sequence[NewJobRequest | OakenError]:
    try:
        return _ALL.validate_python(jobs)
    except ValidationError:  # whose fault it is shows when each is read by itself
        return [_read_one(data, place) for place, data in enumerate(jobs)]


_ALL = TypeAdapter(list[NewJobRequest])


def _read_one(data: Any, place: int) -> NewJobRequest | OakenError:
    try:
        return read(NewJobRequest, data, f"jobs.{place}")
    except InvalidRequest as refusal:
        return refusal


def _one_of_many(call: Call, one: Enqueued) -> Json:
    told = _enqueued(call, one)
    told["status"] = 201 if one.created else 200
    return told


def _refused(refusal: OakenError) -> Json:
    return {"error": problem(refusal), "status": refusal.status}


def filter_of(asked: JobsQuery | JobsFilter) -> JobFilter:
    """The same as the store takes it."""
    return JobFilter(
        states=tuple(asked.state),
        kinds=tuple(asked.kind),
        queues=tuple(asked.queue),
        actor=asked.actor,
        agent=asked.agent,
        subject=asked.subject,
        tag=asked.tag,
        parent_id=asked.parent_id,
        grades=tuple(asked.grade),
        created_after=asked.created_after,
        created_before=asked.created_before,
        finished_after=asked.finished_after,
        finished_before=asked.finished_before,
        query=asked.q,
        workspace=asked.workspace,
        asking=asked.asking,
    )


async def list_jobs(call: Call, asked: JobsQuery) -> Answer:
    where = filter_of(asked)
    jobs = call.core.jobs
    page = await jobs.list(call.who, where, cursor=asked.cursor, limit=asked.limit)
    if not asked.full:
        return answer({"jobs": await shown_read(call, page.jobs), "next_cursor": page.next_cursor})
    full: list[Json] = []
    size = 0
    cursor = page.next_cursor
    for start in range(0, len(page.jobs), _FULL_CHUNK):
        if size > FULL_BYTES:
            cursor = jobs.cursor(call.who, where, page.jobs[start - 1])
            break
        chunk = await shown_full(call, page.jobs[start : start + _FULL_CHUNK])
        size += sum(len(orjson.dumps((one["payload"], one["result"]))) for one in chunk)
        full += chunk
    return answer({"jobs": full, "next_cursor": cursor})


async def get(call: Call, asked: EmptyRequest) -> Answer:
    job = await call.core.jobs.get(call.who, call.job_id)
    return answer({"job": (await shown_full(call, [job]))[0]})


async def result(call: Call, asked: EmptyRequest) -> Answer:
    return Answer((await call.core.jobs.result(call.who, call.job_id)).encode())


async def progress(call: Call, asked: EmptyRequest) -> Answer:
    rows = await call.core.jobs.progress(call.who, call.job_id)
    return answer({"progress": [views.progress(row) for row in rows]})


async def attempts(call: Call, asked: EmptyRequest) -> Answer:
    rows = await call.core.jobs.attempts(call.who, call.job_id)
    return answer({"attempts": [views.attempt(row) for row in rows]})


async def late_result(call: Call, asked: EmptyRequest) -> Answer:
    epoch = read_epoch(call.params["epoch"])
    return Answer((await call.core.jobs.late_result(call.who, call.job_id, epoch)).encode())


def read_epoch(text: str) -> int:
    """An epoch as it stands in a path. Raises `NotFound`."""
    if not text.isascii() or not text.isdecimal() or not 0 < len(text) < 10 or int(text) == 0:
        raise NotFound(f"There is no attempt {clean(text, 40)!r}; the epoch of an attempt is a whole number from 1.")
    return int(text)


async def activity(call: Call, asked: EmptyRequest) -> Answer:
    rows = await call.core.jobs.activity(call.who, call.job_id)
    return answer({"activity": [views.event(row) for row in rows]})


async def children(call: Call, asked: EmptyRequest) -> Answer:
    jobs = await call.core.jobs.children(call.who, call.job_id)
    return answer({"jobs": await shown_read(call, jobs), "next_cursor": None})


async def questions(call: Call, asked: EmptyRequest) -> Answer:
    rows = await call.core.jobs.questions(call.who, call.job_id)
    return answer({"questions": [views.question(row) for row in rows]})


async def wait(call: Call, asked: WaitQuery) -> Answer:
    jobs, final = await _wait(call, [call.job_id], asked.seconds)
    return answer({"job": (await shown_full(call, jobs))[0], "final": final})


async def wait_many(call: Call, asked: WaitManyQuery) -> Answer:
    jobs, final = await _wait(call, asked.ids, asked.seconds)
    return answer({"jobs": await shown_read(call, jobs), "final": final})


async def _wait(call: Call, ids: Sequence[int], seconds: float) -> tuple[list[Job], bool]:
    jobs = call.core.jobs
    if seconds <= 0:
        return await jobs.wait(call.who, ids, 0)
    waited = await call.wait(jobs.wait(call.who, ids, seconds))
    if waited.gone:
        raise ClientGone
    await call.check_token()
    # A server that stops tells how things stand now.
    return waited.value if waited.done else await jobs.wait(call.who, ids, 0)


async def cancel(call: Call, asked: EmptyRequest) -> Answer:
    job, changed = await call.core.jobs.cancel(call.who, call.job_id)
    return answer({"job": shown(call, job), "changed": changed})


async def edit(call: Call, asked: EditRequest) -> Answer:
    job = await call.core.jobs.edit(call.who, call.job_id, priority=asked.priority, title=asked.title, tags=asked.tags)
    return answer({"job": shown(call, job)})


async def erase(call: Call, asked: EmptyRequest) -> Answer:
    return answer({"job": shown(call, await call.core.jobs.erase(call.who, call.job_id))})


async def requeue(call: Call, asked: RequeueRequest) -> Answer:
    job = await call.core.jobs.requeue(call.who, call.job_id, asked.queue, retriage=asked.retriage)
    return answer({"job": shown(call, job)})


async def requeue_all(call: Call, asked: BulkRequeueRequest) -> Answer:
    done = await call.core.jobs.requeue_all(
        call.who,
        filter_of(asked.filter),
        queue=asked.queue,
        retriage=asked.retriage,
        dry_run=asked.dry_run,
        cursor=asked.cursor,
    )
    return answer(done._asdict())


async def cancel_all(call: Call, asked: BulkRequest) -> Answer:
    done = await call.core.jobs.cancel_all(
        call.who, filter_of(asked.filter), dry_run=asked.dry_run, cursor=asked.cursor
    )
    return answer(done._asdict())


async def answer_question(call: Call, asked: AnswerRequest) -> Answer:
    return answer({"job": shown(call, await call.core.jobs.answer(call.who, call.job_id, asked.text))})


async def adopt(call: Call, asked: AdoptRequest) -> Answer:
    return answer({"job": shown(call, await call.core.jobs.adopt(call.who, call.job_id, asked.epoch))})


ROUTES = (
    Route(
        "POST",
        "/v1/jobs",
        enqueue,
        NewJobRequest,
        many=NewJobsRequest,
        size="payload",
        many_size="bulk",
        needs="enqueue",
        repeats="key",
        says="Enqueue a job, or many",
        gives="Enqueued",
        many_gives="EnqueuedMany",
        statuses=(200, 201),
    ),
    Route("GET", "/v1/jobs", list_jobs, JobsQuery, says="List jobs, newest first", gives="Jobs"),
    Route(
        "GET",
        "/v1/jobs/wait",
        wait_many,
        WaitManyQuery,
        says="Wait until several jobs are final",
        gives="WaitedJobs",
    ),
    Route("GET", "/v1/jobs/{id}", get, says="Read one job with payload and result", gives="OneJob"),
    Route("GET", "/v1/jobs/{id}/result", result, says="Read a result alone", gives="AnyObject"),
    Route("GET", "/v1/jobs/{id}/progress", progress, says="Read the progress trail", gives="ProgressTrail"),
    Route("GET", "/v1/jobs/{id}/attempts", attempts, says="Read the attempts", gives="Attempts"),
    Route(
        "GET",
        "/v1/jobs/{id}/attempts/{epoch}/result",
        late_result,
        says="Read a result that came after its lease was lost",
        gives="AnyObject",
    ),
    Route("GET", "/v1/jobs/{id}/activity", activity, says="Read what has happened to a job", gives="Activity"),
    Route("GET", "/v1/jobs/{id}/children", children, says="List the children of a job", gives="Jobs"),
    Route("GET", "/v1/jobs/{id}/wait", wait, WaitQuery, says="Wait until a job is final", gives="WaitedJob"),
    Route("GET", "/v1/jobs/{id}/questions", questions, says="Read what a job has asked", gives="Questions"),
    Route(
        "PATCH",
        "/v1/jobs/{id}",
        edit,
        EditRequest,
        needs="manage",
        repeats="itself",
        says="Change priority, title or tags",
        gives="OneJob",
    ),
    Route("DELETE", "/v1/jobs/{id}", erase, needs="manage", says="Erase a job that has ended", gives="OneJob"),
    Route(
        "POST",
        "/v1/jobs/{id}/cancel",
        cancel,
        needs="manage",
        repeats="itself",
        says="Cancel a queued job, or ask a running one to stop",
        gives="Cancelled",
    ),
    Route(
        "POST",
        "/v1/jobs/{id}/requeue",
        requeue,
        RequeueRequest,
        needs="manage",
        says="Run a failed, cancelled or queued job anew",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/jobs/{id}/answer",
        answer_question,
        AnswerRequest,
        needs="enqueue",
        says="Answer the open question of a job",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/jobs/{id}/adopt",
        adopt,
        AdoptRequest,
        needs="manage",
        says="Take a late result as the job's",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/requeue",
        requeue_all,
        BulkRequeueRequest,
        needs="manage",
        says="Requeue all jobs that match",
        gives="Bulk",
    ),
    Route(
        "POST",
        "/v1/cancel",
        cancel_all,
        BulkRequest,
        needs="manage",
        repeats="itself",
        says="Cancel all jobs that match",
        gives="Bulk",
    ),
)

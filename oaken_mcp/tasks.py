"""The extension `io.modelcontextprotocol/tasks`: an enqueue that would wait is answered at once, with a task to ask for later.

Of the protocol's later era alone, and for clients that declare it with the very call. What a task is of, and how it stands, the core says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from oaken_jobs import views
from oaken_jobs.errors import Conflict, Forbidden, InvalidRequest, NotFound, OakenError
from oaken_jobs.model import Job, Json
from oaken_jobs.tasks import Task
from oaken_mcp import answers, arguments, results, tools
from oaken_mcp.subscriptions import Offer, Topic, bounded
from oaken_mcp.tools import Context

EXTENSION = "io.modelcontextprotocol/tasks"
METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
NAME_KEY = "taskId"
"""The parameter of these methods that HTTP has in `Mcp-Name`, too."""
POLL_MS = 2_000
"""How often a client should ask."""
MESSAGE_LIMIT = 200
"""Characters of a status message."""
ERROR_LIMIT = 2_000
"""Characters of what a task failed with."""
FIELD = "answer"
"""Of the form that asks for an answer."""

_CODES: dict[type[OakenError], int] = {
    NotFound: types.INVALID_PARAMS,
    InvalidRequest: types.INVALID_PARAMS,
    Forbidden: answers.FORBIDDEN,
}
"""Of refusals; any other is an internal error."""


_UNTOLD: dict[str | None, int] = {
    "lease_lost": types.INTERNAL_ERROR,
    "payload_invalid": types.INVALID_PARAMS,
    "result_invalid": types.INTERNAL_ERROR,
}
"""Why a job failed although no worker has said so: such a task has no result to give, but an error of this code."""


class Named(types.RequestParams):
    """A task by its id."""

    task_id: str


class Update(Named):
    """Responses by the key of their question."""

    input_responses: dict[str, Any]


def declared(ctx: ServerRequestContext[Any]) -> bool:
    """Whether the client of this call takes tasks."""
    capabilities = ctx.session.client_capabilities
    extensions = capabilities.extensions if capabilities else None
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (extensions or {})


def asks(ctx: ServerRequestContext[Any]) -> bool:
    """Whether the client of this call can put a form to a person."""
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def require(ctx: ServerRequestContext[Any]) -> None:
    """Raises `MCPError` unless the client of this call has declared the extension."""
    if not declared(ctx):
        needed = types.ClientCapabilities(extensions={EXTENSION: {}})
        data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"This call needs a client that declares {EXTENSION} with it.",
            data.model_dump(by_alias=True, mode="json", exclude_none=True),
        )


def install(server: Server[Any], context: Callable[[ServerRequestContext[Any]], Context]) -> None:
    """Adds the methods and the capability."""

    async def get(ctx: ServerRequestContext[Any], params: Named) -> HandlerResult:
        _admit(ctx, params)
        return await _told(shown(context(ctx), params.task_id, form=asks(ctx)))

    async def update(ctx: ServerRequestContext[Any], params: Update) -> HandlerResult:
        _admit(ctx, params)
        await _told(respond(context(ctx), params.task_id, params.input_responses))
        return {}

    async def cancel(ctx: ServerRequestContext[Any], params: Named) -> HandlerResult:
        _admit(ctx, params)
        to = context(ctx)
        with anyio.CancelScope(shield=True):  # meant although its caller does not stay for the answer
            await _told(to.core.tasks.cancel(to.who, params.task_id))
        return {}

    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", Named, get)
    server.add_request_handler("tasks/update", Update, update)
    server.add_request_handler("tasks/cancel", Named, cancel)


def _admit(ctx: ServerRequestContext[Any], params: Named) -> None:
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    require(ctx)
    if ctx.request is not None and decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise MCPError(types.HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} must be the task's id.")


async def _told(call: Awaitable[Any]) -> Any:
    """What the call gives; its refusals as the protocol has them."""
    try:
        return await call
    except OakenError as refusal:
        raise MCPError(_CODES.get(type(refusal), types.INTERNAL_ERROR), refusal.message) from None


async def watched(ctx: ServerRequestContext[Any], to: Context, asked: Json) -> Offer:
    """The source of `taskIds`, of which each change is told with the whole task."""
    given: Any = asked.get("taskIds")
    if given is None:
        return Offer({}, ())
    require(ctx)
    if not isinstance(given, list) or not all(isinstance(one, str) for one in cast("list[Any]", given)):
        raise InvalidRequest("taskIds: must be a list of ids of tasks.")
    ids = list(dict.fromkeys(cast("list[str]", given)))
    bounded(len(ids))
    return Offer({"taskIds": ids}, [await _topic(to, task_id, form=asks(ctx)) for task_id in ids])


async def _topic(to: Context, task_id: str, *, form: bool) -> Topic:
    async def notice(meta: Json) -> types.ServerNotification:
        told = types.Notification[Json, str](
            method="notifications/tasks", params={**await shown(to, task_id, form=form), "_meta": meta}
        )
        return cast(Any, told)  # the SDK knows none of extensions

    return Topic(f"task:{task_id}", (await to.core.tasks.get(to.who, task_id)).job_ids, notice, at_once=True)


async def begin(to: Context, given: arguments.Enqueue) -> types.CallToolResult | Json:
    """Enqueues and answers with a task; as without one where none can be had. Raises what the enqueue is refused with."""
    added = await tools.add(to, given)
    try:
        if not added.said["created"]:
            # What was found may be another's, of which an agent learns no more than that it is there.
            await to.core.jobs.get(to.who, added.jobs[0].id)
        task = await to.core.tasks.add(to.who, [job.id for job in added.jobs], added.said)
        return {"resultType": "task", **_handle(to, task, *await _state(to, task, form=False))}
    except OakenError:  # what was added must be told
        return results.success(answers.bounded(await _answer(to, added.said, added.jobs, final=False)))


async def shown(to: Context, task_id: str, *, form: bool) -> Json:
    """The whole task as its caller is told of it, with its result or what it asks. `form` says that the client can put a form to a person;
    otherwise a question leaves it working, and its message tells of it. Raises `NotFound`."""
    task = await to.core.tasks.get(to.who, task_id)
    status, message = await _state(to, task, form=form)
    told = _handle(to, task, status, message)
    if status == "completed":
        told["result"] = await _result(to, task)
    if status == "failed":
        job = task.jobs[0]
        said = "" if job.last_error is None else f": {job.last_error}"
        told["error"] = {"code": _UNTOLD[job.reason], "message": answers.start_of(f"{_ended(job)}{said}", ERROR_LIMIT)}
    if status == "input_required":
        told["inputRequests"] = {_key(job): _question(job) for job in _asking(to, task)}
    return told


async def respond(to: Context, task_id: str, responses: Json) -> None:
    """Hands answers on to the jobs that wait for them. What is declined stays open until its time is over; what was answered already, or
    is not asked, is passed over. Raises `NotFound`, `InvalidRequest` for an answer that is none, `Forbidden`."""
    task = await to.core.tasks.get(to.who, task_id)
    asked = {_key(job): job for job in _asking(to, task)}
    said = {key: _text(key, response) for key, response in responses.items() if key in asked}
    for key, text in said.items():
        if text is not None:
            try:
                await to.core.jobs.answer(to.who, asked[key].id, text, epoch=asked[key].epoch)
            except (Conflict, NotFound):
                continue  # it is too late


def _handle(to: Context, task: Task, status: str, message: str) -> Json:
    expires = task.expires_at
    return {
        "taskId": task.id,
        "status": status,
        "statusMessage": message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…",
        "createdAt": views.iso(task.created_at),
        "lastUpdatedAt": views.iso(task.changed_at),
        "ttlMs": None if expires is None else expires - task.created_at,
        "pollIntervalMs": POLL_MS,
    }


async def _state(to: Context, task: Task, *, form: bool) -> tuple[str, str]:
    """The task's status, and what there is to say of it."""
    one = task.jobs[0] if len(task.job_ids) == 1 else None
    if task.ended:
        states: Counter[str] = Counter(job.state for job in task.jobs)
        if forgotten := len(task.job_ids) - len(task.jobs):
            states["forgotten"] = forgotten
        message = _ended(one) if one else ", ".join(f"{count} {state}" for state, count in states.items())
        if one is not None and one.state == "failed" and one.reason in _UNTOLD:
            return "failed", message
        return ("cancelled" if states.keys() == {"cancelled"} else "completed"), message
    asking = _asking(to, task)
    message = await _of_one(to, one) if one else await _of_many(to, task)
    if asking:
        which = f"Job {asking[0].id} asks a question" if len(asking) == 1 else f"{len(asking)} jobs ask questions"
        told = which if form else f"{which}; the tool answer answers it"
        message = told if one else f"{message}; {told}"
    return ("input_required" if asking and form else "working"), message


def _ended(job: Job) -> str:
    return f"Job {job.id} {job.state}" + (f" ({job.reason})" if job.reason else "")


async def _of_one(to: Context, job: Job) -> str:
    if job.state == "running":
        percent = "" if job.percent is None else f", {job.percent} %"
        said = "" if job.message is None else f": {job.message}"
        return f"Job {job.id} {'is asked to stop' if job.cancelling else 'runs'}{percent}{said}"
    waits = await _waits(to, job)
    return f"Job {job.id} waits: {waits}" if waits else f"Job {job.id} is queued"


async def _of_many(to: Context, task: Task) -> str:
    live = [job for job in task.jobs if not job.final]
    message = f"{len(task.job_ids) - len(live)} of {len(task.job_ids)} jobs ended"
    running = sum(job.state == "running" for job in live)
    waits = "" if running else await _waits(to, live[0])
    return message + (f", {running} running" if running else f"; {waits}" if waits else "")


async def _waits(to: Context, job: Job) -> str:
    """What keeps a job from running."""
    return "; ".join(wait.text for wait in (await to.core.jobs.waits([job]))[job.id])


async def _answer(to: Context, said: Json, jobs: Sequence[Job], *, final: bool) -> Json:
    if "job_ids" in said:
        return await tools.about_many(to, said, jobs if final else [], final=final)
    return await tools.about_one(to, said, jobs[0])


async def _result(to: Context, task: Task) -> Json:
    """What the call would have answered, had it waited to the end; where its only job has failed, as a failure."""
    answer = answers.bounded(await _answer(to, task.said, task.jobs, final=True))
    failed = "job_ids" not in task.said and task.jobs[0].state == "failed"
    found = results.failure(answers.text(answer)) if failed else results.success(answer)
    return found.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"result_type"})


def _asking(to: Context, task: Task) -> list[Job]:
    """The first jobs whose questions the caller may answer; there is no room for all where they are many."""
    return tools.answerable(to, task.jobs)[: arguments.MAX_WAITED]


def _key(job: Job) -> str:
    """Of its question: each is asked under a lease of its own."""
    return f"job-{job.id}-{job.epoch}"


def _question(job: Job) -> Json:
    form = {"type": "object", "properties": {FIELD: {"type": "string", "minLength": 1}}, "required": [FIELD]}
    message = f"Job {job.id} ({job.kind}) asks: {job.question}"
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": form},
    }


def _text(key: str, response: Any) -> str | None:
    """The answer in a response; None where it was declined."""
    try:
        given = types.ElicitResult.model_validate(response, by_name=False)
    except ValidationError:
        given = None
    if given is not None and given.action != "accept":
        return None
    text = (given.content or {}).get(FIELD) if given is not None else None
    if not isinstance(text, str):
        raise InvalidRequest(
            f"inputResponses.{key}: give the action accept with the text of the answer as content.{FIELD}, or decline."
        )
    return text

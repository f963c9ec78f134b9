"""Resources: jobs, queues and kinds, to be read by their addresses. They say what the tools say, to the same callers, in the same room."""

from __future__ import annotations

import re
from dataclasses import dataclass

import mcp_types as types

from oaken_jobs import auth, views
from oaken_jobs.errors import InvalidRequest, NotFound
from oaken_jobs.model import Json, Principal
from oaken_jobs.redaction import clean
from oaken_jobs.requests import MAX_ID
from oaken_jobs.store.base import JobFilter
from oaken_mcp import answers, arguments, tools
from oaken_mcp.answers import Body
from oaken_mcp.tools import Context

QUEUES = "oaken://queues"
KINDS = "oaken://kinds"
JOB = "oaken://jobs/{id}"
RESULT = "oaken://jobs/{id}/result"
MEDIA_TYPE = "application/json"
RECENT = 20
"""Jobs in the list of resources."""
SUGGESTED = 100
"""Values that a completion gives at most; the protocol allows no more."""
LOOKED_AT = 500
"""Recent jobs among which a completion looks."""

_ONE_JOB = re.compile(r"oaken://jobs/([1-9][0-9]{0,15})(/result)?", re.ASCII)
_LISTED = (
    types.Resource(
        uri=QUEUES,
        name="queues",
        title="Queues",
        description="Queues that jobs of others go to: whether each is paused, and its jobs by state.",
        mime_type=MEDIA_TYPE,
    ),
    types.Resource(
        uri=KINDS,
        name="kinds",
        title="Kinds of jobs",
        description="Kinds that are known here: instructions, schemas, leases and retries.",
        mime_type=MEDIA_TYPE,
    ),
)
_TEMPLATES = (
    types.ResourceTemplate(
        uri_template=JOB,
        name="job",
        title="Job",
        description="A job as the tool status shows it, with payload and result as far as there is room.",
        mime_type=MEDIA_TYPE,
    ),
    types.ResourceTemplate(
        uri_template=RESULT,
        name="result",
        title="Result of a job",
        description="What a job that has succeeded has given, as far as there is room.",
        mime_type=MEDIA_TYPE,
    ),
)


@dataclass(frozen=True, slots=True)
class Address:
    """What an address means: all queues, all kinds, or a job (or its result alone)."""

    uri: str
    job_id: int | None = None
    result: bool = False


def address(uri: str) -> Address:
    """Raises `NotFound` for one that means nothing here."""
    if uri in (QUEUES, KINDS):
        return Address(uri)
    match = _ONE_JOB.fullmatch(uri)
    if match is None or int(match[1]) > MAX_ID:
        raise NotFound(f"There is no resource {clean(uri, 80)!r}. There are {QUEUES}, {KINDS}, {JOB} and {RESULT}.")
    return Address(uri, int(match[1]), match[2] is not None)


def may_look(who: Principal) -> bool:
    """Whether the caller may read anything at all."""
    return auth.may(who, "read") or auth.may(who, "lease")


async def listed(to: Context) -> list[types.Resource]:
    """Queues, kinds, and the newest jobs that the caller may see."""
    if not may_look(to.who):
        return []
    page = await to.core.jobs.list(to.who, JobFilter(), limit=RECENT)
    # A job's own title is text of others, and lists are shown to models unmarked.
    jobs = [
        types.Resource(
            uri=JOB.format(id=job.id),
            name=f"job-{job.id}",
            title=f"Job {job.id}: {job.kind}, {job.state}",
            mime_type=MEDIA_TYPE,
        )
        for job in page.jobs
    ]
    return [*_LISTED, *jobs]


def templates(to: Context) -> list[types.ResourceTemplate]:
    """The forms that addresses of jobs have, for who may read any."""
    return [*_TEMPLATES] if may_look(to.who) else []


async def text(to: Context, uri: str) -> str:
    """The resource as compact JSON. Raises `NotFound` where there is none, or none for this caller."""
    found = address(uri)
    if found.job_id is not None:
        answer = await (_result(to, found.job_id) if found.result else _job(to, found.job_id))
    else:
        answer = await _queues(to) if uri == QUEUES else _kinds(to)
    return answers.text(answers.bounded(answer))


async def check(to: Context, found: Address) -> None:
    """Raises `NotFound` or `Forbidden` where the caller may not read there. A result may be still to come."""
    if found.job_id is not None:
        await to.core.jobs.get(to.who, found.job_id)
    else:
        to.core.jobs.kinds(to.who)


async def completed(to: Context, template: str, argument: str, value: str) -> tuple[list[str], bool]:
    """What an argument of a template may be that begins with `value`, and whether there may be more."""
    if template not in (JOB, RESULT):
        raise InvalidRequest(f"ref.uri: {clean(template, 80)!r} is no template. There are {JOB} and {RESULT}.")
    if argument != "id":
        raise InvalidRequest(f"argument.name: {clean(argument, 40)!r} is not in {template}. There is id.")
    page = await to.core.jobs.list(to.who, JobFilter(), limit=LOOKED_AT)
    found = [text for job in page.jobs if (text := str(job.id)).startswith(value)]
    return found[:SUGGESTED], len(found) > SUGGESTED or page.next_cursor is not None


async def _job(to: Context, job_id: int) -> Json:
    return await tools.status(to, arguments.Status(job_id=job_id))


async def _result(to: Context, job_id: int) -> Json:
    result = await to.core.jobs.result(to.who, job_id)
    answer: Json = {"job_id": job_id}
    answers.fill(answer, [Body(answer, "result", job_id, result)])
    return answer


async def _queues(to: Context) -> Json:
    rows = [_present(views.queue(queue)) for queue in await to.core.jobs.queues(to.who)]
    return _fitted("queues", rows)


def _kinds(to: Context) -> Json:
    jobs = to.core.jobs
    rows = [_present(views.kind(kind, jobs.rules)) for kind in jobs.kinds(to.who) if not kind.internal]
    if answers.size(rows) <= answers.LIMIT:
        return {"kinds": rows}
    short = [{name: row[name] for name in row if not name.endswith("_schema")} for row in rows]
    answer = _fitted("kinds", answers.compact(short, answers.LIMIT))
    answer["note"] = "Schemas were left out, and long instructions and lists were cut."
    return answer


def _present(row: Json) -> Json:
    return {name: value for name, value in row.items() if value is not None}


def _fitted(name: str, rows: list[Json]) -> Json:
    fits = answers.fitting(rows, 200)
    answer: Json = {name: rows[:fits]}
    if fits < len(rows):
        answer["more"] = len(rows) - fits
    return answer

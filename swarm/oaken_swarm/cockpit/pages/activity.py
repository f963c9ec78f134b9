"""One job: its whole story, what it was told and answered, and what may be done about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from oaken_jobs import views
from oaken_jobs.errors import NotFound
from oaken_jobs.model import STATES, Job
from oaken_jobs.requests import AnswerRequest, EmptyRequest, QueueName, Request
from oaken_swarm.call import Answer
from oaken_swarm.cockpit import story
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.saying import Said
from oaken_swarm.query import Flag, QueryId
from oaken_swarm.routes.jobs import read_epoch, shown_read

PRETTY_BYTES = 256 << 10
"""Up to this size a body is set out line by line."""
REQUEUES = ("queued", "failed", "cancelled")
CANCELS = ("queued", "running")


class RequeueForm(Request):
    """Where to, if not where it was."""

    queue: QueueName | None = None
    retriage: Flag = False


class AdoptForm(Request):
    """Of which attempt."""

    epoch: QueryId


class BodyQuery(Request):
    """Which of its texts: of a late result the attempt is named."""

    epoch: Annotated[str, Field(max_length=9)] | None = None


async def activity(view: View, asked: Said) -> Answer:
    jobs, who, job_id = view.core.jobs, view.who, view.call.job_id
    job = await jobs.get(who, job_id)
    [shown] = await shown_read(view.call, [job])
    payloads, results = await jobs.bodies(who, [job])
    attempts = [views.attempt(row) for row in await jobs.attempts(who, job_id)]
    progress = [views.progress(row) for row in await jobs.progress(who, job_id)]
    questions = [views.question(row) for row in await jobs.questions(who, job_id)]
    events = [views.event(row) for row in await jobs.activity(who, job_id, reports=False)]
    children = await shown_read(view.call, await jobs.children(who, job_id))
    return view.render(
        "activity.html",
        title=f"Job {job_id}",
        attempts=attempts,
        bars=story.bars(shown, attempts, jobs.now()),
        can={
            "adopt": view.may("manage") and job.state != "succeeded",
            # Who only is an agent answers what it enqueued itself.
            "answer": job.question is not None
            and (view.may("manage") or (view.may("enqueue") and job.actor_id == who.name)),
            "cancel": view.may("manage") and job.state in CANCELS and not job.cancelling,
            "requeue": view.may("manage") and job.state in REQUEUES,
        },
        children=children,
        job=shown,
        labels=await _labels(view, job),
        late=[attempt for attempt in attempts if attempt["late_result"]],
        parent=await _parent(view, job),
        payload_size=len(payloads.get(job_id, "").encode()),
        progress=progress,
        queues=sorted(jobs.rules.queues),
        result_size=len(results[job_id].encode()) if job_id in results else None,
        said=asked.said,
        states=STATES,
        story=story.told(events, attempts, questions, progress),
    )


async def _labels(view: View, job: Job) -> dict[str, dict[str, str]] | None:
    if job.subject is None or not view.may("read"):
        return None
    return await view.core.jobs.labels(view.who, job.subject, job.workspace)


async def _parent(view: View, job: Job) -> dict[str, Any] | None:
    if job.parent_id is None:
        return None
    try:
        parent = await view.core.jobs.get(view.who, job.parent_id)
    except NotFound:
        return None  # forgotten, or none of this caller's
    return (await shown_read(view.call, [parent]))[0]


async def payload(view: View, asked: EmptyRequest) -> Answer:
    job = await view.core.jobs.get(view.who, view.call.job_id)
    payloads, _ = await view.core.jobs.bodies(view.who, [job])
    return view.text(_set_out(payloads.get(job.id, "{}")))


async def result(view: View, asked: BodyQuery) -> Answer:
    jobs, job_id = view.core.jobs, view.call.job_id
    if asked.epoch is not None:
        return view.text(_set_out(await jobs.late_result(view.who, job_id, read_epoch(asked.epoch))))
    return view.text(_set_out(await jobs.result(view.who, job_id)))


def _set_out(text: str) -> str:
    if len(text) > PRETTY_BYTES:
        return text
    return orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2).decode()


async def cancel(view: View, asked: EmptyRequest) -> Answer:
    job, changed = await view.core.jobs.cancel(view.who, view.call.job_id)
    said: Literal["ended", "stopping", "cancelled"] = "ended"
    if changed:
        said = "stopping" if job.state == "running" else "cancelled"
    return view.go(_path(view), said)


async def requeue(view: View, asked: RequeueForm) -> Answer:
    await view.core.jobs.requeue(view.who, view.call.job_id, asked.queue, retriage=asked.retriage)
    return view.go(_path(view), "requeued")


async def answer(view: View, asked: AnswerRequest) -> Answer:
    await view.core.jobs.answer(view.who, view.call.job_id, asked.text)
    return view.go(_path(view), "answered")


async def adopt(view: View, asked: AdoptForm) -> Answer:
    await view.core.jobs.adopt(view.who, view.call.job_id, asked.epoch)
    return view.go(_path(view), "adopted")


def _path(view: View) -> str:
    return f"/activity/{view.call.job_id}"


PAGES = (
    Page("GET", "/activity/{id}", activity, Said),
    Page("GET", "/activity/{id}/payload", payload),
    Page("GET", "/activity/{id}/result", result, BodyQuery),
    Page("POST", "/activity/{id}/cancel", cancel, needs="manage"),
    Page("POST", "/activity/{id}/requeue", requeue, RequeueForm, needs="manage"),
    Page("POST", "/activity/{id}/answer", answer, AnswerRequest, needs="enqueue"),
    Page("POST", "/activity/{id}/adopt", adopt, AdoptForm, needs="manage"),
)

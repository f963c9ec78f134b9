"""Subjects: their labels and documents; and taking in a text, which makes one."""

from __future__ import annotations

from oaken_jobs import views
from oaken_jobs.model import Json
from oaken_jobs.pipeline import document_of
from oaken_jobs.requests import EmptyRequest, IntakeRequest, Key, LabelsRequest, NewJobRequest, Request, read
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route
from oaken_swarm.routes.jobs import enqueued_answer


class _Subject(Request):
    subject: Key


def _subject(call: Call) -> str:
    return read(_Subject, {"subject": call.params["subject"]}).subject


async def subject(call: Call, asked: EmptyRequest) -> Answer:
    name = _subject(call)
    told: Json = {"subject": name, "labels": await call.core.jobs.labels(call.who, name)}
    document = document_of(name)
    if document is not None:
        rows = await call.core.jobs.documents(call.who, [document])
        if rows:
            told["document"] = views.document(rows[0])
    return answer(told)


async def set_labels(call: Call, asked: LabelsRequest) -> Answer:
    name = _subject(call)
    return answer({"subject": name, "labels": await call.core.jobs.set_labels(call.who, name, asked.human)})


async def intake(call: Call, asked: IntakeRequest) -> Answer:
    payload = {field: value for field, value in asked.model_dump().items() if value is not None}
    request = NewJobRequest(kind="intake", payload=payload, title=asked.title)
    return enqueued_answer(call, await call.core.jobs.enqueue(call.who, request))


ROUTES = (
    Route("GET", "/v1/subjects/{subject}", subject),
    Route("PUT", "/v1/subjects/{subject}/labels", set_labels, LabelsRequest, needs="manage"),
    Route("POST", "/v1/intake", intake, IntakeRequest, size="payload", needs="enqueue"),
)

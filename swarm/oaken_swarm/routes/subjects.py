"""Subjects: their labels and documents; and taking in a text, which makes one."""

from __future__ import annotations

from functools import partial

from oaken_jobs import views
from oaken_jobs.model import Json
from oaken_jobs.pipeline import document_of
from oaken_jobs.requests import IntakeRequest, Key, LabelsRequest, NewJobRequest, Request, Workspace, read
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route
from oaken_swarm.routes.jobs import enqueued_answer


class _Subject(Request):
    subject: Key


def _subject(call: Call) -> str:
    return read(_Subject, {"subject": call.params["subject"]}).subject


class SubjectQuery(Request):
    """Of which workspace, where the token is bound to none."""

    workspace: Workspace | None = None


async def subject(call: Call, asked: SubjectQuery) -> Answer:
    name = _subject(call)
    told: Json = {"subject": name, "labels": await call.core.jobs.labels(call.who, name, asked.workspace)}
    document = document_of(name)
    if document is not None:
        rows = await call.core.jobs.documents(call.who, [document], asked.workspace)
        if rows:
            told["document"] = views.document(rows[0])
    return answer(told)


async def set_labels(call: Call, asked: LabelsRequest) -> Answer:
    name = _subject(call)
    labels = await call.core.jobs.set_labels(call.who, name, asked.human, asked.workspace)
    return answer({"subject": name, "labels": labels})


async def intake(call: Call, asked: IntakeRequest) -> Answer:
    payload = {field: value for field, value in asked.model_dump(exclude={"workspace"}).items() if value is not None}
    request = NewJobRequest(
        kind="intake",
        payload=payload,
        title=asked.title,
        workspace=asked.workspace,
        idempotency_key=call.idempotency_key,
    )
    show = partial(enqueued_answer, call)
    return await call.core.jobs.enqueue_shown(call.who, request, show, traceparent=call.traceparent)


ROUTES = (
    Route(
        "GET",
        "/v1/subjects/{subject}",
        subject,
        SubjectQuery,
        says="Read what is known of a subject",
        gives="Subject",
    ),
    Route(
        "PUT",
        "/v1/subjects/{subject}/labels",
        set_labels,
        LabelsRequest,
        needs="manage",
        repeats="itself",
        says="Set people's labels of a subject",
        gives="Labels",
    ),
    Route(
        "POST",
        "/v1/intake",
        intake,
        IntakeRequest,
        size="payload",
        needs="enqueue",
        text="text",
        repeats="key",
        says="Take in a text",
        gives="Enqueued",
        statuses=(200, 201),
    ),
)

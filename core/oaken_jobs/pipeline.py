"""The built-in kinds: `intake` formats a text, `store` keeps it, then outside agents `embed` and `triage` it.

A document is the hash of its normalised text: the same text twice is one document with both sources. What follows a job is written in
the transaction of its finish, so a retried intake makes no second children and a lost one none at all.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping

import orjson

from oaken_jobs.handlers import Handlers, JobContext, PermanentJobError
from oaken_jobs.kinds import Kind, Schema
from oaken_jobs.model import Effect, Job, Json, KeepDocument, KeepSource, KeepVector, NewJob, SetLabels, SpawnJob
from oaken_jobs.transport import Done

TITLE_LIMIT = 200
MAX_DIMENSIONS = 16_384

_HEADING = re.compile(r"^[ ]{0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*$", re.MULTILINE)
_SETEXT = re.compile(r"^(?=\S)(.+)\n(?:=+|-+)[ \t]*$", re.MULTILINE)

_DOCUMENT: Json = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TEXT: Json = {
    "type": "object",
    "properties": {"document": _DOCUMENT, "title": {"type": ["string", "null"]}, "text": {"type": "string"}},
    "required": ["text"],
}
_STORE: Json = {**_TEXT, "required": ["document", "text"]}


def normalise(text: str) -> str:
    """The text as it is kept: Unicode NFC, `\\n` line ends, no white space at line ends, one newline at the end.

    >>> normalise("e\\u0301 \\r\\nx")
    'é\\nx\\n'
    """
    lines = (
        unicodedata.normalize("NFC", text.removeprefix("\ufeff")).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    )
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def title_of(text: str) -> str | None:
    """The first heading, else the first line that is not empty; None for a text without any.

    >>> title_of("intro\\n\\n## Usage ##\\nmore")
    'Usage'
    """
    headings = [m for m in (_HEADING.search(text), _SETEXT.search(text)) if m and m[1].strip()]
    if headings:
        found = min(headings, key=lambda m: m.start())[1]
    else:
        found = next((line for line in text.split("\n") if line.strip()), "")
    found = found.strip()
    return (found if len(found) <= TITLE_LIMIT else found[: TITLE_LIMIT - 1] + "…") or None


def document_id(text: str) -> str:
    """SHA-256 of the normalised text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def subject_of(document: str) -> str:
    """The subject of all jobs about a document."""
    return f"document:{document}"


def document_of(subject: str) -> str | None:
    """The document that a subject is about; None for a subject that is no document."""
    prefix, _, document = subject.partition(":")
    return document if prefix == "document" and document else None


async def _intake(job: JobContext) -> Done:
    text = normalise(job.payload["text"])
    if not text.strip():
        raise PermanentJobError("the text is empty once white space is taken away; there is nothing to keep.")
    document = document_id(text)
    title = job.payload.get("title") or title_of(text)
    effects: list[Effect] = []
    if source := job.payload.get("source"):
        effects.append(KeepSource(document, source))
    body = orjson.dumps({"document": document, "title": title, "text": text}).decode()
    effects.append(
        SpawnJob(
            NewJob("store", body, subject=subject_of(document), dedupe_key=f"store:{document}", title=title),
            unless_document=document,
        )
    )
    # One that is stored is triaged again only where somebody asked for that.
    effects.append(SpawnJob(_triage(document, title, body), if_retriage=subject_of(document)))
    return Done({"document": document, "title": title, "characters": len(text)}, tuple(effects))


def _triage(document: str, title: str | None, body: str) -> NewJob:
    return NewJob("triage", body, subject=subject_of(document), target=document, title=title)


def _subject_of_text(payload: Json) -> str | None:
    return subject_of(document_id(normalise(payload["text"])))


async def _store(job: JobContext) -> Done:
    document, title, text = job.payload["document"], job.payload.get("title"), job.payload["text"]
    body = orjson.dumps({"document": document, "title": title, "text": text}).decode()
    subject = subject_of(document)
    children = tuple(
        SpawnJob(NewJob(kind, body, subject=subject, target=document, title=title), unless_document=document)
        for kind in ("embed", "triage")
    )
    # The children first: they are spawned only while the document is not there yet.
    return Done({"document": document, "characters": len(text)}, (*children, KeepDocument(document, title, text)))


def _keep_vector(job: Job, result: Json) -> list[Effect]:
    return [KeepVector(job.subject, result["model"], [float(x) for x in result["vector"]])] if job.subject else []


def _keep_labels(job: Job, result: Json) -> list[Effect]:
    return [SetLabels(job.subject, "machine", dict(result["labels"]))] if job.subject else []


def kinds() -> Mapping[str, Kind]:
    """The built-in kinds, by name."""
    vector: Json = {
        "type": "object",
        "properties": {
            "model": {"type": "string", "minLength": 1, "maxLength": 200},
            "vector": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": MAX_DIMENSIONS},
        },
        "required": ["model", "vector"],
    }
    labels: Json = {
        "type": "object",
        "properties": {
            "labels": {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 50,
                "propertyNames": {"minLength": 1, "maxLength": 64},
                "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 200},
            }
        },
        "required": ["labels"],
    }
    intake: Json = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1},
            "title": {"type": ["string", "null"], "maxLength": TITLE_LIMIT},
            "source": {"type": ["string", "null"], "maxLength": 255},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    found = [
        Kind(
            "intake",
            payload_schema=Schema.compile(intake, "intake"),
            internal=True,
            subject_of=_subject_of_text,
        ),
        Kind("store", payload_schema=Schema.compile(_STORE, "store"), internal=True),
        Kind(
            "embed",
            payload_schema=Schema.compile(_TEXT, "embed"),
            result_schema=Schema.compile(vector, "embed"),
            instructions='Embed `text`. Complete with {"model": NAME, "vector": [numbers]}.',
            on_success=_keep_vector,
        ),
        Kind(
            "triage",
            payload_schema=Schema.compile(_TEXT, "triage"),
            result_schema=Schema.compile(labels, "triage"),
            instructions=(
                'Label `text`. Complete with {"labels": {KEY: VALUE, ...}}, for instance {"labels": {"topic": "release"}}. '
                "A label `queue` names the queue of later jobs about the same document."
            ),
            on_success=_keep_labels,
        ),
    ]
    return {kind.name: kind for kind in found}


def handlers() -> Handlers:
    """What Oaken's own runner does: `intake` and `store`."""
    registry = Handlers()
    registry.handler("intake")(_intake)
    registry.handler("store")(_store)
    return registry

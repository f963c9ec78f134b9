"""The description of the interface, made from the routes themselves: `/openapi.json`, and the page that shows it."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable
from functools import cache
from typing import Final, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from oaken_jobs import __version__
from oaken_jobs.model import Json
from oaken_jobs.requests import MAX_ID
from oaken_swarm import answers
from oaken_swarm.body import TEXT_TYPES
from oaken_swarm.paths import Route

VERSION: Final = "3.1.0"

_ERRORS = {
    400: "The body is no JSON that every reader keeps (`bad_json`).",
    401: "There is no token, or one that is not known here (`unauthenticated`).",
    403: "The token's roles or limits do not allow it (`forbidden`).",
    404: "There is nothing of that name, or not for this caller (`not_found`).",
    408: "The request did not arrive in time (`timeout`).",
    409: "It does not fit how things stand (`conflict`, `lease_lost`, `idempotency_conflict`).",
    413: "It is larger than allowed (`too_large`).",
    415: "The body is of a type that is not taken here (`unsupported_media_type`).",
    421: "The server does not answer for that host (`misdirected`).",
    422: "A field is wrong; the message names it (`invalid_request`, `payload_invalid`, `result_invalid`).",
    429: "Too many calls; come again after `Retry-After` (`rate_limited`).",
    503: "It cannot be answered now; come again after `Retry-After` (`unavailable`).",
}
_READS = (401, 403, 404, 408, 421, 422, 429, 503)
_WRITES = tuple(_ERRORS)
_OPEN = (408, 421, 422, 503)

_PARAMETERS: dict[str, Json] = {
    "id": {"type": "integer", "minimum": 1, "maximum": MAX_ID},
    "epoch": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "lease_id": {"type": "string", "pattern": r"^[0-9]{1,16}-[0-9]{1,9}-[0-9a-f]{24}$"},
    "name": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[A-Za-z0-9][A-Za-z0-9._@/-]*$"},
    "subject": {"type": "string", "minLength": 1, "maxLength": 255},
    "door": {"type": "string", "enum": ["mcp"]},
}
_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[\x20-\x7e]+$"},
    "description": "The same call by the same token under the same key within 24 hours gets the first answer again.",
}
_LAST_EVENT: Json = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "string", "pattern": "^[0-9]{1,16}$"},
    "description": "The `id` of the last event that was seen: the stream goes on behind it.",
}

_EXAMPLES: dict[tuple[str, str], Json] = {
    ("POST", "/v1/jobs"): {"kind": "embed", "payload": {"text": "Hello"}, "title": "Embed", "priority": "user"},
    ("POST", "/v1/leases"): {"kinds": ["embed"], "max": 1, "lease_seconds": 60},
    ("POST", "/v1/leases/{lease_id}/complete"): {"result": {"model": "m-1", "vector": [0.1, 0.2]}},
    ("POST", "/v1/leases/{lease_id}/fail"): {"error": "the model did not answer", "retry_after": 30},
    ("POST", "/v1/leases/batch"): {
        "ops": [{"op": "complete", "lease_id": "1-1-0123456789abcdef01234567", "result": {}}]
    },
    ("PUT", "/v1/schedules/{name}"): {
        "queue": "default",
        "kind": "brief",
        "cron": "30 6 * * mon-fri",
        "timezone": "Europe/Berlin",
    },
    ("POST", "/v1/requeue"): {"filter": {"state": ["failed"], "kind": ["embed"]}, "dry_run": True},
    ("PUT", "/v1/subjects/{subject}/labels"): {"human": {"queue": "triage"}},
    ("POST", "/v1/intake"): {"text": "# Notes\n\nA text to keep.", "source": "notes.md"},
    ("POST", "/v1/tokens"): {"name": "embedder", "roles": ["agent"]},
}

_JOB_LINKS: dict[str, str] = {
    "readIt": "getV1JobsById",
    "waitForIt": "getV1JobsByIdWait",
    "cancelIt": "postV1JobsByIdCancel",
    "seeItsActivity": "getV1JobsByIdActivity",
}
_LEASE_LINKS: dict[str, str] = {
    "beat": "postV1LeasesByLeaseIdHeartbeat",
    "complete": "postV1LeasesByLeaseIdComplete",
    "release": "postV1LeasesByLeaseIdRelease",
}


_Refs = dict[tuple[str, str], Json]
"""By the name of a model and whether it is read or written: where its schema stands."""


@cache
def describe(routes: tuple[Route, ...]) -> Json:
    """The OpenAPI document of these routes."""
    inputs = {model for route in routes for model in (route.takes, route.many) if model is not None}
    names = {name for route in routes for name in (route.gives, route.many_gives) if name is not None}
    outputs: set[type[BaseModel]] = {getattr(answers, name) for name in names} | {answers.Problem}
    wanted: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        *((model, "validation") for model in sorted(inputs, key=_name)),
        *((model, "serialization") for model in sorted(outputs, key=_name)),
    ]
    refs, schemas = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    found: _Refs = {(model.__name__, mode): ref for (model, mode), ref in refs.items()}
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, found, schemas["$defs"])
    return {
        "openapi": VERSION,
        "info": {
            "title": "Oaken",
            "version": __version__,
            "description": "A durable job store for AI agents. Errors are `application/problem+json` with a stable `code`.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def operation_id(route: Route) -> str:
    """A name for code generators: `postV1JobsByIdCancel`."""
    words = [
        f"By{_camel(part[1:-1])}" if part.startswith("{") else _camel(part) for part in route.path.split("/") if part
    ]
    return route.method.lower() + "".join(words)


def _camel(word: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]", word))


def _operation(route: Route, refs: _Refs, schemas: Json) -> Json:
    said: Json = {
        "operationId": operation_id(route),
        "summary": route.says,
        "tags": [_tag(route)],
        "parameters": list(_parameters(route, refs, schemas)),
        "responses": dict(_responses(route, refs)),
    }
    if route.needs is not None:
        said["x-needs"] = route.needs
    if route.open:
        said["security"] = []
    if route.has_body:
        bodies = [refs[(model.__name__, "validation")] for model in (route.takes, route.many) if model is not None]
        content: Json = {"schema": bodies[0] if len(bodies) == 1 else {"anyOf": bodies}}
        if (example := _EXAMPLES.get((route.method, route.path))) is not None:
            content["example"] = example
        required = bool(schemas[_ref(bodies[0])].get("required"))
        contents: Json = {"application/json": content}
        if route.text is not None:
            alone = {"schema": {"type": "string", "minLength": 1}}
            if example is not None:
                alone["example"] = example[route.text]
            contents |= dict.fromkeys(TEXT_TYPES, alone)
        said["requestBody"] = {"required": required, "content": contents}
    return said


def _tag(route: Route) -> str:
    parts = route.path.split("/")
    return parts[2] if parts[1] == "v1" else "server"


def _ref(schema: Json) -> str:
    return str(schema["$ref"]).rsplit("/", 1)[1]


def _parameters(route: Route, refs: _Refs, schemas: Json) -> Iterable[Json]:
    for name in re.findall(r"\{(\w+)\}", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
    if not route.has_body or route.text is not None:
        model = schemas[_ref(refs[(route.takes.__name__, "validation")])]
        for name, schema in model.get("properties", {}).items():
            if name == route.text:
                continue
            said: Json = {
                "name": name,
                "in": "query",
                "required": name in model.get("required", ()),
                "schema": _without_null(schema),
            }
            if route.text is not None:
                said["description"] = "Beside a body that is a text; with JSON the fields are in the body."
            yield said
    if route.writes:
        yield _KEY
    if route.streams:
        yield _LAST_EVENT


def _without_null(schema: Json) -> Json:
    """What may stand in a query: there is no null there, only leaving out."""
    kept = {name: value for name, value in schema.items() if name not in ("default", "title") or value is not None}
    options = [one for one in kept.get("anyOf", ()) if one != {"type": "null"}]
    if options:
        del kept["anyOf"]
        kept |= options[0] if len(options) == 1 else {"anyOf": options}
    return kept


def _responses(route: Route, refs: _Refs) -> Iterable[tuple[str, Json]]:
    for status in route.statuses:
        told: Json = {"description": "Done." if route.writes else "What was asked for."}
        if route.streams:
            told["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
        elif route.gives is not None:
            schemas = [refs[(route.gives, "serialization")]]
            if route.many_gives is not None and status == 200:
                schemas.append(refs[(route.many_gives, "serialization")])
            told["content"] = {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
            told["links"] = _links(route, status)
            if not told["links"]:
                del told["links"]
        yield str(status), told
    statuses = (
        (404, *_OPEN)
        if route.open and "{" in route.path
        else _OPEN
        if route.open
        else _WRITES
        if route.writes
        else _READS
    )
    for status in statuses:
        problem = {"application/problem+json": {"schema": refs[("Problem", "serialization")]}}
        yield str(status), {"description": _ERRORS[status], "content": problem}


def _links(route: Route, status: int) -> Json:
    if route.path == "/v1/jobs" and route.method == "POST" and status == 201:
        return {
            name: {"operationId": target, "parameters": {"id": "$response.body#/job/id"}}
            for name, target in _JOB_LINKS.items()
        }
    if route.path == "/v1/leases" and route.method == "POST":
        return {
            name: {"operationId": target, "parameters": {"lease_id": "$response.body#/leases/0/lease_id"}}
            for name, target in _LEASE_LINKS.items()
        }
    return {}


_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 .5rem; border-bottom: 1px solid #8886; }
details { padding: .25rem 0; }
summary { cursor: pointer; }
code, pre { font: 13px/1.4 ui-monospace, monospace; }
pre { overflow: auto; padding: .5rem; background: #8882; border-radius: 4px; }
.m { display: inline-block; min-width: 4rem; font-weight: 600; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
"""
STYLE_HASH: Final = "sha256-" + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


@cache
def page(routes: tuple[Route, ...]) -> str:
    """The same for people, as one page without scripts."""
    described = describe(routes)
    by_tag: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, said in methods.items():
            by_tag.setdefault(said["tags"][0], []).append(_entry(method.upper(), path, said, described))
    sections = "".join(
        f"<section><h2>{html.escape(tag)}</h2>{''.join(entries)}</section>" for tag, entries in by_tag.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Oaken: HTTP interface</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Oaken {html.escape(described['info']['version'])}</h1>"
        f"<p>{html.escape(described['info']['description'])} The same for programs: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"{sections}</body></html>"
    )


def _entry(method: str, path: str, said: Json, described: Json) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(one['name'])}</code></td><td>{one['in']}{', required' if one.get('required') else ''}</td>"
        f"<td>{html.escape(_brief(one['schema'], described))}</td></tr>"
        for one in said["parameters"]
    )
    bodies: Json = said.get("requestBody", {}).get("content", {})
    shown = "".join(
        f"<p>Body, <code>{media_type}</code></p><pre>{html.escape(_outline(body['schema'], described))}</pre>"
        for media_type, body in bodies.items()
    )
    needs = f"<p>Needs a role that may <code>{html.escape(said['x-needs'])}</code>.</p>" if "x-needs" in said else ""
    answers = "".join(
        f"<tr><td>{status}</td><td>{html.escape(told['description'])}</td></tr>"
        for status, told in said["responses"].items()
    )
    return (
        f"<details><summary><span class='m'>{method}</span> <code>{html.escape(path)}</code> {html.escape(said['summary'])}</summary>"
        f"{needs}<table>{rows}</table>{shown}<p>Answers</p><table>{answers}</table></details>"
    )


def _brief(schema: Json, described: Json) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return _brief(described["components"]["schemas"][_ref(schema)], described)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_brief(one, described) for one in schema[several])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_brief(schema.get('items', {}), described)}"
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([str(schema.get("format") or schema.get("type", "any")), *bounds])


def _outline(schema: Json, described: Json) -> str:
    """The fields of a body, a line each."""
    if schema.get("type") == "string":
        return "the text itself"
    if "anyOf" in schema:
        return "\n\nor\n\n".join(_outline(one, described) for one in schema["anyOf"])
    model = described["components"]["schemas"][_ref(schema)]
    required = model.get("required", ())
    lines = [
        f"{name}{'' if name in required else '?'}: {_brief(field, described)}"
        for name, field in model.get("properties", {}).items()
    ]
    return "\n".join(lines) or "(nothing)"


__all__ = ["STYLE_HASH", "describe", "operation_id", "page"]

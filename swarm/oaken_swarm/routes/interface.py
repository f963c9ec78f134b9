"""The description of the interface, for any token."""

from __future__ import annotations

import orjson

from oaken_jobs.requests import EmptyRequest
from oaken_swarm import openapi, routes
from oaken_swarm.call import Answer, Call
from oaken_swarm.paths import Route

_POLICY = (
    f"default-src 'none'; style-src '{openapi.STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def description(call: Call, asked: EmptyRequest) -> Answer:
    return Answer(orjson.dumps(openapi.describe(routes.ROUTES)))


async def page(call: Call, asked: EmptyRequest) -> Answer:
    shown = openapi.page(routes.ROUTES).encode()
    return Answer(shown, 200, ((b"content-security-policy", _POLICY.encode()),), b"text/html; charset=utf-8")


ROUTES = (
    Route("GET", "/openapi.json", description, says="Read this description"),
    Route("GET", "/docs", page, says="Read it as a page"),
)

"""The description of the interface, for any token."""

from __future__ import annotations

import orjson

from oaken_jobs.requests import EmptyRequest
from oaken_swarm import routes
from oaken_swarm.call import Answer, Call
from oaken_swarm.paths import Route

# What describes the interface is imported when it is asked for: commands, which come through these routes, too, are to come at once.


async def description(call: Call, asked: EmptyRequest) -> Answer:
    from oaken_swarm import openapi

    return Answer(orjson.dumps(openapi.describe(routes.ROUTES)))


async def page(call: Call, asked: EmptyRequest) -> Answer:
    from oaken_swarm import openapi

    policy = f"default-src 'none'; style-src '{openapi.STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    shown = openapi.page(routes.ROUTES).encode()
    return Answer(shown, 200, ((b"content-security-policy", policy.encode()),), b"text/html; charset=utf-8")


ROUTES = (
    Route("GET", "/openapi.json", description, says="Read this description"),
    Route("GET", "/docs", page, says="Read it as a page"),
)

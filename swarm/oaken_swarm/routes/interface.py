"""The description of the interface, for any token; and for everyone, where tokens are to be had."""

from __future__ import annotations

import orjson

from oaken_jobs.errors import NotFound
from oaken_jobs.redaction import clean
from oaken_jobs.requests import EmptyRequest
from oaken_swarm import routes, signin
from oaken_swarm.call import Answer, Call, answer
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


async def resource(call: Call, asked: EmptyRequest) -> Answer:
    door = call.params["door"]
    if door not in call.doors:
        raise NotFound(f"There is nothing at {clean(door, 40)!r} to sign in to.")
    return answer(signin.description(call, door))


ROUTES = (
    Route("GET", "/openapi.json", description, says="Read this description"),
    Route("GET", "/docs", page, says="Read it as a page"),
    Route(
        "GET",
        f"{signin.PATH}/{{door}}",
        resource,
        open=True,
        says="Whose tokens are taken, where an issuer's are",
        gives="Resource",
    ),
)

"""Tokens, for admins."""

from __future__ import annotations

from oaken_jobs import auth, views
from oaken_jobs.errors import NotFound
from oaken_jobs.redaction import clean
from oaken_jobs.requests import EmptyRequest, RotateRequest, TokenRequest
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route


async def tokens(call: Call, asked: EmptyRequest) -> Answer:
    return answer({"tokens": [views.token(row) for row in await call.core.tokens.list()]})


async def create(call: Call, asked: TokenRequest) -> Answer:
    row, secret = await call.core.tokens.create(
        call.who.actor,
        asked.name,
        [*asked.roles],
        kind=asked.kind,
        expires_in=asked.expires_in,
        workspace=asked.workspace,
        limits=asked.limits,
    )
    return answer({**views.token(row), "token": secret}, 201)


async def rotate(call: Call, asked: RotateRequest) -> Answer:
    row, secret = await call.core.tokens.rotate(call.who.actor, _name(call), expires_in=asked.expires_in)
    return answer({**views.token(row), "token": secret})


async def revoke(call: Call, asked: EmptyRequest) -> Answer:
    return answer(views.token(await call.core.tokens.revoke(call.who.actor, _name(call))))


def _name(call: Call) -> str:
    name = call.params["name"]
    if not auth.NAME.fullmatch(name):
        raise NotFound(f"There is no token named {clean(name, 60)!r}; see GET /v1/tokens.")
    return name


ROUTES = (
    Route("GET", "/v1/tokens", tokens, needs="administer", says="List tokens", gives="Tokens"),
    Route(
        "POST",
        "/v1/tokens",
        create,
        TokenRequest,
        needs="administer",
        secret=True,
        says="Make a token",
        gives="NewToken",
        statuses=(201,),
    ),
    Route(
        "POST",
        "/v1/tokens/{name}/rotate",
        rotate,
        RotateRequest,
        needs="administer",
        secret=True,
        says="Give a token a new secret",
        gives="NewToken",
    ),
    Route(
        "DELETE",
        "/v1/tokens/{name}",
        revoke,
        needs="administer",
        repeats="itself",
        says="Revoke a token",
        gives="Token",
    ),
)

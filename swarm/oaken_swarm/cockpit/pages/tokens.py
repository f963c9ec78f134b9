"""Tokens and the sessions that were opened with them, for admins."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import BeforeValidator, Field

from oaken_jobs import auth, views
from oaken_jobs.errors import Conflict, NotFound, OakenError, Unauthenticated, Unavailable
from oaken_jobs.model import ROLES, Limits, Role
from oaken_jobs.redaction import clean
from oaken_jobs.requests import EmptyRequest, Kind, QueueName, Request, Workspace
from oaken_jobs.store.operations import TokenRow
from oaken_swarm.call import Answer
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.saying import Said
from oaken_swarm.query import Words, whole

DAYS = 86_400
Made = Awaitable[tuple[TokenRow, str]]


Days = Annotated[int, BeforeValidator(whole), Field(ge=1, le=3650)]


class OnceForm(Request):
    """Which form it is, of all that were ever shown; a reload of the page that answers it sends the same again."""

    once: Annotated[str, Field(max_length=40)] | None = None


class NewTokenForm(OnceForm):
    """As the interface's, with its end in days."""

    name: Annotated[str, Field(max_length=64)] = ""
    roles: Words[Role] = ()
    workspace: Workspace | None = None
    queues: Words[QueueName] = ()
    kinds: Words[Kind] = ()
    days: Days | None = None


async def tokens(view: View, asked: Said) -> Answer:
    return await _page(view, said=asked.said)


async def create(view: View, asked: NewTokenForm) -> Answer:
    def make() -> Made:
        return view.core.tokens.create(
            view.who.actor,
            asked.name,
            [*asked.roles],
            expires_in=asked.days * DAYS if asked.days is not None else None,
            workspace=asked.workspace,
            limits=Limits(queues=asked.queues or None, kinds=asked.kinds or None),
        )

    return await _shown_once(view, asked, asked.name, make)


async def rotate(view: View, asked: OnceForm) -> Answer:
    name = _name(view)
    return await _shown_once(view, asked, name, lambda: view.core.tokens.rotate(view.who.actor, name))


async def revoke(view: View, asked: EmptyRequest) -> Answer:
    await view.core.tokens.revoke(view.who.actor, _name(view))
    return view.go("/tokens", "revoked")


async def end(view: View, asked: EmptyRequest) -> Answer:
    text = view.params["id"]
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise NotFound(f"There is no session {clean(text, 40)!r}.")
    await view.core.sessions.end(view.who, int(text))
    return view.go("/tokens", "session")


async def _shown_once(view: View, asked: OnceForm, name: str, make: Callable[[], Made]) -> Answer:
    """The page with the secret of what `make` makes. The same form again makes nothing, and leads to a page that says why."""
    if asked.once is None:
        return await _page(view, made=await make())
    repeats = view.core.repeats
    try:
        # Of one page, which may be kept for going back, another token may be made, or another secret.
        mark, _ = await repeats.begin(view.who, auth.hash_token(f"{asked.once} {view.path} {name}"), again=False)
    except Conflict:
        return view.go("/tokens", "shown")
    try:
        made = await make()
    except Unavailable:
        raise  # it is not known whether anything was made
    except OakenError:
        await repeats.refused(mark)
        raise
    return await _page(view, made=made)


async def _page(view: View, said: str | None = None, made: tuple[TokenRow, str] | None = None) -> Answer:
    """The page; with a secret that was `made`, which is shown this once and stands in no address."""
    sessions = await view.core.sessions.list(view.who)
    own = await _own(view)
    return view.render(
        "tokens.html",
        title="Tokens",
        all_roles=ROLES,
        once=secrets.token_urlsafe(12),
        made=(made[0].name, made[1]) if made is not None else None,
        own=own,
        ended=view.secret is not None and own is None,
        said=said,
        sessions=[
            {
                "id": row.id,
                "token": row.token,
                "created_at": views.iso(row.created_at),
                "seen_at": views.iso(row.seen_at),
                "expires_at": views.iso(row.expires_at),
            }
            for row in sessions
        ],
        tokens=[views.token(row) for row in await view.core.tokens.list()],
    )


async def _own(view: View) -> int | None:
    """The id of the session that asks. None where a token does, and where the session has ended with the secret that it was opened by."""
    if view.secret is None:
        return None
    try:
        return (await view.core.sessions.find(view.secret)).row.id
    except Unauthenticated:
        return None


def _name(view: View) -> str:
    name = view.params["name"]
    if not auth.NAME.fullmatch(name):
        raise NotFound(f"There is no token named {clean(name, 60)!r}.")
    return name


PAGES = (
    Page("GET", "/tokens", tokens, Said, needs="administer"),
    Page("POST", "/tokens", create, NewTokenForm, needs="administer"),
    Page("POST", "/tokens/{name}/rotate", rotate, OnceForm, needs="administer"),
    Page("POST", "/tokens/{name}/revoke", revoke, needs="administer"),
    Page("POST", "/sessions/{id}/end", end, needs="administer"),
)

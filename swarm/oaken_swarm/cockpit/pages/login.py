"""Logging in with a token or a login code, and out again."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from oaken_jobs.errors import OakenError, RateLimited, Unauthenticated
from oaken_jobs.requests import EmptyRequest, Request
from oaken_jobs.sessions import LONGEST_MS
from oaken_swarm.call import Answer
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.visit import CODE_PATH

_HERE = re.compile(r"/(?![/\\])[\x21-\x7e]*", re.ASCII)
"""A place on this server: what begins with two slashes is another one."""

LONGEST = 2000
"""Characters of an address that one is led back to."""

Where = Annotated[str, Field(max_length=LONGEST)]


class LoginQuery(Request):
    """Where one wanted to go; `said` is what is to be told."""

    next: Where | None = None
    said: Annotated[str, Field(max_length=20)] | None = None


class LoginForm(Request):
    """A token of Oaken's."""

    token: Annotated[str, Field(max_length=500)] = ""
    next: Where | None = None


class CodeForm(Request):
    """What `oaken open` has made."""

    code: Annotated[str, Field(max_length=100)]


async def form(view: View, asked: LoginQuery) -> Answer:
    return view.render("login.html", title="Log in", next=asked.next, said=asked.said, told=None)


async def log_in(view: View, asked: LoginForm) -> Answer:
    try:
        secret = await view.call.callers.log_in(asked.token.strip(), view.address, view.brought)
    except (Unauthenticated, RateLimited) as refusal:
        told = "Paste a token first." if not asked.token.strip() else refusal.message
        return _refused(view, refusal, told, asked.next)
    where = asked.next if asked.next is not None and _HERE.fullmatch(asked.next) else "/"
    answer = view.go(where)
    return answer._replace(headers=(*answer.headers, _kept(view, secret)))


async def log_in_by_code(view: View, asked: CodeForm) -> Answer:
    """Not a redirect: the browser would follow it in the name of the file that sent the code, and leave the cookie out."""
    try:
        secret = await view.call.callers.log_in_by_code(asked.code, view.address, view.brought)
    except (Unauthenticated, RateLimited) as refusal:
        return _refused(view, refusal, refusal.message)
    answer = view.render("opened.html", title="Logged in")
    return answer._replace(headers=(*answer.headers, _kept(view, secret)))


async def log_out(view: View, asked: EmptyRequest) -> Answer:
    if view.secret is not None:
        await view.core.sessions.close(view.secret)
    answer = view.go("/login", "out")
    return answer._replace(headers=(*answer.headers, view.forget()))


def _refused(view: View, refusal: OakenError, told: str, where: str | None = None) -> Answer:
    return view.refuse("login.html", refusal, title="Log in", next=where, said=None, told=told)


def _kept(view: View, secret: str) -> tuple[bytes, bytes]:
    return view.keep(secret, LONGEST_MS // 1000)


PAGES = (
    Page("GET", "/login", form, LoginQuery, open=True),
    Page("POST", "/login", log_in, LoginForm, open=True),
    Page("POST", CODE_PATH, log_in_by_code, CodeForm, open=True),
    Page("POST", "/logout", log_out),
)

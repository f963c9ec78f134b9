"""A page: where it is, who may see it, and what its handler gets and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from oaken_jobs import auth
from oaken_jobs.core import Core
from oaken_jobs.errors import OakenError
from oaken_jobs.model import Principal
from oaken_jobs.requests import EmptyRequest, Request
from oaken_jobs.sessions import form_token
from oaken_swarm import cookie
from oaken_swarm.call import Answer, Call, Stream
from oaken_swarm.cockpit import assets, notices, template
from oaken_swarm.cockpit.figures import Figures
from oaken_swarm.problems import headers_of

PATIENCE_SECONDS = 0.015
"""How long a page waits for what it shows before it sends its head alone."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    # Not no-referrer: browsers would then send forms without their origin.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
HTML = b"text/html; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"


@dataclass(slots=True)
class View:
    """A call to a page by somebody who is known; on an open page, by nobody. `secret` is that of its session."""

    call: Call
    path: str
    address: str
    figures: Figures
    brought: str | None
    """The secret of the session that its browser came with, good or not."""
    known: bool = False
    """Whether it is known who calls."""
    secret: str | None = None

    @property
    def core(self) -> Core:
        return self.call.core

    @property
    def who(self) -> Principal:
        return self.call.who

    @property
    def params(self) -> dict[str, str]:
        return dict(self.call.params)

    def may(self, action: str) -> bool:
        """Whether the caller may do this, a key of `auth.MAY`; `pause` is what concerns queues."""
        if action == "pause":
            return auth.may(self.who, "manage") and self.who.workspace is None
        return auth.may(self.who, action)

    def render(self, name: str, status: int = 200, **values: Any) -> Answer:
        """A page from the template of this name."""
        return Answer(self._html(name, values).encode("utf-8", "replace"), status, HEADERS, HTML)

    def refuse(self, name: str, refusal: OakenError, **values: Any) -> Answer:
        """The same for a refusal, with its status and the headers that asks for."""
        answer = self.render(name, refusal.status, **values)
        return answer._replace(headers=(*answer.headers, *headers_of(refusal)))

    async def render_soon(self, name: str, title: str, work: Coroutine[Any, Any, dict[str, Any]]) -> Answer | Stream:
        """The same where `work` finds what the page shows. If that takes long, its head, which shows where one is, is sent before."""
        finding = asyncio.ensure_future(work)
        await asyncio.wait((finding,), timeout=PATIENCE_SECONDS)
        if finding.done():
            return self.render(name, title=title, **finding.result())
        headers = (*HEADERS, (b"content-type", HTML), (b"x-accel-buffering", b"no"))
        return Stream(self._parts(name, title, finding), self.call.ended, headers)

    async def _parts(self, name: str, title: str, finding: asyncio.Task[dict[str, Any]]) -> AsyncGenerator[bytes]:
        yield self._html("shell.html", {"title": title}).partition(template.MAIN)[0].encode()
        try:
            html = self._html(name, {"title": title, **await finding})
        except OakenError as error:
            html = self._html("error.html", {"title": error.title, "error": error, "back": "/"})
        finally:
            finding.cancel()
        yield html.partition(template.MAIN)[2].encode("utf-8", "replace")

    def go(self, path: str, said: str | None = None) -> Answer:
        """After an act: to a page, which says what was done, one of the notices."""
        assert said is None or said in notices.NOTICES
        mark = "&" if "?" in path else "?"
        where = path if said is None else f"{path}{mark}{urlencode({'said': said})}"
        return Answer(b"", 303, ((b"location", where.encode()), *HEADERS), HTML)

    def text(self, text: str) -> Answer:
        """What others wrote, as nothing but text."""
        return Answer(text.encode("utf-8", "replace"), 200, HEADERS, TEXT)

    def keep(self, secret: str, seconds: int) -> tuple[bytes, bytes]:
        return cookie.keep(secret, self.call.base, seconds)

    def forget(self) -> tuple[bytes, bytes]:
        return cookie.forget(self.call.base)

    def _html(self, name: str, values: dict[str, Any]) -> str:
        return template.render(
            name,
            assets=assets.base(),
            form_token=form_token(self.secret) if self.secret is not None else "",
            here=self.path,
            may=self.may,
            notices=notices.NOTICES,
            me=self.who.actor.id if self.known else None,
            now=self.core.jobs.now(),
            roles=sorted(self.who.roles),
            **values,
        )


Handler = Callable[[View, Any], Awaitable[Answer | Stream]]


@dataclass(frozen=True)
class Page:
    """A method on a path. `takes` is the model of its query or form; `needs` as in a route. An `open` page is for whoever asks."""

    method: str
    path: str
    handler: Handler
    takes: type[Request] = EmptyRequest
    needs: str | None = None
    open: bool = False

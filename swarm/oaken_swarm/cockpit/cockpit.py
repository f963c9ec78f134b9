"""The cockpit's door: finds the page, knows its caller by token or session, and shows refusals as pages."""

from __future__ import annotations

import re
import threading
from typing import Any, get_origin
from urllib.parse import quote, urlencode

from oaken_jobs import auth
from oaken_jobs.core import Core
from oaken_jobs.errors import Forbidden, OakenError, Unauthenticated
from oaken_jobs.requests import read
from oaken_jobs.sessions import is_form_token
from oaken_swarm import cookie
from oaken_swarm.body import read_form
from oaken_swarm.call import Answer, Stream
from oaken_swarm.cockpit import template
from oaken_swarm.cockpit.figures import Figures
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.pages import PAGES
from oaken_swarm.cockpit.pages.jobs import MOMENTS
from oaken_swarm.cockpit.pages.login import LONGEST
from oaken_swarm.paths import Paths
from oaken_swarm.problems import problem_answer
from oaken_swarm.query import read_query, words
from oaken_swarm.visit import CODE_PATH, Visit

_MINUTE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?", re.ASCII)
"""A moment as browsers' fields have it, without a zone; it is meant in UTC."""


class Cockpit:
    """All pages of a server. `doors` are the first segments of their paths."""

    def __init__(self, core: Core) -> None:
        self._figures = Figures(core.clock)
        self._paths = Paths(PAGES)
        # They take half a second, which nobody is to wait for: neither who starts a server nor who looks at a page first.
        threading.Thread(target=template.load, name="templates", daemon=True).start()

    async def answer(self, visit: Visit) -> tuple[Answer | Stream, Page | None]:
        """What a visit is answered, and by which page; None where it found none."""
        page: Page | None = None
        view = self._view(visit)
        try:
            page, params, allowed = self._paths.find(visit.method, visit.path)
            if page is None:
                return Answer(b"", 204, ((b"allow", ", ".join(allowed).encode()),)), None
            visit.call.params = params
            if page.open:
                if page.method != "GET":
                    _own_origin(visit)
            else:
                await self._recognise(view, visit)
            if page.needs is not None:
                auth.require(view.who, page.needs)
            return await page.handler(view, read(page.takes, await self._fields(page, view, visit))), page
        except Unauthenticated as refusal:
            return self._to_login(view, visit, refusal), page
        except OakenError as refusal:
            return _refused(view, visit, refusal), page

    def refused(self, visit: Visit, refusal: OakenError) -> Answer:
        """What a visit is answered that never came to a page, or broke one."""
        return _refused(self._view(visit), visit, refusal)

    def _view(self, visit: Visit) -> View:
        call = visit.call
        # Until it is known that its host is ours, it has no base, and no cookie of ours.
        brought = cookie.find(visit.cookie, call.base) if visit.cookie is not None and call.base else None
        return View(call, visit.path, visit.address, self._figures, brought)

    async def _recognise(self, view: View, visit: Visit) -> None:
        """Who calls: by a token, or by a session, whose forms come from a page of ours alone."""
        call = visit.call
        if call.token is not None:
            call.who = await call.callers.authenticate(call.token, visit.address)
            view.known = True
            return
        if view.brought is None:
            raise Unauthenticated("This page is for those who are logged in.")
        call.who = (await call.callers.session(view.brought)).who
        view.secret = call.token = view.brought
        view.known = True

    async def _fields(self, page: Page, view: View, visit: Visit) -> dict[str, Any]:
        """What came with the call."""
        if page.method == "GET":
            return _filled(page, read_query(visit.query))
        if view.secret is not None:
            _own_origin(visit)
        fields = read_query(await read_form(visit.call.receive, visit.size, visit.content_type))
        sent = fields.pop("form_token", "")
        if view.secret is not None and not (isinstance(sent, str) and is_form_token(view.secret, sent)):
            raise Forbidden("This form is not of your present session. Go back, load the page again, and send it anew.")
        return _filled(page, fields)

    def _to_login(self, view: View, visit: Visit, refusal: Unauthenticated) -> Answer:
        """A browser is sent to where one logs in, and from there back. One that follows a link from elsewhere has left its cookie out, and
        is asked once more, by a page of ours."""
        if not visit.browser:
            return problem_answer(refusal)
        asked: dict[str, str] = {}
        here = visit.path + (f"?{visit.query.decode('latin-1')}" if visit.query else "")
        if visit.method != "GET":
            here, asked["said"] = _back(visit), "unsent"
        elif visit.fetch_site == b"cross-site":
            return view.render("again.html", title="Oaken", where=here)
        if here != "/" and len(here) <= LONGEST:
            asked = {"next": here, **asked}
        query = urlencode(asked, safe="/", quote_via=quote)
        return Answer(b"", 303, ((b"location", f"/login{'?' if query else ''}{query}".encode()),))


def _refused(view: View, visit: Visit, refusal: OakenError) -> Answer:
    """A page for a browser, a problem for anybody else."""
    if not visit.browser:
        return problem_answer(refusal)
    return view.refuse("error.html", refusal, title=refusal.title, error=refusal, back=_back(visit))


def _own_origin(visit: Visit) -> None:
    """Raises `Forbidden` for a form that no page of ours has sent. A login code is sent by a file, and is enough by itself."""
    if visit.path == CODE_PATH:
        return
    origin = visit.origin.decode("latin-1").lower() if visit.origin is not None else ""
    if origin.partition("://")[2] != visit.call.base.partition("://")[2].lower():
        raise Forbidden(
            "Forms are taken from the pages of this server alone. Open it in a browser, and send it from there."
        )


def _filled(page: Page, fields: dict[str, Any]) -> dict[str, Any]:
    """As people fill fields in: one that was left empty is none, and of several words none is empty."""
    filled: dict[str, Any] = {}
    for name, value in fields.items():
        field = page.takes.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is tuple:
            kept: Any = [word for word in words(value) if word]
        elif name in MOMENTS and isinstance(value, str) and _MINUTE.fullmatch(value):
            kept = f"{value}Z"
        else:
            kept = value
        if kept not in ("", []):
            filled[name] = kept
    return filled


def _back(visit: Visit) -> str:
    """Where one came from who sent a form: the page that has it."""
    if visit.method == "GET":
        return "/"
    words = visit.path.split("/")
    if words[1] == "activity":
        return "/".join(words[:3])
    return {"login": "/", "logout": "/", "sessions": "/tokens"}.get(words[1], f"/{words[1]}")

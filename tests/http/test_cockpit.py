"""The pages as a browser's server sees them: who comes in, what a form must bring, and what every answer carries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from oaken_jobs.core import Core
from oaken_jobs.errors import Unavailable
from oaken_jobs.model import NO_LIMITS, Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.sessions import form_token
from oaken_swarm import cookie
from oaken_swarm.cockpit.pages import PAGES
from tests.service import ROOT, Service, eventually, plain, problem, serve

ALL, READ, MANAGE, ADMIN = (
    {"viewer", "user", "agent", "admin"},
    {"viewer", "user", "admin"},
    {"user", "admin"},
    {"admin"},
)
OPEN: set[str] = set()
BOSS = Principal(ROOT, frozenset({"user", "admin"}))
RULES_OF: dict[str, set[str]] = {
    "GET /": ALL,
    "GET /jobs": ALL,
    "GET /jobs/bulk": MANAGE,
    "POST /jobs/bulk": MANAGE,
    "GET /jobs/bulk/done": MANAGE,
    "GET /activity/{id}": READ,
    "GET /activity/{id}/payload": READ,
    "GET /activity/{id}/result": READ,
    "POST /activity/{id}/cancel": MANAGE,
    "POST /activity/{id}/requeue": MANAGE,
    "POST /activity/{id}/answer": READ - {"viewer"},
    "POST /activity/{id}/adopt": MANAGE,
    "GET /feed": ALL,
    "GET /agents": ALL,
    "POST /agents/{name}/drain": MANAGE,
    "POST /agents/{name}/undrain": MANAGE,
    "GET /queues": ALL,
    "POST /queues/{name}/pause": MANAGE,
    "POST /queues/{name}/resume": MANAGE,
    "GET /schedules": READ,
    "POST /schedules/{name}/run": MANAGE,
    "GET /events": READ,
    "GET /trace": ADMIN,
    "GET /tokens": ADMIN,
    "POST /tokens": ADMIN,
    "POST /tokens/{name}/rotate": ADMIN,
    "POST /tokens/{name}/revoke": ADMIN,
    "POST /sessions/{id}/end": ADMIN,
    "POST /logout": ALL,
    "GET /login": OPEN,
    "POST /login": OPEN,
    "POST /login/code": OPEN,
    "GET /static/{version}/{name}": OPEN,
}
"""The roles that may; no roles where nobody need be known."""
BOUND = {
    "POST /queues/{name}/pause",
    "POST /queues/{name}/resume",
    "GET /trace",
    *(r for r in RULES_OF if "token" in r or "session" in r),
}
"""What concerns all workspaces, and nobody may who is bound to one."""
FIELDS = {
    "POST /jobs/bulk": {"action": "cancel", "state": "queued"},
    "POST /tokens": {"name": "x", "roles": "user"},
    "POST /activity/{id}/answer": {"text": "Yes."},
    "POST /activity/{id}/adopt": {"epoch": "1"},
}
QUERY = {
    "GET /jobs/bulk": {"action": "cancel", "state": "queued"},
    "GET /jobs/bulk/done": {"action": "cancel", "state": "queued", "total": "3", "done": "2"},
}


def test_every_page_has_a_rule_and_every_rule_a_page() -> None:
    assert {f"{page.method} {page.path}" for page in PAGES} == RULES_OF.keys()


class Browser:
    """What a browser does with cookies and forms."""

    def __init__(self, service: Service, secret: str | None) -> None:
        self.service = service
        self.secret = secret
        cookies = {cookie.name(service.url): secret} if secret else {}
        self.http = plain(base_url=service.url, headers={"Accept": "text/html"}, cookies=cookies)
        service.https.append(self.http)

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.http.get(path, **options)

    async def post(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> httpx2.Response:
        token = form_token(self.secret) if self.secret else ""
        sent = {"Origin": self.service.url, **headers}
        return await self.http.post(path, data={"form_token": token, **(fields or {})}, headers=sent)


Browsers = Callable[..., Any]


@pytest.fixture
def browser(server: Service) -> Browsers:
    async def logged_in(*roles: str, workspace: str | None = None, name: str | None = None) -> Browser:
        if not roles:
            return Browser(server, None)
        name = name or f"{'-'.join(roles)}{workspace or ''}"
        _, token = await server.core.tokens.create(ROOT, name, list(roles), workspace=workspace, limits=NO_LIMITS)
        return Browser(server, await server.core.sessions.open(token))

    return logged_in


@pytest.fixture
async def job(core: Core) -> str:
    return str((await core.jobs.enqueue(BOSS, NewJobRequest(kind="badger", title="badger-title"))).job.id)


def path_of(route: str, job: str) -> tuple[str, str]:
    method, path = route.split(" ")
    path = (
        path.replace("/activity/{id}", f"/activity/{job}")
        .replace("{id}", "9")
        .replace("/queues/{name}", "/queues/slow")
    )
    return method, path.replace("{name}", "nobody").replace("{version}", "0")


@pytest.mark.parametrize("role", ["viewer", "user", "agent", "admin"])
async def test_each_role_sees_and_does_what_its_rule_says(
    server: Service, browser: Browsers, job: str, role: str
) -> None:
    for number, (route, may) in enumerate(RULES_OF.items()):
        if may is OPEN:
            continue
        here = await browser(role, name=f"{role}{number}")
        method, path = path_of(route, job)
        if method == "GET":
            answer = await here.get(path, params=QUERY.get(route))
        else:
            answer = await here.post(path, FIELDS.get(route))
        refused = answer.status_code == 403 or (role == "agent" and answer.status_code == 404 and may is not ADMIN)
        assert refused == (role not in may), (route, role, answer.status_code)
        assert answer.headers["content-type"].startswith("text/") or answer.status_code == 303, route


async def test_who_is_bound_to_a_workspace_sees_nothing_of_another(
    server: Service, browser: Browsers, job: str
) -> None:
    here = await browser("admin", workspace="there")
    for route in RULES_OF:
        if not route.startswith("GET"):
            continue
        _, path = path_of(route, job)
        answer = await here.get(path, params=QUERY.get(route))
        assert "badger" not in answer.text, route
        assert (answer.status_code == 403) == (route in BOUND and RULES_OF[route] is ADMIN), (route, answer.status_code)
    assert (await here.post("/queues/slow/pause")).status_code == 403
    assert (await here.post(f"/activity/{job}/cancel")).status_code == 404


async def test_a_browser_without_a_session_is_sent_to_the_login_and_others_are_401(
    server: Service, browser: Browsers, job: str
) -> None:
    nobody, stale = await browser(), Browser(server, "oas_" + "x" * 43)
    for who in (nobody, stale):
        for route, may in RULES_OF.items():
            method, path = path_of(route, job)
            if may is OPEN:
                continue
            answer = await (who.get(path) if method == "GET" else who.post(path))
            assert (answer.status_code, answer.headers["location"][:6]) == (303, "/login"), route
            plain = await who.http.request(method, path, headers={"Accept": "*/*", "Origin": server.url})
            problem(plain, 401, "unauthenticated")


async def test_a_token_opens_pages_too_and_its_forms_need_no_mark_since_no_browser_sends_it_by_itself(
    server: Service, job: str
) -> None:
    http = await server.http("ann", "user")
    assert "badger-title" in (await http.get("/jobs")).text
    answer = await http.post(f"/activity/{job}/cancel", data={"x": ""}, headers={"Accept": "text/html"})
    assert answer.status_code == 303


async def test_the_cookie_reads_the_interface_and_writes_nothing_there(
    server: Service, browser: Browsers, job: str
) -> None:
    here = await browser("admin")
    assert (await here.get("/v1/me")).json()["name"] == "admin"
    for answer in (
        await here.http.post(f"/v1/jobs/{job}/cancel", headers={"Origin": server.url}),
        await here.http.post("/v1/jobs", json={"kind": "x"}, headers={"Origin": server.url}),
        await here.http.request("DELETE", f"/v1/jobs/{job}", headers={"Origin": server.url}),
        await here.get("/v1/me", headers={"Sec-Fetch-Site": "same-site"}),  # a page of another port of this machine
        await here.get("/v1/me", headers={"Authorization": f"Bearer {here.secret}"}),  # a session is no token
    ):
        problem(answer, 401, "unauthenticated")


async def test_a_form_of_another_page_is_refused(server: Service, browser: Browsers, job: str) -> None:
    here, other = await browser("user"), await browser("admin")
    path = f"/activity/{job}/cancel"
    port = str(server.port)
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{int(port) - 1}", ""):
        assert (await here.post(path, Origin=origin)).status_code == 403, origin
    answer = await here.http.post(path, data={"form_token": form_token(here.secret)})
    assert answer.status_code == 403  # no origin at all
    for mark in ("", "x", form_token(other.secret), here.secret):
        answer = await here.http.post(path, data={"form_token": mark}, headers={"Origin": server.url})
        assert answer.status_code == 403, mark
    answer = await here.http.post(path, json={"form_token": form_token(here.secret)}, headers={"Origin": server.url})
    assert answer.status_code == 415
    assert (await server.core.jobs.get(BOSS, int(job))).state == "queued"
    assert (await here.post(path)).status_code == 303
    assert (await server.core.jobs.get(BOSS, int(job))).state == "cancelled"


async def test_a_login_form_is_taken_from_our_own_page_alone(server: Service, browser: Browsers) -> None:
    token = await server.token("ann", "user")
    nobody = await browser()
    for origin in ("http://evil.example", "null"):
        answer = await nobody.http.post("/login", data={"token": token}, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    answer = await nobody.post("/login", {"token": token, "next": "/jobs?state=failed"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=failed")


@pytest.mark.parametrize(
    "where", ["//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "javascript:1"]
)
async def test_a_login_leads_to_this_server_alone(server: Service, browser: Browsers, where: str) -> None:
    token = await server.token("ann", "user")
    answer = await (await browser()).post("/login", {"token": token, "next": where})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_the_cookie_is_the_sessions_and_for_this_port_alone(
    server: Service, core: Core, browser: Browsers
) -> None:
    token = await server.token("ann", "user")
    answer = await (await browser()).post("/login", {"token": token})
    said = answer.headers["set-cookie"]
    assert re.fullmatch(rf"oaken_{server.port}=oas_[\w-]{{43}}; Path=/; Max-Age=\d+; HttpOnly; SameSite=Strict", said)
    assert token not in said
    secret = said.partition("=")[2].partition(";")[0]
    rows = await core.store.sessions()
    assert secret not in str(rows)
    other = await serve(core)  # another server, in the same browser
    theirs = await Browser(other, None).post("/login", {"token": token})
    assert theirs.headers["set-cookie"].startswith(f"oaken_{other.port}=")
    both = {
        cookie.name(server.url): secret,
        cookie.name(other.url): theirs.headers["set-cookie"].split("=")[1].split(";")[0],
    }
    for service in (server, other):
        http = plain(base_url=service.url, cookies=both)
        assert (await http.get("/v1/me")).status_code == 200
        await http.aclose()
    here = Browser(server, secret)
    await here.post("/logout")
    assert (await here.get("/v1/me")).status_code == 401
    assert (await Browser(other, both[cookie.name(other.url)]).get("/v1/me")).status_code == 200
    await other.close()


async def test_a_session_ends_with_its_token_by_an_admin_and_by_its_holder(
    server: Service, core: Core, browser: Browsers
) -> None:
    admin = await browser("admin")
    for end in ("revoke", "rotate", "admin", "logout"):
        here = await browser("user", name=f"u-{end}")
        assert (await here.get("/v1/me")).status_code == 200
        if end == "revoke":
            assert (await admin.post("/tokens/u-revoke/revoke")).status_code == 303
        elif end == "rotate":
            assert "oak_" in (await admin.post("/tokens/u-rotate/rotate")).text
        elif end == "admin":
            [row] = [row for row in await core.store.sessions() if row.token == "u-admin"]
            page = await admin.get("/tokens")
            assert f"/sessions/{row.id}/end" in page.text
            assert (await admin.post(f"/sessions/{row.id}/end")).status_code == 303
        else:
            await here.post("/logout")

        async def over(here: Browser = here) -> bool:
            return (await here.get("/v1/me")).status_code == 401

        await eventually(over, 2)


async def test_every_page_has_the_policy_and_only_style_and_scripts_are_kept(
    server: Service, browser: Browsers, job: str
) -> None:
    here = await browser("admin")
    for path in ("/", "/jobs", f"/activity/{job}", f"/activity/{job}/payload", "/login", "/activity/999", "/tokens"):
        answer = await here.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", answer.text), path
    page = (await here.get("/")).text
    found = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
    assert len(found) >= 3
    for asset in found:
        answer = await Browser(server, None).get(asset)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert (await here.get("/static/0/oaken.js")).status_code == 404


async def test_a_code_logs_in_once_and_from_a_file(server: Service, core: Core) -> None:
    await server.token("ann", "user")
    code = await core.sessions.new_code("ann")
    nobody = Browser(server, None)
    evil = await nobody.http.post("/login/code", data={"code": code}, headers={"Origin": "http://evil.example"})
    assert evil.status_code == 403
    answer = await nobody.http.post("/login/code", data={"code": code}, headers={"Origin": "null"})
    assert (answer.status_code, "oaken_" in answer.headers["set-cookie"]) == (200, True)
    again = await Browser(server, None).http.post("/login/code", data={"code": code}, headers={"Origin": "null"})
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "for once, within a minute" in again.text


@pytest.mark.parametrize("by", ["token", "code"])
async def test_who_logs_in_anew_leaves_no_session_behind(
    server: Service, core: Core, browser: Browsers, by: str
) -> None:
    here, bob = await browser("viewer"), await server.token("bob", "user")

    async def log_in(good: bool) -> httpx2.Response:
        if by == "token":
            return await here.post("/login", {"token": bob if good else "oak_wrong"})
        return await here.post("/login/code", {"code": await core.sessions.new_code("bob") if good else "wrong"})

    assert (await log_in(False)).status_code == 401
    assert (await here.get("/v1/me")).json()["name"] == "viewer"
    answer = await log_in(True)
    new = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    here.http.cookies.clear()
    assert (await here.get("/v1/me", headers={"Cookie": f"oaken_{server.port}={here.secret}"})).status_code == 401
    told = await here.get("/v1/me", headers={"Cookie": f"oaken_{server.port}={new}"})
    assert told.json()["name"] == "bob"
    assert [row.token for row in await core.store.sessions()] == ["bob"]


async def test_wrong_tokens_are_slowed_down_at_the_login_too(server: Service, browser: Browsers) -> None:
    nobody = await browser()
    answers = [await nobody.post("/login", {"token": f"oak_{number}"}) for number in range(205)]
    assert [answer.status_code for answer in answers[:3]] == [401] * 3
    code = await nobody.post("/login/code", {"code": "wrong"})
    for answer in (answers[-1], code):
        assert answer.status_code == 429
        wait = int(answer.headers["retry-after"])
        assert 1 <= wait <= 3
        assert f"Try again in {wait} s" in answer.text
    assert (await nobody.post("/login", {"token": await server.token("ann", "user")})).status_code == 303


async def test_a_refusal_is_a_page_with_its_message_as_text(server: Service, browser: Browsers, job: str) -> None:
    here = await browser("user")
    answer = await here.post(f"/activity/{job}/answer", {"text": "<b>x</b>"})
    assert answer.status_code == 409
    assert "<h1>Conflict</h1>" in answer.text
    answer = await here.get("/jobs?queue=%3Cscript%3E")
    assert (answer.status_code, "<script>" in answer.text.replace("<script type", "")) == (422, False)


@pytest.mark.parametrize("accept", ["text/html,application/xhtml+xml", "*/*"])
async def test_a_form_that_is_refused_is_answered_with_a_page_to_who_wants_one(
    server: Service, browser: Browsers, job: str, accept: str
) -> None:
    here, nobody = await browser("user"), await browser()
    path, mark = f"/activity/{job}/cancel", {"form_token": form_token(here.secret)}
    ours, foreign = {"Origin": server.url, "Accept": accept}, {"Origin": "http://evil.example", "Accept": accept}
    post = here.http.post
    refusals = [
        ("forbidden", "Not allowed", 403, await post(path, data=mark, headers=foreign)),
        ("forbidden", "Not allowed", 403, await nobody.http.post("/login", data={"token": "x"}, headers=foreign)),
        ("forbidden", "Not allowed", 403, await post(path, headers=ours, data={"form_token": "x"})),
        ("forbidden", "Not allowed", 403, await post(path, headers=ours, data={"x": "y"})),
        ("too_large", "Too large", 413, await post(path, headers=ours, data={**mark, "x": "y" * (2 << 20)})),
        ("unsupported_media_type", "Unsupported media type", 415, await post(path, headers=ours, json=mark)),
        ("method_not_allowed", "Method not allowed", 405, await post("/feed", headers=ours, data=mark)),
        ("misdirected", "Misdirected request", 421, await post(path, headers={**ours, "Host": "evil"}, data=mark)),
        ("misdirected", "Misdirected request", 421, await post(path, headers={**ours, "Host": "é".encode()})),
    ]
    server.app.stop()
    refusals.append(("unavailable", "Unavailable", 503, await post(path, data=mark, headers=ours)))
    for code, title, status, answer in refusals:
        if accept == "*/*":
            problem(answer, status, code)
        else:
            assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
            assert f"<h1>{title}</h1>" in answer.text
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        told = {name for name in ("allow", "retry-after") if name in answer.headers}
        assert told == {405: {"allow"}, 503: {"retry-after"}}.get(status, set()), status
    assert (await server.core.jobs.get(BOSS, int(job))).state == "queued"


async def test_a_page_that_fails_is_a_page_that_tells_nothing_of_it(
    core: Core, browser: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await browser("user")

    async def broken(*asked: Any) -> Any:
        raise RuntimeError("a private thing")

    monkeypatch.setattr(core.jobs, "agents", broken)
    answer = await here.get("/agents")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "<h1>Internal error</h1>" in answer.text
    assert "private" not in answer.text


async def test_the_page_says_the_same_of_a_job_as_the_interface(
    server: Service, core: Core, browser: Browsers, job: str
) -> None:
    here = await browser("user")
    told = (await here.get(f"/v1/jobs/{job}")).json()["job"]
    page = (await here.get(f"/activity/{job}")).text
    listed = (await here.get("/jobs")).text
    for text in (told["state"], told["created_at"], told["waits"][0]["text"], told["kind"], told["title"]):
        assert text in page, text
    assert told["created_at"] in listed
    await core.jobs.cancel(BOSS, int(job))
    told = (await here.get(f"/v1/jobs/{job}")).json()["job"]
    page = (await here.get(f"/activity/{job}")).text
    assert told["grade"]["why"] in page
    assert f'class="grade {told["grade"]["grade"]}"' in page


async def test_a_link_from_another_site_arrives_although_its_request_has_no_cookie(
    server: Service, browser: Browsers
) -> None:
    """SameSite=Strict leaves the cookie out of the first request; the page asks once more by itself."""
    nobody = await browser()
    from_elsewhere = {"Sec-Fetch-Site": "cross-site"}
    answer = await nobody.get("/jobs?state=failed&q=%22%3E%3Cscript%3E", headers=from_elsewhere)
    assert answer.status_code == 200
    assert 'content="0; url=/jobs?state=failed&amp;q=%22%3E%3Cscript%3E"' in answer.text
    again = await nobody.get("/jobs?state=failed", headers={"Sec-Fetch-Site": "same-origin"})
    assert (again.status_code, again.headers["location"]) == (303, "/login?next=/jobs%3Fstate%3Dfailed")


async def test_who_sent_a_form_that_is_refused_finds_back(server: Service, browser: Browsers, job: str) -> None:
    here = await browser("user")
    for path, back in (
        (f"/activity/{job}/answer", f"/activity/{job}"),
        ("/queues/nothing/pause", "/queues"),
        ("/agents/nobody/drain", "/agents"),
        ("/sessions/9/end", "/tokens"),
    ):
        answer = await here.post(path, {"text": "x"} if "answer" in path else None)
        assert answer.status_code >= 400
        assert f'href="{back}">Go back' in answer.text, path


@pytest.mark.parametrize("end", ["found", "refused"])
async def test_a_page_that_takes_long_begins_at_once_and_ends_with_what_was_found_or_why_not(
    server: Service, core: Core, browser: Browsers, job: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    here = await browser("user")
    await here.get("/jobs")
    found, let = core.store.list_jobs, asyncio.Event()

    async def late(*asked: Any) -> Any:
        await let.wait()
        if end == "refused":
            raise Unavailable("The database cannot answer now.")
        return await found(*asked)

    monkeypatch.setattr(core.store, "list_jobs", late)
    async with here.http.stream("GET", "/jobs") as answer:
        parts = answer.aiter_text()
        head = await anext(parts)
        assert answer.status_code == 200
        assert "<title>Jobs" in head
        assert "badger" not in head
        let.set()
        rest = "".join([part async for part in parts])
    assert ("badger-title" in rest) == (end == "found")
    assert ("The database cannot answer now." in rest) == (end == "refused")
    assert rest.endswith("</html>")


async def test_who_only_is_an_agent_is_told_what_concerns_its_own_jobs_alone(core: Core, browser: Browsers) -> None:
    """Counts are of all jobs; of others' jobs nothing else is said, neither that they are there nor that there are none."""
    await core.jobs.enqueue(BOSS, NewJobRequest(kind="theirs"))
    await core.jobs.enqueue(BOSS, NewJobRequest(kind="mine"))
    await core.jobs.enqueue(BOSS, NewJobRequest(kind="theirs"))
    here = await browser("agent", name="me")
    held: dict[str, int] = {}
    for name, kind in (("me", "mine"), ("other", "theirs")):
        agent = Principal(Actor("agent", name, "http"), frozenset({"agent"}))
        [lease] = await core.jobs.lease(agent, kinds=[kind])
        held[name] = lease.job.id
    boss = await browser("viewer")
    for path in ("/", "/agents"):
        page = (await here.get(path)).text
        assert f'href="/activity/{held["me"]}"' in page, path
        assert f'href="/activity/{held["other"]}"' not in page, path
        assert f'href="/activity/{held["other"]}"' in (await boss.get(path)).text, path
    overview = (await here.get("/")).text
    assert "Counts are of all jobs; jobs are shown where they are your own" in overview
    assert 'href="/jobs?state=queued"' not in overview
    for said in ("Nothing waits for anything", "Nobody asks", "Nothing has ended badly"):
        assert said not in overview
        assert said in (await boss.get("/")).text
    for said in ("None of your own waits", "None of your own asks", "None of your own has ended badly", "Your oldest"):
        assert said in overview
    assert "None of your own has ended yet" in (await here.get("/feed")).text
    assert "None of your own matches" in (await here.get("/jobs?kind=theirs")).text
    queues = (await here.get("/queues")).text
    assert "Your oldest waiting" in queues
    assert "state=queued" not in queues


async def test_a_text_that_looks_like_a_time_is_kept_as_it_was_written(core: Core, browser: Browsers) -> None:
    ann, bot = await browser("user"), Principal(Actor("agent", "bot", "worker"), frozenset({"agent"}))
    text = "2026-11-30T10:00"
    await core.jobs.enqueue(BOSS, NewJobRequest(kind="checked"))
    [lease] = await core.jobs.lease(bot, kinds=["checked"])
    await core.jobs.ask(bot, lease.lease_id, "When?")
    assert (await ann.post(f"/activity/{lease.job.id}/answer", {"text": text})).status_code == 303
    [question] = await core.jobs.questions(BOSS, lease.job.id)
    assert question.answer == text
    titled = (await core.jobs.enqueue(BOSS, NewJobRequest(kind="checked", title=f"due {text}"))).job.id
    assert f'href="/activity/{titled}"' in (await ann.get("/jobs", params={"q": text})).text


async def test_who_asks_for_a_page_with_a_long_address_can_log_in_all_the_same(browser: Browsers) -> None:
    nobody = await browser()
    asked = await nobody.get("/jobs", params={"q": "é" * 1000})
    assert asked.status_code == 303
    assert (await nobody.get(asked.headers["location"])).status_code == 200


async def test_names_are_typed_with_commas_and_spaces_between(core: Core, browser: Browsers, job: str) -> None:
    root = await browser("admin")
    assert f'href="/activity/{job}"' in (await root.get("/jobs", params={"kind": "checked, badger"})).text
    made = await root.post(
        "/tokens", {"name": "bounded", "roles": "agent", "queues": "slow, default", "kinds": " badger"}
    )
    assert made.status_code == 200
    [token] = [row for row in await core.tokens.list() if row.name == "bounded"]
    assert (token.queues, token.kinds) == ('["slow","default"]', '["badger"]')
    assert (await root.post("/tokens", {"name": "other", "roles": "agent", "queues": "no queue"})).status_code == 422


@pytest.mark.parametrize("typed", ["badger,", " badger ,", ",badger", "badger,,", " , badger , ,checked,"])
async def test_commas_and_spaces_around_what_is_typed_into_a_filter_mean_nothing(
    core: Core, browser: Browsers, job: str, typed: str
) -> None:
    root = await browser("admin")
    await core.jobs.enqueue(BOSS, NewJobRequest(kind="other"))
    page = await root.get("/jobs", params={"kind": typed})
    assert re.findall(r'<tr id="job-(\d+)"', page.text) == [job]
    many = await root.get("/jobs/bulk", params={"action": "cancel", "kind": typed})
    assert "<b>1 job</b> would be cancelled" in many.text
    made = await root.post("/tokens", {"name": "bounded", "roles": "agent", "queues": "slow,", "kinds": typed})
    assert made.status_code == 200
    strict = await root.get("/v1/jobs", params={"kind": "badger,"})
    problem(strict, 422, "invalid_request")


async def test_a_filter_of_commas_alone_is_none_and_a_text_keeps_its_own(
    core: Core, browser: Browsers, job: str
) -> None:
    root = await browser("admin")
    assert f'href="/activity/{job}"' in (await root.get("/jobs", params={"kind": " , ", "q": ""})).text
    assert 'value="badger-title,"' in (await root.get("/jobs", params={"q": "badger-title,"})).text
    assert (await root.get("/events", params={"kinds": "job_state_changed,"})).status_code == 200
    assert (await root.get("/feed", params={"grade": "bad, ,warn,"})).status_code == 200


@pytest.mark.parametrize("by", ["make", "rotate"])
async def test_a_page_that_shows_a_secret_is_reloaded_into_one_that_says_it_was_shown_once(
    core: Core, browser: Browsers, by: str
) -> None:
    root = await browser("admin")
    await core.tokens.create(ROOT, "old", ["user"])
    form = re.search(r'name="once" value="([\w-]+)"', (await root.get("/tokens")).text)
    assert form is not None
    path, fields = ("/tokens", {"name": "new", "roles": "user"}) if by == "make" else ("/tokens/old/rotate", {})
    sent = {**fields, "once": form[1]}
    first = await root.post(path, sent)
    secret = re.search(r"oak_[\w-]{43}", first.text)
    assert secret is not None
    rows = await core.tokens.list()
    again = await root.post(path, sent)
    assert (again.status_code, again.headers["location"]) == (303, "/tokens?said=shown")
    told = await root.get("/tokens?said=shown")
    assert "shown once, and is not shown again" in told.text
    assert secret[0] not in told.text
    assert await core.tokens.list() == rows, "nothing was made, and no secret changed"
    other = re.search(r'name="once" value="([\w-]+)"', first.text)
    assert other is not None
    assert other[1] != form[1]
    assert "oak_" in (await root.post("/tokens/old/rotate", {"once": other[1]})).text
    assert "oak_" in (await root.post("/tokens", {"name": "third", "roles": "user", "once": other[1]})).text


async def test_a_token_whose_form_was_refused_is_made_by_the_same_form_once_it_is_mended(
    core: Core, browser: Browsers
) -> None:
    root = await browser("admin")
    sent = {"once": "x" * 16, "roles": "user"}
    assert (await root.post("/tokens", {**sent, "name": "no name"})).status_code == 422
    assert (await root.post("/tokens", {**sent, "name": "admin"})).status_code == 409
    assert (await root.post("/tokens", {**sent, "name": "admin"})).status_code == 409
    assert "oak_" in (await root.post("/tokens", {**sent, "name": "new"})).text


async def test_jobs_that_have_ended_between_preview_and_deed_are_accounted_for(core: Core, browser: Browsers) -> None:
    ann = await browser("user")
    jobs = [(await core.jobs.enqueue(BOSS, NewJobRequest(kind="many"))).job.id for _ in range(3)]
    seen = await ann.get("/jobs/bulk", params={"action": "cancel", "kind": "many"})
    fields = dict(re.findall(r'type="hidden" name="(cursor|total)" value="([^"]+)"', seen.text))
    await core.jobs.cancel(BOSS, jobs[0])
    sent = await ann.post("/jobs/bulk", {"action": "cancel", "kind": "many", **fields})
    assert sent.status_code == 303, "so that a reload does nothing again"
    done = await ann.get(sent.headers["Location"])
    assert "<b>3</b> of 3: 2 cancelled, 1 did not match any more." in done.text
    assert 'max="3" value="3"' in done.text


async def test_a_story_goes_to_its_end_however_much_was_reported_and_says_what_is_left_out(
    core: Core, browser: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bot = await browser("user"), Principal(Actor("agent", "bot", "worker"), frozenset({"agent"}))
    job = (await core.jobs.enqueue(BOSS, NewJobRequest(kind="chatty"))).job.id
    [lease] = await core.jobs.lease(bot, kinds=["chatty"])
    for number in range(1001):
        await core.jobs.heartbeat(bot, lease.lease_id, message=str(number), progress=True)
    await core.jobs.complete(bot, lease.lease_id)
    page = (await ann.get(f"/activity/{job}")).text
    assert '<b><bdi class="told">completed</bdi></b>' in page
    assert "left out" not in page
    everything = core.jobs.activity

    async def latest(*of: Any, **options: Any) -> Any:
        return (await everything(*of, **options))[1:]

    monkeypatch.setattr(core.jobs, "activity", latest)
    assert "What came before is left out." in (await ann.get(f"/activity/{job}")).text


async def test_who_makes_a_new_secret_of_the_own_token_sees_it_although_the_session_ends_with_the_old_one(
    server: Service, browser: Browsers
) -> None:
    chief = await browser("admin", name="chief")
    answer = await chief.post("/tokens/chief/rotate")
    secret = re.search(r"oak_[\w-]+", answer.text)
    assert answer.status_code == 200
    assert secret is not None
    assert "This session ended with the old secret" in answer.text
    assert (await chief.get("/tokens")).status_code == 303
    again = Browser(server, None)
    assert (await again.post("/login", {"token": secret[0]})).headers["Location"] == "/"


async def test_who_sends_a_form_after_the_session_has_ended_hears_that_nothing_was_done(
    server: Service, core: Core, browser: Browsers, job: str
) -> None:
    ann = await browser("user")
    await core.sessions.close(ann.secret)
    answer = await ann.post(f"/activity/{job}/cancel")
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/login?next=/activity/{job}&said=unsent"
    assert "Nothing was done" in (await ann.get(answer.headers["Location"])).text
    assert "Nothing was done" not in (await ann.get(f"/login?next=/activity/{job}")).text
    assert (await core.jobs.get(BOSS, int(job))).state == "queued"


async def test_requeueing_all_that_match_means_those_that_failed_unless_a_state_is_named(
    core: Core, browser: Browsers, job: str
) -> None:
    await core.jobs.cancel(BOSS, int(job))
    kind = (await core.jobs.get(BOSS, int(job))).kind
    ann = await browser("user")
    assert "No job matches" in (await ann.get(f"/jobs/bulk?action=requeue&kind={kind}")).text
    preview = (await ann.get(f"/jobs/bulk?action=requeue&kind={kind}&state=cancelled")).text
    assert "1 job</b> would be put back" in preview


@pytest.mark.parametrize(
    ("days", "told"),
    [
        ("-1", "at least 1"),
        ("0", "at least 1"),
        ("99999999", "at most 3650"),
        ("1.5", "a whole number"),
        ("soon", "a whole number"),
    ],
)
async def test_the_days_of_a_token_are_told_their_bounds(browser: Browsers, days: str, told: str) -> None:
    root = await browser("admin")
    answer = await root.post("/tokens", {"name": "new", "roles": "user", "days": days})
    assert answer.status_code == 422
    assert "days: must be" in answer.text
    assert told in answer.text


async def test_what_is_no_page_is_a_page_to_who_wants_one(browser: Browsers, server: Service) -> None:
    ann = await browser("user")
    for path in ("/nope", "/nope/further", "/jobs/"):
        answer = await ann.get(path)
        assert answer.status_code == 404
        assert answer.headers["Content-Type"].startswith("text/html")
        problem(await ann.get(path, headers={"Accept": "*/*"}), 404, "not_found")


async def test_a_job_that_asks_says_that_to_run_it_now_closes_its_question(
    core: Core, browser: Browsers, job: str
) -> None:
    bot = Principal(Actor("agent", "bot", "http"), frozenset({"agent"}))
    [lease] = await core.jobs.lease(bot)
    ann = await browser("user")
    assert "closes the question" not in (await ann.get(f"/activity/{job}")).text
    await core.jobs.ask(bot, lease.lease_id, "Which one?")
    assert "closes the question" in (await ann.get(f"/activity/{job}")).text

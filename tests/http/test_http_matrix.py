"""Who may do what: every route, for every role, bound to the workspace of what the call concerns, to another, or to none; with and without
limits of the token; and without a token that is known.

The rules stand here once more, apart from the code, so that a rule which is changed by mistake is found.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx2
import pytest

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from oaken_jobs.files import DATABASE
from oaken_jobs.model import NO_LIMITS, ROLES, Limits, Principal
from oaken_jobs.requests import LabelsRequest, NewJobRequest, ScheduleRequest
from oaken_swarm.routes import ROUTES
from tests.service import ROOT, RULES, Service, plain, problem, serve

HERE, THERE = "here", "there"
WORKSPACES = (None, HERE, THERE)
MARK = "badger"
"""In everything that belongs to `HERE`: nobody who is bound to `THERE` reads it anywhere."""
NO_JOB, NO_LEASE, NO_NAME = "999999", "999999-1-" + "0" * 24, "nobody"
LIMITS = Limits(queues=("slow",), kinds=("other",))

READ, ALL = {"viewer", "user", "admin"}, {"viewer", "user", "agent", "admin"}
MANAGE, WORK, ENQUEUE, ADMIN = {"user", "admin"}, {"agent", "admin"}, {"user", "admin"}, {"admin"}

Elsewhere = Literal["missing", "lost", "barred", "named", "own", "open"]
State = Literal["queued", "held", "stopping", "asking", "failed", "succeeded", "late"]


class Rule(NamedTuple):
    """What is promised of a route. In bodies and queries `{id}`, `{kind}`, `{epoch}`, `{lease_id}` and `{new}` stand for what the test
    made."""

    may: set[str]
    """The roles of which one suffices."""
    elsewhere: Elsewhere
    """What a caller hears that is bound to another workspace than the thing is of: `missing`, 404 as of what does not exist; `lost`, the
    same of a lease; `barred`, 403 for all who are bound, since it concerns all workspaces; `named`, 403 where it names the other one;
    `own`, an answer without anything of the other's; `open`, as if nobody had a token."""
    state: State = "queued"
    """How the job is that the call concerns."""
    body: dict[str, Any] | None = None
    query: dict[str, Any] | None = None
    status: int = 200
    agents: Literal["concerned", "answers"] | None = None
    """What an agent that reads no jobs is told of one: `concerned`, of its own jobs all, of others as if they were not there; `answers`,
    the latter alone."""
    limited: bool = False
    """Whether the token's queues and kinds bound it: 403, with what is allowed."""
    audited: bool = False
    """Whether a refusal is written down."""


NAMED: dict[str, Any] = {"workspace": HERE}
CHANGE: dict[str, Any] = {"filter": {"kind": "{kind}", **NAMED}}
RULES_OF: dict[str, Rule] = {
    "POST /v1/jobs": Rule(ENQUEUE, "named", body={"kind": MARK, **NAMED}, status=201),
    "GET /v1/jobs": Rule(ALL, "named", query=NAMED),
    "GET /v1/jobs/wait": Rule(READ, "missing", query={"ids": "{id}", "seconds": 0}, agents="concerned"),
    "GET /v1/jobs/{id}": Rule(READ, "missing", agents="concerned"),
    "PATCH /v1/jobs/{id}": Rule(MANAGE, "missing", body={"title": MARK}),
    "DELETE /v1/jobs/{id}": Rule(MANAGE, "missing", "failed"),
    "GET /v1/jobs/{id}/result": Rule(READ, "missing", "succeeded", agents="concerned"),
    "GET /v1/jobs/{id}/progress": Rule(READ, "missing", agents="concerned"),
    "GET /v1/jobs/{id}/attempts": Rule(READ, "missing", agents="concerned"),
    "GET /v1/jobs/{id}/attempts/{epoch}/result": Rule(READ, "missing", "late", agents="concerned"),
    "GET /v1/jobs/{id}/activity": Rule(READ, "missing", agents="concerned"),
    "GET /v1/jobs/{id}/children": Rule(READ, "missing", agents="concerned"),
    "GET /v1/jobs/{id}/wait": Rule(READ, "missing", query={"seconds": 0}, agents="concerned"),
    "POST /v1/jobs/{id}/cancel": Rule(MANAGE, "missing"),
    "GET /v1/jobs/{id}/questions": Rule(READ, "missing", agents="concerned"),
    "POST /v1/jobs/{id}/requeue": Rule(MANAGE, "missing", "failed"),
    "POST /v1/jobs/{id}/answer": Rule(ENQUEUE, "missing", "asking", body={"text": MARK}, agents="answers"),
    "POST /v1/jobs/{id}/adopt": Rule(MANAGE, "missing", "late", body={"epoch": "{epoch}"}),
    "POST /v1/requeue": Rule(MANAGE, "named", "failed", body=CHANGE),
    "POST /v1/cancel": Rule(MANAGE, "named", body=CHANGE),
    "POST /v1/leases": Rule(WORK, "own", body={"kinds": ["{kind}"]}, limited=True),
    "POST /v1/leases/{lease_id}/heartbeat": Rule(WORK, "lost", "held"),
    "POST /v1/leases/{lease_id}/progress": Rule(WORK, "lost", "held", body={"percent": 5}),
    "POST /v1/leases/{lease_id}/trace": Rule(WORK, "lost", "held", body={"rows": [{"model": "m"}]}),
    "POST /v1/leases/{lease_id}/complete": Rule(WORK, "lost", "held"),
    "POST /v1/leases/{lease_id}/fail": Rule(WORK, "lost", "held", body={"error": "e"}),
    "POST /v1/leases/{lease_id}/defer": Rule(WORK, "lost", "held", body={"seconds": 1}),
    "POST /v1/leases/{lease_id}/release": Rule(WORK, "lost", "held"),
    "POST /v1/leases/{lease_id}/ask": Rule(WORK, "lost", "held", body={"text": "why?"}),
    "POST /v1/leases/{lease_id}/cancelled": Rule(WORK, "lost", "stopping"),
    "POST /v1/leases/batch": Rule(
        WORK, "lost", "held", body={"ops": [{"op": "heartbeat", "lease_id": "{lease_id}"}, {"op": "x"}]}
    ),
    "GET /v1/queues": Rule(ALL, "own", query={"all": 1}),
    "POST /v1/queues/{name}/pause": Rule(MANAGE, "barred"),
    "POST /v1/queues/{name}/resume": Rule(MANAGE, "barred"),
    "GET /v1/schedules": Rule(READ, "named", query=NAMED),
    "GET /v1/schedules/{name}": Rule(READ, "named", query=NAMED),
    "PUT /v1/schedules/{name}": Rule(
        MANAGE, "named", body={"queue": "slow", "kind": MARK, "every_seconds": 60, **NAMED}
    ),
    "DELETE /v1/schedules/{name}": Rule(MANAGE, "named", query=NAMED, status=204),
    "POST /v1/schedules/{name}/run": Rule(MANAGE, "named", body=NAMED, status=201),
    "GET /v1/subjects/{subject}": Rule(READ, "named", query=NAMED),
    "PUT /v1/subjects/{subject}/labels": Rule(MANAGE, "named", body={"human": {"a": MARK}, **NAMED}),
    "POST /v1/intake": Rule(ENQUEUE, "named", body={"text": "{new}", **NAMED}, status=201),
    "GET /v1/snapshot": Rule(ALL, "own"),
    "GET /v1/agents": Rule(ALL, "own"),
    "POST /v1/agents/{name}/drain": Rule(MANAGE, "missing"),
    "GET /v1/kinds": Rule(ALL, "own"),
    "GET /v1/me": Rule(ALL, "own"),
    "GET /v1/meta": Rule(ALL, "own"),
    "GET /v1/tokens": Rule(ADMIN, "barred"),
    "POST /v1/tokens": Rule(ADMIN, "barred", body={"name": "{new}", "roles": ["user"]}, status=201),
    "POST /v1/tokens/{name}/rotate": Rule(ADMIN, "barred"),
    "DELETE /v1/tokens/{name}": Rule(ADMIN, "barred"),
    "GET /v1/events": Rule(READ, "own", query={"after": 0}),
    "GET /v1/events/wait": Rule(READ, "own", query={"after": 0, "limit": 500, "seconds": 0}),
    "GET /v1/trace": Rule(ADMIN, "barred", audited=True),
    "GET /v1/trace/stream": Rule(ADMIN, "barred", audited=True),
    "GET /v1/audit": Rule(ADMIN, "barred"),
    "GET /v1/logs": Rule(ADMIN, "barred"),
    "GET /openapi.json": Rule(ALL, "own"),
    "GET /docs": Rule(ALL, "own"),
    "GET /metrics": Rule(ALL, "barred"),
    "GET /healthz": Rule(ALL, "open"),
    "GET /readyz": Rule(ALL, "open"),
    "GET /.well-known/oauth-protected-resource/{door}": Rule(ALL, "open", status=404),
}
ROUTES_HERE = [f"{route.method} {route.path}" for route in ROUTES]


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    for route in ROUTES_HERE:
        assert route in RULES_OF, (
            f"{route} has no rule: add it to RULES_OF with the roles that may call it, and what a caller hears that is bound to another "
            "workspace than the thing is of"
        )
    assert RULES_OF.keys() == set(ROUTES_HERE), "a rule has no route any more: take it out of RULES_OF"


@dataclass
class Caller:
    """A token: its role, its workspace, and whether it has limits."""

    role: str
    workspace: str | None
    limited: bool
    who: Principal
    http: httpx2.AsyncClient

    def __str__(self) -> str:
        bound = f"bound to {self.workspace}" if self.workspace else "unbound"
        return f"{self.role}, {bound}{', limited' if self.limited else ''}"


class Thing(NamedTuple):
    """What a call concerns."""

    values: dict[str, str]

    def filled(self, value: Any) -> Any:
        """A body or query with the placeholders replaced; ids and epochs are numbers."""
        if isinstance(value, dict):
            return {name: self.filled(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.filled(one) for one in value]
        if not isinstance(value, str) or not value.startswith("{"):
            return value
        found = self.values[value[1:-1]]
        return int(found) if value in ("{id}", "{epoch}") else found


@dataclass
class Told:
    """An answer, with what was asked for taken out of it."""

    status: int
    text: str


@dataclass
class World:
    """A server with two workspaces, and who calls it."""

    service: Service
    clock: FakeClock
    watch: sqlite3.Connection
    keeper: Principal
    boss: Principal
    numbers: Any = field(default_factory=lambda: count(1))

    async def caller(self, role: str, workspace: str | None, limited: bool = False) -> Caller:
        name = f"{role}-{workspace}" + ("-limited" if limited else "")
        _, secret = await self.service.core.tokens.create(
            ROOT, name, [role], workspace=workspace, limits=LIMITS if limited else NO_LIMITS
        )
        who = await self.service.core.tokens.authenticate(secret, "http")
        return Caller(role, workspace, limited, who, self.http(secret))

    def http(self, secret: str | None) -> httpx2.AsyncClient:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        http = plain(base_url=self.service.url, headers=headers)
        self.service.https.append(http)
        return http

    async def thing(self, route: str, holder: Principal) -> Thing:
        """What the route concerns, all of it in `HERE`; leased by `holder` where the rule wants that."""
        core, number = self.service.core, next(self.numbers)
        kind = f"{MARK}{number}"
        values = {"kind": kind, "new": f"n{number}", "subject": "sett", "name": "slow"}
        if route.endswith("/drain"):
            values["name"] = f"{MARK}-drained"
        elif "/tokens/" in route:
            values["name"] = f"victim{number}"
            await core.tokens.create(ROOT, values["name"], ["user"])
        elif "/schedules/" in route:
            values["name"] = "sett"
            request = ScheduleRequest(queue="slow", kind=MARK, every_seconds=60, workspace=HERE)
            await core.schedules.put(self.boss, values["name"], request)
        elif "/subjects/" in route:
            asked = LabelsRequest(human={"a": MARK}, workspace=HERE)
            await core.jobs.set_labels(self.boss, values["subject"], asked.human, asked.workspace)
        if "{id}" in route or "{lease_id}" in route or re.search(r"\{(id|kind|lease_id)\}", str(RULES_OF[route])):
            values |= await self.job(kind, RULES_OF[route].state, holder)
        return Thing(values)

    async def job(self, kind: str, state: State, holder: Principal) -> dict[str, str]:
        jobs = self.service.core.jobs
        request = NewJobRequest(kind=kind, title=MARK, subject=f"{MARK}s", workspace=HERE, max_attempts=1)
        job_id = (await jobs.enqueue(self.boss, request)).job.id
        values = {"id": str(job_id), "lease_id": NO_LEASE, "epoch": "1"}
        if state == "queued" and holder is self.keeper:
            return values
        [lease] = await jobs.lease(holder, kinds=[kind], lease_seconds=5 if state == "late" else 3600)
        values |= {"lease_id": lease.lease_id, "epoch": str(lease.job.epoch)}
        if state == "queued":
            await jobs.release(holder, lease.lease_id)
        elif state == "stopping":
            await jobs.cancel(self.boss, job_id)
        elif state == "asking":
            await jobs.ask(holder, lease.lease_id, MARK)
        elif state == "failed":
            await jobs.fail(holder, lease.lease_id, MARK)
        elif state == "succeeded":
            await jobs.complete(holder, lease.lease_id, {MARK: 1})
        elif state == "late":
            self.clock.advance(10)
            await jobs.lease(self.keeper, kinds=["nothing"])  # takes back what ran out
            with pytest.raises(Exception, match="may be adopted"):
                await jobs.complete(holder, lease.lease_id, {MARK: 1})
        return values

    async def call(self, http: httpx2.AsyncClient, route: str, thing: Thing, *, named: bool = True) -> Told:
        """The answer; without the workspace where it is not to be `named`."""
        rule = RULES_OF[route]
        method, path = route.split(" ")
        body, query = thing.filled(rule.body), thing.filled(rule.query)
        if not named:
            body, query = _unnamed(body), _unnamed(query)
        for name, value in thing.values.items():
            path = path.replace(f"{{{name}}}", value)
        sent: dict[str, Any] = {} if body is None else {"json": body}
        async with http.stream(method, path, params=query, **sent) as answer:
            if "event-stream" in answer.headers.get("content-type", ""):
                text = ""  # it never ends
            else:
                text = (await answer.aread()).decode()
        for value in sorted(thing.values.values(), key=len, reverse=True):
            text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(value)}(?![0-9A-Za-z])", "*", text)
        return Told(answer.status_code, text)

    async def writes(self) -> int:
        """Changes with every commit that has changed anything."""
        await self.service.core.jobs.flush()
        await self.service.core.tokens.flush()
        found: int = self.watch.execute("pragma data_version").fetchone()[0]
        return found


def _unnamed(value: Any) -> Any:
    """The same for the caller's own workspace, without the mark of the other."""
    if isinstance(value, dict):
        return {name: _unnamed(one) for name, one in value.items() if name != "workspace"}
    return "own" if value == MARK else value


def missing(thing: Thing) -> Thing:
    """The same call for what does not exist."""
    absent = {"id": NO_JOB, "lease_id": NO_LEASE, "name": NO_NAME, "subject": NO_NAME}
    return Thing({name: absent.get(name, value) for name, value in thing.values.items()})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = FakeClock()
    core = Core.on_folder(tmp_path, RULES, "serve", clock)
    await core.open()
    service = await serve(core)
    watch = sqlite3.connect(tmp_path / DATABASE)
    who: list[Principal] = []
    for name, role in ((f"{MARK}-agent", "agent"), (f"{MARK}-drained", "agent"), ("boss", "admin")):
        workspace = HERE if role == "agent" else None
        _, secret = await core.tokens.create(ROOT, name, [role], workspace=workspace)
        who.append(await core.tokens.authenticate(secret, "http"))
    keeper, drained, boss = who
    await core.jobs.lease(drained, kinds=["nothing"])  # else nobody knows it
    yield World(service, clock, watch, keeper, boss)
    watch.close()
    await service.close()
    await core.close()


def expected(rule: Rule, caller: Caller) -> str:
    """What becomes of the call: `done`, or how it is refused."""
    if caller.role not in rule.may:
        return "missing" if rule.agents in ("concerned", "answers") and caller.role == "agent" else "forbidden"
    if rule.elsewhere == "barred" and caller.workspace is not None:
        return "forbidden"
    if caller.workspace == THERE:
        return {"missing": "missing", "lost": "lost", "named": "forbidden"}.get(rule.elsewhere, "done")
    return "forbidden" if rule.limited and caller.limited else "done"


async def check(world: World, caller: Caller, route: str) -> list[str]:
    """What is not as the rule says."""
    rule, wrong = RULES_OF[route], list[str]()
    outcome = expected(rule, caller)

    def note(what: str, told: Told) -> None:
        wrong.append(f"{route} by {caller}: {what}, was {told.status} {told.text[:300]}")

    holds = caller.role in ("agent", "admin") and caller.workspace != THERE and outcome != "missing"
    holder = replace(caller.who, limits=NO_LIMITS) if holds else world.keeper
    thing = await world.thing(route, holder)
    before = await world.writes()
    told = await world.call(caller.http, route, thing)
    if outcome == "done":
        if told.status != rule.status:
            note(f"should be {rule.status}", told)
    elif outcome == "forbidden":
        if told.status != 403 or '"forbidden"' not in told.text:
            note("should be refused with 403", told)
        if caller.role not in rule.may and not (caller.who.name in told.text and "token" in told.text):
            note("should say who may not, and what to use", told)
    else:
        status = 200 if route.endswith("/batch") else 404 if outcome == "missing" else 409
        absent = await world.call(caller.http, route, missing(thing))
        if told.status != status:
            note(f"should be {status}", told)
        if told != absent:
            note(f"should be as of what does not exist ({absent.status} {absent.text[:300]})", told)
    if outcome != "done" and not rule.audited and before != await world.writes():
        note("should write nothing", told)
    if caller.workspace == THERE:
        if MARK in told.text:
            note("should hold nothing of the other workspace", told)
        if rule.elsewhere == "named" and caller.role in rule.may:
            own = await world.call(caller.http, route, thing, named=False)
            if own.status not in (rule.status, 404, 200):
                note("should do its own where it names none", own)
            if MARK in own.text:
                note("should hold nothing of the other workspace", own)
            if own.status == 404 and own != await world.call(caller.http, route, missing(thing), named=False):
                note("should be as of what does not exist", own)
    if rule.agents == "concerned" and caller.role == "agent" and caller.workspace != THERE:
        mine = await world.thing(route, replace(caller.who, limits=NO_LIMITS))
        told = await world.call(caller.http, route, mine)
        if told.status != rule.status:
            note("an agent reads what it held", told)
    return wrong


@pytest.mark.parametrize("role", ROLES)
async def test_each_route_does_what_its_rule_says_wherever_a_role_is_bound(world: World, role: str) -> None:
    wrong = list[str]()
    for workspace in WORKSPACES:
        caller = await world.caller(role, workspace)
        for route in ROUTES_HERE:
            wrong += await check(world, caller, route)
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("role", ROLES)
async def test_limits_of_a_token_bound_what_it_leases_and_nothing_else(world: World, role: str) -> None:
    caller = await world.caller(role, None, limited=True)
    wrong = [one for route in ROUTES_HERE for one in await check(world, caller, route)]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("secret", [None, "oak_" + "x" * 43])
async def test_without_a_token_that_is_known_only_what_is_open_answers(world: World, secret: str | None) -> None:
    http = world.http(secret)
    for route in ROUTES_HERE:
        thing = await world.thing(route, world.keeper)
        before = await world.writes()
        told = await world.call(http, route, thing)
        opened = RULES_OF[route].elsewhere == "open"
        assert told.status == (RULES_OF[route].status if opened else 401), (route, told)
        assert opened or '"unauthenticated"' in told.text, route
        assert before == await world.writes(), route


async def test_a_limit_is_named_and_what_it_allows_is_handed_out(world: World) -> None:
    """Queues and kinds, asked for and not."""
    core = world.service.core
    for kind in ("other", MARK):
        await core.jobs.enqueue(world.boss, NewJobRequest(kind=kind))
    for limits, field_name, barred in (
        (Limits(queues=("slow",)), "queues", "default"),
        (Limits(kinds=("other",)), "kinds", MARK),
    ):
        _, secret = await core.tokens.create(ROOT, f"by-{field_name}", ["agent"], limits=limits)
        http = world.http(secret)
        told = problem(await http.post("/v1/leases", json={field_name: [barred]}), 403, "forbidden")
        assert told["allowed"] == [*(limits.queues or limits.kinds or ())]
        assert field_name in told["detail"]
        leases = (await http.post("/v1/leases", json={"max": 5})).json()["leases"]
        assert [one["job"]["kind"] for one in leases] == (["other"] if field_name == "kinds" else [])


async def test_an_agent_enqueues_children_of_what_it_holds_and_a_parent_elsewhere_is_none(world: World) -> None:
    agent = await world.caller("agent", HERE)
    other = await world.caller("agent", THERE)
    parent = int((await world.job(MARK, "held", agent.who))["id"])
    said = await agent.http.post("/v1/jobs", json={"kind": "part", "parent_id": parent})
    assert (said.status_code, said.json()["job"]["workspace"]) == (201, HERE)
    refused = [
        (await other.http.post("/v1/jobs", json={"kind": "part", "parent_id": number})).text.replace(str(number), "*")
        for number in (parent, 999_999)
    ]
    assert refused[0] == refused[1]


async def test_a_role_that_may_not_is_refused_before_its_body_is_read(world: World) -> None:
    _, token = await world.service.core.tokens.create(ROOT, "none", ["viewer"])
    for route in ROUTES_HERE:
        method, path = route.split(" ")
        if method in ("POST", "PUT", "PATCH") and "viewer" not in RULES_OF[route].may:
            # Neither its type nor its end ever come.
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 99\r\n\r\n"
            status, body = await world.service.raw(head.encode() + b"{")
            assert (status, b"forbidden" in body) == (403, True), route

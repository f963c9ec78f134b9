"""A real HTTP server in the test's own loop, and what tests need to talk to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2
import jsonschema_rs
import orjson

from oaken_jobs import pipeline
from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core
from oaken_jobs.errors import OakenError
from oaken_jobs.kinds import Kind, Rules, Schema
from oaken_jobs.model import Actor
from oaken_jobs.routing import QueueRule
from oaken_swarm import Client, openapi
from oaken_swarm.app import App
from oaken_swarm.routes import ROUTES
from oaken_swarm.server import Server

ROOT = Actor("user", "root", "cli")
CHECKED = Kind(
    "checked",
    payload_schema=Schema.compile({"type": "object", "properties": {"n": {"type": "integer"}}}, "checked"),
    result_schema=Schema.compile({"type": "object", "required": ["sum"]}, "checked"),
    instructions="Add them up.",
    lease_seconds=90,
)
RULES = Rules(
    kinds={**pipeline.kinds(), "checked": CHECKED},
    queues={
        "default": QueueRule("default", workers=2),
        "store": QueueRule("store", kind="store", hidden=True),
        "embed": QueueRule("embed", kind="embed", hidden=True),
        "slow": QueueRule("slow"),
    },
    max_batch=20,
)


@dataclass
class Service:
    """One server over one core."""

    core: Core
    app: App
    server: Server
    described: Described
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    clients: list[Client] = field(default_factory=list[Client])
    https: list[httpx2.AsyncClient] = field(default_factory=list[httpx2.AsyncClient])

    @property
    def url(self) -> str:
        return self.server.address

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    async def token(self, name: str, *roles: str) -> str:
        """The token of that name, made with these roles unless it is there."""
        if name not in self.tokens:
            _, self.tokens[name] = await self.core.tokens.create(ROOT, name, list(roles))
        return self.tokens[name]

    async def client(self, name: str = "ann", *roles: str, **options: Any) -> Client:
        """A client with a token of its own; a user and agent unless told."""
        client = Client(self.url, await self.token(name, *(roles or ("user", "agent"))), **{"tries": 1, **options})
        self.clients.append(client)
        return client

    async def http(self, name: str = "ann", *roles: str) -> httpx2.AsyncClient:
        """The same as a plain HTTP client, which sends what it is told."""
        token = await self.token(name, *(roles or ("user", "agent")))
        http = plain(base_url=self.url, headers={"Authorization": f"Bearer {token}"})
        self.https.append(http)
        return http

    async def raw(self, request: bytes) -> tuple[int, bytes]:
        """Sends bytes as they are; status and everything behind the headers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            await writer.drain()
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
            )
            return int(head.split(b" ", 2)[1]), await asyncio.wait_for(reader.readexactly(length), 10)
        finally:
            writer.close()

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()
        for http in self.https:
            await http.aclose()
        await self.server.stop()
        assert not self.described.wrong, "\n".join(self.described.wrong[:10])


class Described:
    """The application, each answer of which is held against the description of the interface."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.wrong: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        told: dict[str, Any] = {"status": None, "type": "", "body": b""}

        async def heard(message: Any) -> None:
            if message["type"] == "http.response.start":
                told["status"] = message["status"]
                told["type"] = dict(message["headers"]).get(b"content-type", b"").decode().partition(";")[0]
            elif told["type"].endswith("json"):
                told["body"] += message.get("body", b"")
            await send(message)

        await self.app(scope, receive, heard)
        if scope["type"] == "http" and told["status"] is not None and scope["method"] != "HEAD":
            self._check(scope, told)

    def _check(self, scope: Any, told: dict[str, Any]) -> None:
        try:
            route = self.app._paths.find(scope["method"], scope["raw_path"].decode("ascii")).route  # pyright: ignore
        except (OakenError, UnicodeDecodeError):
            return
        if route is None or told["status"] in (500, 405, 421):
            return
        status, kind = str(told["status"]), told["type"]
        said = openapi.describe(ROUTES)["paths"][route.path][route.method.lower()]["responses"].get(status)
        where = f"{route.method} {route.path}: {status}"
        if said is None:
            self.wrong.append(f"{where} is not described")
        elif kind and kind not in said.get("content", {kind: {}}):
            self.wrong.append(f"{where} has the type {kind}")
        elif told["body"] and len(told["body"]) < 1 << 20 and (schema := said.get("content", {}).get(kind)):
            for error in _validator(orjson.dumps(schema["schema"]).decode()).iter_errors(orjson.loads(told["body"])):
                self.wrong.append(f"{where}: {'/'.join(map(str, error.instance_path))}: {error.message[:200]}")


@cache
def _validator(schema: str) -> Any:
    described = openapi.describe(ROUTES)
    return jsonschema_rs.validator_for({**orjson.loads(schema), "components": described["components"]})


def plain(**options: Any) -> httpx2.AsyncClient:
    """A client that knows no TLS and no proxies, and is made in a tenth of the time."""
    return httpx2.AsyncClient(trust_env=False, verify=False, **options)


async def serve(core: Core, settings: ServerSettings | None = None, *, port: int = 0, **options: Any) -> Service:
    """A server of this core on loopback, on a free port unless told."""
    settings = settings or ServerSettings(host="127.0.0.1", port=0)
    app = App(core, settings, **options)
    await core.bus.start()
    described = Described(app)
    server = Server(described, "127.0.0.1", port)  # type: ignore[arg-type]
    await server.start()
    return Service(core, app, server, described)


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = 10) -> Any:
    """The first true answer of `condition`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.005)


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem of a refusal, checked for what all of them have."""
    assert response.status_code == status, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = response.json()
    assert told["status"] == status
    assert told["code"] == code, told
    assert told["type"] == f"urn:oaken:problem:{code}"
    assert told["title"]
    assert len(told["detail"]) > 10
    return told

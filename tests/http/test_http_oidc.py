"""Bearer tokens of an issuer's: a small one on loopback with keys of its own, and tokens that mean harm."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from oaken_app.process import Process
from oaken_jobs.auth import INSTANCE
from oaken_jobs.clock import FakeClock, SystemClock
from oaken_jobs.config import OidcSettings, ServerSettings, load
from oaken_jobs.core import Core
from oaken_jobs.errors import ConfigError, Unauthenticated, Unavailable
from oaken_swarm import oidc
from oaken_swarm.call import Answer, Call
from oaken_swarm.oidc import Oidc, actor_id
from tests.service import Service, plain, problem, serve

KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
STRANGER = rsa.generate_private_key(65537, 2048)
AUDIENCE = "oaken"


def jwk(name: str, **more: Any) -> dict[str, Any]:
    """The public half of a key, as an issuer shows it."""
    algorithm = jwt.get_algorithm_by_name(name)
    shown = algorithm.to_jwk(KEYS[name].public_key(), as_dict=True)
    return {**shown, "kid": name, "use": "sig", **more}


class Issuer:
    """Shows its documents over HTTP, and counts who asks for what."""

    def __init__(self) -> None:
        self.url = ""
        self.keys = [jwk(name) for name in KEYS]
        self.about: dict[str, Any] = {}
        self.asked: list[str] = []
        self.answer: Callable[[str], bytes] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        self.asked.append(path)
        if self.answer is not None:
            writer.write(self.answer(path))
        else:
            about = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.about}
            body = json.dumps(about if path.startswith("/.well-known") else {"keys": self.keys}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    def claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        said = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "exp": now + 300, "iat": now, "roles": ["user"], **more}
        return {name: value for name, value in said.items() if value is not None}

    def token(self, name: str = "RS256", headers: dict[str, Any] | None = None, key: Any = None, **more: Any) -> str:
        return jwt.encode(self.claims(**more), key or KEYS[name], name, headers={"kid": name, **(headers or {})})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    found = Issuer()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield found
    server.close()


def settings(issuer: Issuer) -> OidcSettings:
    return OidcSettings(issuer=issuer.url, audience=AUDIENCE)


@pytest.fixture
async def trusting(core: Core, issuer: Issuer) -> AsyncIterator[Service]:
    """A server that takes the issuer's tokens."""
    service = await serve(core, ServerSettings(port=0), oidc=Oidc(settings(issuer), core.clock))
    yield service
    await service.close()


async def me(service: Service, token: str) -> httpx2.Response:
    async with plain(base_url=service.url) as http:
        return await http.get("/v1/me", headers={"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize("name", sorted(KEYS))
async def test_a_token_of_the_issuers_is_taken_with_the_roles_that_it_gives(
    trusting: Service, issuer: Issuer, name: str
) -> None:
    told = (await me(trusting, issuer.token(name, roles=["agent", "boss", 7, {"a": 1}]))).json()
    assert told["actor"] == {"kind": "agent", "id": actor_id(issuer.url, "ann"), "via": "http"}
    assert (told["roles"], told["workspace"]) == (["agent"], None)
    assert (await me(trusting, issuer.token(name, roles="viewer  user openid"))).json()["roles"] == ["viewer", "user"]
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    assert (await me(trusting, await trusting.token("bot", "agent"))).json()["name"] == "bot"


@pytest.mark.parametrize("roles", [None, [], "", ["boss"], "ADMIN", {"admin": True}, 1, [["admin"]]])
async def test_who_has_no_role_is_told_so(trusting: Service, issuer: Issuer, roles: Any) -> None:
    told = problem(await me(trusting, issuer.token(roles=roles)), 403, "forbidden")
    assert (told["claim"], "has no role here" in told["detail"]) == ("roles", True)


def forged(issuer: Issuer, header: dict[str, Any], secret: bytes | None = None, **more: Any) -> str:
    """A token as no honest library makes it."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    text = f"{part(json.dumps(header).encode())}.{part(json.dumps(issuer.claims(**more)).encode())}"
    return f"{text}.{part(hmac.digest(secret, text.encode(), hashlib.sha256) if secret is not None else b'')}"


PEM = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
HOSTILE: dict[str, Callable[[Issuer], str]] = {
    "unsigned": lambda i: forged(i, {"alg": "none", "kid": "RS256"}),
    "unsigned, written otherwise": lambda i: forged(i, {"alg": "nOnE", "kid": "RS256"}),
    "signed with the public key as a secret": lambda i: forged(i, {"alg": "HS256", "kid": "RS256"}, PEM),
    "said to be RS256, signed so": lambda i: forged(i, {"alg": "RS256", "kid": "RS256"}, PEM),
    "no algorithm": lambda i: forged(i, {"kid": "RS256"}, PEM),
    "an algorithm that is a list": lambda i: forged(i, {"alg": ["RS256"], "kid": "RS256"}, PEM),
    "by a stranger": lambda i: i.token(key=STRANGER),
    "for another key's algorithm": lambda i: i.token("RS256", {"kid": "ES256"}),
    "another audience": lambda i: i.token(aud="elsewhere"),
    "no audience": lambda i: i.token(aud=None),
    "another issuer": lambda i: i.token(iss=i.url + "/"),
    "no issuer": lambda i: i.token(iss=None),
    "no subject": lambda i: i.token(sub=None),
    "an empty subject": lambda i: i.token(sub=""),
    "a long subject": lambda i: i.token(sub="x" * 256),
    "expired": lambda i: i.token(exp=int(time.time()) - 31),
    "without an end": lambda i: i.token(exp=None),
    "an end that is a text": lambda i: forged(i, {"alg": "RS256", "kid": "RS256"}, b"", exp="never"),
    "not yet good": lambda i: i.token(nbf=int(time.time()) + 300),
    "an extension that must be understood": lambda i: i.token(headers={"crit": ["x"], "x": 1}),
    "a key id that is a path": lambda i: i.token(headers={"kid": "../../../../dev/null"}),
    "a key id that is a query": lambda i: i.token(headers={"kid": "x' union select 'k"}),
    "huge": lambda i: i.token(more="x" * 20_000),
    "deep": lambda i: base64.urlsafe_b64encode(b"[" * 9000).rstrip(b"=").decode() + ".e30.x",
    "no base64": lambda i: "!.!.!",
    "empty parts": lambda i: "..",
    "not ASCII": lambda i: "é.é.é",
    "signature cut": lambda i: i.token()[:-4],
    "payload of another": lambda i: ".".join(
        [*i.token().split(".")[:1], i.token(sub="eve").split(".")[1], i.token().split(".")[2]]
    ),
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
async def test_a_token_that_is_not_as_it_must_be_is_refused(issuer: Issuer, what: str) -> None:
    checker = Oidc(settings(issuer), SystemClock())
    token = HOSTILE[what](issuer)
    assert checker.concerns(token)
    with pytest.raises(Unauthenticated) as refused:
        await checker.authenticate(token)
    assert token not in refused.value.message
    assert set(issuer.asked) <= {"/.well-known/openid-configuration", "/keys"}


async def test_keys_and_addresses_that_a_token_brings_along_are_not_listened_to(issuer: Issuer) -> None:
    evil = Issuer()
    server = await asyncio.start_server(evil.serve, "127.0.0.1", 0)
    evil.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    own = jwt.get_algorithm_by_name("RS256").to_jwk(STRANGER.public_key(), as_dict=True)
    brought = {"jku": f"{evil.url}/keys", "x5u": f"{evil.url}/x", "jwk": own}
    checker = Oidc(settings(issuer), SystemClock())
    with pytest.raises(Unauthenticated):
        await checker.authenticate(issuer.token(headers=brought, key=STRANGER))
    assert (await checker.authenticate(issuer.token(headers=brought))).name == actor_id(issuer.url, "ann")
    assert evil.asked == []
    server.close()


async def test_wrong_tokens_of_an_issuers_are_counted_like_others(trusting: Service, issuer: Issuer) -> None:
    trusting.app._callers._loopback._clock = FakeClock()  # however slow the machine is
    statuses = [(await me(trusting, "a.b.c")).status_code for _ in range(201)]
    assert (statuses[0], statuses[-1]) == (401, 429)
    assert (await me(trusting, issuer.token())).status_code == 200


async def test_a_new_key_is_looked_for_once_a_minute_at_most(issuer: Issuer) -> None:
    clock = FakeClock()
    checker = Oidc(settings(issuer), clock)
    issuer.keys = [jwk("ES256")]
    await checker.authenticate(issuer.token("ES256"))
    issuer.keys = [jwk("ES256"), jwk("RS256")]
    for _ in range(5):
        with pytest.raises(Unauthenticated, match="does not name"):
            await checker.authenticate(issuer.token())
    assert len(issuer.asked) == 2
    clock.advance(60)
    await checker.authenticate(issuer.token())
    await checker.authenticate(issuer.token("ES256"))
    assert len(issuer.asked) == 4


async def test_a_key_that_the_issuer_has_withdrawn_is_taken_for_an_hour_at_most(issuer: Issuer) -> None:
    clock = FakeClock()
    checker = Oidc(settings(issuer), clock)
    await checker.authenticate(issuer.token())
    issuer.keys = [jwk("ES256")]
    clock.advance(3599)
    await checker.authenticate(issuer.token())
    clock.advance(1)
    with pytest.raises(Unauthenticated, match="does not name"):
        await checker.authenticate(issuer.token())


async def test_while_the_issuer_is_away_the_keys_that_are_known_go_on(issuer: Issuer) -> None:
    clock = FakeClock()
    checker = Oidc(settings(issuer), clock)
    await checker.authenticate(issuer.token())
    issuer.answer = lambda path: b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n"
    for _ in range(3):
        clock.advance(3600)
        await checker.authenticate(issuer.token())


BODY = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
USELESS: dict[str, Callable[[Issuer], Any]] = {
    "away": lambda i: lambda path: b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n",
    "elsewhere": lambda i: lambda path: b"HTTP/1.1 302 Found\r\nLocation: /keys\r\nContent-Length: 0\r\n\r\n",
    "no JSON": lambda i: lambda path: BODY + b"<html>",
    "a list": lambda i: lambda path: BODY + b"[]",
    "endless": lambda i: lambda path: BODY + b" " * (1 << 20),
    "another issuer": lambda i: i.about.update(issuer="https://other.example"),
    "keys in the clear": lambda i: i.about.update(jwks_uri="http://192.0.2.1/keys"),
    "keys in a file": lambda i: i.about.update(jwks_uri="file:///etc/passwd"),
    "no address of keys": lambda i: i.about.update(jwks_uri=None),
    "no keys": lambda i: i.keys.clear(),
    "secrets alone": lambda i: i.keys.__setitem__(slice(None), [{"kty": "oct", "k": "AAAA", "kid": "RS256"}]),
    "for encryption alone": lambda i: i.keys.__setitem__(slice(None), [jwk("RS256", use="enc")]),
    "odd keys": lambda i: i.keys.__setitem__(slice(None), [None, 1, [], {}, {"kty": "RSA", "kid": 7}]),
}


@pytest.mark.parametrize("what", sorted(USELESS))
async def test_an_issuer_that_is_of_no_use_is_an_outage_and_no_refusal(
    issuer: Issuer, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = USELESS[what](issuer)
    issuer.answer = answer if callable(answer) else None
    checker = Oidc(settings(issuer), FakeClock())
    for _ in range(2):
        with pytest.raises(Unavailable, match="keys of the issuer"):
            await checker.authenticate(issuer.token())
    assert caplog.text.count("cannot be had") == 1


async def test_a_key_that_cannot_be_read_is_none(issuer: Issuer) -> None:
    issuer.keys = [{"kty": "RSA", "kid": "RS256", "n": "!", "e": "AQAB"}, jwk("ES256", alg="ES384")]
    checker = Oidc(settings(issuer), FakeClock())
    for name in ("RS256", "ES256"):
        with pytest.raises(Unauthenticated, match="does not name"):
            await checker.authenticate(issuer.token(name))


async def test_a_token_that_names_no_key_is_of_the_only_one(issuer: Issuer) -> None:
    issuer.keys = [jwk("RS256")]
    token = jwt.encode(issuer.claims(), KEYS["RS256"], "RS256")
    assert (await Oidc(settings(issuer), FakeClock()).authenticate(token)).name == actor_id(issuer.url, "ann")
    issuer.keys.append(jwk("ES256"))
    with pytest.raises(Unauthenticated):
        await Oidc(settings(issuer), FakeClock()).authenticate(token)


async def test_a_call_that_waits_ends_with_the_issuers_token(
    trusting: Service, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "LEEWAY_SECONDS", 0)
    token = issuer.token(exp=int(time.time()) + 2, roles=["agent"])
    async with plain(base_url=trusting.url) as http:
        headers = {"Authorization": f"Bearer {token}"}
        asked = http.post("/v1/leases", json={"wait_seconds": 30}, headers=headers, timeout=30)
        problem(await asyncio.wait_for(asked, 10), 401, "unauthenticated")


NAMES = [
    ("https://id.example", "ann", "oidc:ann@id.example"),
    ("https://id.example/", "a.b_c-1", "oidc:a.b_c-1@id.example"),
    ("https://id.example", "ann@mail.example", "oidc:ann@mail.example@id.example"),
    ("https://id.example:8443", "ann", None),
    ("https://id.example/realm", "ann", None),
    ("https://id.example", "auth0|5f7c8ec7c33c6c004bbafe82", None),
    ("https://id.example", "x" * 255, None),
    ("https://" + "a" * 250 + ".example", "ann", None),
    ("https://id.example", "Zoë 🦉", None),
    ("https://id.example", "/../x", None),
    ("https://id.example", "ann:0123456789abcdef", None),
    ("http://[::1]:9", "ann", None),
]


@pytest.mark.parametrize(("issuer_url", "subject", "name"), NAMES)
def test_a_name_is_readable_and_fits_where_names_go(issuer_url: str, subject: str, name: str | None) -> None:
    found = actor_id(issuer_url, subject)
    assert INSTANCE.fullmatch(found), found
    assert found == (name or found)
    assert (found.count(":") == 1) == (name is not None)


def test_nobody_has_the_name_of_somebody_else() -> None:
    issuers = ["https://id.example", "https://id.example/a", "https://id.example/b", "https://id.example:1"]
    subjects = ["ann", "Ann", "ann/", "ann|", "ann:x", "x" * 100, "x" * 101, "ann@id.example"]
    names = {actor_id(issuer, subject) for issuer in issuers for subject in subjects}
    assert len(names) == len(issuers) * len(subjects)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"issuer": "https://id.example"}, "needs an issuer and an audience"),
        ({"audience": "oaken"}, "needs an issuer and an audience"),
        ({"issuer": "http://id.example", "audience": "oaken"}, "must be an https address"),
        ({"issuer": "id.example", "audience": "oaken"}, "must be an https address"),
        ({"issuer": "https://[", "audience": "oaken"}, "must be an https address"),
    ],
)
def test_settings_that_are_not_enough_are_told(tmp_path: Path, said: dict[str, str], told: str) -> None:
    environ = {f"OAKEN_AUTH__OIDC__{name.upper()}": value for name, value in said.items()}
    with pytest.raises(ConfigError, match=told):
        Process(load(tmp_path, environ))


def test_there_is_one_section_of_that_kind(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[auth.saml]\nissuer = 'x'\n")
    with pytest.raises(ConfigError, match=r"\[auth\.saml\] is no section; there is \[auth\.oidc\]"):
        load(tmp_path, {})


async def test_a_process_takes_tokens_of_the_issuer_in_its_settings(tmp_path: Path, issuer: Issuer) -> None:
    (tmp_path / "config.toml").write_text(
        f'[server]\nport = 0\n[auth.oidc]\nissuer = "{issuer.url}"\naudience = "oaken"\nroles_claim = "groups"\n'
    )
    process = Process(load(tmp_path, {}), runner=False)
    await process.start()
    async with plain(base_url=str(process.address)) as http:
        headers = {"Authorization": f"Bearer {issuer.token(roles=None, groups=['admin'])}"}
        assert (await http.get("/v1/tokens", headers=headers)).status_code == 200
    await process.stop()


async def test_without_an_issuer_such_a_token_is_one_that_is_not_known(server: Service, issuer: Issuer) -> None:
    problem(await me(server, issuer.token()), 401, "unauthenticated")
    assert issuer.asked == []


async def test_clients_learn_where_to_sign_in_only_where_an_issuer_is_configured(core: Core, issuer: Issuer) -> None:
    async def door(call: Call, scope: Any, raw: bytes, send: object) -> Answer:
        return Answer(b"{}")

    about = "/.well-known/oauth-protected-resource/mcp"
    for found, challenge in (
        (None, "Bearer"),
        (Oidc(settings(issuer), core.clock), "Bearer resource_metadata="),
    ):
        service = await serve(core, ServerSettings(port=0), oidc=found, mounts={"mcp": door})
        async with plain(base_url=service.url) as http:
            refused = await http.post("/mcp", json={}, headers={"Authorization": "Bearer wrong"})
            told = refused.headers["www-authenticate"]
            if found is None:
                assert told == challenge
                problem(await http.get(about), 404, "not_found")
            else:
                assert told == f'{challenge}"{service.url}{about}"'
                assert (await http.get(about)).json() == {
                    "resource": f"{service.url}/mcp",
                    "authorization_servers": [issuer.url],
                    "bearer_methods_supported": ["header"],
                }
                problem(await http.get(f"{about}2"), 404, "not_found")
                assert (await http.get("/v1/me")).headers["www-authenticate"] == "Bearer"
        await service.close()


async def test_behind_a_proxy_the_place_to_sign_in_is_named_as_clients_reach_it(core: Core, issuer: Issuer) -> None:
    behind = ServerSettings(port=0, behind_proxy=True, allowed_hosts=["jobs.example"])
    service = await serve(core, behind, oidc=Oidc(settings(issuer), core.clock), mounts={"mcp": None})
    async with plain(base_url=service.url) as http:
        told = await http.get("/.well-known/oauth-protected-resource/mcp", headers={"Host": "jobs.example"})
    assert told.json()["resource"] == "https://jobs.example/mcp"
    await service.close()

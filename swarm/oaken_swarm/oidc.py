"""Bearer tokens of an OpenID Connect issuer, where `[auth.oidc]` names one: who somebody is, and by a claim what they may do.

The issuer's keys are read from where it says they are, and nowhere a token says; a token names one of them by its id and no more.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import re
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httpx2
import jwt
import orjson

from oaken_jobs.auth import PREFIX, actor_kind
from oaken_jobs.clock import Clock
from oaken_jobs.config import OidcSettings
from oaken_jobs.errors import ConfigError, Forbidden, Unauthenticated, Unavailable
from oaken_jobs.model import ROLES, Actor, Principal
from oaken_jobs.redaction import clean

log = logging.getLogger("oaken.oidc")

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""With a public key alone. Of those that share a secret none is taken, or whoever knows the public key could sign."""
LEEWAY_SECONDS = 30
"""How far the issuer's clock may be from ours."""
MAX_TOKEN = 16_384
MAX_DOCUMENT = 256 << 10
MAX_KEYS = 100
FETCH_SECONDS = 5.0
REFRESH_SECONDS = 60.0
"""Between two looks at the keys for one that is not known."""
STALE_SECONDS = 3600.0
"""How old they may be; one that the issuer has withdrawn is not taken for longer."""
LOOK_SECONDS = 3600.0
_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_SUBJECT = re.compile(r"[A-Za-z0-9._@-]+", re.ASCII)
_MAX_NAME = 64


class Oidc:
    """Checks tokens of one issuer."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        """Raises `ConfigError` for settings that are not enough."""
        if settings.issuer is None or settings.audience is None:
            raise ConfigError(
                "[auth.oidc] needs an issuer and an audience: whose tokens are taken, and which of them are meant for this server.",
                setting="[auth.oidc] issuer",
            )
        if not _safe(settings.issuer):
            raise ConfigError(
                f"[auth.oidc] issuer is {clean(settings.issuer, 100)!r}; it must be an https address, as the issuer itself writes it.",
                setting="[auth.oidc] issuer",
            )
        self.issuer = settings.issuer
        self._audience = settings.audience
        self._roles_claim = settings.roles_claim
        self._clock = clock
        self._keys = _Keys(settings.issuer, clock)

    @staticmethod
    def concerns(token: str) -> bool:
        """Whether this looks like a token of an issuer's, not one of ours."""
        return token.count(".") == 2 and not token.startswith(PREFIX)

    async def authenticate(self, token: str, via: str = "http") -> Principal:
        """Who carries this token, `via` being the door it came to. Raises `Unauthenticated`; `Forbidden` where the issuer gives them no
        role here; `Unavailable` where its keys cannot be had."""
        claims = await self._claims(token)
        said = claims.get(self._roles_claim)
        words = said.split() if isinstance(said, str) else cast("list[object]", said) if isinstance(said, list) else []
        roles = tuple(role for role in ROLES if role in words)
        name = actor_id(self.issuer, claims["sub"])
        if not roles:
            raise Forbidden(
                f"{name} is known, but has no role here: the claim {self._roles_claim!r} of the token names none of {', '.join(ROLES)}.",
                claim=self._roles_claim,
            )
        return Principal(Actor(actor_kind(roles), name, via), frozenset(roles))

    async def ended(self, token: str) -> None:
        """Returns when a token that was taken has expired."""
        until = jwt.decode(token, options={"verify_signature": False})["exp"] + LEEWAY_SECONDS
        while (left := until - self._clock.now() / 1000) > 0:
            await self._clock.sleep(min(left, LOOK_SECONDS))

    async def _claims(self, token: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN:
            raise Unauthenticated(
                f"This token has {len(token)} characters; none that is taken here has over {MAX_TOKEN}."
            )
        header = _header(token)
        key = await self._keys.find(header)
        if key is None:
            raise Unauthenticated("This token is signed by a key that its issuer does not name. Get a new one.")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[header.algorithm],
                audience=self._audience,
                issuer=self.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("This token has expired. Get a new one.") from None
        except (jwt.InvalidAudienceError, jwt.InvalidIssuerError):
            raise Unauthenticated("This token is meant for another server, or of another issuer.") from None
        except Exception:  # whatever a hostile token makes the library raise
            raise Unauthenticated(_UNFIT) from None
        if not 0 < len(claims["sub"]) <= 255:
            raise Unauthenticated(_UNFIT)
        return claims


_UNFIT = "This token cannot be taken: it is not whole, not signed as it must be, not yet good, or lacks exp, iss, aud or sub."


class _Header(NamedTuple):
    algorithm: str
    kid: str | None


def _header(token: str) -> _Header:
    """What matters of the header. Whatever else it says, such as where to find a key, is not listened to."""
    try:
        header: dict[str, Any] = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        usable = isinstance(algorithm, str) and (kid is None or isinstance(kid, str)) and "crit" not in header
    except Exception:
        raise Unauthenticated(_UNFIT) from None
    if not usable:
        raise Unauthenticated(_UNFIT)
    if algorithm not in ALGORITHMS:
        raise Unauthenticated(
            f"Tokens signed by {clean(str(algorithm), 20)!r} are not taken; {', '.join(sorted(ALGORITHMS))} are."
        )
    return _Header(algorithm, kid)


class _Keys:
    """The public keys of an issuer, as they were when last read."""

    def __init__(self, issuer: str, clock: Clock) -> None:
        self._issuer = issuer
        self._clock = clock
        self._keys: dict[str | None, dict[str, Any]] | None = None
        self._parsed: dict[_Header, jwt.PyJWK] = {}
        self._read_at = 0.0
        self._tried_at: float | None = None
        self._lock = asyncio.Lock()

    async def find(self, header: _Header) -> jwt.PyJWK | None:
        """The key that a token names, for its algorithm; None where the issuer has none such."""
        fresh = self._clock.monotonic() - self._read_at < STALE_SECONDS
        # While somebody reads them anew, those that are known are good enough.
        if not (self._known(header) and (fresh or self._lock.locked())):
            async with self._lock:
                if self._due(header):
                    await self._read()
        if self._keys is None:
            raise Unavailable(
                "The keys of the issuer cannot be had now; see the log of the server. Try again in a minute."
            )
        return self._parsed.get(header) or self._parse(header)

    def _known(self, header: _Header) -> bool:
        return self._keys is not None and (header.kid is None or header.kid in self._keys)

    def _due(self, header: _Header) -> bool:
        now = self._clock.monotonic()
        if self._tried_at is not None and now - self._tried_at < REFRESH_SECONDS:
            return False
        return not self._known(header) or now - self._read_at >= STALE_SECONDS

    def _parse(self, header: _Header) -> jwt.PyJWK | None:
        keys = self._keys or {}
        # A token that names none can only mean the only one.
        found = keys.get(header.kid) if header.kid is not None or len(keys) != 1 else next(iter(keys.values()))
        if found is None or found["kty"] != _KEY_TYPES[header.algorithm[:2]]:
            return None
        if found.get("alg", header.algorithm) != header.algorithm:
            return None
        try:
            key = jwt.PyJWK(found, header.algorithm)
        except Exception as error:
            log.warning("a key of the issuer cannot be used (%s)", type(error).__name__)
            return None
        self._parsed[header] = key
        return key

    async def _read(self) -> None:
        self._tried_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                keys = await self._fetch()
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, _Unusable) as error:
            log.warning(
                "the keys of %s cannot be had: %s", self._issuer, clean(str(error), 200) or type(error).__name__
            )
            return
        self._keys, self._parsed, self._read_at = keys, {}, self._clock.monotonic()

    async def _fetch(self) -> dict[str | None, dict[str, Any]]:
        by_proxy = not _local(self._issuer)
        async with httpx2.AsyncClient(timeout=FETCH_SECONDS, trust_env=by_proxy, follow_redirects=False) as http:
            about = await _document(http, self._issuer.rstrip("/") + "/.well-known/openid-configuration")
            if about.get("issuer") != self._issuer:
                raise _Unusable("its own description names another issuer")
            where: object = about.get("jwks_uri")
            if not isinstance(where, str) or not _safe(where):
                raise _Unusable("its description names no https address of keys")
            found: object = (await _document(http, where)).get("keys")
        keys: dict[str | None, dict[str, Any]] = {}
        for one in cast("list[object]", found)[:MAX_KEYS] if isinstance(found, list) else []:
            key = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
            kid = key.get("kid")
            if key.get("kty") in _KEY_TYPES.values() and key.get("use", "sig") == "sig" and isinstance(kid, str | None):
                keys[kid] = key
        if not keys:
            raise _Unusable("it names no keys for signatures")
        return keys


class _Unusable(Exception):
    """The issuer says what cannot be used."""


async def _document(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    async with http.stream("GET", url, headers={"Accept": "application/json"}) as response:
        if response.status_code != 200:
            raise _Unusable(f"{url} answered {response.status_code}")
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_DOCUMENT:
                raise _Unusable(f"{url} has over {MAX_DOCUMENT} bytes")
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise _Unusable(f"{url} is no JSON object")
    return cast("dict[str, Any]", value)


def actor_id(issuer: str, subject: str) -> str:
    """The name of whom an issuer calls so: always the same, of no two the same, and never that of a token, which has no colon.

    >>> actor_id("https://id.example", "ann"), actor_id("https://id.example/realm", "ann")
    ('oidc:ann@id.example', 'oidc:ann@id.example:8dc6f98fd93fa7f5')
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", urlsplit(issuer).hostname or "")
    if issuer.rstrip("/") == f"https://{host}" and _SUBJECT.fullmatch(subject):
        name = f"oidc:{subject}@{host}"
        if len(name) <= _MAX_NAME:
            return name
    digest = hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", subject)[:20]
    return f"oidc:{readable}@{host[:20]}:{digest}"


def _safe(url: str) -> bool:
    """Whether nobody on the way can put keys of their own in the place of what stands there."""
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and _local(url)))


def _local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

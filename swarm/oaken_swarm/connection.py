"""How a call reaches a server: one request, and its repeats until it is answered or refused for good."""

from __future__ import annotations

import math
import random
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httpx2
import orjson

from oaken_jobs import __version__, jsontext
from oaken_jobs.clock import Clock
from oaken_jobs.errors import (
    BadJson,
    ConfigError,
    Conflict,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OakenError,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    error_class,
)

DEFAULT_URL = "http://127.0.0.1:8787"
BACKOFF_BASE = 0.25
BACKOFF_CAP = 8.0
NO_TOKEN = "There is no token: set OAKEN_TOKEN or pass token=…; `oaken token create NAME --role agent` makes one."
LONGEST_RETRY_AFTER = 60.0
"""A server that asks to be left alone for longer than this gets no second try; the caller decides."""
SILENCE_SECONDS = 45.0
"""A stream that says nothing for so long is lost: a server shows every 15 s that it lives."""

Json = dict[str, Any]

_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "code"})
_BY_STATUS: dict[int, type[OakenError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    408: Unavailable,
    409: Conflict,
    413: TooLarge,
    415: UnsupportedMediaType,
    422: InvalidRequest,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
# Nothing of the request has left when one of these is raised.
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Text(NamedTuple):
    """A body that is no JSON: a text in UTF-8."""

    content: bytes
    media_type: str


class Connection:
    """The way to the server at `url`. Connections are opened as calls need them, and kept between calls.

    `timeout` is seconds for a call without its waiting, `tries` how often one call is made at most.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout: float,
        tries: int,
        transport: httpx2.AsyncBaseTransport | None,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """Raises `ConfigError` for a URL or a token that is none."""
        self.url = base_url(url)
        self.token = _token(token)
        self.tries = max(1, tries)
        self._timeout = timeout
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._http: httpx2.AsyncClient | None = None

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: Json | Text | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        waits: float = 0,
        keyed: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """The answer, read to its end. `waits`: seconds that the server may take on top.

        The call is repeated where the connection is lost, where the server is away or busy, and where it says to come again.
        `keyed` is for a call whose repeat would not be harmless: it carries an idempotency key, so that it is carried out once.
        """
        sent = dict(headers or {})
        content: bytes | None = None
        if isinstance(body, Text):
            content, sent["Content-Type"] = body
        elif body is not None:
            content, sent["Content-Type"] = (
                jsontext.dump(body, what="request", error=BadJson).encode(),
                "application/json",
            )
        if keyed and self.tries > 1:
            sent["Idempotency-Key"] = secrets.token_hex(12)
        params = _params(query)
        attempt = 1
        while True:
            again = attempt < self.tries
            wait: float | None = None
            try:
                answer = await self._client().request(
                    method,
                    self.url + path,
                    content=content,
                    params=params,
                    headers=sent,
                    timeout=httpx2.Timeout(self._timeout, read=self._timeout + waits),
                )
            except httpx2.TransportError as error:
                if not again:
                    raise self.unreachable(error) from error
            else:
                if answer.status_code < 400:
                    return answer
                refusal = self._refusal(answer)
                wait = asked_wait(refusal)
                if not again or not passing(refusal) or (wait or 0) > LONGEST_RETRY_AFTER:
                    raise refusal
            await self.pause(attempt, wait)
            attempt += 1

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The bytes of a stream as they come, of one try. Raises the refusal, or `Unavailable` for a stream that is lost."""
        timeout = httpx2.Timeout(self._timeout, read=SILENCE_SECONDS)
        said = {"Accept": "text/event-stream", **(headers or {})}
        try:
            async with self._client().stream(
                "GET", self.url + path, params=_params(query), headers=said, timeout=timeout
            ) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise self._refusal(answer)
                async with aclosing(answer.aiter_bytes()) as parts:
                    yield parts
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error

    async def pause(self, failures: int, wait: float | None) -> None:
        """Waits before a call is made again: never for less than was asked, and not all callers until the same moment."""
        backoff = min(BACKOFF_CAP, BACKOFF_BASE * 2.0 ** (min(failures, 16) - 1)) * self._rng.uniform(0.5, 1.0)
        await self._clock.sleep(backoff + (wait or 0))

    def read(self, answer: httpx2.Response) -> Json:
        """The JSON object of an answer; empty where it has no body."""
        if not answer.content:
            return {}
        try:
            value: object = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            return cast(Json, value)
        raise OakenError(
            f"{self.url} answered {answer.status_code} and no JSON object. Is that an Oaken server?",
            url=self.url,
            text=answer.text[:200],
        )

    def unreachable(self, error: httpx2.TransportError) -> Unavailable:
        """What a caller is told of a server out of reach."""
        why = str(error) or type(error).__name__
        if isinstance(error, _NEVER_SENT):
            told = f"No Oaken server answers at {self.url} ({why}). Start one with `oaken serve`, or set OAKEN_URL."
        else:
            told = (
                f"The connection to {self.url} was lost before the answer came ({why}). "
                "Whether the call was carried out is unknown: look before making it again."
            )
        return Unavailable(told, url=self.url, sent=not isinstance(error, _NEVER_SENT))

    def _refusal(self, answer: httpx2.Response) -> OakenError:
        refusal = _refusal(answer)
        if self.token is None and isinstance(refusal, Unauthenticated):
            return Unauthenticated(NO_TOKEN)
        return refusal

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            headers = {"Accept": "application/json", "User-Agent": f"oaken-swarm/{__version__}"}
            if self.token:
                headers["Authorization"] = f"Bearer {self.token}"
            self._http = httpx2.AsyncClient(
                headers=headers,
                transport=self._transport,
                # Servers close idle connections after some seconds; one closed while a request is on its way cannot be
                # told from a request that was carried out. A worker may well have hundreds of calls under way.
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=3),
                # A proxy from the environment is no way to a server on this machine.
                trust_env=urlsplit(self.url).hostname not in ("127.0.0.1", "localhost", "::1"),
            )
        return self._http


def base_url(url: str) -> str:
    """The address of a server as it is used, however it was written. Raises `ConfigError` for what is none."""
    url = url.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except (ValueError, httpx2.InvalidURL):
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is not the address of an Oaken server; it should look like {DEFAULT_URL}", url=url)
    return url


def _token(token: str | None) -> str | None:
    token = (token or "").strip()
    if not all("!" <= c <= "~" for c in token):
        raise ConfigError("This is no token: it holds characters that none has. Look at OAKEN_TOKEN, or at token=….")
    return token or None


def asked_wait(refusal: OakenError) -> float | None:
    """Seconds that a refusal asks to be left alone, if it says so."""
    value: object = refusal.details.get("retry_after")
    return float(value) if isinstance(value, (int, float)) else None


def passing(refusal: OakenError) -> bool:
    """Whether the same call may do better in a moment. So may one whose first try is still under way, which is a conflict then."""
    if isinstance(refusal, Conflict):
        return asked_wait(refusal) is not None
    return isinstance(refusal, (RateLimited, Unavailable))


def _params(query: Mapping[str, Any] | None) -> dict[str, str] | None:
    return {name: param(name, value) for name, value in (query or {}).items() if value is not None} or None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_text(item) for item in cast("Iterable[Any]", value))
    return str(value)


def param(name: str, value: Any) -> str:
    """A value as it stands in a URL. Raises `InvalidRequest` for what cannot."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a finite number (got {value}).")
    text = _text(value)
    if _SURROGATE.search(text):
        raise InvalidRequest(f"{name} holds half a character (a lone surrogate); leave it out.")
    return text


_SURROGATE = re.compile("[\ud800-\udfff]")


def _refusal(answer: httpx2.Response) -> OakenError:
    """The typed error of an answer, also of one that some proxy gave."""
    try:
        value: object = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict):
        problem = cast(Json, value)
    else:
        told = " ".join(answer.text.split())[:200] or answer.reason_phrase or "no text"
        problem: Json = {"detail": f"{answer.request.url.host} answered {answer.status_code}: {told}"}
    error = refusal_of(problem, answer.status_code)
    retry_after = _retry_after(answer)
    if retry_after is not None:
        error.details.setdefault("retry_after", retry_after)
    return error


def refusal_of(problem: Json, status: int) -> OakenError:
    """The typed error that a problem+json object describes; its members beyond the standard ones become `details`."""
    code = problem.get("code")
    cls = error_class(code) if isinstance(code, str) else OakenError
    if cls is OakenError:
        cls = _BY_STATUS.get(status, OakenError)
    error = cls(str(problem.get("detail") or problem.get("title") or f"refused with status {status}"))
    error.details = {name: value for name, value in problem.items() if name not in _PROBLEM_MEMBERS}
    # The class says what to do about it; what the server said is kept where it differs.
    vars(error)["status"] = status
    if isinstance(code, str):
        vars(error)["code"] = code
    return error


def _retry_after(answer: httpx2.Response) -> float | None:
    asked = answer.headers.get("Retry-After")
    if asked is None:
        return None
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        # A date: counted from the server's own, so that its clock and ours need not agree.
        since = parsedate_to_datetime(answer.headers["Date"])
        return max(0.0, (parsedate_to_datetime(asked) - since).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None

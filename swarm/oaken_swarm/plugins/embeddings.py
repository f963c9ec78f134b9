"""Where vectors come from: a model inside this process, or an address that speaks as OpenAI's `/v1/embeddings` does."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import httpx2
import orjson

from oaken_jobs.pipeline import MAX_DIMENSIONS
from oaken_jobs.requests import MAX_ID

MAX_ANSWER_BYTES = 64 << 20
MAX_REST_SECONDS = 3600.0
"""The longest that a `Retry-After` is heeded."""
_TEXT_AT_FAULT = (400, 413, 422)
_KEY_AT_FAULT = (401, 403)


class Outage(Exception):
    """No vectors can be had now, whatever the text; `seconds` is how long to leave it alone, where that was said."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Refused(Exception):
    """At least one of the texts was refused."""


class WrongAnswer(Exception):
    """What came back is no answer to what was asked."""


class Embedded(NamedTuple):
    """A vector for each text, in order, and the tokens that all of them were together, where that is known."""

    vectors: list[list[float]]
    tokens: int | None = None


class Backend(Protocol):
    model: str

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Raises `Outage`, `Refused`, `WrongAnswer`; none of them quotes a text or a key."""
        ...


class WordLlama:
    """The model inside the wheel of `wordllama`: 256 dimensions, nothing is downloaded. Raises ValueError where it is not installed."""

    model = "wordllama-l2-256"

    def __init__(self) -> None:
        if find_spec("wordllama") is None:
            raise ValueError("the package wordllama is not installed; `pip install 'oaken-swarm[examples]'` does that")

    @cached_property
    def _loaded(self) -> Any:
        import wordllama

        folder = Path(wordllama.__file__).parent
        return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)

    async def embed(self, texts: Sequence[str]) -> Embedded:
        rows: list[list[float]] = await asyncio.to_thread(self._rows, list(texts))
        if not all(math.isfinite(row[0]) for row in rows):
            raise Refused("there is no word in it")
        return Embedded(checked([[round(x, 6) for x in row] for row in rows], len(texts)))

    def _rows(self, texts: list[str]) -> list[list[float]]:
        import numpy

        with numpy.errstate(invalid="ignore"):  # a text without a word has no direction
            return self._loaded.embed(texts, norm=True).tolist()


class Endpoint:
    """`url` is the base, such as `http://127.0.0.1:11434/v1`. `key_variable` names the environment variable with the key, which is
    read at each call and goes nowhere else. `timeout` in seconds, for a whole call."""

    def __init__(self, url: str, model: str, key_variable: str | None, timeout: float) -> None:
        self.model = model
        self._url = url.rstrip("/") + "/embeddings"
        self._key_variable = key_variable
        self._timeout = timeout
        # A proxy from the environment is no way to a server on this machine.
        self._by_proxy = urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def embed(self, texts: Sequence[str]) -> Embedded:
        headers = self._headers()
        asked = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        try:
            async with (
                asyncio.timeout(self._timeout),
                httpx2.AsyncClient(verify=self._tls, timeout=self._timeout, trust_env=self._by_proxy) as http,
                http.stream("POST", self._url, json=asked, headers=headers) as response,
            ):
                _raise_for(response)
                body = await _body(response)
        except TimeoutError:
            raise Outage(f"no answer within {self._timeout:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Outage(f"cannot be reached ({type(error).__name__})") from None
        return _read(body, len(texts))

    def _headers(self) -> dict[str, str]:
        if self._key_variable is None:
            return {}
        key = os.environ.get(self._key_variable, "").strip()
        if not key:
            raise Outage("the environment variable that api_key_env names is not set in this process")
        if not (key.isascii() and key.isprintable()):
            raise Outage("the environment variable that api_key_env names holds characters that no key has")
        return {"Authorization": f"Bearer {key}"}


def checked(vectors: Sequence[object], count: int) -> list[list[float]]:
    """The vectors, if there are `count` of them, of one length, all of finite numbers. Raises `WrongAnswer`."""
    if len(vectors) != count:
        raise WrongAnswer(f"{len(vectors)} vectors came back for {count} texts")
    for vector in vectors:
        if not isinstance(vector, list) or not vector or len(cast("list[Any]", vector)) > MAX_DIMENSIONS:
            raise WrongAnswer(f"a vector is not a list of 1 to {MAX_DIMENSIONS} numbers")
        for x in cast("list[object]", vector):
            if not isinstance(x, (int, float)) or isinstance(x, bool) or not math.isfinite(x):
                raise WrongAnswer("a vector holds something that is not a finite number")
    found = cast("list[list[float]]", list(vectors))
    if len({len(vector) for vector in found}) > 1:
        raise WrongAnswer("the vectors have different lengths")
    return found


def _raise_for(response: httpx2.Response) -> None:
    status = response.status_code
    if status in _TEXT_AT_FAULT:
        raise Refused(f"refused with status {status}")
    if status in _KEY_AT_FAULT:
        raise Outage(f"the key is refused with status {status}; check the variable that api_key_env names")
    if status != 200:
        raise Outage(f"answers with status {status}", _retry_after(response))


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds, where it says so in seconds; a date is not worth reading for a pause."""
    text = response.headers.get("retry-after", "").strip()
    return min(float(text), MAX_REST_SECONDS) if text.isascii() and text.isdigit() and len(text) < 10 else None


async def _body(response: httpx2.Response) -> bytes:
    parts = bytearray()
    async for part in response.aiter_bytes():
        parts += part
        if len(parts) > MAX_ANSWER_BYTES:
            raise WrongAnswer(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(parts)


def _read(body: bytes, count: int) -> Embedded:
    """`{"data": [{"index", "embedding"}], "usage": {"prompt_tokens"}}`; without indices the order is that of the texts."""
    try:
        told = orjson.loads(body)  # which refuses NaN
        rows: list[tuple[Any, Any]] = [(row.get("index", at), row["embedding"]) for at, row in enumerate(told["data"])]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise WrongAnswer('the answer is not JSON of the form {"data": [{"embedding": []}]}') from None
    if len(rows) == count:
        if {at for at, _ in rows if type(at) is int} != set(range(count)):
            raise WrongAnswer("the indices of the answer are not those of the texts")
        rows.sort(key=lambda row: row[0])
    vectors = checked([vector for _, vector in rows], count)
    usage: object = told.get("usage")
    tokens: object = cast("dict[str, object]", usage).get("prompt_tokens") if isinstance(usage, dict) else None
    return Embedded(vectors, tokens if type(tokens) is int and 0 <= tokens <= MAX_ID else None)

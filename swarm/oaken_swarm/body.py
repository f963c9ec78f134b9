"""Reads a body: JSON or a text, of a bounded size, never more of it in memory than is allowed, and never at the cost of other calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.types import Receive

from oaken_jobs import jsontext
from oaken_jobs.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from oaken_jobs.redaction import clean
from oaken_swarm.call import ClientGone

DRAIN_BYTES = 32 << 20
"""How much more than allowed is read and thrown away, so that the client gets to hear the refusal."""

THREAD_BYTES = 256 << 10
"""From here on a body is read in a thread, so that other calls are answered meanwhile."""
AT_ONCE = 2
"""How many bodies are read in threads at one time."""
_BEGIN = 200

_JSON = re.compile(rb'application/json(\s*;\s*charset\s*=\s*"?utf-8"?)?\s*;?', re.IGNORECASE)
_PARAMETER = rb'(?:charset\s*=\s*"?utf-8"?|(?!charset)[a-z0-9-]+\s*=\s*(?:"[^"]*"|[^\s;"]*))'
_TEXT = re.compile(rb"text/(plain|markdown)(\s*;\s*%b)*\s*;?" % _PARAMETER, re.IGNORECASE)
"""Whatever else is said of a text, its flavour of Markdown for instance, changes nothing here."""
TEXT_TYPES = ("text/plain", "text/markdown")


class Size(NamedTuple):
    """The most bytes a body may have, and what to tell who sends more."""

    limit: int
    setting: str | None
    hint: str
    containers: int
    """The most objects and lists it may hold. Each costs a hundred times the two bytes it may have in the text."""


class Many(NamedTuple):
    """The size of a body that holds several at once, and how such a body is told by its beginning."""

    size: Size
    begins: Callable[[bytes], bool]


async def read_json(
    receive: Receive,
    size: Size,
    many: Many | None,
    media_type: bytes | None,
    encoding: bytes | None,
    threads: asyncio.Semaphore,
    *,
    texts: bool,
) -> Any:
    """The JSON value of the body; an empty object where there is no body. Large ones are read in one of the `threads`.

    Raises `TooLarge`, `UnsupportedMediaType` (a body needs the type `application/json`; with `texts` the caller takes others, too, which
    the message names) and `BadJson`.
    """
    raw, size = await read_bytes(receive, size, many, media_type, encoding, texts=texts)
    if not raw:
        return {}
    if len(raw) <= THREAD_BYTES:
        return jsontext.parse(raw)
    async with threads:
        return await asyncio.to_thread(_parse, raw, size)


async def read_bytes(
    receive: Receive,
    size: Size,
    many: Many | None,
    media_type: bytes | None,
    encoding: bytes | None,
    *,
    texts: bool = False,
) -> tuple[bytes, Size]:
    """A body that is meant to be JSON as it came, and the size that counted for it. Raises as `read_json`, but for `BadJson`."""
    raw, size = await _read(receive, size, many)
    if not raw:
        return raw, size
    if media_type != b"application/json" and (media_type is None or not _JSON.fullmatch(media_type.strip())):
        sent = repr(clean(media_type.decode("latin-1"), 80)) if media_type is not None else "none"
        also = f" (or, the text alone, {' or '.join(TEXT_TYPES)})" if texts else ""
        raise UnsupportedMediaType(
            f"A body must be sent with `Content-Type: application/json`{also}, in UTF-8; got {sent}."
        )
    _refuse_encoded(encoding)
    return raw, size


def is_text(media_type: bytes | None) -> bool:
    """Whether a body of this type is a text, in UTF-8, that `read_text` takes."""
    return media_type is not None and _TEXT.fullmatch(media_type.strip()) is not None


async def read_text(receive: Receive, size: Size, encoding: bytes | None) -> str:
    """The body as a text. Raises `TooLarge`, `UnsupportedMediaType` for a compressed one, and `InvalidRequest` for one that is empty, is
    not UTF-8 or holds a NUL, with the place."""
    raw, _ = await _read(receive, size, None)
    _refuse_encoded(encoding)
    if not raw:
        raise InvalidRequest("The body is empty; send the text itself.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The text is not UTF-8: byte {error.start} cannot be read. Convert it first.") from None
    if (at := raw.find(b"\0")) >= 0:
        raise InvalidRequest(f"The text holds a NUL at byte {at}. It is no plain text; convert it first.")
    return text


async def read_form(receive: Receive, size: Size, media_type: bytes | None) -> bytes:
    """The body of a form as a browser sends it, to be read as a query. Raises `TooLarge` and `UnsupportedMediaType`."""
    raw, _ = await _read(receive, size, None)
    if media_type is None or media_type.partition(b";")[0].strip().lower() != b"application/x-www-form-urlencoded":
        raise UnsupportedMediaType("A page takes forms (application/x-www-form-urlencoded); for JSON there is /v1.")
    return raw


def _refuse_encoded(encoding: bytes | None) -> None:
    if encoding is not None and encoding.strip().lower() not in (b"identity", b""):
        raise UnsupportedMediaType("A body must be sent as it is: compressed ones (Content-Encoding) are not read.")


def _parse(raw: bytes, size: Size) -> Any:
    refuse_crowded(raw, size)
    return jsontext.parse(raw)


def refuse_crowded(raw: bytes, size: Size) -> None:
    """Raises `TooLarge` for JSON that takes far more memory than its text."""
    held = jsontext.containers(raw) if len(raw) > 2 * size.containers else 0
    if held > size.containers:
        raise TooLarge(
            f"The body holds {held} objects and lists; at most {size.containers} are read here. {size.hint}",
            limit=size.containers,
            actual=held,
        )


async def _read(receive: Receive, size: Size, many: Many | None) -> tuple[bytes, Size]:
    """The body, and the size that counted for it."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > size.limit and many is not None and many.begins(body[:_BEGIN]):
            size = many.size
        if len(body) > size.limit:
            raise _too_large(size, len(body))
        return body, size
    chunks: list[bytes] = []
    total = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        total += len(chunk)
        if total > size.limit and many is not None:
            if many.begins((b"".join(chunks) + chunk)[:_BEGIN]):
                size = many.size
            many = None
        if total <= size.limit:
            chunks.append(chunk)
        else:
            chunks.clear()
        more: bool = message.get("more_body", False)
        if not more and total <= size.limit:
            return b"".join(chunks), size
        if not more or total > size.limit + DRAIN_BYTES:
            raise _too_large(size, total)
        message = await receive()


def _too_large(size: Size, actual: int) -> TooLarge:
    named = f" ({size.setting})" if size.setting else ""
    return TooLarge(
        f"The body is {actual} bytes or more; at most {size.limit} are read here{named}. {size.hint}",
        limit=size.limit,
        actual=actual,
        setting=size.setting,
    )

"""Reads a body: JSON of a bounded size, never more of it in memory than is allowed."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from starlette.types import Receive

from oaken_jobs import jsontext
from oaken_jobs.errors import TooLarge, UnsupportedMediaType
from oaken_jobs.redaction import clean
from oaken_swarm.call import ClientGone

DRAIN_BYTES = 32 << 20
"""How much more than allowed is read and thrown away, so that the client gets to hear the refusal."""

_JSON = re.compile(rb'application/json(\s*;\s*charset\s*=\s*"?utf-8"?)?\s*;?', re.IGNORECASE)


class Size(NamedTuple):
    """The most bytes a body may have, and what to tell who sends more."""

    limit: int
    setting: str | None
    hint: str


async def read_json(receive: Receive, size: Size, media_type: bytes | None, encoding: bytes | None) -> Any:
    """The JSON value of the body; an empty object where there is no body.

    Raises `TooLarge`, `UnsupportedMediaType` (a body needs the type `application/json`) and `BadJson`.
    """
    raw = await _read(receive, size)
    if not raw:
        return {}
    if media_type != b"application/json" and (media_type is None or not _JSON.fullmatch(media_type.strip())):
        sent = repr(clean(media_type.decode("latin-1"), 80)) if media_type is not None else "none"
        raise UnsupportedMediaType(f"A body must be sent with `Content-Type: application/json`, in UTF-8; got {sent}.")
    if encoding is not None and encoding.strip().lower() not in (b"identity", b""):
        raise UnsupportedMediaType("A body must be sent as it is: compressed ones (Content-Encoding) are not read.")
    return jsontext.parse(raw)


async def _read(receive: Receive, size: Size) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > size.limit:
            raise _too_large(size, len(body))
        return body
    chunks: list[bytes] = []
    total = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        total += len(chunk)
        if total <= size.limit:
            chunks.append(chunk)
        else:
            chunks.clear()
        more: bool = message.get("more_body", False)
        if not more and total <= size.limit:
            return b"".join(chunks)
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

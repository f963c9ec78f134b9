"""Refusals as HTTP shows them: `application/problem+json` with the error's stable code."""

from __future__ import annotations

from typing import Any

import orjson

from oaken_jobs.errors import OakenError
from oaken_swarm.call import Answer

RETRY_AFTER_SECONDS = 1


def problem(error: OakenError) -> dict[str, Any]:
    """The JSON object that describes a refusal; the error's details are members beside the standard ones."""
    return {
        **error.details,
        "type": f"urn:oaken:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
    }


def problem_answer(error: OakenError, challenge: bytes = b"Bearer") -> Answer:
    """A refusal as a response, with the headers of `headers_of`."""
    return Answer(orjson.dumps(problem(error)), error.status, headers_of(error, challenge), b"application/problem+json")


def headers_of(error: OakenError, challenge: bytes = b"Bearer") -> tuple[tuple[bytes, bytes], ...]:
    """What the status of a refusal asks for; `challenge` says who is not known how to come in."""
    headers: list[tuple[bytes, bytes]] = []
    if error.status == 401:
        headers.append((b"www-authenticate", challenge))
    elif error.status == 405:
        headers.append((b"allow", ", ".join(error.details["allow"]).encode()))
    elif error.status == 413:
        headers.append((b"connection", b"close"))  # the rest of the body may still be on its way
    elif error.status == 429:
        headers.append((b"retry-after", b"%d" % error.details["retry_after"]))
    elif error.status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
    return tuple(headers)

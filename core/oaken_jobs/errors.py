"""Everything that Oaken refuses, one class a code. Codes are part of the interface and never change.

Each message says what was wrong, with which value, and what to do about it. How an error looks is the door's business:
HTTP renders it as problem+json, MCP as a tool error, the command line as one line on stderr.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OakenError(Exception):
    """A refusal with a stable `code`, the `status` HTTP gives it, and `details` for programs (JSON values only)."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class BadJson(OakenError):
    """The text is not JSON, or is JSON that readers cannot keep."""

    code, status, title = "bad_json", 400, "Not usable as JSON"


class InvalidRequest(OakenError):
    """A field is missing, unknown, or out of its bounds."""

    code, status, title = "invalid_request", 422, "Invalid request"


class PayloadInvalid(OakenError):
    """A payload does not fit the schema of its kind, or holds what JSON readers cannot keep."""

    code, status, title = "payload_invalid", 422, "Payload refused"


class ResultInvalid(OakenError):
    """A result does not fit the schema of its kind. The lease stands; it may be corrected."""

    code, status, title = "result_invalid", 422, "Result refused"


class Unauthenticated(OakenError):
    """No token, or one that is unknown, expired or revoked."""

    code, status, title = "unauthenticated", 401, "Not authenticated"


class Forbidden(OakenError):
    """The caller is known but may not do this."""

    code, status, title = "forbidden", 403, "Not allowed"


class NotFound(OakenError):
    """There is no such thing, or not for this caller."""

    code, status, title = "not_found", 404, "Not found"


class MethodNotAllowed(OakenError):
    """The route exists, the method on it does not."""

    code, status, title = "method_not_allowed", 405, "Method not allowed"


class Conflict(OakenError):
    """The thing is in a state that does not allow this."""

    code, status, title = "conflict", 409, "Conflict"


class LeaseLost(OakenError):
    """The lease named is not current: expired, taken over, ended, or never given to this caller."""

    code, status, title = "lease_lost", 409, "Lease lost"


class IdempotencyConflict(OakenError):
    """The idempotency key was used by this caller for another request."""

    code, status, title = "idempotency_conflict", 409, "Idempotency key used before"


class TooLarge(OakenError):
    """Over a limit of size. Names the limit, the value and the setting."""

    code, status, title = "too_large", 413, "Too large"


class UnsupportedMediaType(OakenError):
    """The body is not of a type this route reads."""

    code, status, title = "unsupported_media_type", 415, "Unsupported media type"


class Misdirected(OakenError):
    """The Host header names a host this server does not answer for."""

    code, status, title = "misdirected", 421, "Misdirected request"


class RateLimited(OakenError):
    """Too many of these in too short a time."""

    code, status, title = "rate_limited", 429, "Too many requests"


class Unavailable(OakenError):
    """The store cannot answer now, or the outcome of the call is unknown. Try again."""

    code, status, title = "unavailable", 503, "Unavailable"


def stopping() -> Unavailable:
    """What a process that stops answers to whoever asks for something."""
    return Unavailable("Oaken is stopping. Try again when it is back.")


class ConfigError(OakenError):
    """A setting is wrong. Names the key, the value and what is allowed."""

    code, status, title = "config", 500, "Configuration error"


def error_class(code: str) -> type[OakenError]:
    """The class of a code as read off the wire; `OakenError` itself for a code this version does not know."""
    for cls in OakenError.__subclasses__():
        if cls.code == code:
            return cls
    return OakenError

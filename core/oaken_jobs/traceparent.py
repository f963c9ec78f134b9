"""The W3C's `traceparent`: which trace a call belongs to, and below which span. Pure functions."""

from __future__ import annotations

import re

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def read(text: str | None) -> str | None:
    """A header as it is kept, in the form of version 00; None for one that is none, which is to be ignored."""
    found = _FORM.fullmatch(text.strip()) if text is not None else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None) or not trace.strip("0") or not span.strip("0"):
        return None
    return f"00-{trace}-{span}-{flags}"


def trace_id(traceparent: str) -> str:
    """The trace in one that was read: 32 hex digits."""
    return traceparent[3:35]

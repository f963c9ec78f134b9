"""Which `traceparent` headers are taken, and which are ignored."""

from __future__ import annotations

import pytest

from oaken_jobs import traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f" 00-{TRACE}-{SPAN}-00\t", f"00-{TRACE}-{SPAN}-00"),
        (f"cc-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE[1:]}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"cc-{TRACE}-{SPAN}-01x", None),
        ("x" * 10_000, None),
        ("", None),
        (None, None),
    ],
)
def test_a_header_is_kept_in_the_form_of_version_00_or_ignored(header: str | None, kept: str | None) -> None:
    assert traceparent.read(header) == kept


def test_the_trace_is_the_second_part() -> None:
    assert traceparent.trace_id(f"00-{TRACE}-{SPAN}-01") == TRACE

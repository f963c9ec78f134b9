"""Templates, and how values look on pages. Everything is escaped; text of others is set apart, so that it turns no text around it."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any, cast
from urllib.parse import quote, urlencode

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from oaken_jobs import __version__
from oaken_jobs.waits import span

MAIN = "<!-- main -->"
"""Where in a page what it shows begins."""
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    127: 0x2421,
    # These begin a paragraph, which ends what keeps a direction in: as all do that are below 32.
    **dict.fromkeys((0x85, 0x2028, 0x2029), 0x2424),
    # These turn letters around: "evil" would read as "live". What stands for them has no direction, as a name in letters would.
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}
"""Control characters as the signs that stand for them."""


def visible(text: str) -> str:
    """A text with its control characters shown, and none of them obeyed.

    >>> visible("a\\0b")
    'a␀b'
    """
    return text if text.isprintable() else text.translate(_PICTURES)


def told(value: object) -> Markup:
    """Text of others: its direction is its own, and ends with it."""
    return Markup('<bdi class="told">{}</bdi>').format(visible(str(value)))


def moment(iso: str | None, now: int, form: str = "ago") -> Markup:
    """A time of the interface. `form` is how it reads before a script writes it anew: `ago` for how long ago, `at` for the time."""
    if iso is None:
        return Markup('<span class="none">–</span>')
    shown = ago(iso, now) if form == "ago" else f"{utc(iso)} UTC"
    return Markup('<time datetime="{}" title="{} UTC" data-time="{}">{}</time>').format(iso, utc(iso), form, shown)


def utc(iso: str) -> str:
    """To the second: `2026-11-30 12:00:00`."""
    return iso[:19].replace("T", " ")


def ago(iso: str, now: int) -> str:
    """`5 s ago`, `in 2 min`, as everywhere."""
    passed = now - milliseconds(iso)
    return f"{span(passed)} ago" if passed >= 0 else f"in {span(-passed)}"


def milliseconds(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000)


def length(start: str, end: str | None, now: int) -> str:
    """How long something took, or has taken until now: `340 ms`, `3.2 s`, `5 min`."""
    ms = max(0, (milliseconds(end) if end is not None else now) - milliseconds(start))
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else span(ms)


def segment(text: str) -> str:
    """A value as one segment of a path."""
    return quote(text, safe="")


def number(value: float) -> str:
    """With its thousands apart: `1,234`."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def counted(count: int, one: str, many: str) -> str:
    """How many, with the words that go with it.

    >>> counted(1, "job waits", "jobs wait"), counted(1200, "job waits", "jobs wait")
    ('1 job waits', '1,200 jobs wait')
    """
    return f"{number(count)} {one if count == 1 else many}"


def size(count: int) -> str:
    """Bytes: `12 B`, `3.4 kB`, `1.0 MB`."""
    shown = float(count)
    for unit in ("B", "kB", "MB"):
        if shown < 1000 or unit == "MB":
            return f"{shown:.0f} {unit}" if unit == "B" else f"{shown:.1f} {unit}"
        shown /= 1000
    raise AssertionError


def money(value: float | None) -> str:
    """Dollars; of small amounts so much that one sees something."""
    if value is None:
        return "–"
    return f"${value:,.2f}" if value >= 0.1 or value == 0 else f"${value:,.4f}"


def pretty(value: Any) -> str:
    """JSON for people."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def query(fields: dict[str, Any]) -> str:
    """A query with what is said of these fields."""
    kept = {name: value for name, value in fields.items() if value not in (None, "", (), [], False)}
    return urlencode(kept, doseq=True)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("oaken_swarm.cockpit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    cast("dict[str, Any]", found.filters).update(
        {
            "told": told,
            "counted": counted,
            "number": number,
            "size": size,
            "money": money,
            "pretty": pretty,
            "query": query,
            "segment": segment,
            "utc": utc,
            "span": span,
            "visible": visible,
        }
    )
    cast("dict[str, Any]", found.globals).update(
        {"length": length, "moment": moment, "version": __version__, "main_mark": Markup(MAIN)}
    )
    return found


@cache
def _template(name: str) -> Template:
    return _environment().get_template(name)


def load() -> None:
    """Makes all of them ready, so that nobody waits for that."""
    for name in _environment().list_templates():
        _template(name)


def render(name: str, **values: Any) -> str:
    """The page from the template of this name."""
    return _template(name).render(values)

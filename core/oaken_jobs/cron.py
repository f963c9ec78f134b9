"""When schedules run: cron expressions, which of them are taken, and intervals. Pure.

`cronsim` does the arithmetic, as Debian's cron does it: where clocks go forward, what was to run in the hour that is left out runs right
after it; where they go back, it runs once; and what runs at every hour or minute runs at each there is. It takes more than we
promise (seconds, `L`, `#`), so that is refused first.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from oaken_jobs.errors import InvalidRequest
from oaken_jobs.model import Schedule

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_NAMES: dict[int, tuple[tuple[str, ...], int]] = {3: (_MONTHS, 1), 4: (_WEEKDAYS, 0)}
"""By the place of a field: names that stand for numbers, and the number of the first."""
_TERM = re.compile(r"(\*|[0-9A-Z]+)(?:-([0-9A-Z]+))?(?:/([0-9]+))?", re.ASCII)
MAX_LENGTH = 200


def parse(text: str) -> str:
    """The expression in its normal form: five fields, upper case, one space between. Raises `InvalidRequest` with the reason.

    >>> parse(" */15  9-17 * * mon-fri ")
    '*/15 9-17 * * MON-FRI'
    """
    parts = text[: MAX_LENGTH + 1].upper().split()
    if text.lstrip().startswith("@"):
        raise _refusal(text, "words such as @daily are not taken; that one is `0 0 * * *`")
    if len(text) > MAX_LENGTH:
        raise _refusal(text[:60] + "…", f"it is longer than {MAX_LENGTH} characters")
    if len(parts) == 6:
        raise _refusal(text, "it has six fields; seconds are not taken, leave the first one out")
    if len(parts) != 5:
        raise _refusal(text, f"it has {len(parts)} fields; five are wanted: {', '.join(FIELDS)}")
    for place, part in enumerate(parts):
        for term in part.split(","):
            _check(text, place, term)
    normal = " ".join(parts)
    try:
        next(CronSim(normal, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration):
        raise _refusal(text, "such a date never comes") from None
    return normal


def _check(text: str, place: int, term: str) -> None:
    """One term of a list: `*`, a number, a name or a range, the first and last with a step if need be."""
    field = FIELDS[place]
    match = _TERM.fullmatch(term)
    if match is None or (match[1] == "*" and match[2] is not None):
        if any(sign in term for sign in "L#W?"):
            raise _refusal(text, f"{field}: `L`, `#`, `W` and `?` are not taken ({term})")
        raise _refusal(text, f"{field}: {term or 'nothing'} is no number, name, range or step")
    first, last, step = match.groups()
    if step is not None and int(step) == 0:
        raise _refusal(text, f"{field}: a step of 0 goes nowhere ({term})")
    if first == "*":
        return
    begin = _number(text, place, first, term)
    if last is None:
        if step is not None:
            raise _refusal(text, f"{field}: a step goes with * or a range; write {first}-{_BOUNDS[place][1]}/{step}")
        return
    if _number(text, place, last, term) < begin:
        raise _refusal(text, f"{field}: the range {term} runs backwards")


def _number(text: str, place: int, word: str, term: str) -> int:
    field, (low, high) = FIELDS[place], _BOUNDS[place]
    if word.isdigit():
        value = int(word[:9])
        if not low <= value <= high:
            raise _refusal(text, f"{field}: {word} is not from {low} to {high}")
        return value
    names, first = _NAMES.get(place, ((), 0))
    if word in names:
        return names.index(word) + first
    if any(sign in word for sign in "LW") and not names:
        raise _refusal(text, f"{field}: `L` and `W` are not taken ({term})")
    told = f"one of {', '.join(names)}" if names else f"a number from {low} to {high}"
    raise _refusal(text, f"{field}: {word} is not {told}")


def _refusal(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"cron {text!r}: {why}.")


@lru_cache(256)
def zone(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA database. Raises `InvalidRequest`."""
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # not found, a folder, or no name at all
        raise InvalidRequest(
            f"timezone {name[:60]!r}: there is no such zone; give a name such as Europe/Berlin, or leave it out for UTC."
        ) from None


def next_after(schedule: Schedule, after: int) -> int:
    """When a schedule runs next (ms), after `after`. An interval keeps its phase: whole periods from its anchor, before it or behind."""
    if schedule.cron is not None:
        return next_run(schedule.cron, after, schedule.timezone)
    assert schedule.every_ms is not None
    periods = (after - schedule.anchor) // schedule.every_ms + 1
    return schedule.anchor + periods * schedule.every_ms


def next_run(expression: str, after: int, timezone: str | None = None) -> int:
    """The first moment (ms) of a parsed expression that lies after `after` (ms). UTC, or the zone named."""
    # Whole seconds up: a moment within the second of a run lies after it.
    start = datetime.fromtimestamp(after // 1000, UTC)
    at = next(CronSim(expression, start.astimezone(zone(timezone)) if timezone else start))
    found = at.astimezone(UTC)
    if found <= start:  # the second of the two hours where clocks go back
        return next_run(expression, after + round(timedelta(hours=1).total_seconds() * 1000), timezone)
    return round(found.timestamp() * 1000)

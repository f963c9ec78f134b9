"""Cron: a table of expressions and the times they stand for, in zones whose clocks go forward and back, under any zone of the process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from oaken_jobs import cron
from oaken_jobs.errors import InvalidRequest


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def runs(expression: str, after: str, zone: str | None, count: int) -> list[str]:
    """The next runs after a moment in UTC, as local times of the zone."""
    found, at, text = list[str](), ms(after), cron.parse(expression)
    for _ in range(count):
        at = cron.next_run(text, at, zone)
        found.append(f"{datetime.fromtimestamp(at / 1000, ZoneInfo(zone or 'UTC')):%Y-%m-%d %H:%M}")
    return found


# expression, after (UTC), the next runs
PLAIN: list[tuple[str, str, list[str]]] = [
    ("* * * * *", "2026-01-01 00:00:00", ["2026-01-01 00:01", "2026-01-01 00:02"]),
    ("* * * * *", "2026-12-31 23:59:30", ["2027-01-01 00:00"]),
    ("0 * * * *", "2026-01-01 00:00:00", ["2026-01-01 01:00", "2026-01-01 02:00"]),
    ("30 6 * * *", "2026-01-01 06:30:00", ["2026-01-02 06:30"]),
    ("30 6 * * *", "2026-01-01 06:29:59", ["2026-01-01 06:30"]),
    ("*/15 * * * *", "2026-01-01 00:50:00", ["2026-01-01 01:00", "2026-01-01 01:15"]),
    ("*/7 * * * *", "2026-01-01 00:50:00", ["2026-01-01 00:56", "2026-01-01 01:00", "2026-01-01 01:07"]),
    (
        "10-20/5 * * * *",
        "2026-01-01 00:00:00",
        ["2026-01-01 00:10", "2026-01-01 00:15", "2026-01-01 00:20", "2026-01-01 01:10"],
    ),
    ("5,35 * * * *", "2026-01-01 00:10:00", ["2026-01-01 00:35", "2026-01-01 01:05"]),
    (
        "1-3,10-11 0 * * *",
        "2026-01-01 00:02:00",
        ["2026-01-01 00:03", "2026-01-01 00:10", "2026-01-01 00:11", "2026-01-02 00:01"],
    ),
    ("0 9-17 * * *", "2026-01-01 16:30:00", ["2026-01-01 17:00", "2026-01-02 09:00"]),
    (
        "0 9-17/4 * * *",
        "2026-01-01 00:00:00",
        ["2026-01-01 09:00", "2026-01-01 13:00", "2026-01-01 17:00", "2026-01-02 09:00"],
    ),
    ("0 0 1 * *", "2026-01-01 00:00:00", ["2026-02-01 00:00", "2026-03-01 00:00"]),
    ("0 0 31 * *", "2026-01-31 00:00:00", ["2026-03-31 00:00", "2026-05-31 00:00", "2026-07-31 00:00"]),
    ("0 0 30 * *", "2026-01-30 00:00:00", ["2026-03-30 00:00"]),
    ("0 0 29 2 *", "2026-01-01 00:00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
    ("0 0 29 feb *", "2096-03-01 00:00:00", ["2104-02-29 00:00"]),
    ("0 0 28-31 2 *", "2026-02-28 00:00:00", ["2027-02-28 00:00", "2028-02-28 00:00", "2028-02-29 00:00"]),
    ("0 0 1 1 *", "2026-01-01 00:00:00", ["2027-01-01 00:00"]),
    (
        "0 0 1 */3 *",
        "2026-01-01 00:00:00",
        ["2026-04-01 00:00", "2026-07-01 00:00", "2026-10-01 00:00", "2027-01-01 00:00"],
    ),
    ("0 0 1 jan,JUL *", "2026-01-01 00:00:00", ["2026-07-01 00:00", "2027-01-01 00:00"]),
    (
        "0 0 1 oct-dec *",
        "2026-01-01 00:00:00",
        ["2026-10-01 00:00", "2026-11-01 00:00", "2026-12-01 00:00", "2027-10-01 00:00"],
    ),
    ("0 0 * * 0", "2026-01-01 00:00:00", ["2026-01-04 00:00", "2026-01-11 00:00"]),
    ("0 0 * * 7", "2026-01-01 00:00:00", ["2026-01-04 00:00", "2026-01-11 00:00"]),
    ("0 0 * * sun", "2026-01-01 00:00:00", ["2026-01-04 00:00"]),
    (
        "0 0 * * 5-7",
        "2026-01-01 00:00:00",
        ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00", "2026-01-09 00:00"],
    ),
    ("0 0 * * 0-1", "2026-01-01 00:00:00", ["2026-01-04 00:00", "2026-01-05 00:00"]),
    ("0 0 * * mon-fri", "2026-01-02 00:00:00", ["2026-01-05 00:00", "2026-01-06 00:00"]),
    ("0 0 * * MON,wed,Fri", "2026-01-01 00:00:00", ["2026-01-02 00:00", "2026-01-05 00:00", "2026-01-07 00:00"]),
    ("0 0 * * */2", "2026-01-01 00:00:00", ["2026-01-03 00:00", "2026-01-04 00:00", "2026-01-06 00:00"]),
    # Both day fields restricted: either will do.
    ("0 0 13 * 5", "2026-01-01 00:00:00", ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-13 00:00"]),
    ("0 0 1,15 * mon", "2026-01-01 00:00:00", ["2026-01-05 00:00", "2026-01-12 00:00", "2026-01-15 00:00"]),
    ("0 0 31 2 mon", "2026-01-01 00:00:00", ["2026-02-02 00:00", "2026-02-09 00:00"]),
    # One of them free: the other decides.
    ("0 0 13 * *", "2026-01-01 00:00:00", ["2026-01-13 00:00", "2026-02-13 00:00"]),
    ("0 0 * * 5", "2026-01-01 00:00:00", ["2026-01-02 00:00", "2026-01-09 00:00"]),
    ("59 23 31 12 *", "2026-01-01 00:00:00", ["2026-12-31 23:59"]),
    ("0 12 * * *", "2026-01-01 12:00:00", ["2026-01-02 12:00"]),
    ("  0   12  *  *  *  ", "2026-01-01 00:00:00", ["2026-01-01 12:00"]),
    ("00 06 01 01 *", "2026-01-01 06:00:00", ["2027-01-01 06:00"]),
]

# expression, zone, after (UTC), the next runs in local time
ZONES: list[tuple[str, str, str, list[str]]] = [
    (
        "30 6 * * *",
        "Europe/Berlin",
        "2026-03-27 12:00:00",
        ["2026-03-28 06:30", "2026-03-29 06:30", "2026-03-30 06:30"],
    ),
    (
        "30 6 * * *",
        "Europe/Berlin",
        "2026-10-23 12:00:00",
        ["2026-10-24 06:30", "2026-10-25 06:30", "2026-10-26 06:30"],
    ),
    # The hour that is left out: right after it.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00:00", ["2026-03-29 03:00", "2026-03-30 02:30"]),
    ("0 2 * * *", "Europe/Berlin", "2026-03-28 12:00:00", ["2026-03-29 03:00", "2026-03-30 02:00"]),
    ("30 2 * * *", "America/New_York", "2026-03-07 12:00:00", ["2026-03-08 03:00", "2026-03-09 02:30"]),
    ("30 2 * * *", "Australia/Sydney", "2026-10-03 10:00:00", ["2026-10-04 03:00", "2026-10-05 02:30"]),
    # The hour that comes twice: once.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00:00", ["2026-10-25 02:30", "2026-10-26 02:30"]),
    ("30 1 * * *", "America/New_York", "2026-10-31 12:00:00", ["2026-11-01 01:30", "2026-11-02 01:30"]),
    ("30 2 * * *", "Australia/Sydney", "2026-04-04 02:00:00", ["2026-04-05 02:30", "2026-04-06 02:30"]),
    # Asked in the second of the two hours: it has run.
    ("30 2 * * *", "Europe/Berlin", "2026-10-25 01:10:00", ["2026-10-26 02:30"]),
    # What runs each hour or minute runs at each there is.
    (
        "30 * * * *",
        "Europe/Berlin",
        "2026-10-25 00:00:00",
        ["2026-10-25 02:30", "2026-10-25 02:30", "2026-10-25 03:30"],
    ),
    (
        "30 * * * *",
        "Europe/Berlin",
        "2026-03-29 00:00:00",
        ["2026-03-29 01:30", "2026-03-29 03:30", "2026-03-29 04:30"],
    ),
    (
        "*/30 2 * * *",
        "Australia/Sydney",
        "2026-04-04 14:00:00",
        ["2026-04-05 02:00", "2026-04-05 02:30", "2026-04-05 02:00", "2026-04-05 02:30"],
    ),
    ("0 0 * * *", "Asia/Kathmandu", "2026-01-01 00:00:00", ["2026-01-02 00:00"]),
    ("0 0 * * mon", "Pacific/Auckland", "2026-01-03 12:00:00", ["2026-01-05 00:00"]),
    ("0 12 1 * *", "America/Sao_Paulo", "2026-01-31 23:00:00", ["2026-02-01 12:00"]),
    ("15 10 * * *", "UTC", "2026-01-01 00:00:00", ["2026-01-01 10:15"]),
]

REFUSED: list[tuple[str, str]] = [
    ("@daily", "words such as @daily"),
    ("@reboot", "words such as @daily"),
    ("", "0 fields"),
    ("* * * *", "4 fields; five are wanted"),
    ("0 0 0 * * *", "six fields; seconds are not taken"),
    ("* * * * * * *", "7 fields"),
    ("60 * * * *", "minute: 60 is not from 0 to 59"),
    ("* 24 * * *", "hour: 24 is not from 0 to 23"),
    ("* * 0 * *", "day of month: 0 is not from 1 to 31"),
    ("* * 32 * *", "day of month: 32 is not from 1 to 31"),
    ("* * * 13 *", "month: 13 is not from 1 to 12"),
    ("* * * * 8", "day of week: 8 is not from 0 to 7"),
    ("-1 * * * *", "minute: -1 is no number"),
    ("1.5 * * * *", "minute: 1.5 is no number"),
    ("x * * * *", "minute: X is not a number from 0 to 59"),
    ("* * * foo *", "month: FOO is not one of JAN"),
    ("* * * * sunday", "day of week: SUNDAY is not one of SUN"),
    ("* * * monday *", "month: MONDAY is not one of JAN"),
    ("*/0 * * * *", "a step of 0"),
    ("*/x * * * *", "is no number, name, range or step"),
    ("5/15 * * * *", "write 5-59/15"),
    ("30-10 * * * *", "the range 30-10 runs backwards"),
    ("0 0 * * fri-mon", "the range FRI-MON runs backwards"),
    ("1,,2 * * * *", "minute: nothing is no number"),
    ("*-5 * * * *", "is no number, name, range or step"),
    ("0 0 l * *", "day of month: `L`"),
    ("0 0 15w * *", "`L` and `W` are not taken"),
    ("0 0 * * 5l", "day of week: 5L"),
    ("0 0 * * 5#2", "`L`, `#`, `W` and `?` are not taken"),
    ("0 0 ? * *", "`L`, `#`, `W` and `?` are not taken"),
    ("0 0 30 2 *", "such a date never comes"),
    ("0 0 31 2,4,6,9,11 *", "such a date never comes"),
    ("9999999999999 * * * *", "is not from 0 to 59"),
    ("\u0661 * * * *", "is no number"),
    ("* " * 200, "longer than 200"),
]


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe"])
def server_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone that the process itself lives in."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("expression", "after", "expected"), PLAIN, ids=[row[0] for row in PLAIN])
def test_an_expression_means_these_times_in_utc(
    expression: str, after: str, expected: list[str], server_zone: str
) -> None:
    assert runs(expression, after, None, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"), ZONES, ids=[f"{row[0]} {row[1]}" for row in ZONES]
)
def test_an_expression_means_these_times_in_its_zone(
    expression: str, zone: str, after: str, expected: list[str], server_zone: str
) -> None:
    assert runs(expression, after, zone, len(expected)) == expected


@pytest.mark.parametrize(("expression", "why"), REFUSED, ids=[row[0][:30] or "nothing" for row in REFUSED])
def test_what_is_no_expression_of_ours_is_refused_with_the_reason(expression: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        cron.parse(expression)
    assert why in refused.value.message


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../../etc/passwd", "\x00", "Europe"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(InvalidRequest, match="no such zone"):
        cron.zone(zone)

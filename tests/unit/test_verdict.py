"""The sentence at the head of the overview, by a table; and what a chart and a story make of figures."""

from __future__ import annotations

from typing import Any

import pytest

from oaken_jobs.backlog import Cause
from oaken_jobs.store.base import SPENT, Finishes
from oaken_swarm.cockpit import chart, story, template
from oaken_swarm.cockpit.verdict import verdict

NOW = 1_800_000_000_000
MINUTE = NOW // 60_000


def cause(code: str, text: str, jobs: int) -> Cause:
    return Cause(code, text, None, None, jobs, NOW, None)  # type: ignore[arg-type]


PAUSED = cause("paused", "queue embed is paused", 8)
RETRY = cause("retry", "wait for their next attempt", 3)
OK, BAD, OLD = (
    Finishes(MINUTE, "succeeded", 9, 0),
    Finishes(MINUTE - 1, "failed", 9, 0),
    Finishes(MINUTE - 5, "failed", 99, 0),
)
ONE = Finishes(MINUTE, "succeeded", 1, 0)
GONE = Finishes(MINUTE, "cancelled", 3, 0)
NO_AGENT = cause("no_agent", "no agent takes kind x", 2)


@pytest.mark.parametrize(
    ("counts", "causes", "finishes", "level", "head"),
    [
        ({}, [], [], "ok", "Nothing to do"),
        ({"queued": 5, "running": 2}, [], [OK], "ok", "Work flows"),
        ({"queued": 5, "running": 2}, [], [OK, OK, BAD], "note", "Work flows"),
        ({"queued": 5, "running": 2}, [], [OK, BAD], "bad", "Much of what ends fails"),
        ({"queued": 5, "running": 2}, [], [OK, OLD], "ok", "Work flows"),
        ({"queued": 9, "running": 1}, [PAUSED], [OK], "warn", "Work flows, some is stuck"),
        ({"queued": 9}, [PAUSED], [OK], "warn", "Work flows, some is stuck"),
        ({"queued": 9}, [PAUSED], [OLD], "bad", "Nothing moves"),
        ({"queued": 3}, [RETRY], [], "note", "Nothing runs now"),
        ({"queued": 3}, [], [], "note", "Nothing runs now"),
        ({"queued": 2}, [NO_AGENT], [GONE], "bad", "Nothing moves"),
        ({"queued": 2}, [], [GONE], "note", "Nothing runs now"),
        ({"queued": 2}, [RETRY], [GONE], "note", "Nothing runs now"),
        ({"queued": 2}, [NO_AGENT], [GONE, ONE], "warn", "Work flows, some is stuck"),
        ({"queued": 2}, [NO_AGENT], [GONE, Finishes(MINUTE, "failed", 1, 0)], "bad", "Much of what ends fails"),
        ({"queued": 1, "running": 1}, [], [Finishes(MINUTE, SPENT, 50, 1.0)], "ok", "Work flows"),
    ],
)
def test_the_verdict_says_whether_work_flows(
    counts: dict[str, int], causes: list[Cause], finishes: list[Finishes], level: str, head: str
) -> None:
    found = verdict(counts, causes, finishes, NOW)
    assert (found.level, found.head) == (level, head)


@pytest.mark.parametrize("finishes", [[], [BAD]])
def test_causes_that_somebody_must_see_to_are_named(finishes: list[Finishes]) -> None:
    found = verdict({"queued": 12}, [PAUSED, cause("no_agent", "no agent takes kind x", 4), RETRY], finishes, NOW)
    assert found.rest.endswith("Queue embed is paused (8); no agent takes kind x (4).")


@pytest.mark.parametrize(
    ("counts", "causes", "finishes", "rest"),
    [
        ({"queued": 1}, [], [], "1 job waits for its turn; none finished in the last 5 minutes."),
        ({"queued": 2}, [], [], "2 jobs wait for their turn; none finished in the last 5 minutes."),
        ({"queued": 2, "running": 1}, [], [ONE], "1 runs, 2 wait; 1 job finished in the last 5 minutes."),
        ({"queued": 1}, [PAUSED._replace(jobs=1)], [], "1 job waits, and none finished in the last 5 minutes. "),
        (
            {"queued": 2},
            [NO_AGENT],
            [GONE],
            "2 jobs wait, and none finished in the last 5 minutes (3 were cancelled). ",
        ),
        (
            {},
            [],
            [GONE._replace(jobs=1)],
            "No job is queued or running; none finished in the last 5 minutes (1 was can",
        ),
        (
            {"running": 1},
            [],
            [OK, Finishes(MINUTE, "failed", 1, 0), GONE],
            "1 runs, 0 wait; 10 jobs finished in the last 5 minutes, 1 of them failed (3 were cancelled).",
        ),
        ({"queued": 1}, [RETRY], [], "1 job waits: "),
        ({"running": 1, "queued": 2}, [PAUSED._replace(jobs=1)], [], "1 runs; 1 job waits until somebody sees to it. "),
        ({"queued": 8}, [PAUSED], [ONE], "0 run; 8 jobs wait until somebody sees to them. "),
    ],
)
def test_verbs_go_with_their_numbers(
    counts: dict[str, int], causes: list[Cause], finishes: list[Finishes], rest: str
) -> None:
    assert verdict(counts, causes, finishes, NOW).rest.startswith(rest)


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 jobs wait"), (1, "1 job waits"), (2, "2 jobs wait"), (1200, "1,200 jobs wait")]
)
def test_a_count_is_said_with_the_words_that_go_with_it(count: int, said: str) -> None:
    assert template.counted(count, "job waits", "jobs wait") == said


def test_a_chart_stands_on_its_ground_and_ends_at_its_top() -> None:
    drawn = chart.drawn([Finishes(MINUTE, "succeeded", 3, 0), Finishes(MINUTE, "failed", 1, 0), OLD], NOW)
    last = [bar for bar in drawn.bars if bar.x == 590]
    assert [(bar.state, bar.y, bar.height) for bar in last] == [
        ("succeeded", pytest.approx(96.97, abs=0.1), pytest.approx(3.03, abs=0.1)),
        ("failed", pytest.approx(95.47, abs=0.1), 1.5),
    ]
    assert drawn.top == 99
    assert drawn.says == "In the last hour 103 jobs ended: 3 succeeded, 100 failed. The busiest minute had 99."


def test_a_chart_of_a_single_end_says_so() -> None:
    assert chart.drawn([ONE], NOW).says == "In the last hour 1 job ended: 1 succeeded. The busiest minute had 1."


def test_an_hour_without_an_end_says_so() -> None:
    assert chart.drawn([Finishes(MINUTE - 60, "succeeded", 3, 0)], NOW).says == "Nothing ended in the last hour."


ACTOR = {"kind": "user", "id": "ann", "via": "http"}


def event(at: int, verb: str, epoch: int | None = None, **data: Any) -> dict[str, Any]:
    moment = f"2026-11-30T12:00:{at:02}.000Z"
    return {
        "id": str(at),
        "ts": moment,
        "kind": "job_state_changed",
        "data": {"verb": verb, "epoch": epoch, "actor": ACTOR, **data},
    }


def test_a_story_tells_an_attempt_where_it_begins_and_how_it_ended_where_it_ends() -> None:
    attempt = {"epoch": 1, "attempt": 1, "outcome": "retry", "error": "boom", "started_at": "2026-11-30T12:00:02.000Z"}
    question = {"epoch": 2, "text": "Which?", "answer": "This.", "answered_at": "2026-11-30T12:00:06.000Z"}
    told = story.told(
        [
            event(1, "enqueue", to="queued"),
            event(2, "claim", 1, **{"from": "queued", "to": "running"}),
            event(3, "fail", 1, **{"from": "running", "to": "queued"}),
            event(5, "ask", 2, **{"from": "running", "to": "queued"}),
            event(6, "answer", 2),
            event(7, "cancel", 2, to="running"),
        ],
        [attempt],
        [question],
        [{"epoch": 1, "percent": 40}],
    )
    assert [one["says"] for one in told] == [
        "enqueued",
        "leased",
        "failed, and will be tried again",
        "asked a question",
        "answered",
        "asked to stop",
    ]
    assert told[1]["attempt"] is attempt
    assert told[1]["reports"] == [{"epoch": 1, "percent": 40}]
    assert told[2]["ended"] is attempt
    assert told[3]["question"] is told[4]["answer"] is question


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\0b", "a␀b"),
        ("\x1b[31m", "␛[31m"),
        ("a\n\tb", "a\n\tb"),
        ("é\x7f", "é␡"),
        ("\u202elive\u202c", "\ufffdlive\ufffd"),
        ("\u202a\u202b\u202d", "\ufffd\ufffd\ufffd"),
        ("\u2066a\u2067b\u2068c\u2069", "\ufffda\ufffdb\ufffdc\ufffd"),
        ("שלום\u200f, עולם", "שלום\u200f, עולם"),
    ],
)
def test_control_characters_are_seen_and_not_obeyed(text: str, shown: str) -> None:
    assert template.visible(text) == shown


def test_text_of_others_is_escaped_and_set_apart() -> None:
    assert str(template.told("</bdi><script>\0")) == '<bdi class="told">&lt;/bdi&gt;&lt;script&gt;␀</bdi>'


@pytest.mark.parametrize(("bytes_", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_048_576, "1.0 MB")])
def test_sizes_are_told_in_the_unit_that_fits(bytes_: int, shown: str) -> None:
    assert template.size(bytes_) == shown

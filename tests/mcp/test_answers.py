from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oaken_mcp import answers
from oaken_mcp.answers import Body

NASTY = st.text(st.sampled_from('a"\\\n\t\x7fé日😀'), max_size=300)


@given(NASTY, st.integers(-5, 400))
def test_the_start_of_a_text_takes_no_more_room_than_it_is_given(value: str, room: int) -> None:
    start = answers.start_of(value, room)
    assert value.startswith(start)
    assert not start or answers.size(start) <= room


def test_short_bodies_stay_whole_and_leave_their_room_to_long_ones() -> None:
    rows: list[dict[str, Any]] = [{}, {}, {}]
    answer: dict[str, Any] = {"rows": rows}
    long = f'{{"t":"{"x" * 100_000}"}}'
    answers.fill(
        answer, [Body(row, "payload", 7, text) for row, text in zip(rows, [long, '{"a":1}', long], strict=True)]
    )
    assert rows[1] == {"payload": {"a": 1}}
    assert answers.LIMIT - 500 < answers.size(answer) <= answers.LIMIT
    starts = [len(rows[place]["payload_start"]) for place in (0, 2)]
    assert abs(starts[0] - starts[1]) < 300


@pytest.mark.parametrize(
    "answer",
    [
        {"rows": [{"text": '"' * 500}] * 500},
        {"text": "x" * 100_000},
        {str(n): "x" * 1_000 for n in range(1_000)},
        {"rows": [[["x" * 50] * 50] * 50]},
    ],
)
def test_no_answer_is_longer_than_the_limit(answer: dict[str, Any]) -> None:
    bounded = answers.bounded(answer)
    assert answers.size(bounded) <= answers.HARD_LIMIT
    assert "Ask for less" in bounded["cut"]


def test_an_answer_within_the_limit_is_left_alone() -> None:
    assert answers.bounded({"a": "x" * 10_000}) == {"a": "x" * 10_000}


def test_where_there_is_no_room_for_a_beginning_only_the_call_that_reads_it_is_said() -> None:
    row: dict[str, Any] = {}
    answers.fill(
        {"row": row, "full": "x" * (answers.LIMIT - 300)}, [Body(row, "result", 7, f'{{"t":"{"x" * 1_000}"}}')]
    )
    assert row == {"result_more": "1008 characters: status (job_id 7, part result)."}

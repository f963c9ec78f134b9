"""Calls as models make them, judged by the program that shows how many hold."""

from __future__ import annotations

import pytest

from benchmarks.mcp_usability import CASES, Case, judge


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
async def test_a_call_as_models_make_it_is_carried_out_or_corrected(case: Case) -> None:
    held, told = await judge(case)
    assert held, told


def test_the_calls_are_many_and_of_every_tool() -> None:
    assert len(CASES) >= 80
    assert len({case.title for case in CASES}) == len(CASES)

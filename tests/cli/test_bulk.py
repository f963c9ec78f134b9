"""Bulk changes that take several calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oaken_app import bulk


def answers(monkeypatch: pytest.MonkeyPatch, *told: tuple[int, int, int, int, str | None]) -> list[dict[str, Any]]:
    """Lets calls be answered with these, one after another; what they were asked."""
    left, asked = list(told), list[dict[str, Any]]()

    async def act(client: Any, fields: dict[str, Any]) -> dict[str, Any]:
        asked.append(fields)
        return dict(zip(("matched", "done", "skipped", "remaining", "cursor"), left.pop(0), strict=True))

    monkeypatch.setattr(bulk, "call", lambda data_dir, run: asyncio.run(run(None)))
    bulk.change(None, act, "requeued", dry_run=False, json=False)
    return asked


def test_calls_go_on_from_the_cursor_until_nothing_remains_and_tell_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answers(monkeypatch, (12, 4, 1, 7, "a"), (7, 5, 0, 2, "b"), (2, 2, 0, 0, None))
    assert asked == [{"dry_run": False}, {"cursor": "a"}, {"cursor": "b"}]
    said = capsys.readouterr()
    assert said.out == "Requeued 11 of 12 jobs; 1 refused, or changed meanwhile.\n"
    assert said.err.splitlines() == ["5 of 12 …", "10 of 12 …"]

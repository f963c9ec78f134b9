"""The page about the interface says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from oaken_jobs.errors import OakenError
from oaken_swarm.routes import ROUTES

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
ROWS = {m[1]: m[2] for m in re.finditer(r"^\| `((?:GET|POST|PUT|PATCH|DELETE) [^`]+)` \| (.*)$", PAGE, re.MULTILINE)}


def test_the_page_has_every_route_and_no_other() -> None:
    assert set(ROWS) == {f"{route.method} {route.path}" for route in ROUTES}


def test_the_page_has_every_field_of_every_call() -> None:
    for route in ROUTES:
        row = ROWS[f"{route.method} {route.path}"]
        models = [route.takes] if route.many is None else [route.takes, route.many]
        for field in (name for model in models for name in model.model_fields):
            assert re.search(rf"\b{field}\b", row), f"{route.method} {route.path}: {field}"


def test_the_page_has_every_code_that_http_answers_with() -> None:
    for error in OakenError.__subclasses__():
        if error.code not in ("config", "rate_limited"):  # never answered, not yet answered
            assert re.search(rf"\| {error.status} \|.*`{error.code}`", PAGE), error.code

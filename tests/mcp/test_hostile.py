from __future__ import annotations

from typing import Any

import pytest

from oaken_mcp.catalogue import TOOLS, Tool
from oaken_mcp.server import carry_out
from oaken_mcp.tools import Context
from tests.mcp.door import ME, Door

DEEP: Any = {}
for _ in range(500):
    DEEP = {"d": DEEP}

VALUES: list[Any] = [
    "",
    " ",
    "\x00",
    "\u202e",
    "\ud800",
    "a" * 100_000,
    "#" * 100,
    "{{{{",
    "[[[[",
    '{"a": 1e999}',
    "'; drop table jobs; --",
    "../../etc/passwd",
    "1-1-" + "f" * 24,
    "99999999999999999999-1-" + "f" * 24,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    float("inf"),
    float("nan"),
    2**53,
    2**63,
    2**64,
    -(2**70),
    [],
    [[]],
    [None],
    [True],
    ["a"] * 2_000,
    {},
    {"": ""},
    {"a": {"b": [None]}},
    {"text": "\ud800"},
    {"__proto__": 1},
    DEEP,
]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
async def test_no_value_of_any_argument_makes_a_tool_fail_in_itself(tool: Tool, door: Door) -> None:
    context = Context(door.core, ME)
    async with door.open() as call:
        await call("enqueue", kind="work", payloads=[{}, {}])
        [lease] = (await call("lease"))["leases"]
    usable = {"kind": "work", "lease_id": lease["lease_id"], "error": "e", "job_id": 2, "text": "t"}
    fields = tool.takes.model_fields
    given: dict[str, Any] = {name: usable[name] for name, field in fields.items() if field.is_required()}
    waiting = {"wait", "seconds", "wait_seconds"} & fields.keys() if tool.name != "release" else set()
    given |= dict.fromkeys(waiting, 0)
    for name in [*fields, "unknown"]:
        for value in VALUES:
            if name in waiting and value == 1.5:
                continue  # the clock stands still
            result = await carry_out(tool, context, {**given, name: value})
            text = result.content[0].text  # type: ignore[union-attr]
            assert not text.startswith("Oaken failed"), (name, value)
            assert "The store failed" not in text, (name, value)
            assert len(text) < 20_000
            assert "pydantic" not in text


async def test_usage_that_would_add_up_beyond_what_json_keeps_is_refused(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        for _ in range(2):
            [lease] = (await call("lease"))["leases"]
            told = await call.refused("fail", lease_id=lease["lease_id"], error="e", usage={"n": 2**63 - 1})
            assert "usage.n: must be a number" in told
            await call("fail", lease_id=lease["lease_id"], error="e", usage={"n": 10**12})
            door.clock.advance(60)

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from oaken_jobs.requests import PRIORITIES
from oaken_mcp.catalogue import TOOLS
from oaken_mcp.server import definition
from tests.mcp.door import ME, VIEWER, WORKER, Door

SHOWN: list[dict[str, Any]] = [
    definition(tool).model_dump(by_alias=True, mode="json", exclude_none=True) for tool in TOOLS
]
READING = {"status", "list_jobs", "wait"}


def _schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for inner in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        yield from _schemas(inner)


def test_there_are_a_dozen_tools_whose_definitions_together_are_small() -> None:
    assert len(SHOWN) == 12
    assert len(json.dumps(SHOWN, separators=(",", ":"))) < 12_000


@pytest.mark.parametrize("tool", SHOWN, ids=lambda tool: tool["name"])
def test_schemas_are_flat_and_every_object_has_members(tool: dict[str, Any]) -> None:
    for side in ("inputSchema", "outputSchema"):
        for schema in _schemas(tool[side]):
            assert not schema.keys() & {"$ref", "$defs", "anyOf", "oneOf", "allOf", "not"}
            assert isinstance(schema["type"], str)
            if schema["type"] == "object":
                assert schema["properties"]
            if schema["type"] == "array":
                assert schema["items"]
            if schema is not tool[side] and schema["type"] == "object":
                # What is sent is to be seen to be open; what comes back is, as every schema that does not say otherwise.
                assert schema.get("additionalProperties", side == "outputSchema") is True
    assert tool["inputSchema"]["additionalProperties"] is False
    for argument in tool["inputSchema"]["properties"].values():
        assert argument["description"]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_argument_is_described_and_no_other(tool: Any) -> None:
    assert tool.described.keys() == tool.takes.model_fields.keys()


@pytest.mark.parametrize("tool", SHOWN, ids=lambda tool: tool["name"])
def test_annotations_say_what_a_tool_does(tool: dict[str, Any]) -> None:
    assert tool["annotations"] == {
        "readOnlyHint": tool["name"] in READING,
        "destructiveHint": tool["name"] == "cancel",
        "idempotentHint": tool["name"] not in {"enqueue", "lease", "requeue", "answer"},
        "openWorldHint": False,
    }
    assert tool["title"]
    assert tool["description"]


async def test_a_caller_sees_the_tools_that_its_roles_may_call(door: Door) -> None:
    working = {"enqueue", "status", "list_jobs", "wait", "answer", "lease", "heartbeat", "complete", "fail", "release"}
    for who, names in (
        (ME, {tool.name for tool in TOOLS}),
        (WORKER, working),
        (VIEWER, READING),
    ):
        async with door.open(who) as call:
            assert {tool.name for tool in (await call.client.list_tools()).tools} == names


def test_the_priority_that_a_job_gets_by_itself_is_the_one_described() -> None:
    [enqueue] = [tool for tool in SHOWN if tool["name"] == "enqueue"]
    described = enqueue["inputSchema"]["properties"]["priority"]["description"]
    assert f"else {PRIORITIES['ingest']}, users {PRIORITIES['user']}" in described

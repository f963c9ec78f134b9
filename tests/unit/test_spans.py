"""Rows of the trace and their names in OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest

from oaken_jobs.model import Job
from oaken_jobs.spans import CONVENTIONS, attributes, span_id, trace_id

TEXT = '[{"role":"user","parts":[{"type":"text","content":"hi"}]}]'


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, {}),
        (
            {
                "operation": "chat",
                "provider": "anthropic",
                "model": "m-1",
                "job_id": 7,
                "agent": "writer/a",
                "event": "agent",
            },
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "anthropic",
                "gen_ai.request.model": "m-1",
                "gen_ai.conversation.id": "7",
                "gen_ai.agent.id": "writer/a",
                "gen_ai.agent.name": "writer",
            },
        ),
        ({"event": "finish", "model": "m-2"}, {"gen_ai.response.model": "m-2"}),
        (
            {
                "usage": {
                    "input_tokens": 3,
                    "output_tokens": 4.0,
                    "cache_read_input_tokens": 1,
                    "reasoning_tokens": 2,
                    "pages": 9,
                }
            },
            {
                "gen_ai.usage.input_tokens": 3,
                "gen_ai.usage.output_tokens": 4,
                "gen_ai.usage.cache_read.input_tokens": 1,
                "gen_ai.usage.reasoning.output_tokens": 2,
            },
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 3,
                    "completion_tokens": 4,
                    "cached_tokens": 1,
                    "cache_creation_input_tokens": 5,
                }
            },
            {
                "gen_ai.usage.input_tokens": 3,
                "gen_ai.usage.output_tokens": 4,
                "gen_ai.usage.cache_read.input_tokens": 1,
                "gen_ai.usage.cache_creation.input_tokens": 5,
            },
        ),
        ({"cost_usd": 0.5, "queue": "q", "epoch": 3}, {}),
        ({"input": "hi"}, {"gen_ai.input.messages": TEXT}),
        (
            {"input": [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]},
            {"gen_ai.input.messages": TEXT},
        ),
        (
            {"event": "lease", "input": {"instructions": "Be brief.", "payload": {"n": 1}}},
            {
                "gen_ai.system_instructions": '[{"type":"text","content":"Be brief."}]',
                "gen_ai.input.messages": '[{"role":"user","parts":[{"type":"text","content":"{\\"payload\\":{\\"n\\":1}}"}]}]',
            },
        ),
        (
            {"event": "finish", "output": {"n": 1}},
            {
                "gen_ai.output.messages": '[{"role":"assistant","finish_reason":"stop","parts":'
                '[{"type":"text","content":"{\\"n\\":1}"}]}]'
            },
        ),
        (
            {"event": "finish", "output": "it broke", "error_type": "job_failed"},
            {
                "error.type": "job_failed",
                "gen_ai.output.messages": '[{"role":"assistant","finish_reason":"error","parts":'
                '[{"type":"text","content":"it broke"}]}]',
            },
        ),
        (
            {"tool": "search", "operation": "execute_tool", "input": {"q": 1}, "output": [2]},
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "search",
                "gen_ai.tool.call.arguments": '{"q":1}',
                "gen_ai.tool.call.result": "[2]",
            },
        ),
    ],
)
def test_a_row_has_the_names_of_the_conventions(row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert attributes(row) == expected


def test_the_version_of_the_conventions_is_pinned() -> None:
    assert CONVENTIONS == "semantic-conventions-genai 0.1.0"


def test_ids_follow_from_the_job_and_differ_between_jobs_attempts_and_installations() -> None:
    job = Job(*[None] * len(Job._fields))._replace(id=7, created_at=5)  # type: ignore[arg-type]
    traces = {trace_id(job), trace_id(job._replace(id=8)), trace_id(job._replace(created_at=6))}
    spans = {span_id(job, 1), span_id(job, 2), span_id(job._replace(id=8), 1), span_id(job._replace(created_at=6), 1)}
    assert (len(traces), len(spans)) == (3, 4)
    assert ({len(one) for one in traces}, {len(one) for one in spans}) == ({32}, {16})
    assert trace_id(job) == trace_id(job._replace(state="failed", epoch=9))

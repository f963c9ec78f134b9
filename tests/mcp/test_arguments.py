from __future__ import annotations

from typing import Any

import pytest

from oaken_jobs.errors import OakenError
from oaken_mcp import arguments
from oaken_mcp.arguments import take

ID = "1-1-" + "0" * 24


@pytest.mark.parametrize(
    ("model", "given", "name", "taken"),
    [
        (arguments.Status, {"job_id": "#1042"}, "job_id", 1042),
        (arguments.Status, {"job_id": " 1042 "}, "job_id", 1042),
        (arguments.Status, {"job_id": 1042.0}, "job_id", 1042),
        (arguments.Status, {"job_id": None}, "job_id", None),
        (arguments.WaitFor, {"job_ids": "#7"}, "job_ids", [7]),
        (arguments.WaitFor, {"job_ids": ["#7", 8, "9"]}, "job_ids", [7, 8, 9]),
        (arguments.WaitFor, {"job_ids": "[7, 8]"}, "job_ids", [7, 8]),
        (arguments.WaitFor, {"job_ids": 7}, "job_ids", [7]),
        (arguments.Lease, {"kinds": "embed"}, "kinds", ["embed"]),
        (arguments.Lease, {"kinds": '["embed", "triage"]'}, "kinds", ["embed", "triage"]),
        (arguments.Lease, {"kinds": None, "max": None}, "kinds", None),
        (arguments.Lease, {"max": 2.0}, "max", 2),
        (arguments.Lease, {"max": "3"}, "max", 3),
        (arguments.Lease, {"kinds": "embed, triage"}, "kinds", ["embed", "triage"]),
        (arguments.Lease, {"lease_seconds": "30m"}, "lease_seconds", 1800),
        (arguments.Lease, {"resume": "True"}, "resume", True),
        (arguments.Enqueue, {"kind": "k", "delay_seconds": "1.5 hours"}, "delay_seconds", 5400),
        (arguments.Enqueue, {"kind": "k", "wait": "10s"}, "wait", 10),
        (arguments.Enqueue, {"kind": "k", "priority": "70"}, "priority", 70),
        (arguments.Status, {"job_id": "job 1042"}, "job_id", 1042),
        (arguments.Status, {"job_id": "Job #1042."}, "job_id", 1042),
        (arguments.Status, {"job_id": "job_id: 1042"}, "job_id", 1042),
        (arguments.Status, {"job_id": "oaken://jobs/1042"}, "job_id", 1042),
        (arguments.WaitFor, {"job_ids": "7, #8 , job 9"}, "job_ids", [7, 8, 9]),
        (arguments.ListJobs, {"state": " Failed"}, "state", "failed"),
        (arguments.Heartbeat, {"lease_id": f"`{ID}`\n"}, "lease_id", ID),
        (arguments.Enqueue, {"kind": "k", "payload": '{"a": 1}'}, "payload", {"a": 1}),
        (arguments.Enqueue, {"kind": "k", "payload": "Translate this."}, "payload", {"text": "Translate this."}),
        (arguments.Enqueue, {"kind": "k", "payload": "[1, 2]"}, "payload", {"text": "[1, 2]"}),
        (arguments.Enqueue, {"kind": "k", "payload": '{"a": 1'}, "payload", {"text": '{"a": 1'}),
        (arguments.Enqueue, {"kind": "k", "payload": {"a": None}}, "payload", {"a": None}),
        (arguments.Enqueue, {"kind": "k", "payload": None}, "payload", {}),
        (arguments.Enqueue, {"kind": "k", "payloads": ["a", {"b": 1}]}, "payloads", [{"text": "a"}, {"b": 1}]),
        (arguments.Enqueue, {"kind": "k", "payloads": '[{"a": 1}]'}, "payloads", [{"a": 1}]),
        (arguments.Enqueue, {"kind": "k", "tags": "urgent"}, "tags", ["urgent"]),
        (arguments.Enqueue, {"kind": "k", "priority": "backfill"}, "priority", 10),
        (arguments.Enqueue, {"kind": "k", "parent_id": "#3"}, "parent_id", 3),
        (arguments.Complete, {"lease_id": ID, "result": "done"}, "result", {"text": "done"}),
        (arguments.Complete, {"lease_id": ID, "result": '{"ok": true}'}, "result", {"ok": True}),
        (arguments.Complete, {"lease_id": ID, "usage": '{"input_tokens": 5}'}, "usage", {"input_tokens": 5}),
    ],
)
def test_what_models_commonly_get_wrong_is_put_right(model: Any, given: Any, name: str, taken: Any) -> None:
    assert getattr(take(model, given), name) == taken


def test_what_clients_add_of_their_own_is_dropped() -> None:
    noise = {"toolCallId": "1", "sessionId": "s", "action": "sendMessage", "chatInput": "hello"}
    assert take(arguments.Cancel, {"job_id": 1, **noise}) == arguments.Cancel(job_id=1)


@pytest.mark.parametrize(
    ("model", "given", "told"),
    [
        (arguments.Status, {"job": 1}, "did you mean job_id?"),
        (arguments.Lease, {"kind": "a"}, "did you mean kinds?"),
        (arguments.Enqueue, {"kind": "k", "zzz": 1}, "known are"),
        (arguments.Cancel, {}, "job_id: is required"),
        (arguments.Cancel, {"job_id": True}, "must be a whole number (got true)"),
        (arguments.Cancel, {"job_id": "the last one"}, "must be a whole number"),
        (arguments.Cancel, {"job_id": 1.5}, "must be a whole number"),
        (arguments.Cancel, {"job_id": 0}, "must be more than 0"),
        (arguments.Lease, {"max": "three"}, "must be a whole number (got 'three')"),
        (arguments.Lease, {"max": "2.5"}, "must be a whole number"),
        (arguments.Cancel, {"job_id": "-5"}, "must be a whole number (got '-5')"),
        (arguments.Cancel, {"job_id": "jobs 5 and 6"}, "must be a whole number"),
        (arguments.Lease, {"wait_seconds": "a while"}, "must be a number (got 'a while')"),
        (arguments.Enqueue, {"kind": "k", "queue": "mail"}, "leave it out, or move the job with requeue"),
        (arguments.Heartbeat, {"id": ID}, "id: unknown field; did you mean lease_id?"),
        (arguments.Cancel, {"id": 1}, "id: unknown field; did you mean job_id?"),
        (arguments.Cancel, {"jobId": 1}, "jobId: unknown field; did you mean job_id?"),
        (arguments.Complete, {"lease_id": ID, "output": {}}, "did you mean result?"),
        (arguments.Lease, {"max": True}, "must be a whole number"),
        (arguments.Lease, {"wait_seconds": True}, "must be a number"),
        (arguments.Lease, {"wait_seconds": 16}, "must be at most 15"),
        (arguments.Lease, {"lease_seconds": 0.5}, "must be at least 1"),
        (arguments.Lease, {"queues": [1]}, "must be text"),
        (arguments.Enqueue, {"kind": "k", "payload": [1]}, "payload: must be a JSON object (got a list)"),
        (arguments.Enqueue, {"kind": "k", "payload": 5}, "payload: must be a JSON object"),
        (arguments.Enqueue, {"kind": "k", "payload": '{"a": 1, "a": 2}'}, "the key 'a' twice"),
        (arguments.Enqueue, {"kind": "k", "payload": {"a": 2**70}}, "an integer beyond 64 bits at /payload/a"),
        (arguments.Enqueue, {"kind": "k", "payload": {"a": float("nan")}}, "at /payload/a"),
        (arguments.Enqueue, {"kind": "k", "payload": {"a": "\ud800"}}, "a lone surrogate at /payload/a"),
        (arguments.Enqueue, {"kind": "k", "payload": {}, "payloads": [{}]}, "payload is for one job"),
        (arguments.Enqueue, {"kind": "k", "dedupe_key": "d", "payloads": [{}]}, "dedupe_key is for one job"),
        (arguments.Enqueue, {"kind": "k", "payloads": []}, "at least 1 entries"),
        (arguments.Enqueue, {"kind": "k", "delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z"}, "give one of them"),
        (arguments.Enqueue, {"kind": "k", "run_at": "tomorrow"}, "give a time with its zone"),
        (arguments.WaitFor, {}, "give either job_id or job_ids"),
        (arguments.WaitFor, {"job_id": 1, "job_ids": [2]}, "give either job_id or job_ids"),
        (arguments.Requeue, {"job_id": 1, "queue": "mail", "retriage": True}, "give one of them"),
        (arguments.Lease, {"resume": True, "kinds": ["a"]}, "leave out queues and kinds"),
        (arguments.Release, {"lease_id": ID, "after_children": True, "seconds": 5}, "leave out seconds and question"),
        (
            arguments.Release,
            {"lease_id": ID, "after_children": True, "question": "?"},
            "leave out seconds and question",
        ),
        (arguments.Release, {"lease_id": ID, "question": ""}, "question: must be at least 1 characters"),
        (arguments.Release, {"lease_id": ID, "question": "?", "seconds": 0}, "give more than 0"),
        (arguments.Answer, {"job_id": 1, "text": "x" * 20_001}, "text: must be at most 20000 characters"),
        (arguments.Enqueue, {"kind": "k", "on_duplicate": "replace"}, "needs a dedupe_key or a target"),
        (arguments.Enqueue, {"kind": "k", "ttl_seconds": 1, "expires_at": "2030-01-01T00:00:00Z"}, "give one of them"),
        (arguments.Fail, {"lease_id": ID, "error": "e", "permanent": "yes"}, "must be true or false"),
        (arguments.Complete, {"lease_id": ID, "usage": "a lot"}, "usage: must be a JSON object"),
        (arguments.Complete, {"lease_id": ID, "cost_usd": True}, "cost_usd: must be a number"),
    ],
)
def test_everything_else_is_refused_with_its_name_and_what_is_allowed(model: Any, given: Any, told: str) -> None:
    with pytest.raises(OakenError) as caught:
        take(model, given)
    assert told in caught.value.message

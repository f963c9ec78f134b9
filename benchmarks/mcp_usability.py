"""Tool calls as models make them, each with the outcome it must have: carried out as meant, or refused with words that hold the correction.

    python -m benchmarks.mcp_usability [--all]

Each call goes through the SDK's own client to the server, on a folder of its own in which jobs stand in every state: `{queued}` and such in
a call are their ids. A figure is how many hold; wanted are all of them. `--all` shows each call with what it was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent

from oaken_jobs.clock import FakeClock
from oaken_jobs.core import Core
from oaken_jobs.kinds import Kind, Rules, Schema
from oaken_jobs.model import Actor, Json, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.store.operations import Sweep
from oaken_mcp.server import build
from oaken_mcp.tools import Context

ME = Principal(Actor("agent", "claude", "mcp"), frozenset({"user", "agent"}), "now")
RIVAL = Principal(Actor("agent", "rival", "mcp"), frozenset({"agent"}), "1")
COUNT = Schema.compile(
    {"type": "object", "properties": {"words": {"type": "integer"}}, "required": ["words"]}, "the kind count"
)
RULES = Rules(
    kinds={"count": Kind("count", payload_schema=None, result_schema=COUNT, instructions="Count the words of text.")},
    backoff_jitter=0.0,
)
LONG = "A page of text. " * 4_000


class Has(NamedTuple):
    """Stands for a text that holds another."""

    text: str


class Case(NamedTuple):
    """One call. `wanted` is a pattern that the refusal must hold, or what the answer must: members of objects, `...` for anything that is
    not empty, None for nothing."""

    title: str
    tool: str
    arguments: Any
    wanted: Json | str


@dataclass
class World:
    """A server on a folder where jobs stand in every state."""

    core: Core
    clock: FakeClock
    client: Client
    names: dict[str, Any]

    async def call(self, case: Case) -> tuple[bool, str]:
        """Whether the case holds, and what was answered."""
        arguments = _filled(case.arguments, self.names)
        calling = asyncio.ensure_future(self.client.call_tool(case.tool, arguments))
        while not calling.done():  # time passes for those who wait
            await asyncio.sleep(0.002)
            self.clock.advance(0.5)
        answer: Json | None = None
        try:
            result = await calling
        except MCPError as error:
            told = str(error)
        else:
            [content] = result.content
            told = content.text if isinstance(content, TextContent) else ""
            answer = None if result.is_error else result.structured_content
        if isinstance(case.wanted, str):
            return answer is None and re.search(case.wanted, told) is not None, told
        return answer is not None and _holds(case.wanted, answer), told


def _holds(wanted: Any, found: Any) -> bool:
    if wanted is ...:
        return bool(found)
    if isinstance(wanted, Has):
        return isinstance(found, str) and wanted.text in found
    if isinstance(wanted, dict):
        members = cast("Json", wanted)
        return isinstance(found, dict) and all(
            _holds(one, cast("Json", found).get(name)) for name, one in members.items()
        )
    if isinstance(wanted, list):
        items, there = cast("list[Any]", wanted), cast("list[Any]", found if isinstance(found, list) else [])
        return len(items) == len(there) and all(map(_holds, items, there))
    return bool(wanted == found)


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    """The value with `{name}` replaced; one that is nothing else becomes what the name stands for, a number for instance."""
    if isinstance(value, str):
        if (match := re.fullmatch(r"\{(\w+)\}", value)) and match[1] in names:
            return names[match[1]]
        return re.sub(r"\{(\w+)\}", lambda match: str(names.get(match[1], match[0])), value)
    if isinstance(value, dict):
        return {name: _filled(one, names) for name, one in cast("Json", value).items()}
    if isinstance(value, list):
        return [_filled(one, names) for one in cast("list[Any]", value)]
    return value


@asynccontextmanager
async def world() -> AsyncGenerator[World]:
    """Jobs of one kind each, named by the state they are in."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory(prefix="oaken-usability-") as folder:
        core = Core.on_folder(Path(folder), RULES, "mcp", clock)
        await core.open()
        jobs, names = core.jobs, dict[str, Any]()

        async def add(name: str, **given: Any) -> int:
            names[name] = (await jobs.enqueue(ME, NewJobRequest(kind=name, **given))).job.id
            return names[name]

        async def lease(name: str, who: Principal = ME, seconds: float = 600) -> str:
            (one,) = await jobs.lease(who, kinds=[name], lease_seconds=seconds)
            return one.lease_id

        await add("lost")
        names["lost_lease"] = await lease("lost", ME, 1)
        clock.advance(30)
        await core.commit.call(Sweep(100))  # nobody heard of it for half a minute
        names["rival_lease"] = await lease("lost", RIVAL)
        await add("queued", title="Translate the report", dedupe_key="report", payload={"text": "Guten Tag"})
        await add("failed")
        await jobs.finish(ME, jobs.fail_op(ME, await lease("failed"), "no such page", permanent=True))
        await add("done")
        await jobs.finish(ME, jobs.complete_op(ME, await lease("done"), {"answer": 42}, None))
        names["done_lease"] = "0-0-" + "0" * 24
        await add("long", payload={"text": LONG})
        await jobs.finish(ME, jobs.complete_op(ME, await lease("long"), {"text": LONG}, None))
        await add("asking")
        await jobs.finish(RIVAL, jobs.ask_op(RIVAL, await lease("asking", RIVAL), "Formal or informal?"))
        await add("held", payload={"text": "Guten Abend"})
        names["lease"] = await lease("held")
        await add("count", payload={"text": "one two"})
        names["count_lease"] = await lease("count")
        await add("open", payload={"text": "take me"})
        async with Client(build(lambda ctx: Context(core, ME))) as client:
            yield World(core, clock, client, names)
        await core.close()


CASES: list[Case] = [
    # Handing work over.
    Case("a plain job", "enqueue", {"kind": "translate", "payload": {"text": "hi"}}, {"created": ..., "next": ...}),
    Case(
        "payload as JSON in a text",
        "enqueue",
        {"kind": "translate", "payload": '{"text": "hi"}'},
        {"created": ...},
    ),
    Case("payload as plain text", "enqueue", {"kind": "translate", "payload": "Translate: hi"}, {"created": ...}),
    Case("payload left out", "enqueue", {"kind": "tidy"}, {"created": ...}),
    Case("payload null", "enqueue", {"kind": "tidy", "payload": None}, {"created": ...}),
    Case(
        "every optional null",
        "enqueue",
        {
            "kind": "tidy",
            "subject": None,
            "priority": None,
            "tags": None,
            "run_at": None,
            "wait": None,
            "lease_id": None,
            "payloads": None,
        },
        {"created": ...},
    ),
    Case("priority as text", "enqueue", {"kind": "tidy", "priority": "80"}, {"job": {"priority": 80}}),
    Case("priority by name", "enqueue", {"kind": "tidy", "priority": "user"}, {"job": {"priority": 100}}),
    Case(
        "priority as a word",
        "enqueue",
        {"kind": "tidy", "priority": "high"},
        r"priority: must be a whole number from 0 to 1000, or one of user",
    ),
    Case("priority out of range", "enqueue", {"kind": "tidy", "priority": 5000}, r"priority: must be at most 1000"),
    Case("one tag for a list", "enqueue", {"kind": "tidy", "tags": "urgent"}, {"job": {"tags": ["urgent"]}}),
    Case(
        "tags as JSON in a text",
        "enqueue",
        {"kind": "tidy", "tags": '["a", "b"]'},
        {"job": {"tags": ["a", "b"]}},
    ),
    Case("delay as text", "enqueue", {"kind": "tidy", "delay_seconds": "300"}, {"job": {"state": "queued"}}),
    Case(
        "delay in words",
        "enqueue",
        {"kind": "tidy", "delay_seconds": "5 minutes"},
        {"job": {"waits": [{"code": "delayed"}]}},
    ),
    Case(
        "delay that cannot be read",
        "enqueue",
        {"kind": "tidy", "delay_seconds": "soon"},
        r"delay_seconds: must be a number",
    ),
    Case(
        "a moment in words",
        "enqueue",
        {"kind": "tidy", "run_at": "tomorrow at noon"},
        r"run_at: give a time with its zone, such as 2030-01-31T12:00:00Z",
    ),
    Case(
        "a moment without zone",
        "enqueue",
        {"kind": "tidy", "run_at": "2030-01-31T12:00:00"},
        r"give a time with its zone",
    ),
    Case(
        "a moment with zone",
        "enqueue",
        {"kind": "tidy", "run_at": "2030-01-31T12:00:00+01:00"},
        {"job": {"run_at": "2030-01-31T11:00:00.000Z"}},
    ),
    Case("a moment as epoch", "enqueue", {"kind": "tidy", "run_at": 1900000000}, r"give a time with its zone"),
    Case(
        "delay and moment",
        "enqueue",
        {"kind": "tidy", "delay_seconds": 1, "run_at": "2030-01-31T12:00:00Z"},
        r"give one of them",
    ),
    Case("kind called type", "enqueue", {"type": "tidy"}, r"type: unknown field; did you mean kind\?"),
    Case(
        "payload called data",
        "enqueue",
        {"kind": "tidy", "data": {"a": 1}},
        r"data: unknown field; did you mean payload\?",
    ),
    Case("payload called args", "enqueue", {"kind": "tidy", "args": {"a": 1}}, r"did you mean payload\?"),
    Case(
        "payload fields beside kind",
        "enqueue",
        {"kind": "tidy", "text": "hi"},
        r"text: unknown field; did you mean payload\?",
    ),
    Case(
        "camel case",
        "enqueue",
        {"kind": "tidy", "dedupeKey": "x"},
        r"dedupeKey: unknown field; did you mean dedupe_key\?",
    ),
    Case("a queue named", "enqueue", {"kind": "tidy", "queue": "mail"}, r"queue of its kind or subject; leave it out"),
    Case("kind missing", "enqueue", {"payload": {"a": 1}}, r"kind: is required"),
    Case("kind with spaces", "enqueue", {"kind": "translate text"}, r"kind: must match"),
    Case(
        "a list for one payload",
        "enqueue",
        {"kind": "tidy", "payload": [{"a": 1}, {"a": 2}]},
        r"payload: must be a JSON object \(got a list\)",
    ),
    Case("many payloads", "enqueue", {"kind": "tidy", "payloads": [{"a": 1}, {"a": 2}]}, {"job_ids": [..., ...]}),
    Case(
        "many payloads as a text",
        "enqueue",
        {"kind": "tidy", "payloads": '[{"a": 1}, {"a": 2}]'},
        {"job_ids": [..., ...]},
    ),
    Case(
        "many payloads as texts",
        "enqueue",
        {"kind": "tidy", "payloads": ["one", "two"]},
        {"job_ids": [..., ...]},
    ),
    Case(
        "payload and payloads",
        "enqueue",
        {"kind": "tidy", "payload": {}, "payloads": [{}]},
        r"payload is for one job; leave it out with payloads",
    ),
    Case(
        "the same again",
        "enqueue",
        {"kind": "queued", "dedupe_key": "report"},
        {"created": False, "note": Has("live with the same dedupe_key")},
    ),
    Case("wait as text", "enqueue", {"kind": "tidy", "wait": "1"}, {"final": False, "next": Has("Call wait")}),
    Case("a wait too long", "enqueue", {"kind": "tidy", "wait": 120}, r"wait: must be at most 15"),
    Case("a child of a held job", "enqueue", {"kind": "part", "lease_id": "{lease}"}, {"job": {"parent_id": ...}}),
    Case("a child of a lost job", "enqueue", {"kind": "part", "lease_id": "{lost_lease}"}, r"Call lease for new work"),
    Case(
        "noise of a client",
        "enqueue",
        {"kind": "tidy", "toolCallId": "call_1", "sessionId": "s"},
        {"created": ...},
    ),
    Case(
        "a switch as text",
        "enqueue",
        {"kind": "tidy", "on_duplicate": "replace", "dedupe_key": "z"},
        {"created": ...},
    ),
    Case(
        "an unknown choice",
        "enqueue",
        {"kind": "tidy", "on_duplicate": "skip", "dedupe_key": "z"},
        r"on_duplicate: must be 'keep' or 'replace'",
    ),
    # Looking.
    Case("no arguments", "status", {}, {"leases": [..., ...], "questions": [...], "next": ...}),
    Case("null for no job", "status", {"job_id": None}, {"job": None}),
    Case("arguments left out", "status", None, {"job": None}),
    Case("id as text", "status", {"job_id": "{queued}"}, {"job": {"kind": "queued"}}),
    Case("id with #", "status", {"job_id": "#{queued}"}, {"job": {"kind": "queued"}}),
    Case("id with words", "status", {"job_id": "job {queued}"}, {"job": {"kind": "queued"}}),
    Case("id in a sentence's end", "status", {"job_id": "Job #{queued}."}, {"job": {"kind": "queued"}}),
    Case("id as a resource", "status", {"job_id": "oaken://jobs/{queued}"}, {"job": {"kind": "queued"}}),
    Case("id called id", "status", {"id": 3}, r"id: unknown field; did you mean job_id\?"),
    Case("id of nothing", "status", {"job_id": 99999}, r"There is no job 99999.*list_jobs"),
    Case("a name for an id", "status", {"job_id": "the report"}, r"job_id: must be a whole number"),
    Case("a huge result", "status", {"job_id": "{long}"}, {"job": {"result_more": Has("part result, offset")}}),
    Case(
        "reading on",
        "status",
        {"job_id": "{long}", "part": "result", "offset": 10_000},
        {"next_offset": ...},
    ),
    Case(
        "reading on as texts",
        "status",
        {"job_id": "{long}", "part": "Result", "offset": "60000"},
        {"text": ..., "next_offset": None},
    ),
    Case(
        "reading beyond the end",
        "status",
        {"job_id": "{long}", "part": "result", "offset": 10_000_000},
        r"offset: 10000000 is beyond the end",
    ),
    Case("a part there is none of", "status", {"job_id": "{queued}", "part": "result"}, r"has no result; it is queued"),
    Case("an unknown part", "status", {"job_id": "{queued}", "part": "output"}, r"part: must be 'payload', 'result'"),
    Case("why it failed", "status", {"job_id": "{failed}"}, {"job": {"last_error": "no such page"}}),
    Case("what it asks", "status", {"job_id": "{asking}"}, {"next": Has("call answer with job_id")}),
    Case(
        "state as it is called elsewhere",
        "list_jobs",
        {"state": "pending"},
        r"state: must be 'queued', 'running', 'succeeded', 'failed' or 'cancelled'",
    ),
    Case("state called status", "list_jobs", {"status": "failed"}, r"did you mean state\?"),
    Case(
        "state in capitals",
        "list_jobs",
        {"state": "FAILED"},
        {"jobs": [{"kind": "failed"}]},
    ),
    Case("limit as text", "list_jobs", {"limit": "2"}, {"jobs": [..., ...], "next_cursor": ...}),
    Case("a limit too large", "list_jobs", {"limit": 1000}, r"limit: must be at most 100"),
    Case("search called q", "list_jobs", {"q": "report"}, r"did you mean query\?"),
    Case("search", "list_jobs", {"query": "report"}, {"jobs": [{"kind": "queued"}]}),
    Case("a page by number", "list_jobs", {"page": 2}, r"did you mean cursor\?"),
    Case("a cursor made up", "list_jobs", {"cursor": "2"}, r"cursor"),
    Case("mine as text", "list_jobs", {"mine": "true"}, {"jobs": ...}),
    Case(
        "waiting for one that has ended",
        "wait",
        {"job_id": "{done}"},
        {"final": ..., "job": {"result": {"answer": 42}}},
    ),
    Case(
        "waiting for several as a text",
        "wait",
        {"job_ids": "{done}, {failed}", "seconds": 0},
        {"jobs": [..., ...], "final": ...},
    ),
    Case(
        "waiting for several under one name",
        "wait",
        {"job_id": "{done}", "job_ids": ["{failed}"]},
        r"give either job_id or job_ids",
    ),
    Case("waiting too long", "wait", {"job_id": "{queued}", "seconds": 300}, r"seconds: must be at most 15"),
    Case(
        "waiting under another name",
        "wait",
        {"job_id": "{queued}", "timeout": 10},
        r"timeout: unknown field; did you mean seconds\?",
    ),
    Case(
        "waiting for what does not end",
        "wait",
        {"job_id": "{queued}", "seconds": 1},
        {"final": False, "next": ...},
    ),
    Case("waiting for nothing", "wait", {}, r"give either job_id or job_ids"),
    # Changing.
    Case(
        "cancel with words",
        "cancel",
        {"job_id": "job #{queued}"},
        {"changed": ..., "job": {"state": "cancelled"}},
    ),
    Case("cancel what has ended", "cancel", {"job_id": "{done}"}, {"changed": False}),
    Case(
        "cancel with a reason",
        "cancel",
        {"job_id": "{queued}", "reason": "not needed"},
        r"reason: unknown field; known are job_id",
    ),
    Case("requeue a failed one", "requeue", {"job_id": "{failed}"}, {"job": {"state": "queued"}}),
    Case("requeue one that runs", "requeue", {"job_id": "{held}"}, r"running"),
    Case("requeue one that succeeded", "requeue", {"job_id": "{done}"}, r"succeeded"),
    Case("answer a question", "answer", {"job_id": "{asking}", "text": "Formal."}, {"job": {"question": None}}),
    Case(
        "answer called answer",
        "answer",
        {"job_id": "{asking}", "answer": "Formal."},
        r"answer: unknown field; did you mean text\?",
    ),
    Case("answer one that asks nothing", "answer", {"job_id": "{queued}", "text": "Yes."}, r"has no open question"),
    # Working.
    Case(
        "lease one kind as text",
        "lease",
        {"kinds": "open"},
        {"leases": [{"job": {"payload": {"text": "take me"}}}]},
    ),
    Case("lease with the singular", "lease", {"kind": "open"}, r"kind: unknown field; did you mean kinds\?"),
    Case("lease kinds with commas", "lease", {"kinds": "none, open"}, {"leases": [...]}),
    Case("lease kinds as JSON in a text", "lease", {"kinds": '["open"]'}, {"leases": [...]}),
    Case("lease with max as text", "lease", {"kinds": ["open"], "max": "5"}, {"leases": [...]}),
    Case("lease with count", "lease", {"count": 5}, r"count: unknown field; did you mean max\?"),
    Case("lease too many", "lease", {"max": 100}, r"max: must be at most 10"),
    Case("lease for half an hour", "lease", {"kinds": ["open"], "lease_seconds": "30 minutes"}, {"leases": ...}),
    Case(
        "lease when there is nothing",
        "lease",
        {"kinds": ["nothing"]},
        {"leases": [], "next": Has("Call lease again")},
    ),
    Case(
        "lease waiting for what never comes",
        "lease",
        {"kinds": ["nothing"], "wait_seconds": 2},
        {"leases": []},
    ),
    Case(
        "after a context reset",
        "lease",
        {"resume": True},
        {"leases": [{"job": {"kind": "held"}}, {"job": {"kind": "count"}}]},
    ),
    Case(
        "heartbeat",
        "heartbeat",
        {"lease_id": "{lease}", "percent": "40", "message": "half way"},
        {"expires_at": ..., "cancelling": False},
    ),
    Case(
        "heartbeat with percent as it is written",
        "heartbeat",
        {"lease_id": "{lease}", "percent": "40%"},
        r"percent: must be a number",
    ),
    Case(
        "heartbeat by another name", "heartbeat", {"lease": "{lease}"}, r"lease: unknown field; did you mean lease_id\?"
    ),
    Case("heartbeat with a quoted id", "heartbeat", {"lease_id": "`{lease}`"}, {"expires_at": ...}),
    Case("heartbeat of a lost lease", "heartbeat", {"lease_id": "{lost_lease}"}, r"Call lease for new work"),
    Case(
        "job id for a lease id",
        "complete",
        {"lease_id": "{held}", "result": {"a": 1}},
        r"lease_id: give the long id that lease gave you; if you lost it, call lease with resume",
    ),
    Case(
        "job id as text for a lease id",
        "complete",
        {"lease_id": "#{held}", "result": {"a": 1}},
        r"if you lost it, call lease with resume",
    ),
    Case(
        "complete",
        "complete",
        {"lease_id": "{lease}", "result": {"text": "Good evening"}},
        {"job": {"state": "succeeded"}},
    ),
    Case(
        "complete with text",
        "complete",
        {"lease_id": "{lease}", "result": "Good evening"},
        {"job": {"state": "succeeded"}},
    ),
    Case(
        "complete with JSON in a text",
        "complete",
        {"lease_id": "{lease}", "result": '{"text": "Good evening"}'},
        {"job": {"state": "succeeded"}},
    ),
    Case("complete without result", "complete", {"lease_id": "{lease}"}, {"job": {"state": "succeeded"}}),
    Case(
        "complete with a list",
        "complete",
        {"lease_id": "{lease}", "result": [1, 2]},
        r"result: must be a JSON object \(got a list\)",
    ),
    Case(
        "complete with output",
        "complete",
        {"lease_id": "{lease}", "output": {"a": 1}},
        r"output: unknown field; did you mean result\?",
    ),
    Case(
        "complete what does not fit",
        "complete",
        {"lease_id": "{count_lease}", "result": {"count": 2}},
        r"words.*The schema: .*integer",
    ),
    Case(
        "complete what fits",
        "complete",
        {"lease_id": "{count_lease}", "result": {"words": 2}},
        {"job": {"state": "succeeded"}},
    ),
    Case(
        "complete a lost lease",
        "complete",
        {"lease_id": "{lost_lease}", "result": {"a": 1}},
        r"lost.*Call lease for new work",
    ),
    Case(
        "complete another's lease",
        "complete",
        {"lease_id": "{rival_lease}", "result": {"a": 1}},
        r"Call lease for new work",
    ),
    Case(
        "complete with usage as text",
        "complete",
        {"lease_id": "{lease}", "usage": '{"input_tokens": 5}', "cost_usd": "0.02"},
        {"job": {"cost_usd": 0.02}},
    ),
    Case("fail", "fail", {"lease_id": "{lease}", "error": "the page is gone"}, {"job": {"state": "queued"}}),
    Case("fail with a reason", "fail", {"lease_id": "{lease}", "reason": "the page is gone"}, r"did you mean error\?"),
    Case(
        "fail for good as text",
        "fail",
        {"lease_id": "{lease}", "error": "gone", "permanent": "true"},
        {"job": {"state": "failed"}},
    ),
    Case(
        "fail and again later",
        "fail",
        {"lease_id": "{lease}", "error": "busy", "retry_after": "2 hours"},
        {"job": {"state": "queued"}},
    ),
    Case("fail without an error", "fail", {"lease_id": "{lease}"}, r"error: is required"),
    Case("release", "release", {"lease_id": "{lease}"}, {"job": {"state": "queued"}}),
    Case("release for later", "release", {"lease_id": "{lease}", "seconds": "10m"}, {"job": {"waits": ...}}),
    Case(
        "release with a question",
        "release",
        {"lease_id": "{lease}", "question": "Which tone?"},
        {"job": {"question": "Which tone?"}},
    ),
    Case(
        "release asking by another name",
        "release",
        {"lease_id": "{lease}", "ask": "Which tone?"},
        r"did you mean question\?",
    ),
    Case(
        "release with two reasons",
        "release",
        {"lease_id": "{lease}", "after_children": True, "seconds": 5},
        r"leave out seconds and question",
    ),
    # What there is not.
    Case("a tool of another name", "get_job", {"job_id": 1}, r"There is no such tool.*status"),
    Case("a tool nearly named", "list_job", {}, r"Did you mean list_jobs\?"),
    Case("a tool in capitals", "Enqueue", {"kind": "tidy"}, r"Did you mean enqueue\?"),
    Case("arguments in arguments", "enqueue", {"arguments": {"kind": "tidy"}}, r"kind: is required"),
    Case("a key twice in a text", "enqueue", {"kind": "tidy", "payload": '{"a": 1, "a": 2}'}, r"the key 'a' twice"),
    Case("a number beyond all", "enqueue", {"kind": "tidy", "payload": {"n": 2**70}}, r"beyond 64 bits at /payload/n"),
]


async def judge(case: Case) -> tuple[bool, str]:
    """Whether the case holds in a world of its own, and what was answered."""
    async with world() as there:
        return await there.call(case)


async def _all(shown: bool) -> int:
    failures = 0
    for case in CASES:
        held, told = await judge(case)
        failures += not held
        if shown or not held:
            print(
                f"{'holds' if held else 'FAILS'}  {case.title}: {case.tool} {json.dumps(case.arguments)}\n       {told[:400]}"
            )
    accepted = sum(not isinstance(case.wanted, str) for case in CASES)
    print(
        f"{len(CASES) - failures} of {len(CASES)} hold: {accepted} to be carried out, {len(CASES) - accepted} to be corrected"
    )
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="show each call with what it was answered")
    sys.exit(1 if asyncio.run(_all(parser.parse_args().all)) else 0)


if __name__ == "__main__":
    main()

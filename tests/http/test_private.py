"""What may be where: phrases in the trace, payload, result, error, progress and question of a job, looked for everywhere else."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client as McpClient
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from oaken_jobs.archive import JournalArchive
from oaken_jobs.clock import SystemClock
from oaken_jobs.core import Core
from oaken_jobs.files import TRACE
from oaken_jobs.journal import Journal
from oaken_jobs.model import Actor, Principal
from oaken_jobs.requests import TraceRow
from oaken_jobs.store.sqlite.driver import sqlite3
from oaken_jobs.trace import Recorder
from oaken_mcp.server import build
from oaken_mcp.tools import Context
from tests.mcp.holder import holding
from tests.service import RULES, Service, plain, serve

TRACED = "only-the-trace-knows"
PAYLOAD, RESULT, ERROR, PROGRESS, ASKED, ANSWERED = (
    f"phrase-of-{name}" for name in ("payload", "result", "error", "progress", "question", "answer")
)
OF_JOBS = (PAYLOAD, RESULT, ERROR, PROGRESS, ASKED, ANSWERED)
EVERY = (TRACED, *OF_JOBS)


@pytest.fixture
async def traced(tmp_path: Path) -> AsyncIterator[Service]:
    clock = SystemClock()
    trace = Recorder(JournalArchive(Journal(tmp_path / TRACE, 1 << 20, 2)), clock, recording=True, keep_days=30)
    core = Core.on_folder(tmp_path, RULES, "serve", clock, trace=trace)
    await core.open()
    logging.getLogger("oaken").setLevel(logging.DEBUG)
    await core.start_duties()
    service = await serve(core)
    yield service
    await service.close()
    await core.close()
    logging.getLogger("oaken").setLevel(logging.NOTSET)


async def lived(server: Service) -> list[int]:
    """Jobs that have been through everything, by one that fails, one that asks and one that succeeds; and some refused calls."""
    client = await server.client("bot", "agent", "user")
    http = await server.http("bot")
    ids: list[int] = []
    for end in ("fail", "ask", "complete"):
        job = (await client.enqueue("work", {"text": PAYLOAD}, max_attempts=1))["job"]
        ids.append(job["id"])
        (lease,) = (await client.lease())["leases"]
        lease_id = lease["lease_id"]
        rows = [{"operation": "chat", "model": "m", "input": TRACED, "output": {"text": TRACED}}]
        assert (await client.trace(lease_id, rows))["recorded"] == 1
        # A row that is refused quotes nothing that is kept.
        refused = [{"input": TRACED, "usage": {TRACED: TRACED}, TRACED: 1}]
        assert (await http.post(f"/v1/leases/{lease_id}/trace", json={"rows": refused})).status_code == 422
        await client.report(lease_id, 10, PROGRESS)
        if end == "fail":
            await client.fail(lease_id, ERROR)
        elif end == "ask":
            await client.ask(lease_id, ASKED)
            await client.answer(job["id"], ANSWERED)
            (lease,) = (await client.lease())["leases"]
            await client.complete(lease["lease_id"], {"text": RESULT})
        else:
            await client.complete(lease_id, {"text": RESULT}, usage={"input_tokens": 1}, produced_by="m")
        await http.post(f"/v1/leases/{lease_id}/complete", json={"result": {"text": RESULT}})
    return ids


def missing(text: str, phrases: tuple[str, ...]) -> list[str]:
    """Of the phrases those that are in the text."""
    return [phrase for phrase in phrases if phrase in text]


async def test_nothing_but_the_trace_route_and_its_file_holds_a_word_of_the_trace(
    traced: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ids = await lived(traced)
    root = await traced.http("root", "admin", "agent")
    seen = (await root.get("/v1/trace?limit=100")).text
    told = (TRACED, PAYLOAD, RESULT, ERROR, ASKED, ANSWERED)
    assert missing(seen, told) == list(told), "the trace has what was told and answered"
    for path in (
        *(
            f"/v1/jobs/{job_id}{part}"
            for job_id in ids
            for part in ("", "/progress", "/attempts", "/activity", "/questions")
        ),
        "/v1/jobs?full=1",
        "/v1/snapshot",
        "/v1/agents",
        "/v1/events/wait?after=0&limit=500&seconds=0",
        "/v1/audit",
        "/v1/logs?limit=500",
        "/v1/kinds",
        "/v1/meta",
        "/metrics",
    ):
        answer = await root.get(path)
        assert answer.status_code == 200, answer.text
        assert missing(answer.text, (TRACED,)) == [], path
    assert missing(caplog.text, (TRACED,)) == []
    await traced.core.log_keeper.tick()
    assert traced.core.event_log is not None
    await traced.core.event_log.tick()
    await traced.core.store.backup(tmp_path / "copy.db")
    for name in ("core.db", "core.db-wal", "events.jsonl", "copy.db"):
        assert missing((tmp_path / name).read_bytes().decode("latin-1"), (TRACED,)) == [], name


async def test_what_is_about_a_job_is_in_no_event_log_line_figure_or_audit(
    traced: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ids = await lived(traced)
    root = await traced.http("root", "admin")
    for path in (
        *(f"/v1/jobs/{job_id}/activity" for job_id in ids),
        "/v1/events/wait?after=0&limit=500&seconds=0",
        "/v1/audit",
        "/v1/logs?limit=500",
        "/metrics",
    ):
        answer = await root.get(path)
        assert (answer.status_code, missing(answer.text, EVERY)) == (200, []), path
    assert missing(caplog.text, EVERY) == []
    await traced.core.log_keeper.tick()
    assert traced.core.event_log is not None
    await traced.core.event_log.tick()
    assert missing((tmp_path / "events.jsonl").read_text(), EVERY) == []
    database = sqlite3.connect(tmp_path / "core.db")
    for table in ("log_lines", "activity", "audit", "tokens", "agents", "processes"):
        assert missing(repr(database.execute(f"select * from {table}").fetchall()), EVERY) == [], table
    grades = repr(database.execute("select grade, grade_why, reason from jobs").fetchall())
    assert missing(grades, EVERY) == []
    database.close()


async def test_a_stream_of_events_tells_none_of_it(traced: Service) -> None:
    token = await traced.token("eyes", "viewer")
    await lived(traced)
    headers = {"Authorization": f"Bearer {token}", "Last-Event-ID": "0"}
    async with (
        plain(base_url=traced.url, headers=headers) as http,
        http.stream("GET", "/v1/events") as response,
    ):
        text, head = "", await traced.core.store.activity_head()
        async for line in response.aiter_lines():
            text += line
            if line == f"id: {head}":
                break
    assert "job_progress" in text
    assert missing(text, EVERY) == []


async def test_no_tool_resource_or_prompt_of_mcp_tells_a_word_of_the_trace(traced: Service) -> None:
    ids = await lived(traced)
    who = Principal(Actor("user", "root", "mcp"), frozenset({"user", "agent", "admin"}), "one")
    told: list[str] = []
    async with McpClient(build(lambda ctx: Context(traced.core, who))) as client:
        tools = (await client.list_tools()).tools
        told.append(repr(tools))
        calls: list[tuple[str, dict[str, Any]]] = [
            *(("status", {"job_id": job_id, "part": part}) for job_id in ids for part in ("payload", "result")),
            *(("status", {"job_id": job_id}) for job_id in ids),
            ("status", {}),
            ("list_jobs", {}),
            ("wait", {"job_ids": ids, "seconds": 0}),
            ("requeue", {"job_id": ids[0]}),
            ("lease", {}),
            ("heartbeat", {"lease_id": "1-1-" + "0" * 24}),
            ("complete", {"lease_id": "nonsense", "result": {}}),
            ("answer", {"job_id": ids[0], "text": "x"}),
            ("cancel", {"job_id": ids[1]}),
        ]
        assert {name for name, _ in calls} | {"enqueue", "fail", "release"} == {tool.name for tool in tools}
        for name, arguments in calls:
            told.append(repr(await client.call_tool(name, arguments)))
        told += [repr(await client.list_resources()), repr(await client.list_resource_templates())]
        for job_id in ids:
            told.append(repr(await client.read_resource(f"oaken://jobs/{job_id}")))
        told += [
            repr(await client.read_resource(f"oaken://{which}"))
            for which in ("queues", "kinds", f"jobs/{ids[2]}/result")
        ]
        for bad in ("oaken://jobs/999", "oaken://jobs/x", f"oaken://{TRACED[::-1]}"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(bad)
            told.append(str(refused.value))
        prompts = (await client.list_prompts()).prompts
        assert {prompt.name for prompt in prompts} == {"work", "triage_failures"}
        told.append(repr(prompts))
        told += [repr(await client.get_prompt(prompt.name)) for prompt in prompts]
        of_jobs, of_prompt = ResourceTemplateReference(uri="oaken://jobs/{id}"), PromptReference(name="work")
        told.append(repr(await client.complete(of_jobs, {"name": "id", "value": ""})))
        told.append(repr(await client.complete(of_prompt, {"name": "kind", "value": ""})))
    assert missing("".join(told), (TRACED,)) == []
    assert missing("".join(told), (ERROR,)) == [ERROR]
    assert missing("".join(told), (PAYLOAD, RESULT)) == [PAYLOAD, RESULT], "what is asked for is told"


async def test_no_task_tells_a_word_of_the_trace(traced: Service) -> None:
    who = Principal(Actor("agent", "bot", "mcp"), frozenset({"user", "agent"}), "one")
    jobs, told = traced.core.jobs, list[str]()
    async with holding(build(lambda ctx: Context(traced.core, who))) as holder:
        for question in (ASKED, None):
            task = await holder.begin(kind="work", payload={"text": PAYLOAD})
            (lease,) = await jobs.lease(who)
            await jobs.trace(who, lease.lease_id, [TraceRow(operation="chat", input=TRACED, output=TRACED)])
            await jobs.heartbeat(who, lease.lease_id, percent=10, message=PROGRESS, progress=True)
            told.append(repr((task, await holder.get(task["taskId"]))))
            if question is not None:
                await jobs.finish(who, jobs.ask_op(who, lease.lease_id, question))
            else:
                await jobs.finish(who, jobs.complete_op(who, lease.lease_id, {"text": RESULT}, None))
            told.append(repr(await holder.get(task["taskId"])))
    assert missing("".join(told), (TRACED,)) == []
    assert missing("".join(told), (PROGRESS, ASKED, RESULT)) == [PROGRESS, ASKED, RESULT]


async def test_who_may_not_read_the_trace_hears_nothing_of_it_and_is_written_down(traced: Service) -> None:
    await lived(traced)
    for role in ("viewer", "user", "agent"):
        http = await traced.http(f"a-{role}", role)
        for path in ("/v1/trace", "/v1/trace/stream", "/v1/audit", "/v1/logs"):
            answer = await http.get(path)
            assert (answer.status_code, missing(answer.text, EVERY)) == (403, []), path
    audit = json.loads((await (await traced.http("root", "admin")).get("/v1/audit?limit=100")).text)["audit"]
    tried = {(row["actor"]["id"], row["action"]) for row in audit if row["outcome"] == "refused"}
    assert tried >= {
        (f"a-{role}", f"trace.{what}") for role in ("viewer", "user", "agent") for what in ("read", "stream")
    }

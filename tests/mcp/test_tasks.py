"""Tasks: an enqueue is answered at once, and asked for later; by the SDK's own client, in one process, over stdio and over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters

from oaken_jobs.errors import ResultInvalid, Unavailable
from oaken_jobs.model import Actor, Principal
from oaken_jobs.store.operations import Sweep
from oaken_mcp.http import PATH
from oaken_mcp.server import build
from oaken_mcp.tools import Context
from tests.forks import command
from tests.mcp.door import ME, OTHER, TWIN, WORKER, Door
from tests.mcp.holder import EXTENSION, UNKNOWN, Holder, holding, over_http, over_stdio
from tests.mcp.process import server
from tests.service import Service

DAY = 86_400
GARBAGE = ("", "x", "A" * 32, "A" * 5000, "../../etc", "' or 1=1 --", "\N{SNOWMAN}" * 32, "a\nb", "a\0b")


def opened(door: Door, who: Principal = ME, **options: Any) -> AbstractAsyncContextManager[Holder]:
    return holding(build(lambda ctx: Context(door.core, who)), **options)


@asynccontextmanager
async def connected(service: Service, name: str = "ann", **more: Any) -> AsyncIterator[Holder]:
    async with over_http(service.url, await service.token(name, "user", "agent"), **more) as holder:
        yield holder


async def lease(door: Door, who: Principal = WORKER) -> str:
    (leased,) = await door.core.jobs.lease(who, wait_seconds=10)
    return leased.lease_id


async def ask(door: Door, question: str = "Which?") -> None:
    await door.core.jobs.ask(WORKER, await lease(door), question)


def said(task: dict[str, Any]) -> Any:
    """The answer in a task's result, which is the same in both of its forms."""
    result = task["result"]
    (content,) = result["content"]
    answer = json.loads(content["text"])
    assert result.get("structuredContent", answer) == answer
    return answer


# From the call to its result.


async def test_an_enqueue_that_would_wait_gives_a_task_at_once_and_the_task_gives_the_answer(door: Door) -> None:
    async with opened(door) as holder:
        task = await holder.begin(payload={"a": 1})
        assert {name: task[name] for name in ("resultType", "status", "statusMessage", "ttlMs", "pollIntervalMs")} == {
            "resultType": "task",
            "status": "working",
            "statusMessage": "Job 1 waits: no agent has ever leased a job of kind work",
            "ttlMs": None,
            "pollIntervalMs": 2000,
        }
        assert task["createdAt"] == task["lastUpdatedAt"]
        assert "result" not in task
        assert len(task["taskId"]) == 32
        held = await lease(door)
        door.clock.advance(3)
        await door.core.jobs.heartbeat(WORKER, held, percent=40, message="half", progress=True)
        now = await holder.get(task["taskId"])
        assert (now["status"], now["statusMessage"]) == ("working", "Job 1 runs, 40 %: half")
        assert now["lastUpdatedAt"] > now["createdAt"] == task["createdAt"]
        await door.core.jobs.complete(WORKER, held, {"b": 2})
        done = await holder.get(task["taskId"])
        assert (done["status"], done["statusMessage"]) == ("completed", "Job 1 succeeded")
        assert done["result"]["isError"] is False
        answer = said(done)
        assert (answer["final"], answer["created"], answer["job"]["result"]) == (True, True, {"b": 2})
        assert "next" not in answer
        assert "resultType" not in done["result"]


async def test_the_answer_is_the_one_that_a_client_without_tasks_gets_by_waiting(door: Door) -> None:
    async with opened(door) as holder, opened(door, takes=False) as other:
        for payload in ({"payload": {"a": 1}}, {"payloads": [{"a": 1}, {"a": 2}]}):
            call = {"kind": "work", "wait": 10, "idempotency_key": f"k{len(payload)}{list(payload)}", **payload}
            task = await holder.begin(**call)
            for leased in await door.core.jobs.lease(WORKER, max=2):
                await door.core.jobs.complete(WORKER, leased.lease_id, {"ok": True})
            waited = (await other.client.call_tool("enqueue", call)).structured_content
            told = said(await holder.get(task["taskId"]))
            for unlike in ("note", "created", "warning"):
                waited.pop(unlike, None)
                told.pop(unlike, None)
            assert told == waited


async def test_nothing_else_becomes_a_task(door: Door) -> None:
    async with opened(door) as holder:
        call = holder.client.session.call_tool
        assert (await call("enqueue", {"kind": "work"}, allow_claimed=True)).structured_content["created"] is True
        assert (await call("enqueue", {"kind": "work", "wait": 0}, allow_claimed=True)).structured_content["job"]
        assert (await call("wait", {"job_id": 1, "seconds": 0}, allow_claimed=True)).structured_content[
            "final"
        ] is False
        assert (await call("lease", {}, allow_claimed=True)).structured_content["leases"]


async def test_a_refused_enqueue_is_a_tools_error_without_a_task(door: Door) -> None:
    async with opened(door) as holder, opened(door, WORKER) as worker:
        for who, arguments in (
            (holder, {"kind": "work", "wait": 99}),
            (holder, {"kind": "sum", "payload": {"n": "one"}, "wait": 5}),
            (holder, {"kind": "work", "wait": 5, "lease_id": "nonsense"}),
            (worker, {"kind": "work", "wait": 5}),
        ):
            refused = await who.client.session.call_tool("enqueue", arguments, allow_claimed=True)
            assert refused.is_error
    assert await _tasks(door) == 0


async def _tasks(door: Door) -> int:
    (count,) = await door.core.store._find(lambda db: db.execute("select count(*) from tasks").fetchone())
    return count


async def test_a_client_without_tasks_waits_a_little_and_is_told_when_to_ask_again(service: Service) -> None:
    async with connected(service, takes=False) as client:
        answer = (await client.client.call_tool("enqueue", {"kind": "work", "wait": 0.01})).structured_content
        assert answer["final"] is False
        assert answer["next"] == "Call wait with job_id 1 for its result."
        task_id = "A" * 32
        for method, more in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
            code, text = await client.refused(method, task_id, **more)
            assert code == -32021
            assert EXTENSION in text


async def test_an_enqueue_whose_task_cannot_be_kept_is_told_all_the_same(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise Unavailable("The database cannot answer now.")

    monkeypatch.setattr(door.core.tasks, "add", away)
    async with opened(door) as holder:
        answer = await holder.client.session.call_tool("enqueue", {"kind": "work", "wait": 5}, allow_claimed=True)
        assert answer.structured_content["job"]["id"] == 1


async def test_a_failed_job_is_a_completed_task_with_a_failure(door: Door) -> None:
    async with opened(door) as holder:
        task = await holder.begin()
        await door.core.jobs.fail(WORKER, await lease(door), "out of paper", permanent=True)
        done = await holder.get(task["taskId"])
        assert (done["status"], done["statusMessage"]) == ("completed", "Job 1 failed (permanent)")
        assert done["result"]["isError"] is True
        assert "structuredContent" not in done["result"]
        assert said(done)["job"]["last_error"] == "out of paper"


async def test_a_job_that_fails_without_its_workers_word_is_a_failed_task_with_an_error(door: Door) -> None:
    async with opened(door) as holder:
        fragile, strict = await holder.begin(kind="fragile"), await holder.begin(kind="strict")
        await lease(door)
        with pytest.raises(ResultInvalid):
            await door.core.jobs.complete(WORKER, await lease(door), {"n": "one"})
        door.clock.advance(3600)
        await door.core.commit.call(Sweep())
        for task, code, message in (
            (fragile, -32603, "Job 1 failed (lease_lost)"),
            (strict, -32603, "Job 2 failed (result_invalid): result does not fit the schema of strict"),
        ):
            now = await holder.get(task["taskId"])
            assert now["status"] == "failed"
            assert now["error"]["code"] == code
            assert now["error"]["message"].startswith(message)
            assert "result" not in now


async def test_many_jobs_are_one_task(door: Door) -> None:
    async with opened(door) as holder:
        task = await holder.begin(kind="sum", payloads=[{"n": 1}, {"n": "one"}, {"n": 2}, {"n": 3}])
        assert task["statusMessage"] == "0 of 3 jobs ended; no agent has ever leased a job of kind sum"
        await door.core.jobs.complete(WORKER, await lease(door), {"n": 1})
        held = await lease(door)
        assert (await holder.get(task["taskId"]))["statusMessage"] == "1 of 3 jobs ended, 1 running"
        await door.core.jobs.fail(WORKER, held, "no", permanent=True)
        await door.core.jobs.complete(WORKER, await lease(door), {"n": 3})
        done = await holder.get(task["taskId"])
        assert (done["status"], done["statusMessage"]) == ("completed", "2 succeeded, 1 failed")
        answer = said(done)
        assert done["result"]["isError"] is False
        assert (answer["job_ids"], answer["final"]) == ([1, 2, 3], True)
        assert [job["state"] for job in answer["jobs"]] == ["succeeded", "failed", "succeeded"]
        assert [refusal["place"] for refusal in answer["refused"]] == [1]


async def test_a_thousand_jobs_are_one_task_and_its_answer_keeps_the_limit(door: Door) -> None:
    async with opened(door) as holder:
        task = await holder.begin(payloads=[{"n": n} for n in range(1000)])
        assert task["statusMessage"].startswith("0 of 1000 jobs ended")
        await holder.cancel(task["taskId"])
        assert (await holder.get(task["taskId"]))["status"] == "cancelled"
        await door.core.jobs.requeue(ME, 7)
        await door.core.jobs.complete(WORKER, await lease(door), {"big": "x" * 50_000})
        done = await holder.get(task["taskId"])
        assert done["status"] == "completed"
        assert len(done["result"]["content"][0]["text"]) < 20_000
        assert "first 50" in said(done)["next"]


# Questions.


async def test_a_question_is_put_as_a_form_and_its_answer_sends_the_job_on(door: Door) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin())["taskId"]
        await ask(door, "Red or blue?")
        task = await holder.get(task_id)
        assert (task["status"], task["statusMessage"]) == ("input_required", "Job 1 asks a question")
        assert "result" not in task
        ((key, request),) = task["inputRequests"].items()
        assert request == {
            "method": "elicitation/create",
            "params": {
                "mode": "form",
                "message": "Job 1 (work) asks: Red or blue?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {"answer": {"type": "string", "minLength": 1}},
                    "required": ["answer"],
                },
            },
        }
        await holder.update(task_id, key, {"action": "accept", "content": {"answer": "blue"}})
        assert (await holder.get(task_id))["status"] == "working"
        (leased,) = await door.core.jobs.lease(WORKER)
        assert [(one.text, one.answer) for one in leased.answers] == [("Red or blue?", "blue")]


async def test_a_late_or_repeated_answer_harms_nothing_not_even_the_next_question(door: Door) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin())["taskId"]
        await ask(door, "First?")
        (first,) = (await holder.get(task_id))["inputRequests"]
        await holder.update(task_id, first, {"action": "accept", "content": {"answer": "one"}})
        await holder.update(task_id, first, {"action": "accept", "content": {"answer": "again"}})
        await ask(door, "Second?")
        (second,) = (await holder.get(task_id))["inputRequests"]
        assert second != first
        await holder.update(task_id, first, {"action": "accept", "content": {"answer": "late"}})
        await holder.update(task_id, "job-1-99", {"action": "accept", "content": {"answer": "never asked"}})
        await holder.update(task_id, "nonsense", 5)
        assert (await holder.get(task_id))["status"] == "input_required"
        await holder.update(task_id, second, {"action": "accept", "content": {"answer": "two"}})
        (leased,) = await door.core.jobs.lease(WORKER)
        assert [one.answer for one in leased.answers] == ["one", "two"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_question_that_is_declined_stays_open(door: Door, action: str) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin())["taskId"]
        await ask(door)
        (key,) = (await holder.get(task_id))["inputRequests"]
        await holder.update(task_id, key, {"action": action})
        assert list((await holder.get(task_id))["inputRequests"]) == [key]


@pytest.mark.parametrize(
    "response",
    [5, {}, {"action": "perhaps"}, {"action": "accept"}, {"action": "accept", "content": {"answer": 5}}]
    + [{"action": "accept", "content": {"answer": text}} for text in ("", " ", "x" * 200_000)],
)
async def test_an_answer_that_is_none_is_refused_and_the_question_stays(door: Door, response: Any) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin())["taskId"]
        await ask(door)
        (key,) = (await holder.get(task_id))["inputRequests"]
        code, _ = await holder.refused("tasks/update", task_id, inputResponses={key: response})
        assert code == -32602
        assert (await holder.get(task_id))["status"] == "input_required"


async def test_a_client_without_forms_is_told_of_the_question_and_keeps_working(door: Door) -> None:
    async with opened(door, forms=False) as holder:
        task_id = (await holder.begin())["taskId"]
        await ask(door)
        task = await holder.get(task_id)
        assert task["status"] == "working"
        assert task["statusMessage"] == "Job 1 asks a question; the tool answer answers it"
        assert "inputRequests" not in task


async def test_of_many_jobs_each_that_asks_has_a_form_of_its_own(door: Door) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin(payloads=[{}, {}, {}]))["taskId"]
        await ask(door, "A?")
        await ask(door, "B?")
        task = await holder.get(task_id)
        assert task["statusMessage"].endswith("; 2 jobs ask questions")
        first, second = task["inputRequests"]
        await holder.update(task_id, second, {"action": "accept", "content": {"answer": "b"}})
        task = await holder.get(task_id)
        assert (task["status"], list(task["inputRequests"])) == ("input_required", [first])


# Whose it is, and how it ends.


async def test_a_task_is_its_callers_in_every_process_of_theirs_and_nobody_elses(door: Door) -> None:
    namesake = Principal(Actor("user", "me", "http"), ME.roles)
    bound = Principal(ME.actor, ME.roles, workspace="default")
    async with opened(door) as holder, opened(door, TWIN) as twin:
        task_id = (await holder.begin())["taskId"]
        assert (await twin.get(task_id))["status"] == "working"
        for who in (OTHER, namesake, bound):
            async with opened(door, who) as stranger:
                for method, more in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
                    foreign = await stranger.refused(method, task_id, **more)
                    assert foreign == await stranger.refused(method, "A" * 32, **more)
                    assert foreign[0] == -32602
        assert (await holder.get(task_id))["status"] == "working"


@pytest.mark.parametrize("task_id", GARBAGE)
async def test_ids_that_are_none_are_unknown(door: Door, task_id: str) -> None:
    async with opened(door) as holder:
        code, text = await holder.refused("tasks/get", task_id)
        assert (code, text[: len(UNKNOWN)]) == (-32602, UNKNOWN)


async def test_a_cancelled_task_cancels_its_jobs(door: Door) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin(payloads=[{}, {}]))["taskId"]
        held = await lease(door)
        await holder.cancel(task_id)
        assert (await holder.get(task_id))["status"] == "working"  # a worker has yet to stop
        await door.core.jobs.cancelled(WORKER, held)
        task = await holder.get(task_id)
        assert (task["status"], task["statusMessage"]) == ("cancelled", "2 cancelled")
        assert "result" not in task
        await holder.cancel(task_id)


async def test_a_job_that_was_there_already_is_not_cancelled_with_the_task(door: Door) -> None:
    async with opened(door) as holder, opened(door, OTHER) as other:
        first = (await holder.begin(dedupe_key="k"))["taskId"]
        again = (await other.begin(dedupe_key="k"))["taskId"]
        code, text = await other.refused("tasks/cancel", again)
        assert code == 403
        assert text.startswith("Job 1 was enqueued by me and goes on.")
        assert (await holder.get(first))["status"] == "working"
        await holder.cancel(first)
        assert (await other.get(again))["status"] == "cancelled"


async def test_an_agent_that_may_not_cancel_is_told_so_and_its_task_goes_on(door: Door) -> None:
    async with opened(door) as holder, opened(door, WORKER) as worker:
        await holder.begin()
        parent = await lease(door)
        task_id = (await worker.begin(kind="part", lease_id=parent))["taskId"]
        code, text = await worker.refused("tasks/cancel", task_id)
        assert code == 403
        assert "may not cancel" in text
        assert (await worker.get(task_id))["status"] == "working"


async def test_an_agent_gets_no_task_of_a_job_that_is_not_its_to_see(door: Door) -> None:
    async with opened(door) as holder, opened(door, WORKER) as worker:
        await holder.begin()
        parent = await lease(door)
        await holder.begin(kind="secret", dedupe_key="k", title="hidden")
        call = {"kind": "secret", "dedupe_key": "k", "wait": 5, "lease_id": parent}
        answer = await worker.client.session.call_tool("enqueue", call, allow_claimed=True)
        assert answer.structured_content["created"] is False
        assert "title" not in answer.structured_content["job"]


async def test_what_became_of_erased_jobs_is_not_guessed_from_those_that_are_left(door: Door) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin(payloads=[{}, {}]))["taskId"]
        await door.core.jobs.complete(WORKER, await lease(door))
        await door.core.jobs.erase(ME, 1)
        await door.core.jobs.cancel(ME, 2)
        done = await holder.get(task_id)
        assert (done["status"], done["statusMessage"]) == ("completed", "1 cancelled, 1 forgotten")
        assert said(done)["job_ids"] == [1, 2]


async def test_a_task_is_forgotten_a_day_after_its_jobs_ended_and_never_before(door: Door) -> None:
    async with opened(door) as holder:
        task_id = (await holder.begin(payloads=[{}, {}]))["taskId"]
        await door.core.jobs.complete(WORKER, await lease(door))
        door.clock.advance(5 * DAY)
        await door.core.pruner.tick()
        door.clock.advance(3600)
        await door.core.pruner.tick()
        assert (await holder.get(task_id))["ttlMs"] is None
        await door.core.jobs.complete(WORKER, await lease(door))
        assert (await holder.get(task_id))["ttlMs"] == (6 * DAY + 3600) * 1000
        door.clock.advance(DAY - 1)
        assert (await holder.get(task_id))["status"] == "completed"
        door.clock.advance(2)
        assert (await holder.refused("tasks/get", task_id))[0] == -32602


# Over the wire.


async def test_over_stdio_it_is_offered_and_kept_in_the_later_era_alone(tmp_path: Path) -> None:
    async with over_stdio(tmp_path, "--actor", "agent:desk") as holder:
        assert EXTENSION in holder.client.server_capabilities.extensions
        task_id = (await holder.begin())["taskId"]
        assert (await holder.get(task_id))["status"] == "working"
        assert (await holder.refused("tasks/get", "A" * 32))[0] == -32602
    async with over_stdio(tmp_path, "--actor", "agent:desk", era="legacy") as legacy:
        assert not legacy.client.server_capabilities.extensions
        answer = await legacy.client.call_tool("enqueue", {"kind": "work", "wait": 0.01})
        assert answer.structured_content["final"] is False
        assert (await legacy.refused("tasks/get", task_id))[0] == -32601
    async with over_stdio(tmp_path, "--actor", "agent:desk") as holder:
        assert (await holder.get(task_id))["status"] == "working"


async def test_over_stdio_it_is_told_to_who_asks_before_the_era_is_settled(tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        answer = await peer.answer(peer.send("server/discover", peer.modern()))
        assert answer["result"]["capabilities"]["extensions"] == {EXTENSION: {}}


@pytest.mark.parametrize("takes", [True, False])
async def test_over_http_a_client_is_told_of_it_and_each_call_says_anew_who_takes_it(
    service: Service, takes: bool
) -> None:
    async with connected(service) as holder, connected(service, takes=takes) as again:
        assert EXTENSION in holder.client.server_capabilities.extensions
        task_id = (await holder.begin())["taskId"]
        if takes:
            assert (await again.get(task_id))["status"] == "working"
        else:
            assert (await again.refused("tasks/get", task_id))[0] == -32021
    async with connected(service, era="legacy") as legacy:
        assert not legacy.client.server_capabilities.extensions
        assert (await legacy.refused("tasks/get", task_id))[0] == -32601
    async with connected(service, "bob") as bob:
        assert (await bob.refused("tasks/get", task_id))[0] == -32602


async def test_over_http_the_header_must_name_the_task(service: Service) -> None:
    async with connected(service) as holder:
        task_id = (await holder.begin())["taskId"]
    http = await service.http("ann")
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": task_id, "_meta": meta}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
    }
    for name, status, code in ((None, 400, -32020), ("A" * 32, 400, -32020), (task_id, 200, None)):
        named = headers if name is None else {**headers, "Mcp-Name": name}
        response = await http.post(PATH, json=body, headers=named)
        assert (response.status_code, response.json().get("error", {}).get("code")) == (status, code)


async def test_from_afar_a_stdio_client_holds_tasks_too(service: Service) -> None:
    token = await service.token("bot", "user", "agent")
    program, *arguments = command("oaken_app.main", "mcp", "--url", service.url)
    entry = StdioServerParameters(command=program, args=arguments, env={**os.environ, "OAKEN_TOKEN": token})
    async with holding(entry) as holder:
        assert EXTENSION in holder.client.server_capabilities.extensions
        task_id = (await holder.begin(kind="shout"))["taskId"]
        (leased,) = await service.core.jobs.lease(WORKER)
        await service.core.jobs.ask(WORKER, leased.lease_id, "How loud?")
        (key,) = (await holder.get(task_id))["inputRequests"]
        await holder.update(task_id, key, {"action": "accept", "content": {"answer": "very"}})
        await holder.cancel(task_id)
        assert (await holder.get(task_id))["status"] == "cancelled"
        assert (await holder.refused("tasks/get", "A" * 32))[0] == -32602

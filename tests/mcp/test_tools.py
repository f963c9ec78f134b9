from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from oaken_jobs.jobs import Jobs
from oaken_mcp import arguments, tools
from oaken_mcp.tools import Context
from tests.contract.world import until
from tests.mcp.door import ME, OTHER, TWIN, VIEWER, WORKER, Door

# Putting jobs in and looking at them.


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_job_goes_from_enqueue_to_its_result_in_both_eras(door: Door, mode: str) -> None:
    async with door.open(mode=mode) as call:
        added = await call("enqueue", kind="work", payload={"a": 1}, title="Do it", tags=["x"], subject="note:1")
        job = added["job"]
        assert (job["state"], job["priority"], job["actor"]) == (
            "queued",
            50,
            {"kind": "agent", "id": "me", "via": "mcp"},
        )
        assert added["created"] is True
        assert added["final"] is False

        [lease] = (await call("lease", kinds="work"))["leases"]
        assert lease["job"]["payload"] == {"a": 1}
        done = await call("complete", lease_id=lease["lease_id"], result={"b": 2}, cost_usd=0.5, produced_by="m")
        assert done["job"]["state"] == "succeeded"

        seen = await call("status", job_id=job["id"])
        assert seen["job"]["result"] == {"b": 2}
        assert seen["job"]["payload"] == {"a": 1}
        assert seen["job"]["produced_by"] == "m"
        assert "data from other parties" in seen["untrusted"]


async def test_nulls_are_left_out_of_a_job(door: Door) -> None:
    async with door.open() as call:
        job = (await call("enqueue", kind="work"))["job"]
        assert "target" not in job
        assert "lease" not in job
        assert None not in job.values()


async def test_an_enqueue_with_the_key_of_a_live_job_returns_that_job(door: Door) -> None:
    async with door.open() as call:
        first = await call("enqueue", kind="work", dedupe_key="once")
        again = await call("enqueue", kind="work", dedupe_key="once")
        assert again["created"] is False
        assert again["job"]["id"] == first["job"]["id"]
        assert "Nothing was added" in again["note"]


async def test_many_payloads_become_many_jobs_in_order(door: Door) -> None:
    async with door.open() as call:
        added = await call("enqueue", kind="work", payloads=["a", {"b": 1}], priority=7)
        jobs = [(await call("status", job_id=job_id))["job"] for job_id in added["job_ids"]]
        assert [job["payload"] for job in jobs] == [{"text": "a"}, {"b": 1}]
        assert [job["priority"] for job in jobs] == [7, 7]


async def test_payloads_that_do_not_fit_are_told_by_place_and_leave_the_others_alone(door: Door) -> None:
    async with door.open() as call:
        added = await call("enqueue", kind="sum", payloads=[{"n": 1}, {"n": "one"}, {"n": 2}])
        assert len(added["job_ids"]) == 2
        assert [refusal["place"] for refusal in added["refused"]] == [1]
        assert "/n breaks type" in await call.refused("enqueue", kind="sum", payloads=[{"n": "one"}])


async def test_a_thousand_jobs_at_once_are_answered_within_the_limit(door: Door) -> None:
    async with door.open() as call:
        added = await call("enqueue", kind="work", payloads=[{"n": n} for n in range(1000)])
        assert len(added["job_ids"]) == 1000


async def test_enqueue_waits_for_the_result_when_asked(door: Door) -> None:
    async with door.open() as call, door.open(OTHER) as worker:
        asking = asyncio.create_task(call("enqueue", kind="work", wait=15))
        [lease] = (await worker("lease", wait_seconds=15))["leases"]
        await worker("complete", lease_id=lease["lease_id"], result={"ok": True})
        answer = await asking
        assert answer["final"] is True
        assert answer["job"]["result"] == {"ok": True}


async def test_children_of_a_held_job_are_enqueued_by_its_lease(door: Door) -> None:
    async with door.open() as call, door.open(WORKER) as worker:
        parent = (await call("enqueue", kind="work"))["job"]["id"]
        [lease] = (await worker("lease"))["leases"]
        child = await worker("enqueue", kind="part", lease_id=lease["lease_id"])
        assert child["job"]["parent_id"] == parent
        told = await worker.refused("enqueue", kind="part", lease_id=lease["lease_id"], parent_id=parent + 1)
        assert "parent_id" in told
        assert "only an agent" in await worker.refused("enqueue", kind="part")
        await worker("complete", lease_id=lease["lease_id"])
        assert "Lease lost" in await worker.refused("enqueue", kind="part", lease_id=lease["lease_id"])


async def test_a_repeat_under_its_idempotency_key_adds_nothing_and_says_so(door: Door) -> None:
    async with door.open() as call:
        first = await call("enqueue", kind="work", payload={"n": 1}, idempotency_key="k")
        again = await call("enqueue", kind="work", payload={"n": 1}, idempotency_key="k")
        assert again["job"]["id"] == first["job"]["id"]
        assert "idempotency_key was used before" in again["note"]
        told = await call.refused("enqueue", kind="work", payload={"n": 2}, idempotency_key="k")
        assert "Use another idempotency_key" in told


async def test_many_payloads_under_one_idempotency_key_are_added_once_each(door: Door) -> None:
    async with door.open() as call:
        first = await call("enqueue", kind="work", payloads=[{}, {}, {}], idempotency_key="k")
        assert len(set(first["job_ids"])) == 3
        assert "note" not in first
        again = await call("enqueue", kind="work", payloads=[{}, {}, {}], idempotency_key="k")
        assert (again["job_ids"], again["created"]) == (first["job_ids"], False)
        assert again["note"].startswith("3 of 3 jobs were added before")


async def test_a_duplicate_may_replace_the_payload(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work", dedupe_key="d", payload={"n": 1})
        again = await call("enqueue", kind="work", dedupe_key="d", payload={"n": 2}, on_duplicate="replace")
        assert again["note"].endswith("It has the new payload.")
        assert (await call("status", job_id=1))["job"]["payload"] == {"n": 2}


async def test_jobs_of_one_serial_key_wait_for_each_other_and_say_so(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work", payloads=[{}, {}], serial_key="agent:me", ttl_seconds=60)
        assert len((await call("lease", max=2))["leases"]) == 1
        for told in (
            (await call("status", job_id=2))["job"],
            (await call("list_jobs", state="queued"))["jobs"][0],
            (await call("wait", job_id=2, seconds=0))["job"],
            (await call("wait", job_ids=[2], seconds=0))["jobs"][0],
            (await call("status"))["waiting"][0],
        ):
            assert [wait["code"] for wait in told["waits"]] == ["serial"]
            assert "job 1 of the same serial key runs" in told["waits"][0]["text"]
        door.clock.advance(61)
        await door.core.maintenance.tick()
        assert (await call("status", job_id=2))["job"]["reason"] == "expired"


async def test_a_job_is_put_into_the_workspace_that_is_named(door: Door) -> None:
    async with door.open() as call:
        assert (await call("enqueue", kind="work", workspace="lab"))["job"]["workspace"] == "lab"


async def test_what_was_added_is_told_although_waiting_for_it_fails(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oaken_jobs.errors import Unavailable

    async def failing(*args: Any) -> Any:
        raise Unavailable("The database cannot answer now.")

    monkeypatch.setattr(Jobs, "wait", failing)
    async with door.open() as call:
        assert (await call("enqueue", kind="work", wait=5))["job"]["id"] == 1


async def test_status_without_a_job_shows_my_leases_recent_jobs_queues_and_kinds(door: Door) -> None:
    async with door.open() as call, door.open(TWIN) as twin:
        await call("enqueue", kind="work", payloads=[{}, {}, {}])
        await call("lease")
        await twin("lease")
        shown = await call("status")
        assert [job["id"] for job in shown["leases"]] == [1]
        assert [job["id"] for job in shown["recent_jobs"]] == [3, 2, 1]
        assert {"name": "default", "paused": False, "queued": 1, "running": 2} in shown["queues"]
        assert "triage" in [kind["name"] for kind in shown["kinds"]]
        assert "intake" not in [kind["name"] for kind in shown["kinds"]]


async def test_a_long_payload_is_cut_and_read_on_by_the_call_it_names(door: Door) -> None:
    text = 'say "hi" \\ ' * 5_000
    async with door.open() as call:
        job_id = (await call("enqueue", kind="work", payload={"text": text}))["job"]["id"]
        seen = (await call("status", job_id=job_id))["job"]
        assert "payload" not in seen
        assert f"job_id {job_id}, part payload, offset {len(seen['payload_start'])}" in seen["payload_more"]

        read, offset = seen["payload_start"], len(seen["payload_start"])
        while offset is not None:
            part = await call("status", job_id=job_id, part="payload", offset=offset)
            read += part["text"]
            offset = part.get("next_offset")
        assert read == f'{{"text":"{text.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"}}'


async def test_a_part_that_is_not_there_is_said_to_be_missing(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        assert "has no result" in await call.refused("status", job_id=1, part="result")
        assert "beyond the end" in await call.refused("status", job_id=1, part="payload", offset=100)
        assert "give job_id" in await call.refused("status", part="payload")


async def test_a_list_pages_with_its_cursor_and_filters(door: Door) -> None:
    async with door.open() as call, door.open(OTHER) as other:
        await call("enqueue", kind="work", payloads=[{}] * 5)
        await other("enqueue", kind="else", title="find me")
        first = await call("list_jobs", kind="work", limit=3)
        assert [job["id"] for job in first["jobs"]] == [5, 4, 3]
        second = await call("list_jobs", kind="work", limit=3, cursor=first["next_cursor"])
        assert [job["id"] for job in second["jobs"]] == [2, 1]
        assert "next_cursor" not in second
        assert "cursor" in await call.refused("list_jobs", kind="else", cursor=first["next_cursor"])
        assert [job["id"] for job in (await call("list_jobs", query="find"))["jobs"]] == [6]
        assert [job["id"] for job in (await other("list_jobs", mine=True))["jobs"]] == [6]
        assert (await call("list_jobs", state="failed")) == {"jobs": []}


async def test_long_rows_make_a_page_shorter_and_lose_none(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work", payloads=[{}] * 60, title='"' * 200, subject='"' * 255, tags=['"' * 64] * 20)
        seen: list[int] = []
        page: dict[str, Any] = {"next_cursor": None}
        while "next_cursor" in page:
            page = await call("list_jobs", limit=100, cursor=page["next_cursor"])
            seen += [job["id"] for job in page["jobs"]]
        assert seen == list(range(60, 0, -1))


async def test_wait_returns_the_result_when_the_job_ends_and_says_when_it_has_not(door: Door) -> None:
    async with door.open() as call, door.open(OTHER) as worker:
        await call("enqueue", kind="work", payloads=[{}, {}])
        waiting = asyncio.create_task(call("wait", job_id="#1"))
        [lease] = (await worker("lease", max=1))["leases"]
        await worker("complete", lease_id=lease["lease_id"], result="done")
        answer = await waiting
        assert answer["final"] is True
        assert answer["job"]["result"] == {"text": "done"}

        both = await call("wait", job_ids=[1, 2], seconds=0)
        assert both["final"] is False
        assert [job["state"] for job in both["jobs"]] == ["succeeded", "queued"]
        assert both["jobs"][0]["result"] == {"text": "done"}
        assert "call wait again" in both["next"]


async def test_a_call_that_waits_holds_up_no_other(door: Door) -> None:
    async with door.open(mode="legacy") as call:
        waiting = asyncio.create_task(call("lease", kinds="late", wait_seconds=15))
        await until(lambda: bool(door.core.dispatch._waiters))
        await call("enqueue", kind="late")
        assert len((await waiting)["leases"]) == 1


# Changing jobs.


async def test_requeue_puts_a_failed_job_back(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        failed = await call("fail", lease_id=lease["lease_id"], error="broken", permanent=True)
        assert failed["job"]["state"] == "failed"
        back = await call("requeue", job_id=1, queue="mail")
        assert (back["job"]["state"], back["job"]["queue"], back["job"]["attempts"]) == ("queued", "mail", 0)
        [lease] = (await call("lease"))["leases"]
        assert "status" in await call.refused("requeue", job_id=1)
        assert "not configured" in await call.refused("requeue", job_id=1, queue="nowhere")


async def test_requeue_with_retriage_lets_triage_decide_again(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="intake", payload={"text": "t"}, subject="note:1")
        await call("cancel", job_id=1)
        assert (await call("requeue", job_id=1, retriage=True))["job"]["state"] == "queued"


async def test_cancel_ends_a_queued_job_and_asks_a_running_one_to_stop(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work", payloads=[{}, {}])
        [lease] = (await call("lease"))["leases"]
        assert (await call("cancel", job_id=2))["job"]["state"] == "cancelled"
        again = await call("cancel", job_id=2)
        assert again["changed"] is False
        assert "cancelled already" in again["note"]

        asked = await call("cancel", job_id=1)
        assert asked["changed"] is True
        assert asked["job"]["cancelling"] is True
        beaten = await call("heartbeat", lease_id=lease["lease_id"])
        assert beaten["cancelling"] is True
        assert "release" in beaten["next"]
        assert (await call("release", lease_id=lease["lease_id"]))["job"]["state"] == "cancelled"


# Doing jobs.


async def test_a_lease_lasts_as_long_half_an_hour_unless_the_call_says_otherwise(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work", payloads=[{}, {}])
        leases = [(await call("lease"))["leases"][0], (await call("lease", lease_seconds=60))["leases"][0]]
        assert [lease["expires_at"][14:19] for lease in leases] == ["30:00", "01:00"]


async def test_a_lease_with_nothing_to_do_says_what_next(door: Door) -> None:
    async with door.open() as call:
        assert await call("lease") == {
            "leases": [],
            "next": "Nothing to do now. Call lease again, with wait_seconds up to 15.",
        }


async def test_a_lease_carries_the_instructions_of_its_kind(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="triage", payload={"text": "t"})
        [lease] = (await call("lease"))["leases"]
        assert lease["instructions"].startswith("Label `text`")
        told = await call.refused("complete", lease_id=lease["lease_id"], result={"labels": "x"})
        assert "/labels breaks type" in told
        assert "You still hold the lease" in told
        assert '"minProperties":1' in told
        assert (await call("complete", lease_id=lease["lease_id"], result={"labels": {"topic": "x"}}))["job"]


async def test_ten_leases_with_large_payloads_fit_into_one_answer(door: Door) -> None:
    async with door.open() as call:
        await call(
            "enqueue", kind="work", payloads=[{"text": "é" * 9_000}] * 9 + [{}], title='"' * 200, subject='"' * 255
        )
        leases = (await call("lease", max=10))["leases"]
        assert len({lease["lease_id"] for lease in leases}) == 10
        assert leases[9]["job"]["payload"] == {}
        assert all("Read on with status" in lease["job"]["payload_more"] for lease in leases[:9])


async def test_a_heartbeat_extends_the_lease_and_reports_progress(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease", lease_seconds=60))["leases"]
        door.clock.advance(50)
        beaten = await call("heartbeat", lease_id=lease["lease_id"], percent=40, message="12 of 30")
        assert beaten["expires_at"] > lease["expires_at"]
        progress = (await call("status", job_id=1))["job"]["progress"]
        assert (progress["percent"], progress["message"]) == (40, "12 of 30")


async def test_a_failure_is_tried_again_later(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        failed = (await call("fail", lease_id=lease["lease_id"], error="busy", retry_after=100, usage={"n": 1}))["job"]
        assert (failed["state"], failed["last_error"]) == ("queued", "busy")
        assert failed["waits"][0]["code"] == "retry"
        assert (await call("status", job_id=1, part="last_error"))["text"] == "busy"


async def test_a_release_gives_the_job_back_now_or_later(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        assert (await call("release", lease_id=lease["lease_id"]))["job"]["attempts"] == 0
        [lease] = (await call("lease"))["leases"]
        assert (await call("release", lease_id=lease["lease_id"], seconds=60))["job"]["state"] == "queued"
        assert (await call("lease"))["leases"] == []


async def test_a_question_is_seen_by_who_enqueued_answered_and_carried_by_the_next_lease(door: Door) -> None:
    async with door.open() as call, door.open(WORKER) as worker:
        await call("enqueue", kind="work")
        [lease] = (await worker("lease"))["leases"]
        asked = await worker("release", lease_id=lease["lease_id"], question="Which colour?", seconds=600)
        assert (asked["job"]["state"], asked["job"]["attempts"]) == ("queued", 0)
        assert asked["job"]["waits"][0]["code"] == "answer"
        assert "once it is answered" in asked["next"]
        assert (await worker("lease"))["leases"] == []

        shown = await call("status")
        assert shown["questions"] == [{"job_id": 1, "agent": "worker/one", "question": "Which colour?"}]
        assert "call answer" in shown["next"]
        for told in (await call("status", job_id=1), await call("wait", job_id=1, seconds=0)):
            assert told["job"]["question"] == "Which colour?"
            assert "call answer with job_id 1" in told["next"]
        assert (await call("wait", job_ids=[1], seconds=0))["jobs"][0]["question"] == "Which colour?"

        answered = await call("answer", job_id="#1", text="Blue.")
        assert (answered["job"]["state"], "question" in answered["job"]) == ("queued", False)
        told = await call.refused("answer", job_id=1, text="Red.")
        assert "no open question" in told
        assert "Call status" in told
        [lease] = (await worker("lease"))["leases"]
        assert lease["answers"] == [{"question": "Which colour?", "answer": "Blue."}]
        assert "questions" not in await call("status")


async def test_a_question_nobody_answers_in_time_comes_back_without_an_answer(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        await call("release", lease_id=lease["lease_id"], question="Which?", seconds=60)
        door.clock.advance(61)
        [lease] = (await call("lease"))["leases"]
        assert lease["answers"] == [{"question": "Which?"}]


async def test_long_questions_and_answers_are_cut_and_read_on_by_part(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        question, reply = 'q"' * 1_999, 'a"' * 9_999
        [lease] = (await call("lease"))["leases"]
        await call("release", lease_id=lease["lease_id"], question=question)
        assert (await call("status", job_id=1))["job"]["question"] == question
        rest = await call("status", job_id=1, part="question", offset=3_000)
        assert rest["text"] == question[3_000:]
        assert len((await call("list_jobs"))["jobs"][0]["question"]) == 300
        await call("answer", job_id=1, text=reply)
        [lease] = (await call("lease"))["leases"]
        read, offset = lease["answers_start"], len(lease["answers_start"])
        while offset is not None:
            part = await call("status", job_id=1, part="answers", offset=offset)
            read += part["text"]
            offset = part.get("next_offset")
        assert json.loads(read) == [{"question": question, "answer": reply}]
        assert "has no question" in await call.refused("status", job_id=1, part="question")


async def test_an_agent_answers_only_what_its_own_jobs_ask(door: Door) -> None:
    async with door.open() as call, door.open(WORKER) as worker:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        await call("release", lease_id=lease["lease_id"], question="Which?")
        assert "no job 1" in await worker.refused("answer", job_id=1, text="Mine.")
        await call("answer", job_id=1, text="That.")
        [lease] = (await worker("lease"))["leases"]
        part = (await worker("enqueue", kind="part", lease_id=lease["lease_id"]))["job"]["id"]
        await worker("release", lease_id=lease["lease_id"], question="And now?")
        assert "next" not in await worker("status", job_id=1), "its own question is for others to answer"
        [lease] = (await call("lease", kinds="part"))["leases"]
        await call("release", lease_id=lease["lease_id"], question="Which part?")
        assert f"call answer with job_id {part}" in (await worker("status", job_id=part))["next"]
        assert (await worker("answer", job_id=part, text="This."))["job"]["state"] == "queued"


async def test_a_job_that_waits_for_its_children_comes_back_with_their_results(door: Door) -> None:
    async with door.open() as call, door.open(WORKER) as worker:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        await call("enqueue", kind="part", payloads=[{"n": 1}, {"n": 2}], lease_id=lease["lease_id"])
        back = await call("release", lease_id=lease["lease_id"], after_children=True)
        assert [wait["code"] for wait in back["job"]["waits"]] == ["children"]
        assert "once all its children have ended" in back["next"]
        assert (await call("status", job_id=1))["job"]["waits"][0]["text"] == "2 of 2 children are not final"
        assert (await call("lease", kinds="work"))["leases"] == []
        first, second = (await worker("lease", kinds="part", max=2))["leases"]
        await worker("complete", lease_id=first["lease_id"], result={"n": 10})
        await worker("fail", lease_id=second["lease_id"], error="no", permanent=True)
        [lease] = (await call("lease", kinds="work"))["leases"]
        assert lease["children"] == [
            {"id": 2, "kind": "part", "state": "succeeded", "result": {"n": 10}},
            {"id": 3, "kind": "part", "state": "failed", "reason": "permanent", "last_error": "no"},
        ]


async def test_many_children_with_long_results_fit_into_one_answer(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        await call("enqueue", kind="part", payloads=[{}] * 200, title='"' * 200, lease_id=lease["lease_id"])
        await call("release", lease_id=lease["lease_id"], after_children=True)
        for _ in range(20):
            for part in (await call("lease", kinds="part", max=10))["leases"]:
                await call("complete", lease_id=part["lease_id"], result={"text": "é" * 9_000})
        [lease] = (await call("lease", kinds="work"))["leases"]
        shown = lease["children"]
        assert [child["id"] for child in shown] == list(range(2, 2 + len(shown)))
        assert len(shown) > 10
        assert lease["children_more"].startswith(f"{200 - len(shown)} more: list_jobs with parent_id 1")
        for child in shown:
            assert f"job_id {child['id']}, part result" in child["result_more"]


async def test_an_agent_that_lost_its_memory_gets_its_own_leases_again(door: Door) -> None:
    async with door.open() as call, door.open(TWIN) as twin:
        await call("enqueue", kind="work", payloads=[{"n": 1}, {"n": 2}, {"n": 3}])
        [old] = (await call("lease"))["leases"]
        await twin("lease")
        answer = await call("lease", resume=True)
        [lease] = answer["leases"]
        assert lease["job"]["payload"] == {"n": 1}
        assert lease["job"]["attempts"] == 1
        assert "worth nothing" in answer["note"]
        assert "Lease lost" in await call.refused("heartbeat", lease_id=old["lease_id"])
        await call("complete", lease_id=lease["lease_id"])
        assert "holds nothing" in (await call("lease", resume=True))["next"]
    async with door.open(replace(ME, instance=None)) as nameless:
        refused = await nameless.refused("lease", resume=True)
        assert "goes back to the queue when its lease runs out" in refused
        assert "INSTANCE" not in refused, "no tool takes one"


async def test_of_very_many_leases_those_that_cannot_be_told_go_back_unharmed(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work", payloads=[{"text": "é" * 9_000}] * 30, title='"' * 200, subject='"' * 255)
        for _ in range(3):
            await call("lease", max=10)
        answer = await call("lease", resume=True)
        assert len({lease["lease_id"] for lease in answer["leases"]}) == 20
        assert "10 more jobs you held went back" in answer["note"]
        assert len((await call("list_jobs", state="queued"))["jobs"]) == 10
        await call("heartbeat", lease_id=answer["leases"][19]["lease_id"])


async def test_repeating_a_finish_is_safe_and_another_one_is_refused(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        first = await call("complete", lease_id=lease["lease_id"], result={"a": 1})
        assert await call("complete", lease_id=lease["lease_id"], result={"a": 1}) == first
        await call.refused("complete", lease_id=lease["lease_id"], result={"a": 2})


async def test_a_lost_lease_says_what_to_do_next(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease", lease_seconds=10))["leases"]
        door.clock.advance(11)
        for tool, more in (("heartbeat", {}), ("complete", {}), ("fail", {"error": "e"}), ("release", {})):
            told = await call.refused(tool, lease_id=lease["lease_id"], **more)
            assert told.startswith("Lease lost: ")
            assert "Call lease for new work." in told
        assert "if you lost it, call lease with resume" in await call.refused("heartbeat", lease_id="1")


async def test_another_agent_cannot_finish_my_job(door: Door) -> None:
    async with door.open() as call, door.open(OTHER) as other:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        assert "Lease lost" in await other.refused("complete", lease_id=lease["lease_id"])


# Refusals and failures.


async def test_what_the_roles_do_not_allow_is_refused_with_the_role_that_would(door: Door) -> None:
    async with door.open(VIEWER) as call:
        assert "role user" in await call.refused("cancel", job_id=1)
        assert "role agent" in await call.refused("lease")
        assert (await call("list_jobs")) == {"jobs": []}


async def test_an_agent_does_not_see_jobs_that_are_none_of_its_business(door: Door) -> None:
    async with door.open(ME) as call, door.open(WORKER) as worker:
        await call("enqueue", kind="work")
        assert "no job 1" in await worker.refused("status", job_id=1)
        assert "no job 1" in await worker.refused("wait", job_id=1, seconds=0)
        assert await worker("list_jobs") == {"jobs": []}
        assert (await worker("status"))["recent_jobs"] == []


async def test_an_unknown_tool_is_refused_with_the_nearest(door: Door) -> None:
    async with door.open() as call:
        with pytest.raises(MCPError, match="Did you mean enqueue"):
            await call.client.call_tool("enqeue", {})


async def test_an_unexpected_failure_tells_neither_the_client_nor_the_log_a_value(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(*args: Any) -> Any:
        raise RuntimeError("secret payload")

    monkeypatch.setattr(Jobs, "get", failing)
    async with door.open() as call:
        told = await call.refused("status", job_id=1)
    assert told.startswith("Oaken failed on this call")
    assert "secret" not in told + caplog.text
    assert "RuntimeError" in caplog.text


async def test_a_finish_is_carried_out_although_its_caller_gives_up_before_it_is_written(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door.open(mode="legacy") as call:
        await call("enqueue", kind="work", payloads=[{}, {}])
        leases = (await call("lease", max=2))["leases"]
        busy, free = asyncio.Event(), asyncio.Event()
        write = door.core.store.write

        async def gated(*asked: Any) -> Any:
            busy.set()
            await free.wait()
            return await write(*asked)

        monkeypatch.setattr(door.core.store, "write", gated)
        first = asyncio.create_task(call("heartbeat", lease_id=leases[1]["lease_id"]))
        await busy.wait()
        finishing = asyncio.create_task(call("complete", lease_id=leases[0]["lease_id"], result={"kept": True}))
        await until(lambda: len(door.core.commit._waiting) == 1)
        finishing.cancel()
        await call("list_jobs")
        free.set()
        await first
        assert (await call("wait", job_id=1, seconds=15))["job"]["result"] == {"kept": True}


async def test_a_lease_given_up_while_waiting_takes_no_job(door: Door) -> None:
    async with door.open(mode="legacy") as call:
        waiting = asyncio.create_task(call("lease", wait_seconds=15))
        await until(lambda: bool(door.core.dispatch._waiters))
        waiting.cancel()
        await until(lambda: not door.core.dispatch._waiters)
        await call("enqueue", kind="work")
        assert (await call("status", job_id=1))["job"]["state"] == "queued"


async def test_a_call_that_is_cancelled_as_it_gets_its_jobs_returns_them(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
    lease = door.core.jobs.lease
    with anyio.CancelScope() as scope:

        async def cancelled(*given: Any, **named: Any) -> Any:
            found = await lease(*given, **named)
            assert found
            scope.cancel()
            return found

        monkeypatch.setattr(door.core.jobs, "lease", cancelled)
        await tools.lease(Context(door.core, WORKER), arguments.Lease())
    assert scope.cancelled_caught
    [job] = await door.core.store.jobs([1])
    assert (job.state, job.attempts, job.epoch) == ("queued", 0, 1)


async def test_who_asks_is_not_told_to_answer_itself(door: Door) -> None:
    async with door.open() as me, door.open(OTHER) as other:
        job = (await me("enqueue", kind="work"))["job"]["id"]
        [lease] = (await me("lease"))["leases"]
        await me("release", lease_id=lease["lease_id"], question="Which?")
        assert "next" not in await me("status", job_id=job)
        assert "questions" not in await me("status")
        assert "call answer with job_id" in (await other("status", job_id=job))["next"]
        assert [one["job_id"] for one in (await other("status"))["questions"]] == [job]


async def test_a_release_that_has_no_children_to_wait_for_says_so(door: Door) -> None:
    async with door.open() as call:
        await call("enqueue", kind="work")
        [lease] = (await call("lease"))["leases"]
        told = await call("release", lease_id=lease["lease_id"], after_children=True)
        assert "leased again at once" in told["note"]
        [lease] = (await call("lease"))["leases"]
        await call("enqueue", kind="part", lease_id=lease["lease_id"])
        told = await call("release", lease_id=lease["lease_id"], after_children=True)
        assert "once all its children have ended" in told["next"]


async def test_a_lease_of_named_kinds_and_queues_says_where_it_found_nothing(door: Door) -> None:
    async with door.open() as call:
        told = (await call("lease", kinds=["transalte"], queues=["mail"]))["next"]
        assert told.startswith("Nothing to do now in transalte, mail. Call lease again")
        assert "leave out kinds and queues" in told

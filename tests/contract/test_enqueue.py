"""Adding jobs: ids, routing, priorities, dedupe, children, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from oaken_jobs.errors import Forbidden, InvalidRequest, NotFound, OakenError, PayloadInvalid, TooLarge
from oaken_jobs.requests import NewJobRequest, read
from oaken_jobs.store.base import JobFilter
from tests.contract.world import AGENT, ME, OTHER, RULES, VIEWER, World


async def test_ids_ascend_in_request_order(world: World) -> None:
    answers = await world.jobs.enqueue_many(ME, [NewJobRequest(kind="work", payload={"n": n}) for n in range(700)])
    ids = [a.job.id for a in answers]
    assert ids == sorted(ids) == list(range(ids[0], ids[0] + 700))
    payloads, _ = await world.jobs.bodies(ME, [a.job for a in answers])
    assert payloads[ids[42]] == '{"n":42}'


@pytest.mark.parametrize(
    ("kind", "subject", "queue", "by"),
    [
        ("intake", None, "default", "default"),
        ("store", None, "store", "stage"),
        ("embed", None, "embed", "stage"),
        ("triage", None, "triage", "stage"),
        ("anything", None, "default", "default"),
        ("anything", "note:labelled", "mail", "label"),
        ("triage", "note:labelled", "mail", "label"),
        ("embed", "note:labelled", "embed", "stage"),
        ("anything", "note:closed", "default", "default"),
        ("anything", "note:unknown", "default", "default"),
    ],
)
async def test_the_queue_is_decided_by_label_stage_or_default(
    world: World, kind: str, subject: str | None, queue: str, by: str
) -> None:
    for name, label in (("labelled", "mail"), ("closed", "closed"), ("unknown", "nowhere")):
        await world.jobs.set_labels(ME, f"note:{name}", {"queue": label})
    payload = {"document": "0" * 64, "text": "x"} if kind != "intake" else {"text": "x"}
    job = await world.add(kind, subject=subject, payload=payload)
    assert (job.queue, job.routed_by) == (queue, by)


async def test_a_person_gets_priority_100_and_everything_else_50(world: World) -> None:
    mine = await world.add()
    lease = await world.take()
    child = await world.add(who=AGENT, parent_id=lease.job.id)
    assert (mine.priority, child.priority) == (100, 50)
    assert (await world.add(priority="backfill")).priority == 10
    assert (await world.add(priority=1000)).priority == 1000


@pytest.mark.parametrize("field", ["dedupe_key", "target"])
async def test_a_live_job_with_the_same_key_is_returned_instead_of_a_second_one(world: World, field: str) -> None:
    first = await world.enqueue(**{field: "k"})
    second = await world.enqueue(**{field: "k"}, payload={"other": 1})
    assert (first.created, second.created) == (True, False)
    assert second.job.id == first.job.id
    assert second.job.coalesced == 1
    lease = await world.take()
    assert not (await world.enqueue(**{field: "k"})).created, "running counts as live"
    await world.jobs.fail(AGENT, lease.lease_id, "boom")
    assert not (await world.enqueue(**{field: "k"})).created, "waiting for a retry counts as live"
    world.clock.advance(10)
    lease = await world.take()
    await world.jobs.complete(AGENT, lease.lease_id)
    assert (await world.enqueue(**{field: "k"})).created, "the key is free when the job has ended"


async def test_duplicates_inside_one_call_are_folded(world: World) -> None:
    requests = [NewJobRequest(kind="work", dedupe_key="k") for _ in range(5)]
    answers = await world.jobs.enqueue_many(ME, requests)
    assert [a.created for a in answers] == [True, False, False, False, False]
    assert len({a.job.id for a in answers}) == 1
    assert (await world.job(answers[0].job.id)).coalesced == 4


async def test_one_target_may_be_worked_on_by_two_kinds(world: World) -> None:
    assert (await world.enqueue("a", target="t")).created
    assert (await world.enqueue("b", target="t")).created


async def test_one_bad_job_among_many_leaves_the_others_alone(world: World) -> None:
    requests = [
        NewJobRequest(kind="sum", payload={"n": 1}),
        NewJobRequest(kind="sum", payload={"n": "one"}),
        NewJobRequest(kind="work", parent_id=999),
        NewJobRequest(kind="work"),
    ]
    answers = await world.jobs.enqueue_many(ME, requests)
    assert [type(a).__name__ for a in answers] == ["Enqueued", "PayloadInvalid", "NotFound", "Enqueued"]


async def test_delays_make_a_job_runnable_later(world: World) -> None:
    delayed = await world.add(delay_seconds=60)
    assert delayed.run_at == world.clock.now() + 60_000
    await world.none()
    world.clock.advance(60)
    assert (await world.take()).job.id == delayed.id


async def test_a_payload_that_does_not_fit_its_kind_is_refused_with_path_and_rule(world: World) -> None:
    with pytest.raises(PayloadInvalid, match="/n breaks type"):
        await world.add("sum", payload={"n": "one"})


async def test_a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_kept(world: World) -> None:
    room = RULES.max_payload_bytes - len('{"t":""}')
    job = await world.add(payload={"t": "x" * room})
    assert (await world.take()).job.id == job.id
    with pytest.raises(TooLarge, match=r"1048577.*1048576.*\[jobs\] max_payload_bytes"):
        await world.add(payload={"t": "x" * (room + 1)})


@pytest.mark.parametrize("text", ["🦉👩‍👩‍👧", "\u202eשלום", "a\x00b", "é", "\\u0000", "\u2028", '"\\/'])
async def test_text_is_kept_byte_for_byte(world: World, text: str) -> None:
    await world.add(payload={text: text, "list": [text]})
    lease = await world.take()
    import orjson

    assert orjson.loads(lease.payload) == {text: text, "list": [text]}
    await world.jobs.complete(AGENT, lease.lease_id, {"r": text})
    assert orjson.loads(await world.jobs.result(ME, lease.job.id)) == {"r": text}


async def test_too_many_jobs_in_one_call_are_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match=r"1001 jobs.*1000.*max_batch"):
        await world.jobs.enqueue_many(ME, [NewJobRequest(kind="work")] * 1001)


async def test_a_kind_nobody_ever_leased_draws_a_warning_until_somebody_does(world: World) -> None:
    assert "'emebd'" in ((await world.enqueue("emebd")).warning or "")
    await world.take(kinds=["emebd"])
    assert (await world.enqueue("emebd")).warning is None
    assert (await world.enqueue("embed", payload={"text": "x"})).warning is None, "a built-in kind is known"
    await world.restart()
    assert (await world.enqueue("emebd")).warning is None


async def test_unknown_kinds_can_be_refused(world: World) -> None:
    await world.restart(unknown_kinds="reject")
    with pytest.raises(InvalidRequest, match="'emebd' is not known"):
        await world.add("emebd")


async def test_an_agent_adds_children_of_what_it_holds_and_nothing_else(world: World) -> None:
    held = await world.add()
    free = await world.add()
    lease = await world.take()
    assert lease.job.id == held.id
    child = await world.add("child", who=AGENT, parent_id=held.id)
    assert (child.parent_id, child.actor_kind, child.actor_id) == (held.id, "agent", "worker")
    with pytest.raises(Forbidden, match="children of a job it holds"):
        await world.add("child", who=AGENT)
    with pytest.raises(Forbidden, match="not held by worker"):
        await world.add("child", who=AGENT, parent_id=free.id)
    with pytest.raises(Forbidden, match="not held by other"):
        await world.add("child", who=OTHER, parent_id=held.id)
    with pytest.raises(NotFound, match="parent_id 999"):
        await world.add("child", who=ME, parent_id=999)
    with pytest.raises(Forbidden, match="role user or agent or admin"):
        await world.add(who=VIEWER)


async def test_children_are_listed_and_spared_when_their_parent_is_cancelled(world: World) -> None:
    parent = await world.add()
    child = await world.add(parent_id=parent.id)
    await world.jobs.cancel(ME, parent.id)
    assert [j.id for j in await world.jobs.children(ME, parent.id)] == [child.id]
    assert (await world.job(child.id)).state == "queued"


async def test_a_label_change_moves_no_queued_job(world: World) -> None:
    job = await world.add(subject="s")
    await world.jobs.set_labels(ME, "s", {"queue": "mail"})
    assert (await world.job(job.id)).queue == "default"
    assert (await world.add(subject="s")).queue == "mail"
    assert len((await world.jobs.list(ME, JobFilter())).jobs) == 2


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({}, "kind: is required"),
    ({"kind": ""}, "kind"),
    ({"kind": 7}, "kind: must be text"),
    ({"kind": "a b"}, "kind: must match"),
    ({"kind": "x" * 65}, "kind: must be at most 64"),
    ({"kind": "x", "payload": []}, "payload: must be a JSON object"),
    ({"kind": "x", "payload": "text"}, "payload: must be a JSON object"),
    ({"kind": "x", "priority": 1001}, "priority: must be at most 1000"),
    ({"kind": "x", "priority": -1}, "priority: must be at least 0"),
    ({"kind": "x", "priority": True}, "priority: must be a whole number"),
    ({"kind": "x", "priority": "urgent"}, "user, ingest, backfill"),
    ({"kind": "x", "priority": 1.5}, "priority: must be a whole number"),
    ({"kind": "x", "delay_seconds": -1}, "delay_seconds: must be at least 0"),
    ({"kind": "x", "delay_seconds": 1e300}, "delay_seconds: must be at most"),
    ({"kind": "x", "delay_seconds": float("nan")}, "delay_seconds"),
    ({"kind": "x", "run_at": "tomorrow"}, "run_at: give a time with its zone"),
    ({"kind": "x", "run_at": "2030-01-01T00:00:00"}, "run_at: give a time with its zone"),
    ({"kind": "x", "run_at": "9999-12-31T23:59:59-23:59"}, "run_at: give a time"),
    ({"kind": "x", "run_at": 5}, "run_at: give a time"),
    ({"kind": "x", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "give one of them"),
    ({"kind": "x", "max_attempts": 0}, "max_attempts: must be at least 1"),
    ({"kind": "x", "parent_id": 0}, "parent_id: must be more than 0"),
    ({"kind": "x", "parent_id": 2**60}, "parent_id: must be at most"),
    ({"kind": "x", "parent_id": "1"}, "parent_id: must be a whole number"),
    ({"kind": "x", "tags": "a"}, "tags: must be a list"),
    ({"kind": "x", "tags": ["a"] * 21}, "tags: must have at most 20"),
    ({"kind": "x", "tags": [1]}, "tags.0: must be text"),
    ({"kind": "x", "subject": ""}, "subject: must be at least 1"),
    ({"kind": "x", "subject": "a\x00b"}, "subject: it holds control characters"),
    ({"kind": "x", "dedupe_key": "\ud800"}, "dedupe_key"),
    ({"kind": "x", "budget_usd": -0.1}, "budget_usd: must be at least 0"),
    ({"kind": "x", "budget_usd": float("inf")}, "budget_usd"),
    ({"kind": "x", "prioritty": 1}, "prioritty: unknown field; did you mean priority"),
    ({"kind": "x", "serial_key": ""}, "serial_key: must be at least 1"),
    ({"kind": "x", "ttl_seconds": 0}, "ttl_seconds: must be more than 0"),
    ({"kind": "x", "ttl_seconds": 1, "expires_at": "2030-01-01T00:00:00Z"}, "give one of them"),
    ({"kind": "x", "on_duplicate": "replace"}, "on_duplicate needs a dedupe_key or a target"),
    ({"kind": "x", "on_duplicate": "drop", "target": "t"}, "on_duplicate: must be 'keep' or 'replace'"),
    ({"kind": "x", "workspace": "No Such"}, "workspace: must match"),
]


@pytest.mark.parametrize(("body", "told"), HOSTILE, ids=[t for _, t in HOSTILE])
def test_bad_fields_are_refused_by_name_with_what_is_allowed(body: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(NewJobRequest, body)
    assert told in refused.value.message
    refused.value.message.encode()


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"a": {"b": [1, 2**64]}}, "/a/b/1"),
        ({"a": float("nan")}, "/a"),
        ({"a": [float("-inf")]}, "/a/0"),
        ({"a": "\ud83d"}, "/a"),
        ({"a": b"bytes"}, "/a"),
        ({"a": {1: 2}}, "/a"),
    ],
)
async def test_what_json_cannot_keep_is_refused_with_its_path(world: World, payload: Any, path: str) -> None:
    with pytest.raises(OakenError) as refused:
        await world.add(payload=payload)
    assert path in refused.value.message

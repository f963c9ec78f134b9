"""What an author may write into a plugin, and what is refused at once, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from oaken_jobs.errors import OakenError
from oaken_jobs.plugin import Plugin


class Note(BaseModel):
    text: str = Field(min_length=1)


def test_a_kind_has_the_schema_of_a_pydantic_model_or_the_one_given() -> None:
    plugin = Plugin("notes")
    plugin.kind(
        "summarise", payload=Note, result={"type": "object", "required": ["summary"]}, limit=2, retry_delays=[1]
    )
    kind = plugin.kinds["summarise"]
    assert kind.payload_schema is not None
    assert kind.payload_schema.problems({"text": ""})
    assert not kind.payload_schema.problems({"text": "x"})
    assert kind.result_schema is not None
    assert kind.result_schema.problems({})
    assert (kind.limit, kind.retry_delays, kind.lease_seconds, kind.internal) == (2, (1,), None, False)


def test_a_schedule_has_the_plugins_name_before_its_own() -> None:
    plugin = Plugin("notes")
    plugin.schedule("nightly", kind="embed", cron="0 3 * * *", timezone="Asia/Tokyo", priority="backfill")
    (name,) = plugin.schedules
    assert (name, plugin.schedules[name].queue, plugin.schedules[name].priority) == ("notes.nightly", "default", 10)


async def well() -> None: ...


WRONG: list[tuple[Callable[[Plugin], Any], str]] = [
    (lambda p: p.kind("two words"), "'two words' is no name for a kind"),
    (lambda p: (p.kind("a"), p.kind("a")), "the kind 'a' is declared twice"),
    (lambda p: p.kind("a", limit=0), "kind 'a': limit must be a whole number from 1 to 100000"),
    (lambda p: p.kind("a", lease="x"), "kind 'a': lease is no field of a kind"),
    (lambda p: p.kind("a", payload={"type": "nonsense"}), "kind 'a': payload_schema is not a usable JSON Schema"),
    (lambda p: p.kind("a", result={"default": float("nan")}), "schema in kind 'a': result_schema"),
    (lambda p: p.schedule("a b", kind="x", every_seconds=5), "'notes.a b' is no name for a schedule"),
    (lambda p: p.schedule("a", kind="x"), "schedule a: give either every_seconds or cron"),
    (lambda p: p.schedule("a", kind="x", every_seconds=0), "schedule a.every_seconds: must be at least 1"),
    (lambda p: [p.schedule("a", kind="x", every_seconds=5) for _ in range(2)], "the schedule 'a' is declared twice"),
    (lambda p: p.event("Done"), "event 'Done' is declared twice, or does not match"),
    (lambda p: p.event("done", "job_id"), "'job_id' is no name for a field, or has a meaning already"),
    (lambda p: p.event("done", "a", "a"), "at most 20 fields, each once"),
    (lambda p: p.health(every_seconds=0), "every_seconds is 0; it must be from 1 to 86400"),
    (lambda p: p.health()(lambda: None), "the check must be an async function"),  # type: ignore[arg-type,return-value]
    (lambda p: p.on(), "name the kinds of events"),
    (lambda p: p.on("log_line"), "'log_line' is no kind of event"),
]


@pytest.mark.parametrize(("act", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_can_never_work_is_refused_where_it_is_written(act: Callable[[Plugin], Any], told: str) -> None:
    with pytest.raises((ValueError, OakenError)) as refused:
        act(Plugin("notes"))
    assert told in str(refused.value)


@pytest.mark.parametrize("name", ["", "Notes", "1st", "a" * 42, "a b"])
def test_a_bad_name_for_a_plugin_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name for a plugin"):
        Plugin(name)


def test_listeners_are_kept_with_the_kinds_they_want() -> None:
    plugin = Plugin("notes")

    @plugin.on("job_state_changed", "notes.done")
    async def heard(event: Any) -> None: ...

    assert [(one.kinds, one.function) for one in plugin.listeners] == [(("job_state_changed", "notes.done"), heard)]


async def test_an_event_is_written_only_by_a_process_that_runs_the_plugin() -> None:
    plugin = Plugin("notes")
    plugin.event("done")
    with pytest.raises(OakenError, match="notes is not at work in this process"):
        await plugin.emit("done")


EVENTS: list[tuple[dict[str, Any], str]] = [
    ({"count": 1}, "the field name is missing"),
    ({"count": 1, "name": "a", "more": 2}, "'more' is not among its fields: count, name"),
    ({"count": float("inf"), "name": "a"}, "the field count must be a number"),
    ({"count": 2**60, "name": "a"}, "the field count must be a number"),
    ({"count": 10**400, "name": "a"}, "the field count must be a number"),
    ({"count": -(10**400), "name": "a"}, "the field count must be a number"),
    ({"count": 1, "name": "a", "job_id": 10**400}, "job_id must be the id of a job"),
    ({"count": 1, "name": "a", "job_id": 2**63}, "job_id must be the id of a job"),
    ({"count": 1, "name": "a", "job_id": "secret"}, "job_id must be the id of a job"),
    ({"count": 1, "name": "a", "job_id": True}, "job_id must be the id of a job"),
    ({"count": 1, "name": "a", "job_id": 0}, "job_id must be the id of a job"),
    ({"count": None, "name": "a"}, "the field count must be a number"),
    ({"count": 1, "name": "my secret"}, "the field name must be a number, true or false, or an identifier"),
    ({"count": 1, "name": "my-secret" * 10}, "the field name must be"),
    ({"count": 1, "name": ["secret"]}, "the field name must be"),
    ({"count": 1, "name": "a", "workspace": "a secret"}, "workspace must match"),
]


@pytest.mark.parametrize(("fields", "told"), EVENTS)
async def test_what_does_not_belong_into_an_event_is_refused_by_its_field_and_never_quoted(
    fields: dict[str, Any], told: str
) -> None:
    plugin = Plugin("notes")
    plugin.event("done", "count", "name")
    with pytest.raises(OakenError) as refused:
        await plugin.emit("done", **fields)
    assert told in refused.value.message
    assert "secret" not in refused.value.message

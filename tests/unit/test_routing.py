import pytest

from oaken_jobs.routing import QueueRule, Route, route

QUEUES = {
    rule.name: rule
    for rule in (
        QueueRule("default", workers=2),
        QueueRule("store", kind="store", hidden=True),
        QueueRule("embed", kind="embed", hidden=True),
        QueueRule("review", kind="triage"),
        QueueRule("slow"),
        QueueRule("closed", kind="report", by_label=False),
    )
}


@pytest.mark.parametrize(
    ("kind", "human", "machine", "expected"),
    [
        ("intake", None, None, Route("default", "default")),
        ("intake", "slow", "slow", Route("default", "default")),
        ("store", None, None, Route("store", "stage")),
        ("store", "slow", "review", Route("store", "stage")),
        ("embed", "slow", "review", Route("embed", "stage")),
        ("triage", None, None, Route("review", "stage")),
        ("triage", "slow", None, Route("slow", "label")),
        ("triage", None, "slow", Route("slow", "label")),
        ("triage", "default", "slow", Route("default", "label")),
        ("triage", "gone", "slow", Route("slow", "label")),
        ("triage", "gone", "gone", Route("review", "stage")),
        ("triage", "closed", "slow", Route("slow", "label")),
        ("triage", "closed", None, Route("review", "stage")),
        ("triage", "", "", Route("review", "stage")),
        ("report", None, None, Route("closed", "stage")),
        ("report", "closed", None, Route("closed", "stage")),
        ("other", None, None, Route("default", "default")),
        ("other", "review", "slow", Route("review", "label")),
        ("other", "Slow", None, Route("default", "default")),
    ],
)
def test_label_then_stage_then_default_decides(
    kind: str, human: str | None, machine: str | None, expected: Route
) -> None:
    assert route(kind, human, machine, QUEUES) == expected


@pytest.mark.parametrize("kind", ["store", "embed", "other"])
def test_without_any_other_queue_everything_goes_to_default(kind: str) -> None:
    assert route(kind, "slow", "review", {"default": QueueRule("default")}) == Route("default", "default")

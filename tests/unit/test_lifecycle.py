import itertools

import pytest

from oaken_jobs.lifecycle import MOVES, allowed, sources
from oaken_jobs.model import FINAL, STATES

# Written out apart from the module, from the description of the life of a job. "" is a job that does not exist yet.
LEGAL = {
    ("enqueue", "", "queued"),
    ("claim", "queued", "running"),
    ("claim", "queued", "failed"),
    ("complete", "running", "succeeded"),
    ("complete", "running", "failed"),
    ("complete", "running", "cancelled"),
    ("fail", "running", "queued"),
    ("fail", "running", "failed"),
    ("fail", "running", "cancelled"),
    ("defer", "running", "queued"),
    ("defer", "running", "cancelled"),
    ("release", "running", "queued"),
    ("release", "running", "cancelled"),
    ("ask", "running", "queued"),
    ("ask", "running", "cancelled"),
    ("answer", "queued", "queued"),
    ("cancelled", "running", "cancelled"),
    ("resume", "running", "running"),
    ("overrule", "running", "cancelled"),
    ("expire", "queued", "cancelled"),
    ("adopt", "queued", "succeeded"),
    ("adopt", "running", "succeeded"),
    ("adopt", "failed", "succeeded"),
    ("adopt", "cancelled", "succeeded"),
    ("lose", "running", "queued"),
    ("lose", "running", "failed"),
    ("lose", "running", "cancelled"),
    ("cancel", "queued", "cancelled"),
    ("cancel", "running", "running"),
    *(("edit", state, state) for state in STATES),
    ("requeue", "queued", "queued"),
    ("requeue", "failed", "queued"),
    ("requeue", "cancelled", "queued"),
}
VERBS = sorted({verb for verb, _, _ in LEGAL})


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_makes_exactly_its_moves(verb: str) -> None:
    states = ("", *STATES)
    made = {
        (verb, before, after) for before, after in itertools.product(states, states) if allowed(verb, before, after)
    }
    assert made == {move for move in LEGAL if move[0] == verb}


def test_every_verb_is_walked() -> None:
    assert sorted(MOVES) == VERBS


def test_nothing_leaves_succeeded_and_only_requeue_and_adoption_leave_the_other_ends() -> None:
    leaves = [(verb, before) for verb, before, after in LEGAL if before != after]
    assert {verb for verb, before in leaves if before == "succeeded"} == set()
    assert {verb for verb, before in leaves if before in FINAL} == {"requeue", "adopt"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_sources_of_a_verb_are_the_states_it_moves_from(verb: str) -> None:
    assert sources(verb) == {before for name, before, _ in LEGAL if name == verb and before}

import pytest

from oaken_jobs.retry import Policy, delay_ms


@pytest.mark.parametrize(
    ("attempts", "milliseconds"),
    [(1, 5_000), (2, 10_000), (3, 20_000), (4, 40_000), (10, 2_560_000), (11, 3_600_000), (310, 3_600_000)],
)
def test_the_wait_doubles_up_to_its_most(attempts: int, milliseconds: int) -> None:
    assert delay_ms(Policy(5, 3600, 0.2), attempts, 0) == milliseconds


@pytest.mark.parametrize(
    ("jitter", "share", "milliseconds"),
    [(0.2, 0, 10_000), (0.2, 0.5, 9_000), (0.2, 1, 8_000), (0, 1, 10_000), (1, 1, 0), (1, 0.25, 7_500)],
)
def test_jitter_takes_a_share_off(jitter: float, share: float, milliseconds: int) -> None:
    assert delay_ms(Policy(10, 3600, jitter), 1, share) == milliseconds


@pytest.mark.parametrize("attempts", [64, 65, 1_000, 10_000, 10**9])
def test_the_wait_is_finite_after_any_number_of_attempts(attempts: int) -> None:
    assert delay_ms(Policy(5, 3600, 0.2), attempts, 0.999) == round(3600 * (1 - 0.2 * 0.999) * 1000)
    assert 0 < delay_ms(Policy(86_400, 30 * 86_400, 0.0), attempts, 0) == 30 * 86_400_000


@pytest.mark.parametrize("attempts", [-1, 0, 1])
def test_there_is_no_attempt_before_the_first(attempts: int) -> None:
    assert delay_ms(Policy(5, 3600, 0.0), attempts, 0) == 5_000


def test_a_base_over_the_most_waits_the_most() -> None:
    assert delay_ms(Policy(100, 10, 0.0), 1, 0) == 10_000


def test_a_base_of_nothing_waits_for_nothing() -> None:
    assert delay_ms(Policy(0, 3600, 0.2), 10_000, 0.5) == 0


@pytest.mark.parametrize(("asked", "milliseconds"), [(0, 5_000), (4_999, 5_000), (5_001, 5_001), (10**10, 10**10)])
def test_an_agent_may_ask_for_longer_but_not_for_less(asked: int, milliseconds: int) -> None:
    assert delay_ms(Policy(5, 3600, 0.0), 1, 0, asked) == milliseconds


def test_a_policy_is_read_back_as_it_was_written() -> None:
    for policy in (Policy(5, 3600, 0.2), Policy(0.5, 10, 0, "fail")):
        assert Policy.load(policy.dump()) == policy

import asyncio

import pytest

from oaken_jobs.clock import WAITED_MS, DatabaseClock, FakeClock

START = 1_800_000_000_000


def test_a_fake_clock_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(START)
    assert (clock.now(), clock.monotonic()) == (START, 0)
    clock.advance(1.5)
    assert (clock.now(), clock.monotonic()) == (START + 1500, 1.5)


def test_many_small_steps_move_the_wall_as_far_as_one_large_one() -> None:
    clock = FakeClock(START)
    for _ in range(10_000):
        clock.advance(0.0004)
    assert clock.now() == START + 4000


@pytest.mark.parametrize("seconds", [3600, -3600, 0.25])
def test_a_jump_moves_the_wall_alone_and_fires_nothing(seconds: float) -> None:
    clock, fired = FakeClock(START), list[str]()
    clock.call_later(1, lambda: fired.append("timer"))
    clock.jump(seconds)
    assert (clock.now(), clock.monotonic(), fired) == (START + round(seconds * 1000), 0, [])
    clock.advance(1)
    assert (clock.now(), fired) == (START + round(seconds * 1000) + 1000, ["timer"])


def test_timers_fire_in_order_of_their_time_and_then_of_their_asking() -> None:
    clock, fired = FakeClock(START), list[tuple[str, int]]()
    for name, seconds in (("c", 3), ("a", 1), ("b", 2), ("b2", 2), ("never", 9)):
        clock.call_later(seconds, lambda name=name: fired.append((name, clock.now() - START)))
    clock.advance(5)
    assert fired == [("a", 1000), ("b", 2000), ("b2", 2000), ("c", 3000)]
    assert clock.now() == START + 5000


def test_a_timer_set_by_a_timer_fires_in_the_same_advance_if_it_is_due() -> None:
    clock, fired = FakeClock(START), list[float]()

    def again() -> None:
        fired.append(clock.monotonic())
        clock.call_later(2, again)

    clock.call_later(2, again)
    clock.advance(7)
    assert fired == [2, 4, 6]


def test_a_cancelled_timer_does_not_fire() -> None:
    clock, fired = FakeClock(START), list[str]()
    timer = clock.call_later(1, lambda: fired.append("no"))
    timer.cancel()
    timer.cancel()
    clock.advance(2)
    assert fired == []


def test_a_timer_in_the_past_fires_at_the_next_advance() -> None:
    clock, fired = FakeClock(START), list[float]()
    clock.call_later(-5, lambda: fired.append(clock.monotonic()))
    assert fired == []
    clock.advance(0)
    assert fired == [0]


async def test_a_sleeper_wakes_when_its_time_has_come() -> None:
    clock = FakeClock(START)
    sleeper = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    clock.advance(9.999)
    await asyncio.sleep(0)
    assert not sleeper.done()
    clock.advance(0.001)
    await sleeper


async def test_a_cancelled_sleeper_leaves_nothing_behind() -> None:
    clock = FakeClock(START)
    sleeper = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    clock.advance(20)


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ([300_000], 300_000),
        ([-400], -400),
        ([100, 150], 150),
        ([100, 40, 60], 98),
        ([100, 99, 99], 99),
        ([100, 100 - WAITED_MS], 100 - WAITED_MS),
        ([0, -300_000, 5], 5),
    ],
    ids=[
        "the first",
        "the first, of a machine ahead",
        "a quicker answer",
        "answers that waited",
        "a machine that runs a little fast",
        "a clock that was moved",
        "one that was moved back again",
    ],
)
def test_the_clock_of_a_database_believes_the_answers_that_came_quickest(
    monkeypatch: pytest.MonkeyPatch, said: list[int], believed: int
) -> None:
    monkeypatch.setattr("oaken_jobs.clock.time.time_ns", lambda: 1_800_000_000_000 * 1_000_000)
    clock = DatabaseClock()
    assert clock.now() == 1_800_000_000_000
    for ahead in said:
        clock.set(1_800_000_000_000 + ahead)
    assert clock.now() - 1_800_000_000_000 == believed

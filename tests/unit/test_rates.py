"""How often something may happen, and what is counted together."""

from __future__ import annotations

import pytest

from oaken_jobs.clock import FakeClock
from oaken_swarm import rates
from oaken_swarm.callers import address_of
from oaken_swarm.rates import Rate, place


def test_so_many_at_once_then_one_by_one_as_time_passes() -> None:
    clock = FakeClock()
    rate = Rate(clock, 20, 60)
    assert [rate.add("a") for _ in range(22)] == [0] * 20 + [3, 3]
    assert rate.add("b") == 0
    clock.advance(3)
    assert [rate.add("a"), rate.add("a")] == [0, 3]
    clock.advance(60)
    assert [rate.add("a") for _ in range(21)] == [0] * 20 + [3]
    rate.forgive("a")
    assert rate.add("a") == 0


def test_the_wait_that_is_told_suffices() -> None:
    clock = FakeClock()
    rate = Rate(clock, 7, 10)
    for _ in range(200):
        clock.advance(rate.wait("a"))
        assert rate.add("a") == 0


def test_a_flood_of_keys_takes_no_more_room_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_KEYS", 100)
    rate = Rate(FakeClock(), 1, 60)
    for n in range(1000):
        assert rate.add(str(n)) == 0
    assert len(rate._levels) == 100
    assert (rate.wait("999"), rate.wait("899")) == (60, 0)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:127.0.0.1", "loopback"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("x" * 10_000, "unknown"),
    ],
)
def test_a_place_is_an_address_or_the_network_of_one_customer(address: str, counted: str) -> None:
    assert place(address) == counted


@pytest.mark.parametrize(
    ("forwarded", "behind_proxy", "address"),
    [
        (None, False, "192.0.2.7"),
        (b"203.0.113.1", False, "192.0.2.7"),
        (None, True, "192.0.2.7"),
        (b"203.0.113.1", True, "203.0.113.1"),
        (b"127.0.0.1, 10.0.0.1 ,203.0.113.1 ", True, "203.0.113.1"),
        (b"\xff", True, "\xff"),
    ],
)
def test_only_behind_a_proxy_is_it_believed_where_a_call_comes_from(
    forwarded: bytes | None, behind_proxy: bool, address: str
) -> None:
    assert address_of(("192.0.2.7", 1), forwarded, behind_proxy) == address

"""How long a job waits after a failed attempt. Pure: the share of randomness is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import orjson

OnLost = Literal["requeue", "fail"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the claim writes onto a job, so that whoever judges it later needs to know nothing of its kind. Seconds."""

    backoff_base: float
    backoff_max: float
    backoff_jitter: float
    on_lost: OnLost = "requeue"
    delays: tuple[float, ...] = ()
    """Instead of the formula: the wait after the first failed attempt, the second, and so on; the last one for all further."""

    def dump(self) -> str:
        """As stored in `jobs.policy`."""
        fields = [self.backoff_base, self.backoff_max, self.backoff_jitter, self.on_lost]
        return orjson.dumps([*fields, self.delays] if self.delays else fields).decode()

    @classmethod
    def load(cls, text: str) -> Policy:
        """Reads what `dump` wrote."""
        base, most, jitter, on_lost, *delays = orjson.loads(text)
        return cls(base, most, jitter, on_lost, tuple(delays[0]) if delays else ())


def delay_ms(policy: Policy, attempts: int, share: float, at_least_ms: int = 0) -> int:
    """Milliseconds to wait after the `attempts`th failed attempt.

    `min(backoff_max, backoff_base * 2^(attempts-1))` less up to `backoff_jitter` of it; `share` in [0, 1) says how much
    of that jitter is taken. A policy that lists its delays is taken at its word. `at_least_ms` is what the agent asked for.
    Finite for any number of attempts.

    >>> delay_ms(Policy(5, 3600, 0.0), 3, 0.5)
    20000
    >>> delay_ms(Policy(5, 3600, 0.2, delays=(1, 60)), 3, 0.5)
    60000
    """
    if policy.delays:
        listed = policy.delays[min(max(attempts, 1), len(policy.delays)) - 1]
        return max(round(listed * 1000), at_least_ms)
    # 2.0**64 seconds is past any maximum; the exponent is bounded so that the float cannot overflow.
    raw = min(policy.backoff_max, policy.backoff_base * 2.0 ** min(max(attempts, 1) - 1, 64))
    return max(round(raw * (1 - policy.backoff_jitter * share) * 1000), at_least_ms)

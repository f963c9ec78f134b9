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

    def dump(self) -> str:
        """As stored in `jobs.policy`."""
        return orjson.dumps([self.backoff_base, self.backoff_max, self.backoff_jitter, self.on_lost]).decode()

    @classmethod
    def load(cls, text: str) -> Policy:
        """Reads what `dump` wrote."""
        return cls(*orjson.loads(text))


def delay_ms(policy: Policy, attempts: int, share: float, at_least_ms: int = 0) -> int:
    """Milliseconds to wait after the `attempts`th failed attempt.

    `min(backoff_max, backoff_base * 2^(attempts-1))` less up to `backoff_jitter` of it; `share` in [0, 1) says how much
    of that jitter is taken. `at_least_ms` is what the agent asked for. Finite for any number of attempts.

    >>> delay_ms(Policy(5, 3600, 0.0), 3, 0.5)
    20000
    """
    # 2.0**64 seconds is past any maximum; the exponent is bounded so that the float cannot overflow.
    raw = min(policy.backoff_max, policy.backoff_base * 2.0 ** min(max(attempts, 1) - 1, 64))
    return max(round(raw * (1 - policy.backoff_jitter * share) * 1000), at_least_ms)

"""What a kind of job is: its schemas, limits, lease, retry policy, and what a finished job of it leaves behind.

Knows nothing of storage. `Rules` is everything that configuration decides, in one immutable value that decisions are made from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jsonschema_rs
import orjson

from oaken_jobs.errors import ConfigError, InvalidRequest
from oaken_jobs.model import Effect, Job, Json
from oaken_jobs.retry import OnLost, Policy
from oaken_jobs.routing import DEFAULT_QUEUE, QueueRule


def _no_effects(job: Job, result: Json) -> list[Effect]:
    return []


def _no_subject(payload: Json) -> str | None:
    return None


@dataclass(frozen=True)
class Schema:
    """A compiled JSON Schema. `hash` tells whether a payload was checked against this very one."""

    source: Json
    hash: str
    _validator: Any

    @classmethod
    def compile(cls, source: Json, where: str) -> Schema:
        """Raises `ConfigError` naming `where` if this is not a usable schema."""
        try:
            # Formats and references are left as they are: nothing is fetched for a schema.
            validator = jsonschema_rs.validator_for(source)
        except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            raise ConfigError(f"{where} is not a usable JSON Schema: {str(error).splitlines()[0][:200]}") from None
        digest = hashlib.sha256(orjson.dumps(source, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        return cls(source, digest, validator)

    def problems(self, value: Json, limit: int = 5) -> list[dict[str, str]]:
        """What does not fit, as `{"path", "rule", "message"}`, at most `limit` of them; empty when all fits.

        `path` is a JSON Pointer and `rule` the schema's keyword; neither holds a value of the document. `message` may, and is
        for the caller who sent the value, never for what is stored.
        """
        if self._validator.is_valid(value):
            return []
        found: list[dict[str, str]] = []
        for error in self._validator.iter_errors(value):
            path = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
            rule = str(error.schema_path[-1]) if error.schema_path else "schema"
            found.append({"path": path or "/", "rule": rule, "message": str(error.message)[:300]})
            if len(found) == limit:
                break
        return found


def stored_problems(problems: list[dict[str, str]]) -> str:
    """The same without any value of the document, for `last_error`."""
    return "; ".join(f"{p['path']} breaks {p['rule']}" for p in problems)


@dataclass(frozen=True)
class Kind:
    """What is known of a kind. Seconds. None means: as `[jobs]` says."""

    name: str
    payload_schema: Schema | None = None
    result_schema: Schema | None = None
    instructions: str | None = None
    limit: int | None = None
    lease_seconds: float | None = None
    max_attempts: int | None = None
    retry_delays: tuple[float, ...] = ()
    """Instead of the backoff formula: the wait after each failed attempt, the last one for all further."""
    on_lost: OnLost = "requeue"
    invalid_result: Literal["correct", "fail"] = "correct"
    expected_wait: float | None = None
    requires_output: bool = False
    plugin: str | None = None
    """The plugin that declares it, or handles it inside the server."""
    internal: bool = False
    """Run by Oaken's own runners alone; outside agents never lease it."""
    on_success: Callable[[Job, Json], list[Effect]] = field(default=_no_effects)
    """What a result leaves behind, written in the transaction of the finish."""
    subject_of: Callable[[Json], str | None] = field(default=_no_subject)
    """For kinds whose jobs name no subject: what a payload is about."""


@dataclass(frozen=True)
class Rules:
    """Everything configuration decides about jobs. Bytes, seconds, milliseconds where the name says so."""

    kinds: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    queues: Mapping[str, QueueRule] = field(
        default_factory=lambda: {DEFAULT_QUEUE: QueueRule(DEFAULT_QUEUE, workers=2)}
    )
    kind_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    lease_seconds: float = 60
    max_attempts: int = 5
    backoff_base: float = 5
    backoff_max: float = 3600
    backoff_jitter: float = 0.2
    recovery_grace: float = 20
    cancel_grace: float = 300
    ask_timeout: float = 7 * 86_400
    catch_up_spread: float = 60
    keep_days: float = 30
    event_ring_size: int = 1000
    stream_buffer: int = 256
    log_keep_days: float = 7
    audit_keep_days: float = 365
    unknown_kinds: Literal["accept", "reject"] = "accept"
    max_payload_bytes: int = 1 << 20
    max_result_bytes: int = 1 << 20
    max_batch: int = 1000

    @cached_property
    def caps(self) -> dict[str, int]:
        """How many jobs of a kind may run at once, for kinds that have a limit."""
        limits = {name: kind.limit for name, kind in self.kinds.items() if kind.limit is not None}
        return limits | dict(self.kind_limits)

    @cached_property
    def internal(self) -> tuple[str, ...]:
        """Kinds that only Oaken's own runners may lease."""
        return tuple(sorted(name for name, kind in self.kinds.items() if kind.internal))

    def require_queue(self, name: str) -> None:
        """Raises `InvalidRequest` for a queue that is not configured."""
        if name not in self.queues:
            raise InvalidRequest(
                f"queue {name!r} is not configured. Configured are {', '.join(sorted(self.queues))}; "
                "add others as [queues.NAME] in config.toml."
            )

    def lease_for(self, kind: str, usual: float | None = None) -> float:
        """Seconds a lease of this kind lasts when the request does not say; `usual` is what a kind without a length of its own has
        there, where that is not the same for all."""
        known = self.kinds.get(kind)
        if known is not None and known.lease_seconds is not None:
            return known.lease_seconds
        return self.lease_seconds if usual is None else usual

    def attempts_for(self, kind: str) -> int:
        """How many attempts a job of this kind has when its enqueue does not say."""
        known = self.kinds.get(kind)
        return known.max_attempts if known and known.max_attempts is not None else self.max_attempts

    def policy_for(self, kind: str) -> str:
        """The retry policy as the claim writes it onto the job."""
        return self._policies.get(kind) or self._policy

    @cached_property
    def _policy(self) -> str:
        return Policy(self.backoff_base, self.backoff_max, self.backoff_jitter).dump()

    @cached_property
    def _policies(self) -> dict[str, str]:
        base, most, jitter = self.backoff_base, self.backoff_max, self.backoff_jitter
        return {
            name: Policy(base, most, jitter, kind.on_lost, kind.retry_delays).dump()
            for name, kind in self.kinds.items()
        }

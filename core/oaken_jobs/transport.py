"""What a worker says to a job store, and what it hears: the seam between the loop and HTTP, or the service itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError

from oaken_jobs import jsontext
from oaken_jobs.errors import OakenError, ResultInvalid
from oaken_jobs.model import Effect, Json
from oaken_jobs.requests import CompleteRequest


@dataclass(frozen=True, slots=True)
class Done:
    """What a handler returns that has more to say than a result.

    `effects` are written in the transaction of the finish; only handlers inside the server can have any. `usage` and
    `cost_usd` are what the attempt spent (None: unknown), `produced_by` the model that made the result.
    """

    result: Json = field(default_factory=dict[str, Any])
    effects: tuple[Effect, ...] = ()
    usage: Json | None = None
    cost_usd: float | None = None
    produced_by: str | None = None


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A leased job as a transport hands it over. `lease_seconds` is how long the lease lasts from now unless beaten."""

    lease_id: str
    lease_seconds: float
    job_id: int
    kind: str
    payload: Json
    queue: str = "default"
    subject: str | None = None
    attempt: int = 1
    epoch: int = 1
    parent_id: int | None = None
    traceparent: str | None = None
    """The trace that the job belongs to, and the span it was enqueued in."""
    created_at: int | None = None
    leased_at: int | None = None
    """Milliseconds UTC, as `created_at`, by the store's clock."""
    instructions: str | None = None
    children: list[Json] | None = None
    """Of a job that has waited for them, with their results: as `views.child` shows each, oldest first."""
    answers: list[Json] | None = None
    """Of a job that has asked: what it asked and was told, as `views.question` shows each, oldest first."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat. `lease_seconds`: how long it lasts from when the call was sent; None: as before."""

    cancelling: bool = False
    lease_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    """The job succeeded."""

    lease_id: str
    done: Done


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed. `retry_after`: wait at least so many seconds before the next."""

    lease_id: str
    error: str
    permanent: bool = False
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """Back to the queue for `seconds`, the attempt not counted."""

    lease_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Release:
    """Back to the queue unharmed, the attempt not counted; with `after_children` not to be leased before they are final."""

    lease_id: str
    after_children: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to whoever enqueued the job, which waits for the answer, at most `timeout_seconds`; the attempt not counted."""

    lease_id: str
    text: str
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was asked to stop, and did."""

    lease_id: str


Ending = Complete | Fail | Defer | Release | Ask | Cancelled


def misfit(done: Done) -> str | None:
    """Why an outcome can be sent to no store at all, in paths and types; None where it can. Never quotes a value."""
    try:
        jsontext.dump({} if (result := _any(done.result)) is None else result, what="result", error=ResultInvalid)
        said = {"usage": done.usage, "cost_usd": done.cost_usd, "produced_by": done.produced_by}
        jsontext.dump(said, what="outcome", error=ResultInvalid)
        CompleteRequest.model_validate(said)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        words: str = wrong["msg"]
        return f"The outcome cannot be sent: /{wrong['loc'][0]}: {words}."
    except OakenError as error:
        return error.message
    except Exception as error:
        return f"The outcome cannot be read ({type(error).__name__})."
    return None


def _any(value: object) -> object:
    """Handlers are other people's: what a type says they return may not be what they do."""
    return value


class Transport(Protocol):
    """The way to one job store, for one worker and bound to one agent.

    Refusals are raised as `OakenError`s; a store that cannot be reached, or whose answer is lost, as `Unavailable`.
    Repeating a heartbeat or an ending must be safe. Any call may be cancelled; a cancelled lease call gives back what
    it took, or returns it all the same.
    """

    async def lease(
        self,
        *,
        queues: Sequence[str] | None,
        kinds: Sequence[str],
        max: int,
        lease_seconds: float | None,
        wait_seconds: float,
    ) -> list[WorkItem]:
        """Up to `max` jobs of these kinds, waiting up to `wait_seconds` for the first; empty when none came."""
        ...

    async def heartbeat(self, lease_id: str) -> Beat:
        """Extends the lease from now. Raises `LeaseLost`."""
        ...

    async def progress(self, lease_id: str, percent: float | None, message: str | None) -> Beat:
        """Adds to the job's trail; counts as a heartbeat. Raises `LeaseLost`, `InvalidRequest`."""
        ...

    async def trace(self, lease_id: str, row: Json) -> Beat:
        """Adds a row to the trace; counts as a heartbeat. Raises `LeaseLost`, `InvalidRequest`, `TooLarge`."""
        ...

    async def finish(self, endings: Sequence[Ending]) -> list[OakenError | None]:
        """Ends leases, each on its own account; for each its refusal, or None where it was accepted, in order.

        A result that cannot be sent or does not fit is refused with `ResultInvalid`, `BadJson`, `InvalidRequest` or
        `TooLarge`. Raises only where the call as a whole failed.
        """
        ...

    async def enqueue(self, kind: str, payload: Json, fields: Mapping[str, Any]) -> Json:
        """Adds a job: `{"job", "created", "warning"?}`. `fields` are the others of `NewJobRequest`."""
        ...

    def on_cancel(self, callback: Callable[[int], None]) -> None:
        """Asks to be called, on the loop, with the id of a job that was asked to stop. A transport that learns it from
        heartbeats alone does nothing. Called at each start of the worker; ends with `aclose`."""
        ...

    async def aclose(self) -> None:
        """Called when the worker has stopped. A later call may open everything again."""
        ...

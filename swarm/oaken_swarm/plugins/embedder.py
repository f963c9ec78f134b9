"""Does the `embed` jobs of the pipeline inside the process, so that no outside agent is needed for them.

    [plugins.settings.embedder]
    backend = "wordllama"                 # a small model inside a Python package; or:

    url = "http://127.0.0.1:11434/v1"     # anything that has /embeddings as OpenAI has it
    model = "nomic-embed-text"
    api_key_env = "EMBEDDER_KEY"          # the name of the variable with the key, never the key

Who asks for vectors while none can be had is put off, the attempt not counted; only a text that is refused although others are taken
fails its job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from oaken_jobs.clock import Clock, SystemClock
from oaken_jobs.handlers import Deferred, JobContext, PermanentJobError
from oaken_jobs.plugin import NotConfigured, Plugin
from oaken_jobs.requests import Request, read
from oaken_jobs.transport import Done
from oaken_swarm.plugins.embeddings import Backend, Embedded, Endpoint, Outage, Refused, WordLlama, WrongAnswer

HEALTH_SECONDS = 15.0
REST_SECONDS = 15.0
"""How long an address that has just failed is left alone, unless it said how long. Twice as long at each failure that follows."""
MOST_REST_SECONDS = 600.0
PROBE = "oak"
"""A text that every model takes."""

Outcome = Done | Deferred | Refused | WrongAnswer | PermanentJobError


class EmbedderSettings(Request):
    """`[plugins.settings.embedder]`: a backend or a url. `timeout` in seconds for a whole call."""

    backend: Literal["wordllama"] | None = None
    url: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    api_key_env: str | None = None
    timeout: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 30
    max_batch: Annotated[int, Field(ge=1, le=2048)] = 64
    max_characters: Annotated[int, Field(ge=1, le=1_000_000)] = 8000
    """Of a longer text its beginning is embedded. 8,000 are fewer tokens than usual models take."""


def plugin(settings: Mapping[str, Any]) -> Plugin:
    """The plugin as it is configured. Raises `NotConfigured` without settings, ValueError or `InvalidRequest` for wrong ones."""
    if not settings:
        raise NotConfigured('set backend = "wordllama", or url and model, in [plugins.settings.embedder]')
    said = read(EmbedderSettings, settings)
    return build(_backend(said), said.max_batch, said.max_characters, SystemClock())


def build(backend: Backend, max_batch: int, max_characters: int, clock: Clock) -> Plugin:
    """The plugin around a backend."""
    made = Plugin("embedder")
    embedder = Embedder(backend, max_characters, clock)
    made.batch_handler("embed", max=max_batch)(embedder.embed)
    made.health(every_seconds=HEALTH_SECONDS)(embedder.check)
    return made


def _backend(said: EmbedderSettings) -> Backend:
    if (said.backend is None) == (said.url is None):
        raise ValueError('set either backend = "wordllama" or url')
    if said.url is None:
        if said.model is not None or said.api_key_env is not None:
            raise ValueError("model and api_key_env go with url; wordllama needs neither")
        return WordLlama()
    if said.model is None:
        raise ValueError("url needs a model, by the name that it has there")
    parts = urlsplit(said.url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.port == 0
        or "@" in parts.netloc
        or parts.query
    ):
        # Not quoted: what stands before an @ or behind a ? may be a secret.
        raise ValueError("url must be as http://host:port/v1, without a name, a password or a query")
    if said.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", said.api_key_env):
        raise ValueError("api_key_env must be the name of an environment variable, not the key itself")
    return Endpoint(said.url, said.model, said.api_key_env, said.timeout)


class Embedder:
    """The handler and the health check, which share what is known of the address."""

    def __init__(self, backend: Backend, max_characters: int, clock: Clock) -> None:
        self._backend = backend
        self._max_characters = max_characters
        self._clock = clock
        self._rests_until = float("-inf")
        self._rest_seconds = 0.0
        """How long it was left alone after the latest failure; 0 when it was well since."""
        self._reason = ""

    async def embed(self, jobs: list[JobContext]) -> list[Outcome]:
        """A vector for each text, or why there is none."""
        outcomes = await self._outcomes([job.payload["text"][: self._max_characters] for job in jobs])
        if any(isinstance(one, Refused) for one in outcomes):
            # An address that takes no text at all is ill, and no text is at fault.
            well = await self.check() is None
            outcomes = [self._judged(one, well) if isinstance(one, Refused) else one for one in outcomes]
        return [
            self._spread(one, job.id) if isinstance(one, Deferred) else one
            for one, job in zip(outcomes, jobs, strict=True)
        ]

    async def check(self) -> str | None:
        """Embeds one word; what is wrong, or None."""
        return self._reason if self._rest > 0 else await self._probe()

    @property
    def _rest(self) -> float:
        """For how many seconds more the address is to be left alone."""
        return max(self._rests_until - self._clock.monotonic(), 0.0)

    async def _outcomes(self, texts: Sequence[str]) -> list[Outcome]:
        """Of several texts that are refused together, the halves are tried, down to the one that is at fault."""
        if self._rest > 0:
            return [Deferred(self._rest) for _ in texts]
        try:
            return self._done(texts, await self._backend.embed(texts))
        except Outage as outage:
            self._leave_alone(str(outage), outage.seconds)
            return [Deferred(self._rest) for _ in texts]
        except WrongAnswer as wrong:
            return [wrong for _ in texts]
        except Refused as refused:
            if len(texts) == 1:
                return [refused]
        half = len(texts) // 2
        return [*await self._outcomes(texts[:half]), *await self._outcomes(texts[half:])]

    def _spread(self, deferred: Deferred, job_id: int) -> Deferred:
        """Longer by a part of what the rest has grown by: jobs that were put off together do not come back together."""
        part = (job_id * 0.618034) % 1  # neighbours lie far apart
        return Deferred(deferred.seconds + part * max(self._rest_seconds - REST_SECONDS, 0))

    def _done(self, texts: Sequence[str], embedded: Embedded) -> list[Outcome]:
        self._rest_seconds = 0.0
        model = self._backend.model
        usages = shares(embedded.tokens, [len(text) for text in texts])
        return [
            Done({"model": model, "vector": vector}, usage=usage, produced_by=model)
            for vector, usage in zip(embedded.vectors, usages, strict=True)
        ]

    def _judged(self, refused: Refused, well: bool) -> Outcome:
        if well:
            return PermanentJobError(f"the embedder takes other texts but not this one: {refused}")
        return Deferred(self._rest)

    async def _probe(self) -> str | None:
        try:
            await self._backend.embed([PROBE])
        except Outage as outage:
            self._leave_alone(str(outage), outage.seconds)
        except Refused as refused:
            self._leave_alone(f"not even one word is taken: {refused}; check url and model", None)
        except WrongAnswer as wrong:
            return str(wrong)
        else:
            self._rest_seconds = 0.0
            return None
        return self._reason

    def _leave_alone(self, reason: str, seconds: float | None) -> None:
        self._reason = reason
        if self._rest > 0:
            return  # of several calls at once that failed, the first has said it
        asked = REST_SECONDS if seconds is None else max(seconds, 1.0)
        if self._rest_seconds == 0:
            self._rest_seconds, rest = REST_SECONDS, asked
        else:
            self._rest_seconds = min(2 * self._rest_seconds, MOST_REST_SECONDS)
            rest = max(self._rest_seconds, asked)
        self._rests_until = self._clock.monotonic() + rest


def shares(tokens: int | None, sizes: Sequence[int]) -> list[dict[str, int] | None]:
    """What each text of a call is charged: its share of the tokens by its length. The shares add up to what the call has used.

    >>> shares(10, [1, 1, 2])
    [{'input_tokens': 2}, {'input_tokens': 3}, {'input_tokens': 5}]
    """
    if tokens is None:
        return [None] * len(sizes)
    total = sum(sizes) or 1
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    marks = [tokens * end // total for end in ends]
    marks[-1] = tokens
    return [{"input_tokens": after - before} for before, after in pairwise(marks)]

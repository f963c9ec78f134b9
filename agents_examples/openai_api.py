"""What both OpenAI-compatible agents use: one call to such an address, what it has cost, and what its refusals mean for a job.

`OPENAI_BASE_URL` (unless set `https://api.openai.com/v1`; `http://127.0.0.1:11434/v1` is Ollama's) says where, `OPENAI_API_KEY` as whom.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2

from oaken_swarm import Deferred, JobContext, PermanentJobError

Json = dict[str, Any]

REST_SECONDS = 30.0
"""How long the address is left alone where it does not say."""
_TEXT_AT_FAULT = (400, 413, 422)


@dataclass
class Answer:
    """What came back, with what it took. `usage` is the address's own count of tokens, `cost_usd` None where no price is known."""

    body: Json
    model: str
    usage: Json = field(default_factory=dict[str, Any])
    cost_usd: float | None = None


class Api:
    """One model at one address. Prices are US dollars for a million tokens, in and out."""

    def __init__(self, model: str, price_in: float | None, price_out: float | None) -> None:
        self.model = model
        self._price_in, self._price_out = price_in, price_out
        key = os.environ.get("OPENAI_API_KEY")
        base = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
        self._http = httpx2.AsyncClient(
            base_url=base,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=120,
            # A proxy from the environment is no way to a model on this machine.
            trust_env=urlsplit(base).hostname not in ("127.0.0.1", "localhost", "::1"),
        )

    async def call(self, path: str, body: Json, operation: str, jobs: list[JobContext]) -> Answer:
        """Makes a call for these jobs, and adds it to the trace of each.

        Raises `Deferred` while the address is away or busy, which costs no attempt, and `PermanentJobError` for a text that it refuses.
        """
        began = datetime.now(UTC)
        try:
            response = await self._http.post(path, json={"model": self.model, **body})
        except httpx2.TransportError as error:
            raise Deferred(REST_SECONDS) from error
        if response.status_code in _TEXT_AT_FAULT:
            # Without its words, which may quote the text.
            raise PermanentJobError(f"the model's address refused it with status {response.status_code}")
        if response.status_code == 429 or response.status_code >= 500:
            raise Deferred(_rest(response))
        response.raise_for_status()  # a wrong key, for instance: a failed attempt, tried again
        answer = self._answer(response.json())
        times = {"started_at": began.isoformat(), "ended_at": datetime.now(UTC).isoformat()}
        said = answer.body.get("choices")
        usage = answer.usage if len(jobs) == 1 else None  # one call's count is not to be added up once for each job
        asked = body.get("messages")
        about = {"operation": operation, "provider": "openai", "model": answer.model, "output": said, "usage": usage}
        await asyncio.gather(*(job.trace(**about, **times, input=asked or job.payload["text"]) for job in jobs))
        return answer

    def _answer(self, body: Json) -> Answer:
        told: Json = body.get("usage") or {}
        usage = {name: count for name, count in told.items() if isinstance(count, int)}
        cost = None
        if self._price_in is not None:
            out = (self._price_out or 0.0) * usage.get("completion_tokens", 0)
            cost = (self._price_in * usage.get("prompt_tokens", 0) + out) / 1e6
        return Answer(body, str(body.get("model") or self.model), usage, cost)


def shares(total: int | float, weights: list[int]) -> list[float]:
    """A total as shared by weights, of which one is above 0; the shares of whole numbers are whole, and add up to it."""
    ends = [total * sum(weights[: place + 1]) / sum(weights) for place in range(len(weights))]
    if isinstance(total, int):
        ends = [round(end) for end in ends]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def options(description: str | None, agent: str, model: str) -> argparse.ArgumentParser:
    """The arguments that both agents take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="of the Oaken server (default: OAKEN_URL)")
    parser.add_argument("--agent", default=agent, help=f"the name of the token (default: {agent})")
    parser.add_argument("--model", default=model, help=f"default: {model}")
    parser.add_argument("--price-in", type=float, help="US dollars for a million tokens sent (default: cost unknown)")
    parser.add_argument("--price-out", type=float, help="US dollars for a million tokens answered")
    return parser


def _rest(response: httpx2.Response) -> float:
    try:
        return max(1.0, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return REST_SECONDS

"""Who calls: the holder of the token that came with a request. Those who try tokens are slowed down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oaken_jobs.auth import Tokens
from oaken_jobs.clock import Clock
from oaken_jobs.errors import RateLimited, Unauthenticated
from oaken_jobs.model import Principal
from oaken_swarm.rates import LOOPBACK, Rate, place

if TYPE_CHECKING:
    from oaken_swarm.oidc import Oidc

FAILURES_A_MINUTE = 20
LOOPBACK_FAILURES_A_MINUTE = 200
"""From this machine itself, where all programs have one address."""


class Callers:
    """Checks tokens. Right ones are taken from wherever they come; wrong ones are counted for each address they come from."""

    def __init__(self, tokens: Tokens, clock: Clock, oidc: Oidc | None) -> None:
        self._tokens = tokens
        self._oidc = oidc
        self._failures = Rate(clock, FAILURES_A_MINUTE, 60)
        self._loopback = Rate(clock, LOOPBACK_FAILURES_A_MINUTE, 60)

    @property
    def issuer(self) -> str | None:
        """Of whom a client may get a token by itself; None where all tokens are made here."""
        return self._oidc.issuer if self._oidc is not None else None

    async def authenticate(self, token: str | None, address: str, via: str = "http") -> Principal:
        """Who carries the token, `via` being the door it came to. Raises `Unauthenticated`, and `RateLimited` after too many of those
        from one address; of an issuer's tokens also what `Oidc.authenticate` raises."""
        try:
            return await self._principal(token, via)
        except Unauthenticated:
            if token:
                self._count(place(address))
            raise

    async def check(self, token: str) -> None:
        """Raises `Unauthenticated` where a token that was taken is good no more."""
        await self._principal(token, "http")

    async def ended(self, token: str) -> None:
        """Returns when a token that was taken is good no more."""
        if self._oidc is not None and self._oidc.concerns(token):
            await self._oidc.ended(token)
        else:
            await self._tokens.ended(token)

    async def _principal(self, token: str | None, via: str) -> Principal:
        if self._oidc is not None and token and self._oidc.concerns(token):
            return await self._oidc.authenticate(token, via)
        return await self._tokens.authenticate(token, via)

    def _count(self, source: str) -> None:
        wait = (self._loopback if source == LOOPBACK else self._failures).add(source)
        if wait:
            raise RateLimited(
                f"Too many calls with wrong tokens came from this address. Try again in {wait} s, with a token that is good.",
                retry_after=wait,
            )


def address_of(client: Sequence[object] | None, forwarded: bytes | None, behind_proxy: bool) -> str:
    """Where a request comes from: the other end of its connection; behind a proxy, what that put last into X-Forwarded-For."""
    if behind_proxy and forwarded is not None:
        return forwarded.rsplit(b",", 1)[-1].strip().decode("latin-1")
    return str(client[0]) if client else ""

"""Who calls: the holder of the token, or of the session, that came with a request. Those who try either are slowed down."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from oaken_jobs.auth import Tokens
from oaken_jobs.clock import Clock
from oaken_jobs.errors import RateLimited, Unauthenticated
from oaken_jobs.model import Principal
from oaken_jobs.sessions import PREFIX, Session, Sessions
from oaken_swarm.rates import LOOPBACK, Rate, place

if TYPE_CHECKING:
    from oaken_swarm.oidc import Oidc

T = TypeVar("T")

FAILURES_A_MINUTE = 20
LOOPBACK_FAILURES_A_MINUTE = 200
"""From this machine itself, where all programs have one address."""


class Callers:
    """Checks tokens and sessions. Right ones are taken from wherever they come; wrong ones are counted for each address they come from.

    A secret is either; which one it is shows at its beginning. Only `authenticate` takes what a caller says its token is, and no session.
    """

    def __init__(self, tokens: Tokens, sessions: Sessions, clock: Clock, oidc: Oidc | None) -> None:
        self._tokens = tokens
        self._sessions = sessions
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
        if not token:
            return await self._tokens.authenticate(token, via)  # which says what is missing
        who = self._tokens.at_hand(token, via)
        return who or await self._counted(self._principal(token, via), address)

    async def session(self, secret: str) -> Session:
        """The session of this secret. Raises `Unauthenticated`, which is not counted: a browser whose session has ended sends it on and on,
        and nobody finds one by trying."""
        return await self._sessions.find(secret)

    async def log_in(self, token: str, address: str, instead_of: str | None) -> str:
        """The secret of a new session for who carries this token; that of the secret `instead_of` ends. Raises as `authenticate`."""
        return await self._counted(self._sessions.open(token, instead_of=instead_of), address)

    async def log_in_by_code(self, code: str, address: str, instead_of: str | None) -> str:
        """The same for a login code."""
        return await self._counted(self._sessions.open_by_code(code, instead_of=instead_of), address)

    async def check(self, secret: str) -> None:
        """Raises `Unauthenticated` where a token or session that was taken is good no more."""
        if secret.startswith(PREFIX):
            await self._sessions.find(secret)
        else:
            await self._principal(secret, "http")

    async def ended(self, secret: str) -> None:
        """Returns when a token or session that was taken is good no more."""
        if secret.startswith(PREFIX):
            await self._sessions.ended(secret)
        elif self._oidc is not None and self._oidc.concerns(secret):
            await self._oidc.ended(secret)
        else:
            await self._tokens.ended(secret)

    async def _principal(self, token: str, via: str) -> Principal:
        if self._oidc is not None and self._oidc.concerns(token):
            return await self._oidc.authenticate(token, via)
        return await self._tokens.authenticate(token, via)

    async def _counted(self, work: Awaitable[T], address: str) -> T:
        try:
            return await work
        except Unauthenticated:
            self._count(place(address))
            raise

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

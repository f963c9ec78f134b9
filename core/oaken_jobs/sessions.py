"""Sessions of browsers: random, bounded in time, and ended with the token they were opened with, or by an admin.

A browser never keeps a token. What it keeps is worth no more than its session; the database has only its hash.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

from oaken_jobs import auth
from oaken_jobs.auth import Tokens, hash_token
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.errors import Unauthenticated
from oaken_jobs.model import Actor, Principal
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import AddCode, AddSession, EndSession, SeeSession, SessionRow, TokenRow, UseCode

PREFIX = "oas_"
IDLE_MS = 24 * 3_600_000
"""A session that nobody uses ends after a day."""
LONGEST_MS = 30 * 24 * 3_600_000
MOST = 20
"""Sessions that a token has at one time."""
SEEN_MS = 60_000
"""How exactly it is known when a session was last used."""
CODE_MS = 60_000
"""How long a login code is good."""
LOOK_SECONDS = 1.0
"""Between two looks whether a session that somebody waits with goes on."""


class Session(NamedTuple):
    """A session that is good, and whom it speaks for."""

    row: SessionRow
    who: Principal


class Sessions:
    """Opens, checks, lists and ends sessions. `via` is the door that its holder comes through."""

    def __init__(self, store: Store, commit: Committer, tokens: Tokens, clock: Clock, via: str = "http") -> None:
        self._store = store
        self._commit = commit
        self._tokens = tokens
        self._clock = clock
        self._via = via

    async def open(self, token: str, *, instead_of: str | None = None) -> str:
        """The secret of a new session of whoever has this token. With it the session of the secret `instead_of` ends; so does, where the
        token has `MOST`, the one unused longest. Raises `Unauthenticated`."""
        return await self._open(await self._tokens.row(token), instead_of)

    async def open_by_code(self, code: str, *, instead_of: str | None = None) -> str:
        """The same for whoever has this login code, once. Raises `Unauthenticated`."""
        found: tuple[str, str] | None = await self._commit.call(UseCode(hash_token(code)))
        if found is None:
            raise Unauthenticated(
                "This login code is not good any more: each is for once, within a minute. Run `oaken open` again."
            )
        name, digest = found
        await self._tokens.holder(name, digest, self._via)
        row = await self._tokens.named(name)
        return await self._open(row, instead_of)

    async def new_code(self, name: str) -> str:
        """A login code for the token of this name, for whoever has the data folder. Raises `NotFound`, `Unauthenticated`."""
        row = await self._tokens.named(name)
        code = secrets.token_urlsafe(32)
        await self._commit.call(AddCode(hash_token(code), row.name, row.hash, self._clock.now() + CODE_MS))
        return code

    async def find(self, secret: str) -> Session:
        """The session of this secret. Raises `Unauthenticated` where it has ended, or its token is good no more."""
        row = await self._store.session(hash_token(secret)) if secret.startswith(PREFIX) else None
        now = self._clock.now()
        if row is None or row.expires_at <= now or row.seen_at + IDLE_MS <= now:
            raise Unauthenticated("You are not logged in here any more.")
        who = await self._tokens.holder(row.token, row.token_hash, self._via)
        if now - row.seen_at >= SEEN_MS:
            await self._commit.call(SeeSession(row.hash, now))
        return Session(row, who)

    async def ended(self, secret: str) -> None:
        """Returns when the session is good no more."""
        while True:
            try:
                await self.find(secret)
            except Unauthenticated:
                return
            await self._clock.sleep(LOOK_SECONDS)

    async def close(self, secret: str) -> None:
        """Ends the session of this secret, by its holder."""
        session = await self.find(secret)
        await self._commit.call(EndSession(session.row.id, session.who.actor))

    async def end(self, who: Principal, session_id: int) -> None:
        """Ends any session, by an admin. Raises `Forbidden`, `NotFound`."""
        auth.require(who, "administer")
        await self._commit.call(EndSession(session_id, who.actor))

    async def list(self, who: Principal) -> list[SessionRow]:
        """Those that go on, the last seen first, for admins. Raises `Forbidden`."""
        auth.require(who, "administer")
        now = self._clock.now()
        rows = [row for row in await self._store.sessions() if row.expires_at > now and row.seen_at + IDLE_MS > now]
        good = {row.hash for row in await self._tokens.list() if row.revoked_at is None}
        return sorted((row for row in rows if row.token_hash in good), key=lambda row: row.seen_at, reverse=True)

    async def _open(self, token: TokenRow, instead_of: str | None) -> str:
        secret = PREFIX + secrets.token_urlsafe(32)
        now = self._clock.now()
        end = min(now + LONGEST_MS, token.expires_at or now + LONGEST_MS)
        await self._commit.call(
            AddSession(
                hash_token(secret),
                token.name,
                token.hash,
                end,
                Actor(token.kind, token.name, self._via),
                MOST,
                None if instead_of is None else hash_token(instead_of),
            )
        )
        return secret


def form_token(secret: str) -> str:
    """What forms of a session carry, so that no other page can send them. Of it the session's secret cannot be told."""
    return hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()


def is_form_token(secret: str, sent: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(form_token(secret).encode(), sent.encode("utf-8", "replace"))

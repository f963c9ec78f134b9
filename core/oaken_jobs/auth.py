"""Tokens, and what each role may do. A token is shown once and stored as a hash; the actor of a call is always the token's."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

import orjson

from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated, Unavailable
from oaken_jobs.model import DEFAULT_WORKSPACE, NO_LIMITS, ROLES, Actor, Limits, Principal
from oaken_jobs.redaction import clean
from oaken_jobs.requests import MAX_TOKEN_SECONDS
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import AddToken, Op, RevokeToken, RotateToken, TokenRow, UseTokens

PREFIX = "oak_"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
CACHE_SECONDS = 0.25
"""How long a token revoked by another process may still be taken. (A claim looks by itself, and hands it nothing.)"""
MISS_SECONDS = 0.02
"""How soon the tokens are read again for one that is not known: it may have been made by another process just now."""
USED_MS = 60_000
"""How exactly it is known when a token was last used."""
LOOK_SECONDS = 0.02
"""Between two looks at whether another process has committed, which may have changed tokens; also while somebody waits with one."""

MAY: dict[str, frozenset[str]] = {
    "read": frozenset({"viewer", "user", "admin"}),
    "enqueue": frozenset({"user", "agent", "admin"}),
    "manage": frozenset({"user", "admin"}),
    "lease": frozenset({"agent", "admin"}),
    "administer": frozenset({"admin"}),
}
"""What may be done, by the roles of which one suffices. An agent also reads the jobs it enqueued, holds or held."""

_WHAT = {
    "read": "read jobs",
    "enqueue": "enqueue jobs",
    "manage": "cancel, requeue, pause or label",
    "lease": "lease and finish jobs",
    "administer": "manage tokens or read logs, audit and trace",
}


def may(principal: Principal, action: str) -> bool:
    """Whether one of the caller's roles allows `action`, a key of `MAY`. Who is bound to a workspace administers nothing."""
    if action == "administer" and principal.workspace is not None:
        return False
    return principal.runner or not MAY[action].isdisjoint(principal.roles)


def require(principal: Principal, action: str) -> None:
    """Raises `Forbidden`, naming the roles that would do, unless the caller may."""
    if not may(principal, action):
        if action == "administer" and not MAY[action].isdisjoint(principal.roles):
            require_unbound(principal, _WHAT[action])
        needed = " or ".join(role for role in ROLES if role in MAY[action])
        raise Forbidden(
            f"{principal.name} has the role {', '.join(sorted(principal.roles)) or 'none'}, which may not {_WHAT[action]}. "
            f"Use a token with the role {needed}.",
            needs=sorted(MAY[action]),
        )


def require_unbound(principal: Principal, what: str) -> None:
    """Raises `Forbidden` for a caller that is bound to a workspace and would touch others."""
    if principal.workspace is not None:
        raise Forbidden(
            f"{principal.name} is bound to the workspace {principal.workspace} and may not {what}, which concerns all of them. "
            "Use a token without a workspace."
        )


def as_instance(principal: Principal, instance: str) -> Principal:
    """The caller as one of several processes of its name. Raises `InvalidRequest` for what can be no instance's name."""
    return replace(principal, instance=checked_instance(instance, "instance"))


def checked_instance(text: str, called: str) -> str:
    """The name of an instance. Raises `InvalidRequest`, which says what it is `called` here."""
    if not INSTANCE.fullmatch(text):
        raise InvalidRequest(
            f"{called} {clean(text, 80)!r}: give up to 64 letters, digits and . _ : @ -, beginning with a letter or digit."
        )
    return text


def workspace_of(principal: Principal, named: str | None) -> str:
    """The workspace that a call means: the one its caller is bound to, the one named, else the default one. Raises `Forbidden` where
    a bound caller names another."""
    if principal.workspace is None:
        return named or DEFAULT_WORKSPACE
    if named not in (None, principal.workspace):
        raise Forbidden(
            f"{principal.name} is bound to the workspace {principal.workspace}; it sees and touches nothing of {named!r}. "
            "Leave workspace out, or use another token."
        )
    return principal.workspace


def new_token() -> str:
    """A fresh secret: 256 random bits behind a prefix that scanners recognise."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """As stored. A fast hash suffices: the secret is random, not a password."""
    return hashlib.sha256(token.encode()).hexdigest()


async def _nothing() -> None:
    pass


class Tokens:
    """Creates, lists, rotates, revokes and checks tokens, and tells when one that somebody waits with is good no more."""

    def __init__(self, store: Store, commit: Committer, clock: Clock) -> None:
        self._store = store
        self._commit = commit
        self._clock = clock
        self._by_hash: dict[str, TokenRow] = {}
        self._known: dict[tuple[str, str], tuple[TokenRow, Principal]] = {}
        """By token and door, who was recognised among these rows."""
        self._read_at: float | None = None
        self._changes = 0
        self._reading: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self.look: Callable[[], Awaitable[None]] = _nothing
        """Asks whether another process has committed; then `forget` is called."""
        self._used: dict[str, int] = {}
        self._waiting: dict[asyncio.Future[None], str] = {}
        """Who waits for the end of a token, by its hash."""
        self._looking: asyncio.Task[None] | None = None

    async def create(
        self,
        actor: Actor,
        name: str,
        roles: list[str],
        *,
        kind: str | None = None,
        expires_in: float | None = None,
        workspace: str | None = None,
        limits: Limits = NO_LIMITS,
    ) -> tuple[TokenRow, str]:
        """A new token and its secret, which is never shown again. `expires_in` in seconds. With `workspace` it sees and touches
        nothing of any other; `limits` bound what it leases.

        Raises `InvalidRequest` for a bad name or role, `Conflict` where the name was ever used.
        """
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                f"name {name!r} cannot be a token's name: use up to 64 letters, digits and . _ @ -, beginning with a letter or digit."
            )
        unknown = [role for role in roles if role not in ROLES]
        if unknown or not roles:
            raise InvalidRequest(f"roles {unknown or roles!r}: name at least one of {', '.join(ROLES)}.")
        if kind not in (None, "user", "agent"):
            raise InvalidRequest(f"kind {kind!r} is neither user nor agent.")
        secret = new_token()
        ordered = tuple(role for role in ROLES if role in roles)
        op = AddToken(
            name,
            kind or actor_kind(ordered),
            ordered,
            hash_token(secret),
            self._end(expires_in),
            actor,
            workspace,
            limits,
        )
        return await self._commit.call(op), secret

    async def rotate(self, actor: Actor, name: str, *, expires_in: float | None = None) -> tuple[TokenRow, str]:
        """The token with a new secret, which is shown this once; the old one is worthless at once. Limits, leases and, unless
        `expires_in` (seconds) says otherwise, its end stay. Raises `NotFound`, `Conflict` where it was revoked or has expired."""
        secret = new_token()
        op = RotateToken(name, hash_token(secret), self._end(expires_in), actor)
        return await self._commit.call(op), secret

    async def revoke(self, actor: Actor, name: str) -> TokenRow:
        """Ends a token; its leases are given back unharmed. Raises `NotFound`."""
        row: TokenRow = await self._commit.call(RevokeToken(name, actor))
        return row

    async def list(self) -> list[TokenRow]:
        """All tokens there ever were, oldest first."""
        return await self._store.tokens()

    def at_hand(self, token: str, via: str) -> Principal | None:
        """Who carries this token, where that is known and need not be looked up; None otherwise, also for one that is good no more."""
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_SECONDS or self._older(now - CACHE_SECONDS):
            return None
        row, principal = self._known.get((token, via), _NOBODY)
        if row is None or not self._lasts(row):
            return None
        self._note(row)
        return principal

    async def authenticate(self, token: str | None, via: str) -> Principal:
        """Who carries this token. Raises `Unauthenticated`, without saying more than it must."""
        if not token:
            raise Unauthenticated(
                "This call needs a token: send `Authorization: Bearer TOKEN`. Make one with `oaken token create NAME --role ROLE`."
            )
        await self._rows(CACHE_SECONDS)
        row, principal = self._known.get((token, via)) or await self._recognised(token, via)
        self._take(row)
        return principal

    async def holder(self, name: str, digest: str, via: str) -> Principal:
        """Who the token of this name and hash stands for: for what was opened with it and outlives the call. Raises `Unauthenticated` where
        it was rotated since, too."""
        row = (await self._rows(CACHE_SECONDS)).get(digest) or (await self._rows(MISS_SECONDS)).get(digest)
        if row is None or row.name != name:
            raise Unauthenticated(f"The token {name} has another secret now. Log in with that.")
        self._take(row)
        return _principal(row, via)

    async def row(self, token: str) -> TokenRow:
        """The row of a token that may be used. Raises `Unauthenticated`."""
        await self.authenticate(token, "http")
        return self._by_hash[hash_token(token)]

    async def named(self, name: str) -> TokenRow:
        """The row of a token that may be used, by its name: for whoever has the data folder. Raises `NotFound`, `Unauthenticated`."""
        row = next((row for row in await self._store.tokens() if row.name == name), None)
        if row is None:
            raise NotFound(f"There is no token named {clean(name, 60)!r}. See `oaken token list`.")
        self._take(row)
        return row

    def _take(self, row: TokenRow) -> None:
        """Notes that a token is used. Raises `Unauthenticated` where its time is over."""
        if not self._lasts(row):
            why = "has expired" if row.revoked_at is None else "was revoked"
            raise Unauthenticated(f"The token {row.name} {why}. Ask for a new one.")
        self._note(row)

    def _note(self, row: TokenRow) -> None:
        now = self._clock.now()
        if row.last_used_at is None or now - row.last_used_at >= USED_MS:
            self._used[row.name] = now

    def _lasts(self, row: TokenRow) -> bool:
        return row.revoked_at is None and (row.expires_at is None or row.expires_at > self._clock.now())

    async def _recognised(self, token: str, via: str) -> tuple[TokenRow, Principal]:
        digest = hash_token(token)
        row = self._by_hash.get(digest) or (await self._rows(MISS_SECONDS)).get(digest)
        if row is None or not hmac.compare_digest(row.hash, digest):
            raise Unauthenticated("This token is not known here. Check that it is complete and made for this server.")
        principal = _principal(row, via)
        self._known[(token, via)] = row, principal
        return row, principal

    async def ended(self, token: str) -> None:
        """Returns when the token is good no more: revoked, rotated, expired or unknown."""
        digest = hash_token(token)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[end] = digest
        row = (await self._rows(CACHE_SECONDS)).get(digest)
        timer = None
        if row is not None and row.expires_at is not None:
            timer = self._clock.call_later(max(0, row.expires_at - self._clock.now()) / 1000, self.forget)
        try:
            if self._good(digest):
                await end
        finally:
            self._waiting.pop(end, None)
            if timer is not None:
                timer.cancel()

    def committed(self, ops: Sequence[Op]) -> None:
        """Says what this process has committed, before anybody hears of it: an answer in the same group is given by what holds now."""
        if any(isinstance(op, _CHANGES) for op in ops):
            self.forget()

    def forget(self) -> None:
        """Says that tokens may have changed, by this process or another."""
        self._read_at = None
        self._changes += 1
        if self._waiting and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="tokens")

    async def flush(self) -> None:
        """Writes down when tokens were last used; each of them once a minute at most."""
        used, self._used = self._used, {}
        if used:
            await self._commit.call(UseTokens(used))

    async def _look(self) -> None:
        """Ends the waiting for tokens that are good no more."""
        while self._waiting and self._read_at is None:
            try:
                await self._rows(0)
            except Unavailable:
                return  # looked at again with the next change
            for end, digest in [*self._waiting.items()]:
                if not end.done() and not self._good(digest):
                    end.set_result(None)
            await asyncio.sleep(LOOK_SECONDS)

    def _good(self, digest: str) -> bool:
        row = self._by_hash.get(digest)
        return row is not None and self._lasts(row)

    async def _rows(self, no_older_than: float) -> dict[str, TokenRow]:
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            await self.look()
        # All that come at one moment wait for one reading. One that had begun before may be too old; the next has begun since.
        for _ in range(2):
            if self._older(now - no_older_than):
                if self._reading is None:
                    self._reading = asyncio.get_running_loop().create_task(self._read(), name="reading tokens")
                    self._reading.add_done_callback(self._was_read)
                await asyncio.shield(self._reading)
        return self._by_hash

    def _older(self, moment: float) -> bool:
        return self._read_at is None or self._read_at < moment

    async def _read(self) -> None:
        began, changes = self._clock.monotonic(), self._changes
        self._by_hash = {row.hash: row for row in await self._store.tokens()}
        self._known = {}
        if changes == self._changes:  # else they may have changed behind what was read
            self._read_at = began

    def _was_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # told to whoever waits for it

    def _end(self, expires_in: float | None) -> int | None:
        if expires_in is None:
            return None
        if not 0 < expires_in <= MAX_TOKEN_SECONDS:
            raise InvalidRequest(f"expires_in {expires_in!r} must be between 1 second and ten years, in seconds.")
        return self._clock.now() + round(expires_in * 1000)


_CHANGES = (AddToken, RotateToken, RevokeToken)
_NOBODY: tuple[TokenRow | None, Principal | None] = (None, None)


def actor_kind(roles: Collection[str]) -> str:
    """What a caller with these roles is, unless its token says otherwise."""
    return "agent" if set(roles) == {"agent"} else "user"


def allowed(limit: tuple[str, ...] | None, asked: Collection[str] | None, what: str) -> tuple[str, ...] | None:
    """The queues or kinds (`what`) that a lease request means: those asked for, else all that its token is limited to; None for any.
    Raises `Forbidden` for one outside of the limit."""
    if asked is None:
        return limit
    outside = [] if limit is None else sorted(set(asked).difference(limit))
    if outside:
        raise Forbidden(
            f"This token does not lease from the {what} {', '.join(outside)}; it is limited to {', '.join(limit or ())}. "
            f"Name some of these, or leave {what} out.",
            allowed=[*(limit or ())],
        )
    return tuple(sorted(set(asked)))


def _principal(row: TokenRow, via: str) -> Principal:
    return Principal(
        Actor(row.kind, row.name, via),
        frozenset(row.roles.split(",")),
        workspace=row.workspace,
        by_token=True,
        limits=_limits(row),
    )


def _limits(row: TokenRow) -> Limits:
    if row.queues is None and row.kinds is None and row.max_leases is None and row.max_per_hour is None:
        return NO_LIMITS
    queues = None if row.queues is None else tuple(orjson.loads(row.queues))
    kinds = None if row.kinds is None else tuple(orjson.loads(row.kinds))
    return Limits(queues, kinds, row.max_leases, row.max_per_hour)

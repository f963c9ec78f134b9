"""Tokens, and what each role may do. A token is shown once and stored as a hash; the actor of a call is always the token's."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.errors import Forbidden, InvalidRequest, Unauthenticated
from oaken_jobs.model import DEFAULT_WORKSPACE, ROLES, Actor, Principal
from oaken_jobs.store.base import AddToken, RevokeToken, Store, TokenRow

PREFIX = "oak_"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
CACHE_SECONDS = 0.25
"""How long a token revoked by another process may still be taken. (A claim looks by itself, and hands it nothing.)"""
MISS_SECONDS = 0.02
"""How soon the tokens are read again for one that is not known: it may have been made by another process just now."""

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
    "administer": "manage tokens or read the trace",
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


class Tokens:
    """Creates, lists, revokes and checks tokens."""

    def __init__(self, store: Store, commit: Committer, clock: Clock) -> None:
        self._store = store
        self._commit = commit
        self._clock = clock
        self._by_hash: dict[str, TokenRow] = {}
        self._read_at: float | None = None

    async def create(
        self,
        actor: Actor,
        name: str,
        roles: list[str],
        *,
        kind: str | None = None,
        expires_in: float | None = None,
        workspace: str | None = None,
    ) -> tuple[TokenRow, str]:
        """A new token and its secret, which is never shown again. `expires_in` in seconds. With `workspace` it sees and touches
        nothing of any other.

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
        if expires_in is not None and not 0 < expires_in <= 3_650 * 86_400:
            raise InvalidRequest(f"expires_in {expires_in!r} must be between 1 second and ten years, in seconds.")
        secret = new_token()
        actor_kind = kind or ("agent" if set(roles) == {"agent"} else "user")
        expires_at = None if expires_in is None else self._clock.now() + round(expires_in * 1000)
        ordered = tuple(role for role in ROLES if role in roles)
        op = AddToken(name, actor_kind, ordered, hash_token(secret), expires_at, actor, workspace)
        row = await self._commit.call(op)
        self._read_at = None
        return row, secret

    async def revoke(self, actor: Actor, name: str) -> TokenRow:
        """Ends a token; its leases are given back unharmed. Raises `NotFound`."""
        row = await self._commit.call(RevokeToken(name, actor))
        self._read_at = None
        return row

    async def list(self) -> list[TokenRow]:
        """All tokens there ever were, oldest first."""
        return await self._store.tokens()

    async def authenticate(self, token: str | None, via: str) -> Principal:
        """Who carries this token. Raises `Unauthenticated`, without saying more than it must."""
        if not token:
            raise Unauthenticated(
                "This call needs a token: send `Authorization: Bearer TOKEN`. Make one with `oaken token create NAME --role ROLE`."
            )
        digest = hash_token(token)
        row = (await self._rows(CACHE_SECONDS)).get(digest) or (await self._rows(MISS_SECONDS)).get(digest)
        if row is None or not hmac.compare_digest(row.hash, digest):
            raise Unauthenticated("This token is not known here. Check that it is complete and made for this server.")
        if row.revoked_at is not None:
            raise Unauthenticated(f"The token {row.name} was revoked. Ask for a new one.")
        if row.expires_at is not None and row.expires_at <= self._clock.now():
            raise Unauthenticated(f"The token {row.name} has expired. Ask for a new one.")
        return Principal(
            Actor(row.kind, row.name, via), frozenset(row.roles.split(",")), workspace=row.workspace, by_token=True
        )

    def forget(self) -> None:
        """Says that another process may have changed tokens."""
        self._read_at = None

    async def _rows(self, no_older_than: float) -> dict[str, TokenRow]:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at > no_older_than:
            self._by_hash = {row.hash: row for row in await self._store.tokens()}
            self._read_at = now
        return self._by_hash

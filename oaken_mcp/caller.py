"""Who calls over stdio, where there is no token: the actor that was named at the start, else the client by its own name."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from oaken_jobs.auth import NAME, checked_instance
from oaken_jobs.errors import InvalidRequest
from oaken_jobs.model import Actor, Principal

ROLES = ("viewer", "user", "agent")
"""What may be asked for. A client on stdio is never an admin."""
DEFAULT_ROLES = ("user", "agent")
UNNAMED = "mcp"
"""The agent's name where the client does not say its own."""

_OTHER = re.compile(r"[^A-Za-z0-9._@-]+")


def name_of(client: str | None) -> str:
    """A client's name in the characters of a token's.

    >>> name_of("Claude Code (v2)")
    'Claude-Code-v2'
    """
    text = _OTHER.sub("-", client or "").strip("._@-")[:64]
    return text or UNNAMED


class Caller:
    """Makes the principal of each call. One process is one instance: two clients of one name are two agents. A process that is given
    the instance of an earlier one takes its place, leases included."""

    def __init__(self, actor: str | None = None, roles: Sequence[str] = (), instance: str | None = None) -> None:
        """Raises `InvalidRequest` for an actor, role or instance that cannot be."""
        self._actor = None if actor is None else _actor(actor)
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            raise InvalidRequest(f"--role {unknown[0]!r}: a client on stdio may have the roles {', '.join(ROLES)}.")
        self._roles = frozenset(roles or DEFAULT_ROLES)
        self._instance = secrets.token_hex(4) if instance is None else checked_instance(instance, "--instance")

    def principal(self, client: str | None) -> Principal:
        """The caller whose client calls itself `client`."""
        actor = self._actor or Actor("agent", name_of(client), "mcp")
        return Principal(actor, self._roles, self._instance)


def _actor(text: str) -> Actor:
    kind, colon, name = text.partition(":")
    if not colon:
        kind, name = "user", text
    if kind not in ("user", "agent") or not NAME.fullmatch(name):
        raise InvalidRequest(
            f"--actor {text[:80]!r}: give agent:NAME, user:NAME or NAME, the name up to 64 letters, digits and . _ @ -, "
            "beginning with a letter or digit."
        )
    return Actor(kind, name, "mcp")

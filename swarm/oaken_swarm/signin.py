"""How clients that sign in at an issuer's learn to: the description of what a token of theirs is for (RFC 9728), and challenges.

Where no issuer is configured nothing is said of this at all, or clients begin a sign-in that cannot end.
"""

from __future__ import annotations

from oaken_jobs.errors import NotFound
from oaken_jobs.model import Json
from oaken_swarm.call import Call

PATH = "/.well-known/oauth-protected-resource"


def challenge(call: Call, door: str, *parts: str) -> bytes:
    """The value of `WWW-Authenticate` for a call to the mount at `door`; `parts` say what is missing."""
    where = [] if call.callers.issuer is None else [f'resource_metadata="{call.base}{PATH}/{door}"']
    return " ".join(("Bearer", ", ".join([*parts, *where]))).strip().encode()


def description(call: Call, door: str) -> Json:
    """Of the mount at `door`. Raises `NotFound` where no issuer is configured."""
    if call.callers.issuer is None:
        raise NotFound(
            "No issuer of tokens is configured here ([auth.oidc]): use a token that `oaken token create` has made."
        )
    return {
        "resource": f"{call.base}/{door}",
        "authorization_servers": [call.callers.issuer],
        "bearer_methods_supported": ["header"],
    }

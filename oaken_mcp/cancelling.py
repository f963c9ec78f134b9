"""Calls over HTTP that clients of the earlier era give up: they say so in a message of its own, on another connection.

Which call is meant they say by its id alone, and any two clients number alike. So each is given a mark when it initializes, as the
header of sessions; nothing else is kept of it, and one that another server gave is as good.
"""

from __future__ import annotations

import secrets
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    import mcp_types as types

HEADER = b"mcp-session-id"

Key = tuple[str, bytes, type, int | str]


def new_mark() -> tuple[bytes, bytes]:
    """The header that marks a client."""
    return HEADER, secrets.token_hex(16).encode()


class OpenCalls:
    """The calls under way of clients that have a mark."""

    def __init__(self) -> None:
        self._scopes: dict[Key, anyio.CancelScope] = {}

    async def run(
        self, caller: str, mark: bytes | None, request_id: int | str, work: Coroutine[Any, Any, None]
    ) -> bool:
        """Does `work`; whether its client has not cancelled it meanwhile."""
        if mark is None:
            await work
            return True
        key = _key(caller, mark, request_id)
        with anyio.CancelScope() as scope:
            self._scopes[key] = scope
            try:
                await work
            finally:
                if self._scopes.get(key) is scope:  # not that of a later call under the same id
                    del self._scopes[key]
        return not scope.cancelled_caught

    def cancel(self, caller: str, mark: bytes | None, message: types.JSONRPCNotification) -> None:
        """Does what a message asks that may cancel a call of the same client."""
        request_id = (message.params or {}).get("requestId")
        if message.method != "notifications/cancelled" or mark is None or not isinstance(request_id, int | str):
            return
        scope = self._scopes.get(_key(caller, mark, request_id))
        if scope is not None:
            scope.cancel()


def _key(caller: str, mark: bytes, request_id: int | str) -> Key:
    return caller, mark, type(request_id), request_id  # "1" is not 1, nor is true

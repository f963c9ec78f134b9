"""The MCP server: Oaken's tools over stdio, on the same database file as every other door.

Nothing is imported here that could print: `serve_stdio` takes stdout for the protocol before it imports anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oaken_jobs.clock import Clock
    from oaken_jobs.config import Settings
    from oaken_jobs.tracing import Trace

__all__ = ["serve_remote", "serve_stdio"]


def serve_stdio(
    data_dir: Path | None = None,
    *,
    actor: str | None = None,
    roles: Sequence[str] = (),
    instance: str | None = None,
    trace: Callable[[Settings, Clock], Trace] | None = None,
) -> None:
    """Serves MCP on this process's stdin and stdout until stdin ends or a SIGTERM comes.

    `data_dir` as `OAKEN_DATA_DIR` where not given. `actor` is `agent:NAME`, `user:NAME` or `NAME` (a user); left out, an
    agent with the client's name. `roles` narrows `user` and `agent`. `instance` tells this process from others of the name; left
    out, it is a new one, and finds no leases of an earlier one. `trace` makes the record of what agents are told and answer. Raises
    `OakenError` for what is wrong with them, with the settings, or with the database. The process's own stdin and stdout are gone
    afterwards.
    """
    from oaken_mcp import wire

    taken = wire.claim()

    from oaken_mcp import stdio

    stdio.run(taken, data_dir, actor=actor, roles=roles, instance=instance, trace=trace)


def serve_remote(url: str, find_token: Callable[[], str], instance: str | None = None) -> None:
    """Serves MCP on this process's stdin and stdout until stdin ends, by handing each message to the server at `url` with a token of
    its. `instance` as for `serve_stdio`. Raises what `find_token` raises. The process's own stdin and stdout are gone afterwards."""
    from oaken_mcp import wire

    taken = wire.claim()

    from oaken_mcp import remote

    remote.run(taken, url, find_token(), instance)

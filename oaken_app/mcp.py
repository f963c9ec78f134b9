"""`oaken mcp`: the MCP server on stdio, which an assistant or an editor starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oaken_app.options import DataDir

if TYPE_CHECKING:
    from oaken_jobs.clock import Clock
    from oaken_jobs.config import Settings
    from oaken_jobs.tracing import Trace

mcp = typer.Typer(add_completion=False, rich_markup_mode=None)


@mcp.command()
def _mcp(  # pyright: ignore[reportUnusedFunction]
    data_dir: DataDir = None,
    actor: Annotated[
        str | None,
        typer.Option(help="Who calls: agent:NAME, user:NAME or NAME. Default: an agent, by the client's own name."),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="viewer, user or agent; may be given several times. Default: user and agent."),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            help="Which process of that name it is; the same one each time lets `lease` with `resume` find leases after a restart. "
            "One process at a time. Default: a new one each time."
        ),
    ] = None,
) -> None:
    """Serve MCP on stdin and stdout, on the data folder's own jobs, whether or not a server runs."""
    # Here, not above: it takes stdin and stdout before it imports the rest.
    from oaken_mcp import serve_stdio

    def trace(settings: Settings, clock: Clock) -> Trace:
        from oaken_app.compose import trace_of

        return trace_of(settings, clock)

    serve_stdio(data_dir, actor=actor, roles=role or (), instance=instance, trace=trace)

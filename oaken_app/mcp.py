"""`oaken mcp`: the MCP server on stdio, which a desktop client or an editor starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oaken_mcp import serve_stdio

mcp = typer.Typer(add_completion=False, rich_markup_mode=None)


@mcp.command()
def _mcp(  # pyright: ignore[reportUnusedFunction]
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder of the database. Default: OAKEN_DATA_DIR, or the user's.")
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option(help="Who calls: agent:NAME, user:NAME or NAME. Default: an agent, by the client's name."),
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help="viewer, user or agent. Default: user and agent.")] = None,
) -> None:
    """Serve MCP on stdin and stdout, on the same jobs as the server, whether or not one runs."""
    serve_stdio(data_dir, actor=actor, roles=role or ())

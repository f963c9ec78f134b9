"""`oaken mcp`: the MCP server on stdio, which an assistant or an editor starts; and putting it into their lists of servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oaken_app.options import DataDir

if TYPE_CHECKING:
    from oaken_jobs.clock import Clock
    from oaken_jobs.config import Settings
    from oaken_jobs.tracing import Trace

mcp = typer.Typer(add_completion=False, rich_markup_mode=None)


@mcp.callback(invoke_without_command=True)
def _mcp(  # pyright: ignore[reportUnusedFunction]
    ctx: typer.Context,
    data_dir: DataDir = None,
    actor: Annotated[
        str | None,
        typer.Option(help="Who calls: agent:NAME, user:NAME or NAME. Default: an agent, by the client's own name."),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="viewer, user or agent; may be given several times. Default: user and agent."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Serve the jobs of a server elsewhere, with the token of `oaken login URL` or OAKEN_TOKEN."),
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
    if ctx.invoked_subcommand is not None:
        if data_dir or actor or role or url or instance:
            from oaken_jobs.errors import InvalidRequest

            raise InvalidRequest(
                f"Options go behind the command: `oaken mcp {ctx.invoked_subcommand} … --data-dir FOLDER`."
            )
        return
    # Here, not above: it takes stdin and stdout before it imports the rest.
    from oaken_mcp import serve_stdio

    if url is not None:
        _remote(url, *(given for given in (data_dir, actor, role) if given), instance=instance)
        return

    def trace(settings: Settings, clock: Clock) -> Trace:
        from oaken_app.compose import trace_of

        return trace_of(settings, clock)

    serve_stdio(data_dir, actor=actor, roles=role or (), instance=instance, trace=trace)


def _remote(url: str, *others: object, instance: str | None) -> None:
    from oaken_jobs.auth import checked_instance
    from oaken_jobs.errors import InvalidRequest
    from oaken_mcp import serve_remote
    from oaken_swarm.connection import base_url

    if others:
        raise InvalidRequest(
            "--url goes with none of --data-dir, --actor and --role: the token says who calls and what that may do."
        )
    if instance is not None:
        checked_instance(instance, "--instance")
    address = base_url(url)

    def token() -> str:
        from oaken_app.backend import token_for
        from oaken_jobs import config

        return token_for(config.load(), address)

    serve_remote(address, token, instance)


@mcp.command("install")
def _install(  # pyright: ignore[reportUnusedFunction]
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="claude-desktop, claude-code, cursor or vscode.")],
    data_dir: DataDir = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="OAKEN_URL",
            help="A server elsewhere instead of a folder, with the token that `oaken login URL` has kept.",
            show_envvar=True,
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The server's name in the client's list.")] = "oaken",
    config: Annotated[Path | None, typer.Option(help="The client's file, where it is not in its usual place.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Put Oaken into a client's list of MCP servers. The change is shown first; the rest of the file stays, and a copy of it is kept."""
    from oaken_app.install import install

    install(client, data_dir, None if data_dir else url, name=name, config_file=config, yes=yes)

"""`oaken token …`: make, list and revoke the tokens that agents and people call with."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from oaken_app.backend import call
from oaken_app.options import DataDir, Json
from oaken_app.show import ago, as_json, line, table

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

Name = Annotated[str, typer.Argument(help="The token's name; it is the name of who carries it.")]


@app.command()
def create(
    name: Name,
    role: Annotated[list[str], typer.Option(help="viewer, user, agent or admin; may be given several times.")],
    kind: Annotated[
        str | None, typer.Option(help="user or agent; unless given, agent where that is its only role.")
    ] = None,
    expires_in: Annotated[float | None, typer.Option(help="Seconds until it expires; unless given, never.")] = None,
    workspace: Annotated[
        str | None, typer.Option(help="It sees and touches nothing of any other; unless given, of all.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Make a token and print it, alone, on standard output. It is never shown again."""
    fields = {"kind": kind, "expires_in": expires_in, "workspace": workspace}
    fields = {key: value for key, value in fields.items() if value is not None}
    told = call(data_dir, lambda client: client.create_token(name, role, **fields))
    sys.stdout.write(told["token"] + "\n")


@app.command(name="list")
def list_tokens(data_dir: DataDir = None, json: Json = False) -> None:
    """List tokens, without their secrets."""
    told = call(data_dir, lambda client: client.tokens())
    if json:
        as_json(told)
        return
    rows = [
        (
            t["name"],
            t["kind"],
            ", ".join(t["roles"]),
            t["workspace"] or "all",
            ago(t["created_at"]),
            f"revoked {ago(t['revoked_at'])}" if t["revoked_at"] else ago(t["expires_at"]) or "never",
        )
        for t in told["tokens"]
    ]
    table(
        ("name", "kind", "roles", "workspace", "made", "expires"),
        rows,
        "No tokens. `oaken token create NAME --role agent` makes one.",
    )


@app.command()
def revoke(name: Name, data_dir: DataDir = None) -> None:
    """End a token for good. Jobs it holds go back unharmed."""
    call(data_dir, lambda client: client.revoke_token(name))
    line(f"Token {name} is revoked.")

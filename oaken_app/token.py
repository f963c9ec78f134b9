"""`oaken token …`: make, list, rotate and revoke the tokens that agents and people call with."""

from __future__ import annotations

import sys
from typing import Annotated, Any

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
    queues: Annotated[
        list[str] | None, typer.Option(help="A queue that it may lease from; several times for several.")
    ] = None,
    kinds: Annotated[
        list[str] | None, typer.Option(help="A kind that it may lease; several times for several.")
    ] = None,
    max_leases: Annotated[int | None, typer.Option(help="How many jobs it may hold at a time.")] = None,
    max_per_hour: Annotated[int | None, typer.Option(help="How many jobs it may lease in an hour.")] = None,
    workspace: Annotated[
        str | None, typer.Option(help="It sees and touches nothing of any other; unless given, of all.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Make a token and print it, alone, on standard output. It is never shown again."""
    fields = {
        "kind": kind,
        "expires_in": expires_in,
        "workspace": workspace,
        "queues": queues or None,
        "kinds": kinds or None,
        "max_leases": max_leases,
        "max_per_hour": max_per_hour,
    }
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
            _limits(t),
            ago(t["created_at"]),
            ago(t["last_used_at"]) or "never",
            f"revoked {ago(t['revoked_at'])}" if t["revoked_at"] else ago(t["expires_at"]) or "never",
        )
        for t in told["tokens"]
    ]
    table(
        ("name", "kind", "roles", "workspace", "limits", "made", "used", "expires"),
        rows,
        "No tokens. `oaken token create NAME --role agent` makes one.",
    )


def _limits(token: dict[str, Any]) -> str:
    said = [
        *(f"{what} {', '.join(token[what])}" for what in ("queues", "kinds") if token[what]),
        *(f"{token[what]} {words}" for what, words in _COUNTED.items() if token[what]),
    ]
    return "; ".join(said) or "none"


_COUNTED = {"max_leases": "at a time", "max_per_hour": "an hour"}


@app.command()
def rotate(
    name: Name,
    expires_in: Annotated[
        float | None, typer.Option(help="Seconds until it expires, from now; unless given, as before.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Give a token a new secret and print it, alone, on standard output. The old one is worthless at once; leases and limits stay."""
    fields = {} if expires_in is None else {"expires_in": expires_in}
    told = call(data_dir, lambda client: client.rotate_token(name, **fields))
    sys.stdout.write(told["token"] + "\n")


@app.command()
def revoke(name: Name, data_dir: DataDir = None) -> None:
    """End a token for good. Jobs it holds go back unharmed."""
    call(data_dir, lambda client: client.revoke_token(name))
    line(f"Token {name} is revoked.")

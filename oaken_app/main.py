"""The command line: `oaken COMMAND`. Commands are loaded when they are called, so that help comes at once.

A group is a module of this package with a `typer.Typer` in it, and a line in `COMMANDS`. One that has a single subcommand needs an
`@app.callback()`, or typer makes it a plain command.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from oaken_jobs.errors import OakenError


class Command(NamedTuple):
    """Where a command is found: the name of a module, of the `Typer` in it, and one line of help."""

    module: str
    app: str
    help: str


COMMANDS: dict[str, Command] = {
    "serve": Command("oaken_app.serve", "serve", "Run the server: HTTP, duties, and the built-in job bodies."),
    "runner": Command("oaken_app.serve", "runner", "Run only job bodies, beside a server started with --no-runner."),
    "mcp": Command("oaken_app.mcp", "mcp", "Serve MCP on stdin and stdout, for assistants and editors."),
    "work": Command("oaken_app.work", "app", "Make any command line a worker: payload on stdin, result from stdout."),
    "intake": Command("oaken_app.intake", "app", "Take in texts, to be stored, embedded and triaged."),
    "job": Command("oaken_app.job", "app", "Put jobs in, look at them, wait for them, stop them, run them again."),
    "queue": Command("oaken_app.queue", "app", "See queues, pause and resume them, run their failed jobs again."),
    "schedule": Command(
        "oaken_app.schedule", "app", "Jobs that come by the clock: see, add, remove and run schedules."
    ),
    "agents": Command("oaken_app.agents", "app", "See who works, what they hold, what they have done; drain them."),
    "snapshot": Command(
        "oaken_app.snapshot", "app", "See how things stand: counts, active and recent jobs, questions."
    ),
    "open": Command("oaken_app.open", "app", "Open the pages in a browser, logged in, on the machine itself."),
    "watch": Command("oaken_app.watch", "app", "Show what happens, as it happens."),
    "events": Command("oaken_app.events", "app", "Read the event log of a data folder."),
    "log": Command("oaken_app.log", "app", "Read what servers, runners and MCP servers have logged."),
    "token": Command(
        "oaken_app.token", "app", "Make, list, rotate and revoke the tokens that agents and people call with."
    ),
    "login": Command("oaken_app.login", "login", "Keep a token for a server elsewhere, so that OAKEN_URL suffices."),
    "logout": Command("oaken_app.login", "logout", "Forget the token for a server elsewhere."),
    "trace": Command("oaken_app.trace", "app", "Read what models and agents were told and answered; for admins."),
    "config": Command("oaken_app.config", "app", "See which settings count, and where each comes from."),
    "backup": Command("oaken_app.backup", "app", "Copy the database into a file, while everything goes on."),
    "migrate-store": Command("oaken_app.migrate", "app", "Move a data folder's jobs into PostgreSQL."),
    "doctor": Command("oaken_app.doctor", "app", "Look for what is wrong with a data folder."),
}


class _Lazy(TyperGroup):
    """Knows the commands' names and help, and loads one when it is called."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name=name, help=command.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name in COMMANDS:
            where = COMMANDS[name]
            command = typer.main.get_command(getattr(import_module(where.module), where.app))
        return name, command, rest


app = typer.Typer(
    name="oaken",
    cls=_Lazy,
    help="A durable job store for AI agents.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from oaken_jobs import __version__

        typer.echo(f"oaken {__version__}")
        raise typer.Exit


@app.callback()
def _oaken(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    pass


_OPTION = re.compile(r"\b(?:filter\.)?(state|kind|queue|grade|role|tag)s?\.\d+(?=: )")
_FILTER = re.compile(r"\bfilter\.(\w+)(?=: )")


def main() -> None:
    """The command `oaken`. A refusal is one line on stderr and exit code 1; wrong usage is exit code 2."""
    for number, argument in enumerate(sys.argv[1:], 1):
        if not argument.isprintable() and any("\ud800" <= c <= "\udfff" for c in argument):
            told = ascii(argument.encode("utf-8", "surrogateescape"))[2:-1]
            sys.stderr.write(f"oaken: argument {number} is not UTF-8: {told[:80]}\n")
            sys.exit(1)
    try:
        app(prog_name="oaken")
    except OakenError as error:
        told = error.message
        if error.code == "invalid_request":
            # What the interface calls the second of `states` is an option here.
            told = _FILTER.sub(lambda m: "--" + m[1].replace("_", "-"), _OPTION.sub(r"--\1", told))
        sys.stderr.write(f"oaken: {' '.join(told.split())}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()

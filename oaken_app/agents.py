"""`oaken agents`: who works, what they hold, what they have done."""

from __future__ import annotations

import typer

from oaken_app.backend import call
from oaken_app.options import DataDir, Json
from oaken_app.show import ago, as_json, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def agents(data_dir: DataDir = None, json: Json = False) -> None:
    """List agents, last seen first."""
    told = call(data_dir, lambda client: client.agents())
    if json:
        as_json(told)
        return
    rows = [
        (a["agent"], ago(a["last_seen"]), ", ".join(map(str, a["holds"])), a["leased"], a["succeeded"], a["failed"])
        for a in told["agents"]
    ]
    table(("agent", "last seen", "holds", "leased", "succeeded", "failed"), rows, "No agent has asked for work yet.")

"""`oaken snapshot`: how things stand at one glance."""

from __future__ import annotations

from typing import Annotated

import typer

from oaken_app.backend import call, place
from oaken_app.options import DataDir, Json
from oaken_app.show import ago, as_json, job_table, line, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def snapshot(
    actor: Annotated[str | None, typer.Option(help="Only jobs that this one enqueued.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show how things stand: jobs by state, what is active, what ended last, and which jobs ask a question."""
    told = call(data_dir, lambda client: client.snapshot(actor))
    if json:
        as_json(told)
        return
    line(f"{place(data_dir)}: " + ", ".join(f"{count} {state}" for state, count in told["counts"].items()))
    _section("Active")
    job_table(told["active"], "Nothing is queued or running.")
    _section("Ended last")
    job_table(told["recent"], "Nothing has ended yet.")
    if told["questions"]:
        _section("Questions (`oaken job answer JOB TEXT`)")
        rows = [(q["job_id"], q["agent"], ago(q["asked_at"]), q["text"]) for q in told["questions"]]
        table(("job", "asked by", "when", "question"), rows, "", shrink={"question": 16, "asked by": 10})


def _section(title: str) -> None:
    line("")
    line(title)

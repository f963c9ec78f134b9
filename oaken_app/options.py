"""Options that many commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The folder of the database. Default: OAKEN_DATA_DIR, or the user's data folder (oaken-swarm). "
        "Wins over OAKEN_URL."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

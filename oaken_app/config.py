"""`oaken config …`: which settings count, and where each comes from."""

from __future__ import annotations

from json import dumps
from typing import Annotated, Any

import typer

from oaken_app.options import DataDir, Json
from oaken_app.show import as_json, line, table
from oaken_jobs import config, files

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)


@app.command()
def path(data_dir: DataDir = None) -> None:
    """Print the file that settings are read from, or would be if it were there."""
    settings = config.load(data_dir)
    line(str(settings.file or settings.data_dir / files.CONFIG))


@app.command()
def show(
    everything: Annotated[bool, typer.Option("--all", help="Defaults, too.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show what is set, and by whom: the file, or a variable. What plugins are told is not shown, since it may hold secrets."""
    settings = config.load(data_dir)
    found = config.shown(settings)
    if not everything:
        found = [one for one in found if one.origin is not None]
    if json:
        as_json({"data_dir": str(settings.data_dir), "settings": [one._asdict() for one in found]})
        return
    line(f"Data folder: {settings.data_dir}")
    line(f"Settings file: {settings.file or f'none ({settings.data_dir / files.CONFIG} would be read)'}")
    if settings.url is not None:
        line(f"Commands call {settings.url} (OAKEN_URL), unless a folder is named.")
    line("")
    rows = [(one.key, _text(one.value), one.origin or "default") for one in found]
    table(
        ("setting", "value", "from"),
        rows,
        "Nothing is set; all is as the defaults say. --all shows them.",
        shrink={"value": 20},
    )


def _text(value: Any) -> str:
    """Texts as they are, all else as JSON, which is how TOML has numbers, switches and lists."""
    if isinstance(value, str) or value is None:
        return value or ""
    return dumps(int(value) if isinstance(value, float) and value.is_integer() else value, default=str)

"""`oaken watch`: what happens, as it happens."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oaken_app.backend import connected, place, require_data
from oaken_app.options import DataDir
from oaken_app.show import STYLES, ago, event_line, job_note, json_line, line, plain
from oaken_jobs.errors import Unavailable
from oaken_swarm.client import Client

app = typer.Typer(add_completion=False, rich_markup_mode=None)

REFRESH_SECONDS = 0.5
"""Between two looks at the counts, at least."""
IDLE_SECONDS = 5.0
"""Between two looks where nothing happens: what is shown of times grows old."""
AGAIN_SECONDS = 1.0
"""Between two calls to a server that does not answer."""
RECENT = 200
COLUMNS = ("id", "kind", "state", "progress", "agent", "about")
WIDEST = 20
"""Characters that a column has at most, but for the last one."""
GONE = "The server does not answer; waiting for it."
BACK = "The server answers again; nothing is left out."
FORGOTTEN = "Some events are left out here: they are not kept any more."

Shown = dict[str, Any] | str
"""An event, or what is to be said between two."""


@app.command()
def watch(
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only events of this kind, such as job_state_changed; several times for more."),
    ] = None,
    job: Annotated[int | None, typer.Option(help="Only what happens to this job.")] = None,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each event.")] = False,
) -> None:
    """Show what happens, as it happens: on a terminal the counts, the active jobs and the latest changes; a line each elsewhere.

    Ctrl-C ends it.
    """
    on_screen = sys.stdout.isatty() and not json
    require_data(data_dir)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # the terminal is given back as by Ctrl-C
    try:
        asyncio.run((_screen if on_screen else _lines)(data_dir, kind, job, json))
    except KeyboardInterrupt:
        pass


async def _lines(data_dir: Path | None, kinds: list[str] | None, job: int | None, json: bool) -> None:
    async with connected(data_dir) as client:
        async for happened in _events(client, kinds, job):
            if isinstance(happened, str):
                sys.stderr.write(f"oaken: {happened}\n")
            elif json:
                json_line(happened)
            else:
                line(event_line(happened))
            sys.stdout.flush()


async def _events(client: Client, kinds: list[str] | None, job: int | None) -> AsyncIterator[Shown]:
    """Every event from now on, also those while a server was away. Raises `Unavailable` where it was never there."""
    cursor: str | None = None
    away = False
    while True:
        try:
            page = await client.events(cursor, kinds=kinds, job_id=job, limit=500)
        except Unavailable:
            if cursor is None:
                raise
            if not away:
                yield GONE
            away = True
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        if page["resync"]:
            yield FORGOTTEN
        elif away:
            yield BACK
        away = False
        cursor = page["cursor"]
        for happened in page["events"]:
            yield happened


async def _screen(data_dir: Path | None, kinds: list[str] | None, job: int | None, json: bool) -> None:
    recent: deque[Shown] = deque(maxlen=RECENT)
    news = asyncio.Event()
    console = Console(highlight=False)
    async with connected(data_dir) as client:

        async def listen() -> None:
            async for happened in _events(client, kinds, job):
                recent.appendleft(happened)
                news.set()

        listening = asyncio.create_task(listen())
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                told = await client.snapshot()
                while not listening.done():
                    news.clear()
                    with suppress(Unavailable):  # what is heard says so
                        told = await client.snapshot()
                    live.update(_picture(console, place(data_dir), told, recent), refresh=True)
                    await asyncio.sleep(REFRESH_SECONDS)
                    waiting = asyncio.ensure_future(news.wait())
                    await asyncio.wait((waiting, listening), timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        finally:
            listening.cancel()
        await listening  # raises why it ended


def _picture(console: Console, where: str, told: dict[str, Any], recent: deque[Shown]) -> Group:
    """The whole screen: as many active jobs as take half of it, and the latest changes."""
    room = max(6, console.height - 6)
    head = Text(f"{plain(where)}  ", style="bold", no_wrap=True, overflow="ellipsis")
    for state, count in told["counts"].items():
        head.append(f"  {count} {state}", style=STYLES.get(state, "") if count else "dim")
    active = told["active"][: room // 2]
    jobs = Table(box=None, pad_edge=False, header_style="bold")
    cells = [_cells(job) for job in active]
    for at, name in enumerate(COLUMNS):
        last = at == len(COLUMNS) - 1
        widest = max([cell_len(name), *(min(WIDEST, cell_len(row[at])) for row in cells)])
        # Only the last may be cut: what one looks for is in the others.
        jobs.add_column(name, no_wrap=True, overflow="ellipsis", min_width=None if last else widest)
    for row in cells:
        jobs.add_row(*(Text(value, style=STYLES.get(value, ""), overflow="ellipsis") for value in row))
    shown: list[Any] = [head, Text(""), jobs if active else Text("Nothing is queued or running.", style="dim")]
    if told["questions"]:
        first = told["questions"][0]
        asked = f"Job {first['job_id']} asks ({ago(first['asked_at'])}): {plain(first['text'])}"
        shown += [Text(""), Text(asked, style="yellow", no_wrap=True, overflow="ellipsis")]
    shown += [Text(""), Text("Latest changes (Ctrl-C ends)", style="bold")]
    rest = room - max(1, len(active)) - (2 if told["questions"] else 0)
    shown += [
        Text(plain(one if isinstance(one, str) else event_line(one)), no_wrap=True, overflow="ellipsis")
        for one in list(recent)[: max(1, rest)]
    ]
    return Group(*shown)


def _cells(job: dict[str, Any]) -> tuple[str, ...]:
    """A job in the columns of the screen."""
    progress: dict[str, Any] = job["progress"] or {}
    percent = f"{progress['percent']} %" if progress.get("percent") is not None else ""
    state = "cancelling" if job["cancelling"] else job["state"]
    about = progress.get("message") or job_note(job)
    return tuple(plain(str(one or "")) for one in (job["id"], job["kind"], state, percent, job["agent"], about))

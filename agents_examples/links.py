"""A plugin to copy: it looks for broken links in a folder of Markdown, every night and when it is asked, without the network.

It has all that a plugin may have: settings, a kind with a pydantic model, a handler that reports progress, a schedule, an event of its
own, a health check and a listener. `docs/plugins.md` goes through it. To run it:

    export OAKEN_PLUGINS__MODULES='["agents_examples.links"]' OAKEN_PLUGINS__SETTINGS='{"links": {"folder": "docs"}}'
    oaken serve
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from oaken_jobs.plugin import NotConfigured, Plugin
from oaken_swarm import JobContext, PermanentJobError

log = logging.getLogger("oaken.links")

MAX_FILES = 2000
MAX_SHOWN = 200
"""Broken links that a result lists; `failed` counts them all."""


# What a job of the kind says. The model becomes a JSON Schema: a payload that does not fit is refused when the job is enqueued.
class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    files: str = Field("**/*.md", max_length=200, description="which files of the folder, as a glob pattern")


class Broken(BaseModel):
    """A link that leads nowhere."""

    file: str
    line: int
    target: str


# What it answers. `total` and `failed` are words that grading knows: if all links are broken the job is graded bad, if some are, warn.
class Report(BaseModel):
    files: int
    total: int
    failed: int
    broken: list[Broken]


# A module's `plugin` is a Plugin, or a function of its settings that makes one: what stands in [plugins.settings.links].
def plugin(settings: Mapping[str, Any]) -> Plugin:
    if "folder" not in settings:
        # No complaint, for it may well be installed without being used: it is absent, with its kind, schedule and all.
        raise NotConfigured("set folder in [plugins.settings.links]")
    folder = Path(settings["folder"]).absolute()
    links = Plugin("links")

    links.kind(
        "check-links",
        payload=Wanted,
        result=Report,
        instructions="Look for links that lead nowhere in the Markdown files of the folder.",
        limit=1,  # one at a time, over all processes
        max_attempts=2,
    )

    # An event of its own, `links.checked`: numbers, switches and short identifiers, so that no text of others leaks through it.
    links.event("checked", "files", "links", "broken", "seconds")

    @links.handler("check-links")
    async def check(job: JobContext) -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        wanted = Wanted.model_validate(job.payload)
        begun = time.monotonic()
        files = await asyncio.to_thread(_files, folder, wanted.files)
        if not files:
            raise PermanentJobError("no Markdown file of the folder matches the pattern")  # trying again would not help
        total, broken = 0, list[Broken]()
        for number, file in enumerate(files, 1):
            # Files are read in a thread: a slow disk must not hold up the server, whose loop this is.
            count, found = await asyncio.to_thread(examine, folder, file)
            total, broken = total + count, broken + found
            await job.progress(100 * number / len(files), f"{number} of {len(files)} files")
        seconds = round(time.monotonic() - begun, 3)
        await links.emit("checked", job_id=job.id, files=len(files), links=total, broken=len(broken), seconds=seconds)
        return Report(files=len(files), total=total, failed=len(broken), broken=broken[:MAX_SHOWN]).model_dump()

    # It is there as long as a process that runs this plugin starts with it, and keeps its next run through restarts.
    links.schedule("nightly", kind="check-links", cron="0 3 * * *", priority="backfill")

    # None is well; a text, or whatever is raised, says why not. `oaken doctor` shows it, and each change is an event.
    @links.health(every_seconds=30)
    async def readable() -> str | None:  # pyright: ignore[reportUnusedFunction]
        return None if await asyncio.to_thread(folder.is_dir) else f"there is no folder {folder}"

    # Called with each event of these kinds, wherever in the system it comes from.
    @links.on("links.checked")
    async def told(event: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        log.info("links checked: %s", event)

    return links


# From here on it is plain Python, which knows nothing of Oaken and is tested by itself.

_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(<?([^)>\s]+)>?[^)\n]*\)")
_CODE = re.compile(r"`[^`\n]*`")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def examine(folder: Path, file: Path) -> tuple[int, list[Broken]]:
    """How many links a file has, and which of them lead nowhere. Links to other hosts are not looked at."""
    count, broken = 0, list[Broken]()
    for number, line in _prose(file.read_text("utf-8", errors="replace")):
        for target in _LINK.findall(line):
            if _ELSEWHERE.match(target):
                continue
            count += 1
            path, _, heading = target.partition("#")
            there = file.parent / path if path else file
            if not there.exists() or (heading and heading not in headings(there)):
                broken.append(Broken(file=str(file.relative_to(folder)), line=number, target=target[:200]))
    return count, broken


def headings(file: Path) -> set[str]:
    """The headings of a Markdown file as links name them: `## A Title!` is `a-title`."""
    if file.suffix != ".md":
        return set()
    lines = (line for _, line in _prose(file.read_text("utf-8", errors="replace"), code=True))
    titles = (line.lstrip("#").strip().lower() for line in lines if re.match(r"#{1,6} ", line))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def _prose(text: str, *, code: bool = False) -> list[tuple[int, str]]:
    """Numbered lines outside fenced blocks; what is code within a line is left out unless `code` is set."""
    lines: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lines.append((number, line if code else _CODE.sub("", line)))
    return lines


def _files(folder: Path, pattern: str) -> list[Path]:
    # A pattern that begins at the root or leads out of the folder finds nothing: jobs come from people who may not read everything here.
    if pattern.startswith("/") or ".." in Path(pattern).parts:
        return []
    return sorted(path for path in folder.glob(pattern) if path.is_file() and path.suffix == ".md")[:MAX_FILES]

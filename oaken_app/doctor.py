"""`oaken doctor`: looks for what is wrong with a data folder, or with the PostgreSQL in its place, and says what to do about it."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path
from typing import Annotated

import typer

from oaken_app.backend import core_on, local_principal, place
from oaken_app.compose import server_of
from oaken_app.options import DataDir, Json
from oaken_app.show import ago, as_json, line
from oaken_jobs import __version__, config, plugins, views
from oaken_jobs.clock import SystemClock
from oaken_jobs.core import Core
from oaken_jobs.errors import OakenError
from oaken_jobs.files import DATABASE
from oaken_jobs.maintenance import living
from oaken_jobs.store.base import Finding
from oaken_jobs.store.sql.records import LIVING_MS
from oaken_jobs.store.sqlite import driver, schema

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    data_dir: DataDir = None,
    json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out SQLite's integrity check, which reads the whole file.")
    ] = False,
) -> None:
    """Look for what is wrong with a data folder, or with the PostgreSQL that jobs are kept on. Exit code 1 if something is."""
    findings = asyncio.run(_examine(data_dir, quick))
    if json:
        as_json({"version": __version__, "findings": [{"level": f.level, "what": f.what} for f in findings]})
    else:
        for finding in findings:
            line(f"{finding.level:5}{finding.what}")
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


async def _examine(data_dir: Path | None, quick: bool) -> list[Finding]:
    settings = config.load(data_dir)
    findings = [
        Finding("ok", f"Oaken {__version__}, Python {sys.version.split()[0]}"),
        Finding("ok", f"settings: {settings.file or 'defaults, there is no config.toml'}"),
    ]
    if settings.url is not None:
        findings.append(
            Finding("warn", f"OAKEN_URL is set but not used here: this looks at {place(data_dir or settings.data_dir)}")
        )
    url = settings.database.url
    existed = url is not None or (settings.data_dir / DATABASE).exists()
    try:
        findings += _sqlite() if url is None else await _postgres(url, settings)
        async with core_on(settings.data_dir) as core:
            findings.append(
                Finding(
                    "ok", f"data folder {settings.data_dir}, schema {schema.latest()}" + ("" if existed else " (new)")
                )
            )
            findings += _permissions(settings.data_dir)
            findings += await _plugins(core, plugins.load(settings))
            findings += await _contents(core, quick)
    except OakenError as error:
        findings.append(Finding("bad", error.message))
    return findings


def _sqlite() -> list[Finding]:
    danger = driver.unsafe_version()
    return [Finding("bad", danger) if danger else Finding("ok", f"SQLite {driver.version()}")]


async def _postgres(url: str, settings: config.Settings) -> list[Finding]:
    server = server_of(url, settings)
    from oaken_jobs.store.postgres import condition  # not where there is none of what it takes

    return await condition.examine(server, SystemClock(), settings.database.pool_size, recording=settings.trace.enabled)


def _permissions(folder: Path) -> list[Finding]:
    def is_open(path: Path) -> bool:
        return path.exists() and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)

    open_to_others = [path for path in (folder / DATABASE,) if is_open(path)]
    # Nobody reads a file in a folder that is closed to them; the database is to be safe when it is moved as well.
    open_to_others += [path for path in (folder / "config.toml",) if is_open(path) and is_open(folder)]
    return [Finding("warn", f"{path} can be read by others; `chmod 600` it") for path in open_to_others]


async def _plugins(core: Core, loaded: plugins.Loaded) -> list[Finding]:
    health = {row.plugin: row for row in await core.store.plugin_health()}
    findings: list[Finding] = []
    for plugin in loaded.plugins:
        last = health.get(plugin.name)
        if plugin.health_check is None:
            findings.append(Finding("ok", f"plugin {plugin.name} is loaded"))
        elif last is None:
            findings.append(
                Finding("ok", f"plugin {plugin.name} is loaded; nobody has looked yet whether it is healthy")
            )
        elif last.healthy:
            findings.append(Finding("ok", f"plugin {plugin.name} was healthy {ago(views.iso(last.at))}"))
        else:
            findings.append(Finding("warn", f"plugin {plugin.name} is unhealthy: {last.reason}"))
    findings += [Finding("bad", f"plugin {name} is broken: {reason}") for name, reason in loaded.broken]
    findings += [Finding("ok", f"plugin {name} is not configured: {reason}") for name, reason in loaded.absent]
    return findings


async def _contents(core: Core, quick: bool) -> list[Finding]:
    findings: list[Finding] = []
    if not quick and not core.store.shared:
        problems = await core.store.check()
        findings += [Finding("bad", f"the database is damaged: {problem}") for problem in problems]
        if not problems:
            findings.append(Finding("ok", "the database is sound"))
    since = core.clock.now() - LIVING_MS
    running = [row for row in await core.store.processes() if row.seen_at > since and living(row)]
    for row in running:
        findings.append(Finding("ok", f"{row.role} runs as process {row.pid} on {row.host}, version {row.version}"))
    if not running:
        findings.append(Finding("warn", "no server, runner or MCP server is at work here; `oaken serve` starts one"))
    for queue in await core.jobs.queues(local_principal(), everything=True):
        waiting = queue.counts.get("queued", 0)
        if not queue.configured:
            findings.append(
                Finding("warn", f"queue {queue.name} has {waiting} jobs waiting but is not in the configuration")
            )
        elif queue.paused and waiting:
            findings.append(Finding("warn", f"queue {queue.name} is paused with {waiting} jobs waiting"))
    return findings

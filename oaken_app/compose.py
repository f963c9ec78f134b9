"""The core of a process, put together by the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oaken_jobs.archive import Archive, JournalArchive
from oaken_jobs.clock import Clock
from oaken_jobs.config import Settings
from oaken_jobs.core import Core, clock_for, not_installed
from oaken_jobs.files import TRACE
from oaken_jobs.journal import Journal
from oaken_jobs.kinds import Rules
from oaken_jobs.trace import Recorder
from oaken_jobs.tracing import Trace

if TYPE_CHECKING:
    from oaken_jobs.store.postgres.server import Server


def core_of(settings: Settings, rules: Rules, role: str) -> Core:
    """The core on the settings' data folder, by rules with the kinds of all plugins."""
    clock = clock_for(settings.database)
    trace = trace_of(settings, clock)
    return Core.on_folder(
        settings.data_dir, rules, role, clock, database=settings.database, log=settings.log, trace=trace
    )


def server_of(url: str, settings: Settings) -> Server:
    """The PostgreSQL at a URL. Raises `ConfigError` where what it takes is not installed."""
    try:
        from oaken_jobs.store.postgres.server import Server
    except ImportError as error:
        raise not_installed(error) from None
    return Server(url, prepared=settings.database.listen)


def trace_of(settings: Settings, clock: Clock) -> Trace:
    """The trace of the data folder, or of its database: what an earlier start recorded is read and forgotten also where nothing is recorded
    now. Raises `ConfigError`."""
    kept, url = settings.trace, settings.database.url
    archive = JournalArchive(trace_journal(settings)) if url is None else _table(url, settings)
    return Recorder(archive, clock, recording=kept.enabled, keep_days=kept.keep_days)


def _table(url: str, settings: Settings) -> Archive:
    server = server_of(url, settings)
    from oaken_jobs.store.postgres.archive import PostgresArchive  # not where there is none of what it takes

    file = settings.trace.max_bytes
    return PostgresArchive(server, most_bytes=file * (1 + settings.log.file_backups), look_bytes=file)


def trace_journal(settings: Settings) -> Journal:
    """The file of the trace."""
    return Journal(settings.data_dir / TRACE, settings.trace.max_bytes, settings.log.file_backups)

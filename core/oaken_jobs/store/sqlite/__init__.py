"""SQLite: one file, embedded, the default."""

from oaken_jobs.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]

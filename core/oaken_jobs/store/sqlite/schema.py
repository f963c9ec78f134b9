"""Numbered migrations: `migrations/NNNN_name.sql`, applied in order, each in one transaction; `user_version` is the last one."""

from __future__ import annotations

from oaken_jobs.errors import ConfigError
from oaken_jobs.store.sql.migrations import numbered
from oaken_jobs.store.sql.records import LIVING_MS
from oaken_jobs.store.sqlite.driver import Database


def migrations() -> list[tuple[int, str]]:
    """(number, statements) in order."""
    return numbered("oaken_jobs.store.sqlite")


def latest() -> int:
    """The schema's number in this program."""
    return migrations()[-1][0]


def current(database: Database) -> int:
    """The schema's number in the file; 0 for an empty one."""
    return int(database.execute("pragma user_version").fetchone()[0])


def migrate(database: Database, name: str, now: int) -> None:
    """Brings the file to this program's schema.

    Raises `ConfigError` where the file is of a newer program, or an older one still has it open and would meet tables it does
    not know; the message says which processes to stop.
    """
    if current(database) == latest():
        return
    database.execute("begin immediate")
    try:
        at = current(database)  # another process may have been first
        if at > latest():
            raise ConfigError(
                f"{name} was written by a newer Oaken (schema {at}; this program knows {latest()}). "
                "Use the newer program, or another data folder."
            )
        if 0 < at < latest():
            _refuse_under_living(database, name, at, now)
        for number, statements in migrations():
            if number > at:
                for statement in _split(statements):
                    database.execute(statement)
                database.execute(f"pragma user_version = {number}")
        database.execute("commit")
    except BaseException:
        database.execute("rollback")
        raise


def _refuse_under_living(database: Database, name: str, at: int, now: int) -> None:
    rows = database.execute(
        "select role, pid, host, version from processes where seen_at > ?", (now - LIVING_MS,)
    ).fetchall()
    if rows:
        who = ", ".join(f"{role} (process {pid} on {host}, version {version})" for role, pid, host, version in rows)
        raise ConfigError(
            f"{name} has schema {at} and needs {latest()}, but an older Oaken has it open: {who}. Stop it, then start again."
        )


def _split(statements: str) -> list[str]:
    """The statements of a migration: they end with a semicolon at the end of a line."""
    lines = [line for line in statements.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";\n") if part.strip().rstrip(";")]

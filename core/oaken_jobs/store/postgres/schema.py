"""Numbered migrations: `migrations/NNNN_name.sql`, applied in order in one transaction, under a lock that processes wait for which start at
once. The table `oaken_schema` holds the last one's number, which is that of SQLite's tables of the same shape."""

from __future__ import annotations

from oaken_jobs.errors import ConfigError
from oaken_jobs.store.postgres.server import Connection
from oaken_jobs.store.sql.migrations import numbered
from oaken_jobs.store.sql.records import LIVING_MS

OLDEST = 140_000
"""The oldest server that is known to do: PostgreSQL 14."""
_LOCK = 0x6F616B656E
# By the catalogue's rows: `to_regclass` answers from what the backend remembers, which behind a lock that was waited for may be old.
_THERE = "select exists (select 1 from pg_tables where schemaname = current_schema() and tablename = 'oaken_schema')"
_AT = "select version from oaken_schema"
_LIVING = (
    "select role, pid, host, version from processes "
    "where seen_at > (extract(epoch from clock_timestamp()) * 1000)::bigint - $1"
)


def migrations() -> list[tuple[int, str]]:
    """(number, statements) in order."""
    return numbered("oaken_jobs.store.postgres")


def latest() -> int:
    """The schema's number in this program."""
    return migrations()[-1][0]


async def current(connection: Connection) -> int:
    """The schema's number in the database; 0 for an empty one."""
    if not await connection.fetchval(_THERE):
        return 0
    return await connection.fetchval(_AT)


async def migrate(connection: Connection, name: str) -> None:
    """Brings the database to this program's schema.

    Raises `ConfigError` where the server is too old, the database is of a newer program, or an older one still works on it and would meet
    tables it does not know; the message says which processes to stop.
    """
    version = int(await connection.fetchval("show server_version_num"))
    if version < OLDEST:
        raise ConfigError(f"{name} is PostgreSQL {version // 10_000}; Oaken needs {OLDEST // 10_000} or newer.")
    if await current(connection) == latest():
        return
    await connection.execute("begin")
    try:
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        at = await current(connection)  # another process may have been first
        if at > latest():
            raise ConfigError(
                f"{name} was written by a newer Oaken (schema {at}; this program knows {latest()}). "
                "Use the newer program, or another database."
            )
        if 0 < at < latest():
            await _refuse_under_living(connection, name, at)
        if at == 0:
            await connection.execute("create table oaken_schema (version bigint not null)")
            await connection.execute("insert into oaken_schema values (0)")
        for number, statements in migrations():
            if number > at:
                await connection.execute(statements)
        await connection.execute("update oaken_schema set version = $1", latest())
        await connection.execute("commit")
    except BaseException:
        await connection.execute("rollback")
        raise


async def _refuse_under_living(connection: Connection, name: str, at: int) -> None:
    rows = await connection.fetch(_LIVING, LIVING_MS)
    if rows:
        who = ", ".join(f"{role} (process {pid} on {host}, version {version})" for role, pid, host, version in rows)
        raise ConfigError(
            f"{name} has schema {at} and needs {latest()}, but an older Oaken works on it: {who}. Stop it, then start again."
        )

"""How well a PostgreSQL server does for Oaken, and what to do where it does not.

Needs no rights but those that Oaken has anyway; what others do it sees only as far as it may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from oaken_jobs.clock import Clock
from oaken_jobs.store.base import Finding
from oaken_jobs.store.postgres.schema import OLDEST
from oaken_jobs.store.postgres.server import Connection, Server
from oaken_jobs.store.sql.records import LIVING_MS

BESIDE_THE_POOL = 5
"""Connections of a process that are not for reading jobs: two write, one listens, two are for the trace."""
CLOCK_MS = 2_000
"""A difference of clocks that is worth a word."""
LONG_SECONDS, TOO_LONG_SECONDS = 60, 600
"""Of others' transactions: how long is worth a word, and how long does harm."""
OLD = 1_000_000
"""The same, in transactions since, where the time cannot be seen."""
DEAD_ROWS, DEAD_SHARE = 20_000, 0.5
"""So many dead rows of a table, and so many for each living one, are more than vacuum should let come together."""
UNKNOWN_ROWS = 20_000
"""A table of so many rows that was never analysed is one whose plans are guesses."""
STATEMENT_MS = 60_000
"""A limit for statements below that ends lists and migrations."""
SECONDS = 10.0

_SETTINGS = """
select name, setting from pg_settings where name in ('server_version', 'server_version_num', 'server_encoding', 'fsync',
  'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'transaction_read_only', 'statement_timeout', 'max_connections',
  'superuser_reserved_connections', 'reserved_connections')"""
_NOW = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"
_USED = "select sum(numbackends)::bigint from pg_stat_database where datid <> 0"
_LIMIT = """
select least(nullif(r.rolconnlimit, -1), nullif(d.datconnlimit, -1)) from pg_roles r cross join pg_database d
where r.rolname = current_user and d.datname = current_database()"""
_PROCESSES = "select count(*) from processes where seen_at > $1"
_DEAD = f"""
select relname, n_dead_tup, n_live_tup, coalesce(greatest(last_vacuum, last_autovacuum)::timestamp(0)::text, 'never')
from pg_stat_user_tables where schemaname = current_schema() and n_dead_tup > {DEAD_ROWS} and n_dead_tup > {DEAD_SHARE} * n_live_tup
order by n_dead_tup desc"""
_NEVER_ANALYSED = f"""
select relname, n_live_tup from pg_stat_user_tables where schemaname = current_schema() and n_live_tup > {UNKNOWN_ROWS}
  and last_analyze is null and last_autoanalyze is null order by n_live_tup desc"""
_TRANSACTIONS = """
select pid, usename, coalesce(datname, '-'), application_name, state, extract(epoch from clock_timestamp() - xact_start)::bigint,
  greatest(age(backend_xmin), age(backend_xid))
from pg_stat_activity where pid <> pg_backend_pid() and (xact_start is not null or backend_xmin is not null or backend_xid is not null)
  and coalesce(backend_type, '') not in ('autovacuum worker', 'autovacuum launcher')
order by xact_start nulls last, greatest(age(backend_xmin), age(backend_xid)) desc limit 3"""
_SEES_ALL = "select pg_has_role(current_user, 'pg_read_all_stats', 'usage') or (select rolsuper from pg_roles where rolname = current_user)"
_PREPARED = """
select gid, owner, database, extract(epoch from clock_timestamp() - prepared)::bigint from pg_prepared_xacts
order by prepared limit 3"""
_SLOTS = """
select slot_name, xmin is not null, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) from pg_replication_slots
where not active and restart_lsn is not null"""
_SIZES = """
select pg_size_pretty(pg_database_size(current_database())),
  string_agg(relname || ' ' || pg_size_pretty(size), ', ' order by size desc) from (
    select relname, pg_total_relation_size(c.oid) size from pg_class c where relkind = 'r' and relnamespace = current_schema()::regnamespace
    order by size desc limit 3) s"""
_MISSING = """
select n.noun || ' ' || c.relname, string_agg(p.may, ', ' order by p.may) from pg_class c
join (values ('r', 'table'), ('S', 'sequence')) n(kind, noun) on n.kind = c.relkind::text
join (values ('r', 'select'), ('r', 'insert'), ('r', 'update'), ('r', 'delete'), ('S', 'usage'), ('S', 'select')) p(kind, may)
  on p.kind = c.relkind::text
where c.relnamespace = current_schema()::regnamespace and c.relname not in ('oaken_schema', 'trace')
  and not case c.relkind when 'S' then has_sequence_privilege(c.oid, p.may) else has_table_privilege(c.oid, p.may) end
group by 1 order by 1"""
_BARRED = """
select not (has_table_privilege(c.oid, 'insert') and has_column_privilege(c.oid, 'id', 'select'))
from pg_class c where c.oid = to_regclass('trace')"""
_MAY_CREATE = "select has_schema_privilege(current_schema(), 'create')"


async def examine(server: Server, clock: Clock, pool_size: int, *, recording: bool) -> list[Finding]:
    """What is worth saying of the server and of this database; `clock` is this machine's, `recording` whether there is to be a trace.
    Raises what `Server.refusal` makes of an error."""
    try:
        connection = await server.connect()
        try:
            findings = await _examine(connection, server.name, clock, pool_size)
            return [*findings, *(await _trace(connection) if recording else ())]
        finally:
            await server.hang_up(connection)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise server.refusal(error) from None


async def _examine(connection: Connection, name: str, clock: Clock, pool_size: int) -> list[Finding]:
    settings: dict[str, str] = dict(await _rows(connection, _SETTINGS))
    findings = _version(settings, name)
    if await connection.fetchval("select pg_is_in_recovery()"):
        return [
            *findings,
            Finding("bad", f"{name} is a standby, which can only be read; name the primary in database.url"),
        ]
    findings += judged(settings)
    findings.append(await _clocks(connection, clock))
    findings += await _connections(connection, settings, pool_size)
    findings += await _tables(connection)
    findings += await _holders(connection)
    findings += await _rights(connection)
    return findings


async def _rows(connection: Connection, statement: str) -> Sequence[Any]:
    return await connection.fetch(statement, timeout=SECONDS)


def _version(settings: dict[str, str], name: str) -> list[Finding]:
    version, number = settings["server_version"], int(settings["server_version_num"])
    if number < OLDEST:
        return [Finding("bad", f"{name} is PostgreSQL {version}; Oaken needs {OLDEST // 10_000} or newer")]
    return [Finding("ok", f"{name}, PostgreSQL {version}")]


def judged(settings: dict[str, str]) -> list[Finding]:
    """What is wrong with settings, as `pg_settings` has them for Oaken's user."""
    findings: list[Finding] = []
    if settings["server_encoding"] != "UTF8":
        findings.append(
            Finding("bad", f"the database keeps text as {settings['server_encoding']}; create it with UTF8")
        )
    for name, harm in (
        ("fsync", "a crash of the machine can ruin the whole database"),
        ("full_page_writes", "a crash of the machine can ruin pages, unless its disk never writes one in part"),
        ("synchronous_commit", "a crash of the server loses what was acknowledged last"),
        ("autovacuum", "dead rows pile up, and claims slow down"),
        ("track_counts", "autovacuum does not run, dead rows pile up, and claims slow down"),
    ):
        if settings[name] == "off":
            findings.append(Finding("bad", f"{name} is off: {harm}; set {name} = on"))
    if settings["transaction_read_only"] == "on":
        findings.append(
            Finding(
                "bad", "transactions can only read unless they say otherwise; set default_transaction_read_only = off"
            )
        )
    limit = int(settings["statement_timeout"])
    if 0 < limit < STATEMENT_MS:
        findings.append(
            Finding(
                "warn",
                f"statement_timeout is {limit / 1000:g} s, which ends long lists and changes of tables; set it to 0 for Oaken's user "
                "(alter role … set statement_timeout = 0), which gives up by itself",
            )
        )
    return findings


async def _clocks(connection: Connection, clock: Clock) -> Finding:
    asked = clock.now()
    there = await connection.fetchval(_NOW, timeout=SECONDS)
    answered = clock.now()
    ahead = there - (asked + answered) / 2
    if abs(ahead) <= CLOCK_MS + (answered - asked) / 2:
        return Finding("ok", "this machine's clock and the database's agree")
    way = "behind" if ahead > 0 else "ahead of"
    return Finding(
        "warn",
        f"this machine's clock is {abs(ahead) / 1000:.0f} s {way} the database's; leases and schedules go by the database's, times in "
        "this machine's own files by its own. Set it right",
    )


async def _connections(connection: Connection, settings: dict[str, str], pool_size: int) -> list[Finding]:
    room = int(settings["max_connections"]) - sum(
        int(settings.get(name, "0")) for name in ("superuser_reserved_connections", "reserved_connections")
    )
    limit = await connection.fetchval(_LIMIT, timeout=SECONDS)
    room = room if limit is None else min(room, limit)
    used = await connection.fetchval(_USED, timeout=SECONDS)
    there = await connection.fetchval("select to_regclass('processes') is not null", timeout=SECONDS)
    since = await connection.fetchval(_NOW, timeout=SECONDS) - LIVING_MS
    processes = max(1, await connection.fetchval(_PROCESSES, since, timeout=SECONDS)) if there else 1
    each = pool_size + BESIDE_THE_POOL
    told = (
        f"a process of Oaken's takes up to {each} connections, those at work here {processes * each}; there are {room}, of which "
        f"{used} are in use now"
    )
    if processes * each > room:
        return [
            Finding("warn", f"{told}: lower [database] pool_size, raise max_connections, or put a pooler in between")
        ]
    return [Finding("ok", told)]


async def _tables(connection: Connection) -> list[Finding]:
    size, largest = (await _rows(connection, _SIZES))[0]
    findings = [Finding("ok", f"the database has {size}" + (f"; {largest}" if largest else ""))]
    dead = await _rows(connection, _DEAD)
    for name, gone, alive, vacuumed in dead:
        findings.append(
            Finding(
                "warn",
                f"{name} has {gone:,} dead rows beside {alive:,} living ones, last vacuumed: {vacuumed}; run `vacuum {name}`, and see "
                "whether a transaction, a slot or a setting keeps them",
            )
        )
    if not dead:
        findings.append(Finding("ok", "no table is full of dead rows"))
    for name, rows in await _rows(connection, _NEVER_ANALYSED):
        findings.append(Finding("warn", f"{name} has {rows:,} rows and was never analysed; run `analyze {name}`"))
    return findings


async def _holders(connection: Connection) -> list[Finding]:
    """Who keeps dead rows from being removed."""
    findings = [one for row in await _rows(connection, _TRANSACTIONS) if (one := _transaction(*row)) is not None]
    for gid, owner, database, seconds in await _rows(connection, _PREPARED):
        if seconds >= LONG_SECONDS:
            findings.append(
                Finding(
                    "bad" if seconds >= TOO_LONG_SECONDS else "warn",
                    f"the prepared transaction {gid} of {owner} in {database} is {_long(seconds)} old, and keeps dead rows; "
                    "commit it, or roll it back (rollback prepared)",
                )
            )
    for slot, rows, kept in await _rows(connection, _SLOTS):
        also = " and dead rows" if rows else ""
        findings.append(
            Finding(
                "warn",
                f"nobody uses the replication slot {slot}, for which the server keeps {kept} of its log{also}; connect who should, "
                "or drop it (pg_drop_replication_slot)",
            )
        )
    if not findings:
        findings.append(
            Finding("ok", "no transaction is open for long, none is prepared, and no replication slot is unused")
        )
    if not await connection.fetchval(_SEES_ALL, timeout=SECONDS):
        findings.append(
            Finding(
                "ok",
                "of others' transactions only the number is seen here; `grant pg_read_all_stats` to Oaken's user shows more",
            )
        )
    return findings


def _transaction(
    pid: int,
    user: str | None,
    database: str,
    application: str,
    state: str | None,
    seconds: int | None,
    age: int | None,
) -> Finding | None:
    """What to say of a transaction; None for a short one."""
    if (seconds is None and (age or 0) < OLD) or (seconds is not None and seconds < LONG_SECONDS):
        return None
    since = f"has been open for {_long(seconds)}" if seconds is not None else f"is {age:,} transactions old"
    who = f"{user or 'unknown'}, database {database}" + (f", {application}" if application else "")
    return Finding(
        "bad" if seconds is None or seconds >= TOO_LONG_SECONDS else "warn",
        f"a transaction of process {pid} ({who}) {since}{f', {state}' if state else ''}: dead rows stay meanwhile, and claims slow "
        f"down; end it there, or by `select pg_terminate_backend({pid})`. idle_in_transaction_session_timeout ends forgotten ones",
    )


async def _rights(connection: Connection) -> list[Finding]:
    findings = [
        Finding("bad", f"Oaken's user lacks {rights} on {what}; grant it")
        for what, rights in await _rows(connection, _MISSING)
    ]
    if not findings:
        findings.append(Finding("ok", "Oaken's user may do what it must"))
    if not await connection.fetchval(_MAY_CREATE, timeout=SECONDS):
        findings.append(
            Finding(
                "ok",
                "Oaken's user may not change tables; start a newer version once as their owner before others use it",
            )
        )
    return findings


async def _trace(connection: Connection) -> list[Finding]:
    if await connection.fetchval(_BARRED, timeout=SECONDS):
        return [
            Finding(
                "warn",
                "[trace] enabled is set, but Oaken's user may not write to the table trace, so nothing is recorded; grant it "
                "insert and select (id)",
            )
        ]
    return []


def _long(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"

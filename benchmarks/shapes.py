"""Databases of adverse shapes, which made the claim of other designs slow. For the claim's benchmark and the tests of its plans."""

from __future__ import annotations

from collections.abc import Callable

from oaken_jobs.model import SERIAL
from oaken_jobs.store.sqlite.driver import Database

NOW = 1_800_000_000_000
FUTURE = NOW + 86_400_000


def _fill(
    database: Database,
    count: int,
    *,
    queue: str = "'default'",
    kind: str = "'work'",
    priority: str = "50",
    run_at: str = f"{NOW - 1000}",
    serial_key: str = "null",
    blocked: str = "0",
) -> None:
    """`count` queued jobs; the columns are SQL expressions of `n`."""
    columns = {
        "workspace": "'default'",
        "kind": kind,
        "queue": queue,
        "routed_by": "'default'",
        "state": "'queued'",
        "priority": priority,
        "serial_key": serial_key,
        "blocked": blocked,
        "max_attempts": "5",
        "created_at": f"{NOW - 5000}",
        "run_at": run_at,
        "actor_kind": "'user'",
        "actor_id": "'bench'",
        "actor_via": "'http'",
    }
    database.execute(
        f"with recursive c(n) as (select 1 union all select n + 1 from c where n < {count}) "
        f"insert into jobs ({', '.join(columns)}) select {', '.join(columns.values())} from c"
    )


def one_queue(database: Database, count: int) -> None:
    """All in one lane."""
    _fill(database, count)


def full_cap_ahead(database: Database, count: int) -> None:
    """A kind at its cap stands in front with all jobs but ten."""
    _fill(database, count, kind="'capped'", priority="900")
    _fill(database, 10)
    database.execute(
        f"update jobs set state = 'running', lease_expires = {FUTURE}, holder = 'x', epoch = 1 where id in "
        "(select id from jobs where kind = 'capped' limit 2)"
    )


def all_in_the_future(database: Database, count: int) -> None:
    """None is due but ten of the lowest priority."""
    _fill(database, count, run_at=f"{FUTURE} + n", priority="900")
    _fill(database, 10, priority="1")


def paused_ahead(database: Database, count: int) -> None:
    """A paused queue stands in front with all jobs but ten."""
    _fill(database, count, queue="'closed'", priority="900")
    _fill(database, 10)
    database.execute(f"insert into queue_state values ('closed', 1, {NOW})")


def other_kind_ahead(database: Database, count: int) -> None:
    """All jobs but ten are of a kind that is not asked for."""
    _fill(database, count, kind="'other'", priority="900")
    _fill(database, 10)


def three_hundred_lanes(database: Database, count: int) -> None:
    """Ten queues of six kinds at five priorities."""
    _fill(database, count, queue="'q' || (n % 10)", kind="'k' || (n / 10 % 6)", priority="n / 60 % 5 * 10")


def all_finished(database: Database, count: int) -> None:
    """All jobs but ten are done."""
    _fill(database, count)
    database.execute(f"update jobs set state = 'succeeded', finished_at = {NOW}")
    _fill(database, 10)


def all_running(database: Database, count: int) -> None:
    """All jobs but ten run under live leases."""
    _fill(database, count)
    database.execute(f"update jobs set state = 'running', lease_expires = {FUTURE}, holder = 'x', epoch = 1")
    _fill(database, 10)


def busy_serial_key_ahead(database: Database, count: int) -> None:
    """All jobs but ten are of one serial key, of which one runs."""
    _fill(database, count, serial_key="'key'", priority="900", blocked=f"{SERIAL}")
    _run_one_of_each_key(database)
    _fill(database, 10)


def busy_serial_keys_ahead(database: Database, count: int) -> None:
    """All jobs but ten are of a thousand serial keys, of each of which one runs."""
    _fill(database, count, serial_key="'key-' || (n % 1000)", priority="900", blocked=f"{SERIAL}")
    _run_one_of_each_key(database)
    _fill(database, 10)


def _run_one_of_each_key(database: Database) -> None:
    database.execute(
        f"update jobs set state = 'running', blocked = 0, lease_expires = {FUTURE}, holder = 'x', epoch = 1 where id in "
        "(select min(id) from jobs where serial_key is not null group by serial_key)"
    )


SHAPES: dict[str, Callable[[Database, int], None]] = {
    "one queue": one_queue,
    "a full cap ahead": full_cap_ahead,
    "all in the future": all_in_the_future,
    "a paused queue ahead": paused_ahead,
    "another kind ahead": other_kind_ahead,
    "three hundred lanes": three_hundred_lanes,
    "all finished": all_finished,
    "all running": all_running,
    "a busy serial key ahead": busy_serial_key_ahead,
    "a thousand busy serial keys ahead": busy_serial_keys_ahead,
}
CAPS = {"capped": 2}
KINDS: dict[str, tuple[str, ...]] = {"another kind ahead": ("work",)}
"""What the request of a shape asks for, where not for everything."""

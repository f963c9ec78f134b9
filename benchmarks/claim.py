"""Time to claim ten jobs on adverse shapes: with a million jobs, as a ratio to the same shape's with a thousand.

python -m benchmarks.claim [--jobs 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.shapes import CAPS, KINDS, NOW, SHAPES
from oaken_jobs.core import calm_collector
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from oaken_jobs.store.operations import Claim, Want
from oaken_jobs.store.sql.cache import RowCache
from oaken_jobs.store.sql.transaction import Moment, Transaction
from oaken_jobs.store.sqlite import schema
from oaken_jobs.store.sqlite.driver import Database, connect, create_file

WANTED = 1.5
ROUNDS = 300
SMALL = 1000


def _time(database: Database, kinds: tuple[str, ...] | None) -> float:
    """Median milliseconds of a whole claim of ten jobs, undone each time."""
    rules = Rules(kind_limits=CAPS)
    spent: list[float] = []
    for _ in range(ROUNDS):
        want = Want("bench", "bench", Actor("agent", "bench", "http"), max=10, kinds=kinds)
        database.execute("begin immediate")
        started = time.perf_counter()
        (claimed,) = Transaction(database, lambda: Moment(NOW, True), rules, {"work": NOW}, RowCache()).apply(
            [Claim([want])]
        )
        spent.append((time.perf_counter() - started) * 1000)
        database.execute("rollback")
        assert len(claimed.leases[0]) == 10  # type: ignore[union-attr]
    return statistics.median(spent)


async def _measure(shape: str, count: int, folder: Path) -> float:
    path = folder / f"{shape.replace(' ', '-')}-{count}" / "core.db"
    create_file(path)
    connection = await connect(path)
    try:
        return await connection.run(_prepared(shape, count))
    finally:
        await connection.close()
        shutil.rmtree(path.parent)


def _prepared(shape: str, count: int) -> Callable[[Database], float]:
    def run(database: Database) -> float:
        schema.migrate(database, "claim", 0)
        database.execute("begin immediate")
        SHAPES[shape](database, count)
        database.execute("insert into payloads select id, '{}' from jobs")
        database.execute("commit")
        database.execute("pragma wal_checkpoint(truncate)").fetchall()
        return _time(database, KINDS.get(shape))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many jobs the large database has")
    options = parser.parse_args()
    calm_collector()
    folder = Path(tempfile.mkdtemp(prefix="oaken-bench-", dir=Path.cwd()))
    worst = 0.0
    try:
        print(f"{'':24}{SMALL:>12} ms{options.jobs:>12} ms{'ratio':>8}")
        for shape in SHAPES:
            small = asyncio.run(_measure(shape, SMALL, folder))
            large = asyncio.run(_measure(shape, options.jobs, folder))
            worst = max(worst, large / small)
            print(f"{shape:24}{small:>12.3f}   {large:>12.3f}   {large / small:>8.2f}", flush=True)
    finally:
        shutil.rmtree(folder)
    print(f"worst {worst:.2f} (wanted at most {WANTED})")
    sys.exit(worst > WANTED)


if __name__ == "__main__":
    main()

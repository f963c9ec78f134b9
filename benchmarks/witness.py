"""What it costs to tell of what happens: cycles a second of 64 callers with what a server does besides, in turns with a bare core.

    python -m benchmarks.witness [--seconds 3] [--rounds 3]

Besides a bare core: all duties with the event log; the same with a stream of events that somebody reads; and with the trace on.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from benchmarks.store import cycles
from oaken_jobs.archive import JournalArchive
from oaken_jobs.clock import SystemClock
from oaken_jobs.core import Core, calm_collector
from oaken_jobs.files import TRACE
from oaken_jobs.journal import Journal
from oaken_jobs.kinds import Rules
from oaken_jobs.trace import Recorder

CALLERS = 64


async def _run(folder: Path, seconds: float, duties: bool, stream: bool, trace: bool) -> float:
    clock = SystemClock()
    recorder = (
        Recorder(JournalArchive(Journal(folder / TRACE, 100 << 20, 5)), clock, recording=True, keep_days=30)
        if trace
        else None
    )
    core = Core.on_folder(folder, Rules(), "serve", clock, trace=recorder)
    await core.open()
    if duties:
        await core.start_duties()

    async def read() -> None:
        with core.bus.stream(256) as events:
            while await events.take():
                pass

    reading = asyncio.create_task(read()) if stream else None
    started = time.perf_counter()
    done = await cycles(CALLERS)(core, started + seconds)
    rate = done / (time.perf_counter() - started)
    await core.close()
    if reading is not None:
        await reading
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each figure is measured (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; the median is shown (default 3)")
    options = parser.parse_args()
    calm_collector()
    cases: dict[str, Callable[[Path], float]] = {}
    for name, duties, stream, trace in (
        ("a bare core", False, False, False),
        ("duties and event log", True, False, False),
        ("and a stream", True, True, False),
        ("and the trace", True, True, True),
    ):
        cases[name] = lambda f, d=duties, s=stream, t=trace: uvloop.run(_run(f, options.seconds, d, s, t))
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.rounds):  # in turns, so that a slow moment of the machine hits all alike
        for name, case in cases.items():
            folder = Path(tempfile.mkdtemp(prefix="oaken-bench-", dir=Path.cwd()))
            try:
                figures[name].append(case(folder))
            finally:
                shutil.rmtree(folder)
    bare = statistics.median(figures["a bare core"])
    print(f"{'':24}{'cycles/s':>10}{'of a bare core':>16}")
    for name, values in figures.items():
        print(f"{name:24}{statistics.median(values):>10.0f}{statistics.median(values) / bare:>16.2f}")


if __name__ == "__main__":
    main()

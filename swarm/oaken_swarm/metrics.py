"""Figures for Prometheus: what the store holds, what this process does, and how long that takes."""

from __future__ import annotations

import asyncio
import operator
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from oaken_jobs.core import Core
from oaken_jobs.store.base import Depth

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
FRESH_SECONDS = 5.0
"""How old figures from the store may be: counting a large one takes a while, and several may ask."""
OTHER = "other"
"""Stands for all kinds that are not known: a label for each would grow without bound."""


class Metrics:
    """One for each server. Nothing in it holds a text of others: labels are states, and names from the configuration."""

    def __init__(self, core: Core, streams: Callable[[], int]) -> None:
        self._core = core
        self._streams = streams
        self._registry = CollectorRegistry()
        self._depths: list[Depth] = []
        self._size = 0
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        ProcessCollector(registry=self._registry)
        self._commits = _Times()
        self._claims = _Times()
        self._answers: defaultdict[tuple[str, str, int], _Times] = defaultdict(_Times)
        """By method, route and status."""
        self._registry.register(_Store(self))
        core.commit.measured = self._committed

    def _committed(self, seconds: float, claimed: bool) -> None:
        self._commits.observe(seconds)
        if claimed:
            self._claims.observe(seconds)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A call was answered. `route` is its template, never its path."""
        self._answers[method, route, status].observe(seconds)

    async def text(self) -> bytes:
        """In the format that Prometheus reads."""
        async with self._reading:
            if self._core.clock.monotonic() - self._read_at > FRESH_SECONDS:
                self._depths = await self._core.store.depths(self._core.clock.now())
                self._size = await self._core.store.size()
                self._read_at = self._core.clock.monotonic()
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What is read when it is asked for."""
        known = self._core.jobs.rules.kinds
        jobs: dict[tuple[str, str, str], int] = {}
        oldest: dict[str, float] = {}
        for depth in self._depths:
            key = (depth.state, depth.queue, depth.kind if depth.kind in known else OTHER)
            jobs[key] = jobs.get(key, 0) + depth.jobs
            if depth.waited_ms is not None:
                oldest[depth.queue] = max(oldest.get(depth.queue, 0.0), depth.waited_ms / 1000)
        yield _gauges("oaken_jobs", "Jobs, by state, queue and kind.", ("state", "queue", "kind"), jobs)
        waits = {(queue,): seconds for queue, seconds in oldest.items()}
        yield _gauges(
            "oaken_oldest_seconds", "How long the job has waited that could run longest, by queue.", ("queue",), waits
        )
        moves = CounterMetricFamily("oaken_moves", "What this process did to jobs.", labels=("verb", "to"))
        for (verb, to), count in sorted(self._core.store.moves.items()):
            moves.add_metric((verb, to), count)
        yield moves
        yield _times(
            "oaken_commit_seconds", "One transaction of the store, with all that waited for it.", {(): self._commits}
        )
        yield _times("oaken_claim_seconds", "One transaction that handed out jobs.", {(): self._claims})
        requests: defaultdict[tuple[str, ...], _Times] = defaultdict(_Times)
        for (method, route, _), times in self._answers.items():
            requests[method, route].add(times)
        yield _times("oaken_request_seconds", "One call, by its route.", requests, ("method", "route"))
        answers = CounterMetricFamily(
            "oaken_requests", "Calls, by what they were answered with.", labels=("method", "route", "status")
        )
        for (method, route, status), times in self._answers.items():
            answers.add_metric((method, route, str(status)), times.count)
        yield answers
        yield GaugeMetricFamily("oaken_streams", "Open streams of events.", self._streams())
        yield GaugeMetricFamily(
            "oaken_lease_requests_waiting", "Lease requests that wait.", self._core.dispatch.waiting
        )
        yield GaugeMetricFamily("oaken_database_bytes", "Size of the database on disk.", self._size)


class _Times:
    """How often something took how long. The library's own histogram locks and looks through its buckets, five times as long; these
    are kept by the loop's thread alone."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def add(self, other: _Times) -> None:
        self.counts = [*map(operator.add, self.counts, other.counts)]
        self.total += other.total

    @property
    def count(self) -> int:
        return sum(self.counts)


def _times(
    name: str, text: str, values: Mapping[tuple[str, ...], _Times], labels: tuple[str, ...] = ()
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*(str(float(bound)) for bound in SECONDS), "+Inf"]
    for key, times in values.items():
        family.add_metric(key, [*zip(bounds, accumulate(times.counts), strict=True)], times.total)
    return family


class _Store(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect()


def _gauges(
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: dict[tuple[str, ...], float] | dict[tuple[str, str, str], int],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family

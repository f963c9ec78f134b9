"""Spans of jobs for OpenTelemetry. Without its SDK they cost next to nothing and go nowhere, but contexts are passed on.

A job belongs to the trace of its enqueue. Spans have ids, names of kinds and queues, and numbers; never what a job is about.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, StatusCode, TraceFlags

from oaken_jobs import __version__
from oaken_jobs.transport import WorkItem

T = TypeVar("T")

_tracer = trace.get_tracer("oaken", __version__)


def current() -> str | None:
    """The span that this code runs in, as a `traceparent`; None outside of any."""
    here = trace.get_current_span().get_span_context()
    if not here.is_valid:
        return None
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"


class Attempt:
    """One attempt of a job: `oaken.wait` from its creation to its lease, `oaken.run` of its handler, `oaken.finish` until it was taken."""

    def __init__(self, item: WorkItem) -> None:
        self._within = _within(item.traceparent)
        self._about: dict[str, str | int] = {
            "oaken.job.id": item.job_id,
            "oaken.job.kind": item.kind,
            "oaken.job.queue": item.queue,
            "oaken.job.attempt": item.attempt,
            "oaken.job.epoch": item.epoch,
        }
        self._run: Span | None = None
        self._finish: Span | None = None
        if item.created_at is not None and item.leased_at is not None:
            # Both by the store's clock. Spans count nanoseconds.
            wait = self._start("oaken.wait", item.created_at * 1_000_000)
            wait.end(max(item.created_at, item.leased_at) * 1_000_000)

    def run(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The handler's call as a task, inside the span of the run."""
        self.begin()
        assert self._run is not None
        inside = contextvars.copy_context()
        inside.run(context.attach, trace.set_span_in_context(self._run, self._within))
        return asyncio.create_task(call, context=inside)

    def begin(self) -> None:
        """The handler begins."""
        self._run = self._start("oaken.run")

    def end(self, *, failed: bool) -> None:
        """The handler has ended; its ending is said next."""
        if self._run is not None:
            _end(self._run, failed)
        self._finish = self._start("oaken.finish")

    def finished(self, *, taken: bool) -> None:
        """The store has taken the ending, or it is given up."""
        if self._finish is not None:
            _end(self._finish, not taken)
            self._finish = None

    def _start(self, name: str, at: int | None = None) -> Span:
        return _tracer.start_span(name, self._within, attributes=self._about, start_time=at)


def _end(span: Span, failed: bool) -> None:
    if failed:
        span.set_status(StatusCode.ERROR)  # without the error itself, whose text is private
    span.end()


def _within(traceparent: str | None) -> context.Context:
    if traceparent is None:
        return context.Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(NonRecordingSpan(parent), context.Context())

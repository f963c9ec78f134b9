"""The client for programs without an event loop: each call of `Client`, which blocks until it is answered."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from oaken_swarm.client import DEFAULT_TRIES, Client
from oaken_swarm.portal import Portal

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.portal.run(lambda: method(self.client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncGenerator[T]],
) -> Callable[Concatenate[SyncClient, P], Generator[T]]:
    @functools.wraps(method)
    def each(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        found = method(self.client, *args, **kwargs)
        self.iterators.add(found)
        try:
            while True:
                try:
                    one = self.portal.run(found.__anext__)
                except StopAsyncIteration:
                    return
                yield one
        finally:
            if found in self.iterators:  # else the client has been closed, and this with it
                self.iterators.remove(found)
                self.portal.run(found.aclose)

    return each


class SyncClient:
    """`Client` for programs that are not async, also for several threads at once.

        with SyncClient("http://127.0.0.1:8787", token="…") as client:
            told = client.enqueue("shout", {"text": "hello"})
            client.wait(told["job"]["id"], seconds=30)
            print(client.result(told["job"]["id"]))  # {'text': 'HELLO'}

    Takes what `Client` takes, and has its methods with the same arguments, answers and errors. What Ctrl-C interrupts is
    cancelled. Calls are made on a thread of its own, so it also works where an event loop runs, in a notebook for instance.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30,
        instance: str | None = None,
        tries: int = DEFAULT_TRIES,
    ) -> None:
        """Raises `ConfigError` for a URL or a token that is none."""
        self.client = Client(url, token, timeout=timeout, instance=instance, tries=tries)
        self.portal = Portal()
        self.iterators: set[AsyncGenerator[Any]] = set()
        """Those of the methods below that have begun and not ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; calls that other threads wait for raise `Unavailable`, and iterators end. A later call opens new ones."""
        iterators, self.iterators = self.iterators, set()
        self.portal.close([*(found.aclose for found in iterators), self.client.aclose])

    enqueue = _blocking(Client.enqueue)
    enqueue_many = _blocking(Client.enqueue_many)
    job = _blocking(Client.job)
    jobs = _blocking(Client.jobs)
    all_jobs = _iterating(Client.all_jobs)
    result = _blocking(Client.result)
    attempts = _blocking(Client.attempts)
    progress = _blocking(Client.progress)
    activity = _blocking(Client.activity)
    children = _blocking(Client.children)
    wait = _blocking(Client.wait)
    cancel = _blocking(Client.cancel)
    edit = _blocking(Client.edit)
    erase = _blocking(Client.erase)
    requeue = _blocking(Client.requeue)
    requeue_all = _blocking(Client.requeue_all)
    cancel_all = _blocking(Client.cancel_all)
    answer = _blocking(Client.answer)
    questions = _blocking(Client.questions)
    adopt = _blocking(Client.adopt)
    late_result = _blocking(Client.late_result)
    snapshot = _blocking(Client.snapshot)
    events = _blocking(Client.events)
    follow = _iterating(Client.follow)
    follow_trace = _iterating(Client.follow_trace)
    trace_rows = _blocking(Client.trace_rows)
    audit = _blocking(Client.audit)
    logs = _blocking(Client.logs)
    intake = _blocking(Client.intake)
    upload = _blocking(Client.upload)
    lease = _blocking(Client.lease)
    resume = _blocking(Client.resume)
    heartbeat = _blocking(Client.heartbeat)
    complete = _blocking(Client.complete)
    fail = _blocking(Client.fail)
    defer = _blocking(Client.defer)
    release = _blocking(Client.release)
    ask = _blocking(Client.ask)
    cancelled = _blocking(Client.cancelled)
    report = _blocking(Client.report)
    trace = _blocking(Client.trace)
    batch = _blocking(Client.batch)
    queues = _blocking(Client.queues)
    pause_queue = _blocking(Client.pause_queue)
    resume_queue = _blocking(Client.resume_queue)
    schedules = _blocking(Client.schedules)
    schedule = _blocking(Client.schedule)
    put_schedule = _blocking(Client.put_schedule)
    remove_schedule = _blocking(Client.remove_schedule)
    run_schedule = _blocking(Client.run_schedule)
    subject = _blocking(Client.subject)
    set_labels = _blocking(Client.set_labels)
    agents = _blocking(Client.agents)
    drain = _blocking(Client.drain)
    kinds = _blocking(Client.kinds)
    me = _blocking(Client.me)
    meta = _blocking(Client.meta)
    healthz = _blocking(Client.healthz)
    readyz = _blocking(Client.readyz)
    openapi = _blocking(Client.openapi)
    metrics = _blocking(Client.metrics)
    create_token = _blocking(Client.create_token)
    rotate_token = _blocking(Client.rotate_token)
    tokens = _blocking(Client.tokens)
    revoke_token = _blocking(Client.revoke_token)

"""Hands events out inside the process: to handlers, which get every one, and to streams, which are bounded.

Public events come from the activity table alone, so that those of other processes come too, in one order. Private ones are told by
whoever makes them, reach only streams that name their kind, and are kept nowhere.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from oaken_jobs.activity import Follower
from oaken_jobs.events import event
from oaken_jobs.events.event import PRIVATE, Event, PrivateEvent
from oaken_jobs.held import described
from oaken_jobs.loop import Lifecycle, cut_short
from oaken_jobs.model import Activity
from oaken_jobs.store.base import ActivityFilter, Store

log = logging.getLogger("oaken.events")

PAGE = 500
LAST_SECONDS = 5.0
"""How long handlers have at a stop for what they have not heard yet."""
AGAIN_SECONDS = 1.0

Handler = Callable[[Event], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Missed:
    """What a stream yields in place of events that it lost because nobody read it: how many."""

    count: int


class Stream:
    """The newest events for one listener, at most `size` of them: who reads too slowly loses the oldest, and is told how many.

    It ends when the bus stops.
    """

    def __init__(self, size: int, kinds: Collection[str] | None, job_id: int | None, workspace: str | None) -> None:
        self._waiting: deque[Event | PrivateEvent] = deque()
        self._size = size
        self._kinds = None if kinds is None else frozenset(kinds)
        self._job_id = job_id
        self._workspace = workspace
        self._missed = 0
        self._ended = False
        self._news = asyncio.Event()

    def offer(self, happened: Event | PrivateEvent) -> None:
        """Takes an event that it wants. Never waits."""
        if self._wants(happened):
            if len(self._waiting) >= self._size:
                self._waiting.popleft()
                self._missed += 1
            self._waiting.append(happened)
            self._news.set()

    def end(self) -> None:
        """Nothing comes any more; what is there can still be read."""
        self._ended = True
        self._news.set()

    async def take(self) -> list[Event | PrivateEvent | Missed]:
        """All that is there, waiting for the first; empty once it has ended."""
        while not self._waiting and not self._ended:
            self._news.clear()
            await self._news.wait()
        found: list[Event | PrivateEvent | Missed] = [Missed(self._missed)] if self._missed else []
        found += self._waiting
        self._waiting.clear()
        self._missed = 0
        return found

    def _wants(self, happened: Event | PrivateEvent) -> bool:
        if self._kinds is None:
            if happened.kind in PRIVATE:
                return False
        elif happened.kind not in self._kinds:
            return False
        if not isinstance(happened, Event):
            return self._job_id is None and self._workspace is None
        if self._job_id is not None and happened.job_id != self._job_id:
            return False
        return self._workspace is None or happened.workspace == self._workspace


class Bus(Lifecycle):
    """One per process. Handlers are named before the start; at the stop streams end, and handlers still hear what has happened."""

    def __init__(self, store: Store, follower: Follower) -> None:
        super().__init__()
        self._store = store
        self._follower = follower
        self._streams: list[Stream] = []
        self._handlers: list[_Handling] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners = 0
        self._following = ExitStack()

    def handle(self, name: str, kinds: Collection[str], handler: Handler) -> None:
        """Has `handler` called with each public event of these kinds (none: of all) from the start on, one after the other, in order.

        An error is logged under `name`, and the next event comes all the same. A plain function runs on the loop; keep it short.
        """
        self._handlers.append(_Handling(name, tuple(kinds), handler, self._store))

    @contextmanager
    def stream(
        self,
        size: int,
        kinds: Collection[str] | None = None,
        *,
        job_id: int | None = None,
        workspace: str | None = None,
    ) -> Generator[Stream]:
        """What happens while inside: events of these kinds (None: all public ones), of one job, of one workspace."""
        stream = Stream(size, kinds, job_id, workspace)
        if self.state != "running":
            stream.end()
        self._streams.append(stream)
        public = kinds is None or not PRIVATE.issuperset(kinds)
        if public:
            self._follow()
        try:
            yield stream
        finally:
            self._streams.remove(stream)
            if public:
                self._follow_no_more()

    def tell(self, happened: PrivateEvent) -> None:
        """Tells streams that name its kind of a private event."""
        for stream in self._streams:
            stream.offer(happened)

    def _follow(self) -> None:
        self._listeners += 1
        if self._listeners == 1:
            self._following.enter_context(self._follower.listen(self._heard))

    def _follow_no_more(self) -> None:
        self._listeners -= 1
        if self._listeners == 0:
            self._following.close()

    def _heard(self, rows: list[Activity]) -> None:
        for handling in self._handlers:
            handling.news.set()
        if self._streams:
            for row in rows:
                happened = event.of(row)
                for stream in self._streams:
                    stream.offer(happened)

    async def _begin(self) -> None:
        if self._handlers:
            head = await self._store.activity_head()
            self._follow()
            for handling in self._handlers:
                handling.cursor = head
                handling.leaving = False
            self._tasks = [asyncio.create_task(one.run(), name=f"events for {one.name}") for one in self._handlers]

    async def _end(self) -> None:
        for stream in self._streams:
            stream.end()
        if self._tasks:
            for handling in self._handlers:
                handling.leaving = True
                handling.news.set()
            _, late = await asyncio.wait(self._tasks, timeout=LAST_SECONDS)
            for task in late:
                log.warning("%s did not end within %g s and is cut short", task.get_name(), LAST_SECONDS)
                task.cancel()
            await asyncio.wait(self._tasks)
            self._tasks = []
            self._follow_no_more()


class _Handling:
    """A handler and how far it has heard. It reads the table at its own pace, so that a slow one holds up nobody and loses nothing."""

    def __init__(self, name: str, kinds: tuple[str, ...], handler: Handler, store: Store) -> None:
        self.name = name
        self.cursor = 0
        self.news = asyncio.Event()
        self.leaving = False
        self._where = ActivityFilter(events=kinds)
        self._handler = handler
        self._store = store

    async def run(self) -> None:
        """Hears until told to leave, and then what is there."""
        last = False
        while not last:
            await self.news.wait()
            self.news.clear()
            last = self.leaving
            try:
                await self._catch_up()
            except Exception as error:
                log.warning("events for %s: %s", self.name, described(error))
                await asyncio.sleep(AGAIN_SECONDS)
                self.news.set()

    async def _catch_up(self) -> None:
        while True:
            # Read first: a row that is committed while the others are read lies behind this mark and is heard next time.
            head = await self._store.activity_head()
            rows = await self._store.activity(self.cursor, PAGE, self._where)
            for row in rows:
                await self._call(event.of(row))
                self.cursor = row.id
            if len(rows) < PAGE:
                self.cursor = max(self.cursor, head)
                return

    async def _call(self, happened: Event) -> None:
        try:
            called = self._handler(happened)
            if inspect.isawaitable(called):
                await called
        except BaseException as error:
            if isinstance(error, GeneratorExit) or cut_short():
                raise
            # Whatever a handler raises is its own: one that leaves the process, or cancels itself, ends nobody else.
            log.exception("events for %s: the handler failed on a %s", self.name, happened.kind)

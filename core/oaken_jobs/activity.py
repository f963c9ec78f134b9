"""Follows the activity table from a cursor and tells whoever listens; also the signal that other processes have committed.

Reads only while somebody listens. A signal is a hint, the table is the truth: rows come from it alone, in order, none skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oaken_jobs.held import described
from oaken_jobs.loop import Lifecycle
from oaken_jobs.model import Activity
from oaken_jobs.store.base import EVERYTHING, ActivityFilter, Store
from oaken_jobs.store.operations import Cancel, Op

if TYPE_CHECKING:
    from collections.abc import Generator

log = logging.getLogger("oaken.activity")

POLL_SECONDS = 0.005
"""Between looks at whether another process has committed, while somebody waits. A look costs about 43 microseconds."""
AGAIN_SECONDS = 1.0
PAGE = 1000
CANCELS = ActivityFilter(verbs=("cancel",))

Listener = Callable[[list[Activity]], None]


class Follower(Lifecycle):
    """One per process. Real time, not the clock's: it waits for other processes, which no test clock moves."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._listeners: dict[Listener, bool] = {}
        """Listeners, and whether they want cancellations alone."""
        self._cursor: int | None = None
        self._own = asyncio.Event()
        self._watching = 0
        self._wanted = asyncio.Event()
        """Set while somebody waits."""
        self._task: asyncio.Task[None] | None = None
        self.foreign: Callable[[], None] = lambda: None
        """Called when another process has committed, while there is interest."""

    def watch(self, yes: bool) -> None:
        """Says that somebody waits (or does not any more) for what other processes do."""
        self._watching += 1 if yes else -1
        if self._watching > 0:
            self._wanted.set()
        else:
            self._wanted.clear()

    @contextmanager
    def listen(self, listener: Listener, *, cancels_only: bool = False) -> Generator[None]:
        """While inside, `listener` gets every row that is committed from now on, in batches.

        With `cancels_only` it may be spared the others: a runner listens all day, and would read every row there is.
        """
        if not self._listeners:
            self._cursor = None
        self._listeners[listener] = cancels_only
        self.watch(True)
        try:
            yield
        finally:
            self._listeners.pop(listener, None)
            self.watch(False)

    def own_commit(self, ops: Sequence[Op]) -> None:
        """Says what this process has committed."""
        if self._listeners and (not self._cancels_only or any(isinstance(op, Cancel) for op in ops)):
            self._own.set()

    @property
    def _cancels_only(self) -> bool:
        return all(self._listeners.values())

    async def look(self) -> None:
        """Looks now whether another process has committed; who waits for that is looked after by itself."""
        if await self._store.changed():
            self.foreign()
            self._own.set()

    async def catch_up(self) -> None:
        """Brings those who want cancellations alone up to now, so that who listens to everything need not read back that far."""
        if self._listeners and self._cancels_only:
            await self._tell()

    async def ready(self) -> None:
        """Returns when the cursor stands: rows committed from here on will be heard."""
        if self._cursor is None:
            self._cursor = await self._store.activity_head()

    async def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follower")

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                await self._pass()
            except Exception as error:
                log.warning("cannot follow the activity, trying again: %s", described(error))
                await asyncio.sleep(AGAIN_SECONDS)
                self._own.set()  # what was to be told still is

    async def _pass(self) -> None:
        if self._listeners:
            await self.ready()
        changed = await self._store.changed()
        if changed:
            self.foreign()
        if self._listeners and (changed or self._own.is_set()):
            self._own.clear()
            await self._tell()
        if self._listeners:
            try:
                await asyncio.wait_for(self._own.wait(), POLL_SECONDS)
            except TimeoutError:
                pass
        else:
            await asyncio.sleep(POLL_SECONDS)

    async def _tell(self) -> None:
        await self.ready()
        while True:
            # Read first: a row that is committed while the rest is read lies behind this mark and is heard next time.
            head = await self._store.activity_head()
            rows = await self._store.activity(self._cursor or 0, PAGE, CANCELS if self._cancels_only else EVERYTHING)
            full = len(rows) == PAGE
            self._cursor = rows[-1].id if full else max(head, rows[-1].id if rows else 0)
            if rows:
                for listener in list(self._listeners):
                    listener(rows)
            if not full:
                return

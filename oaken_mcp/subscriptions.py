"""Telling clients of what has changed: what each watches, and how its notifications get to it.

Changes come from the core's follower, so those by other processes come, too. A listener holds one mark for each thing it watches, however
much happens to it and however slowly its client reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, cast

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from oaken_jobs.core import Core
from oaken_jobs.errors import InvalidRequest, NotFound
from oaken_jobs.model import Activity, Json
from oaken_mcp import resources
from oaken_mcp.tools import Context

MAX_WATCHED = 100
"""Things that one listener may watch."""
MAX_LISTENING = 100
"""Streams that one caller may have open."""
PACE_SECONDS = 1.0
"""Between two notifications of the same thing, so that many changes are one."""

Notice = Callable[[Json], Awaitable[types.ServerNotification]]
"""Makes a notification when it is about to be sent, with the `_meta` that it must carry. Raises `NotFound` where there is nothing to tell
any more."""


class Topic(NamedTuple):
    """Something to watch, the jobs that it is about, and what is then told. Without jobs it is about queues: their counts, and whether
    they are paused."""

    name: str
    job_ids: Sequence[int]
    notice: Notice
    at_once: bool = False
    """Whether it is told at the beginning, too: how it stands may be more than the client knows."""


class Offer(NamedTuple):
    """What a client gets of what it has asked for. `honored` are the members of the acknowledgement that say so."""

    honored: Json
    topics: Sequence[Topic]


Source = Callable[[ServerRequestContext[Any], Context, Json], Awaitable[Offer]]
"""One sort of things that can be listened to: finds what is meant for it in the `notifications` of a `subscriptions/listen`, as they were
sent, and checks that the caller may have it. Raises `OakenError`."""


async def of_resources(ctx: ServerRequestContext[Any], to: Context, asked: Json) -> Offer:
    """The source of `resourceSubscriptions`."""
    uris = list(dict.fromkeys(cast("list[str]", asked.get("resourceSubscriptions") or [])))
    bounded(len(uris))
    topics = [await _resource(to, uri) for uri in uris]
    return Offer({"resourceSubscriptions": uris} if uris else {}, [topic for topic in topics if topic is not None])


async def _resource(to: Context, uri: str) -> Topic | None:
    """None for kinds, which never change. Raises `NotFound` or `Forbidden`."""
    found = resources.address(uri)
    await resources.check(to, found)

    async def updated(meta: Json) -> types.ServerNotification:
        params = types.ResourceUpdatedNotificationParams(uri=uri, _meta=cast(Any, meta) or None)
        return types.ResourceUpdatedNotification(params=params)

    about = () if found.job_id is None else (found.job_id,)
    return None if uri == resources.KINDS else Topic(uri, about, updated)


class Watch:
    """What one listener watches, and what of it has changed since it was told. `workspace` bounds which jobs it hears of."""

    def __init__(self, workspace: str | None) -> None:
        self._workspace = workspace
        self._topics: dict[str, Topic] = {}
        self._jobs: dict[int, set[str]] = {}
        self._queues: set[str] = set()
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def add(self, topic: Topic) -> None:
        """Watches one thing more."""
        self._topics[topic.name] = topic
        for job_id in topic.job_ids:
            self._jobs.setdefault(job_id, set()).add(topic.name)
        if not topic.job_ids:
            self._queues.add(topic.name)
        if topic.at_once:
            self._mark((topic.name,))

    def remove(self, name: str) -> None:
        """Watches it no more; one that it does not watch is passed over."""
        topic = self._topics.pop(name, None)
        if topic is None:
            return
        self._changed.pop(name, None)
        self._queues.discard(name)
        for job_id in topic.job_ids:
            self._jobs[job_id].discard(name)
            if not self._jobs[job_id]:
                del self._jobs[job_id]

    def heard(self, rows: list[Activity]) -> None:
        """Marks what these rows change."""
        for job_id in self._jobs.keys() & {row.job_id for row in rows}:
            self._mark(self._jobs[job_id])
        if self._queues and any(self._moves_queues(row) for row in rows):
            self._mark(self._queues)

    def end(self) -> None:
        """Nothing is heard any more; what has changed until now is still told."""
        self._ended.set()
        self._news.set()

    async def changed(self) -> list[Topic]:
        """What has changed, waiting for the first; empty once it has ended and everything was told."""
        while not self._changed and not self._ended.is_set():
            self._news.clear()
            await self._news.wait()
        found = [self._topics[name] for name in self._changed]
        self._changed.clear()
        return found

    async def pause(self) -> None:
        """Waits for `PACE_SECONDS`, or until it has ended."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), PACE_SECONDS)

    def _mark(self, names: Collection[str]) -> None:
        if not self._ended.is_set():
            self._changed.update(dict.fromkeys(names))
            self._news.set()

    def _moves_queues(self, row: Activity) -> bool:
        if row.event == "queue_state_changed":
            return True
        moved = row.job_id is not None and row.from_state != row.to_state
        return moved and self._workspace in (None, row.workspace)


class Updates:
    """The listeners of one server: streams of `subscriptions/listen`, and, where its connection outlasts requests, the subscriptions of a
    client of the earlier era."""

    def __init__(self, core: Core, *, lasting: bool = False) -> None:
        self.lasting = lasting
        self._core = core
        self._watches: dict[Watch, str] = {}
        """Those of streams, and the names of their callers."""
        self._subscriber: _Subscriber | None = None
        self._ended = False

    async def listen(
        self, ctx: ServerRequestContext[Any], to: Context, sources: Sequence[Source]
    ) -> types.SubscriptionsListenResult:
        """One stream: the acknowledgement, then notifications until the caller's token or the server ends; a client that goes away
        cancels it. Raises `InvalidRequest`, and what sources raise, before anything is sent."""
        assert ctx.request_id is not None
        asked = cast(Json, (ctx.params or {})["notifications"])
        offers = [await source(ctx, to, asked) for source in sources]
        watch = Watch(to.who.workspace)
        for offer in offers:
            for topic in offer.topics:
                watch.add(topic)
        meta: Json = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        honored = types.SubscriptionFilter.model_validate(
            {name: value for o in offers for name, value in o.honored.items()}
        )
        acknowledged = types.SubscriptionsAcknowledgedNotification(
            params=types.SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=cast(Any, meta))
        )
        await self._core.follower.catch_up()
        if list(self._watches.values()).count(to.who.name) >= MAX_LISTENING:
            raise InvalidRequest(f"{to.who.name} has {MAX_LISTENING} streams open already. End one that is not needed.")
        self._watches[watch] = to.who.name
        if self._ended:
            watch.end()
        try:
            with self._core.follower.listen(watch.heard):
                await self._core.follower.ready()
                async with anyio.create_task_group() as group:

                    async def until_its_token_ends() -> None:
                        await to.ended()
                        group.cancel_scope.cancel()

                    group.start_soon(until_its_token_ends)
                    await ctx.session.send_notification(acknowledged, related_request_id=ctx.request_id)
                    await _tell(watch, ctx.session, ctx.request_id, meta)
                    group.cancel_scope.cancel()
        finally:
            del self._watches[watch]
        return types.SubscriptionsListenResult(_meta=cast(Any, meta))

    async def subscribe(self, ctx: ServerRequestContext[Any], to: Context, uri: str) -> None:
        """Tells the connection of changes of a resource from now on. Raises `NotFound`, `InvalidRequest` where it has too many."""
        topic = await _resource(to, uri)
        if topic is None or self._ended:
            return
        if self._subscriber is None:
            await self._core.follower.catch_up()
        if self._subscriber is None:
            self._subscriber = _Subscriber(self._core, Watch(to.who.workspace), ctx.session)
        watch = self._subscriber.watch
        if uri not in watch:
            bounded(len(watch) + 1)
            watch.add(topic)
        await self._core.follower.ready()

    def unsubscribe(self, uri: str) -> None:
        """Tells the connection no more of it."""
        if self._subscriber is not None:
            self._subscriber.watch.remove(uri)
            if len(self._subscriber.watch) == 0:
                self._end_subscriber()

    def end(self) -> None:
        """Ends all streams and subscriptions, and every later one at once."""
        self._ended = True
        for watch in self._watches:
            watch.end()
        self._end_subscriber()

    def _end_subscriber(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None


class _Subscriber:
    """A connection that has subscribed to resources, from its first one to its last."""

    def __init__(self, core: Core, watch: Watch, session: ServerSession) -> None:
        self.watch = watch
        self._following = ExitStack()
        self._following.enter_context(core.follower.listen(watch.heard))
        self._telling = asyncio.get_running_loop().create_task(_tell(watch, session, None, {}), name="subscriptions")

    def close(self) -> None:
        self._following.close()
        self._telling.cancel()


async def _tell(watch: Watch, session: ServerSession, request_id: int | str | None, meta: Json) -> None:
    while topics := await watch.changed():
        for topic in topics:
            with suppress(NotFound):
                await session.send_notification(await topic.notice(meta), related_request_id=request_id)
        await watch.pause()


def bounded(wanted: int) -> None:
    """Raises `InvalidRequest` where one listener asks for too much."""
    if wanted > MAX_WATCHED:
        raise InvalidRequest(
            f"{wanted} things are more than the {MAX_WATCHED} that can be watched at once. Leave some out."
        )

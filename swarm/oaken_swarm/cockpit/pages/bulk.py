"""Requeueing or cancelling all jobs that match: first what that would be, frozen; then step by step, with how far it is."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from oaken_jobs.jobs import Bulk
from oaken_jobs.store.base import JobFilter
from oaken_swarm.call import Answer, Stream
from oaken_swarm.cockpit.page import Page, View
from oaken_swarm.cockpit.pages.jobs import said_of
from oaken_swarm.cockpit.template import query
from oaken_swarm.query import Flag, whole
from oaken_swarm.routes.jobs import JobsQuery, filter_of

Count = Annotated[int, BeforeValidator(whole), Field(ge=0)]


class BulkQuery(JobsQuery):
    """Which jobs, and what to do with them."""

    action: Literal["requeue", "cancel"]
    retriage: Flag = False


class BulkForm(BulkQuery):
    """The same with how far it is: `cursor` is where it goes on."""

    total: Count = 0
    done: Count = 0
    skipped: Count = 0


B = TypeVar("B", bound=BulkQuery)


async def preview(view: View, asked: BulkQuery) -> Answer | Stream:
    asked = _meant(asked)

    async def found() -> dict[str, Any]:
        bulk = await _call(view, asked, None, dry_run=True)
        return {**_of(asked), "bulk": bulk, "begun": False, "done": 0, "skipped": 0, "total": bulk.matched}

    return await view.render_soon("bulk.html", _title(asked), found())


async def step(view: View, asked: BulkForm) -> Answer:
    """One of them; the last leads to a page that may be loaded again without doing anything again."""
    asked = _meant(asked)
    bulk = await _call(view, asked, asked.cursor, dry_run=False)
    so_far = {"total": asked.total, "done": asked.done + bulk.done, "skipped": asked.skipped + bulk.skipped}
    if bulk.cursor is not None:
        return _progress(view, asked, bulk, so_far)
    return view.go(f"/jobs/bulk/done?{query(_of(asked)['filter'] | {'action': asked.action} | so_far)}")


async def done(view: View, asked: BulkForm) -> Answer:
    return _progress(view, asked, _OVER, {"total": asked.total, "done": asked.done, "skipped": asked.skipped})


_OVER = Bulk(0, 0, 0, 0, None, 0)


def _progress(view: View, asked: BulkForm, bulk: Bulk, so_far: dict[str, int]) -> Answer:
    return view.render("bulk.html", title=_title(asked), **_of(asked), bulk=bulk, begun=True, **so_far)


def _title(asked: BulkQuery) -> str:
    return f"{asked.action.capitalize()} many"


def _meant(asked: B) -> B:
    """Who puts back what matches means what has failed. What was cancelled, waits for its time or for an answer is put back where that is
    asked for by its state."""
    return asked if asked.action == "cancel" or asked.state else asked.model_copy(update={"state": ("failed",)})


async def _call(view: View, asked: BulkQuery, cursor: str | None, *, dry_run: bool) -> Bulk:
    where: JobFilter = filter_of(asked)
    jobs = view.core.jobs
    if asked.action == "cancel":
        return await jobs.cancel_all(view.who, where, dry_run=dry_run, cursor=cursor)
    return await jobs.requeue_all(view.who, where, retriage=asked.retriage, dry_run=dry_run, cursor=cursor)


def _of(asked: BulkQuery) -> dict[str, Any]:
    return {"action": asked.action, "filter": said_of(asked), "retriage": asked.retriage}


PAGES = (
    Page("GET", "/jobs/bulk", preview, BulkQuery, needs="manage"),
    Page("POST", "/jobs/bulk", step, BulkForm, needs="manage"),
    Page("GET", "/jobs/bulk/done", done, BulkForm, needs="manage"),
)

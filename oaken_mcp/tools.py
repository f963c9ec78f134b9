"""The tools: what each does with the job store.

A tool is one committed call: it is carried out although its caller goes away; only waiting is given up. Repeating a finish is safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from oaken_jobs import views
from oaken_jobs.core import Core
from oaken_jobs.errors import InvalidRequest, NotFound, OakenError
from oaken_jobs.jobs import lease_id_job
from oaken_jobs.model import FINAL, Enqueued, Job, Json, Principal, Usage
from oaken_jobs.store.base import JobFilter
from oaken_mcp import answers, arguments
from oaken_mcp.answers import Body

T = TypeVar("T")

RECENT = 10
"""Jobs in the overview."""
REFUSALS_SHOWN = 10


@dataclass(frozen=True)
class Context:
    """What a tool works with: the store, and who calls."""

    core: Core
    who: Principal

    def job(self, row: Job) -> Json:
        return answers.job(row, self.core.jobs.rules, self.core.jobs.now())

    def brief(self, row: Job, names: tuple[str, ...] = answers.BRIEF) -> Json:
        return answers.brief(row, self.core.jobs.rules, self.core.jobs.now(), names)


async def _whole(call: Awaitable[T]) -> T:
    """What was asked for is done, and known to be done, although its caller goes away meanwhile."""
    reply: list[T] = []
    with anyio.CancelScope(shield=True):
        reply.append(await call)
    return reply[0]


# Putting jobs in and looking at them.


async def enqueue(to: Context, given: arguments.Enqueue) -> Json:
    answer: Json = {}
    if given.lease_id is not None:
        parent = lease_id_job(given.lease_id)
        if given.parent_id not in (None, parent):
            raise InvalidRequest(
                f"parent_id: {given.parent_id} is not the job of lease_id, {parent}. Give one of the two."
            )
        beaten = await _whole(to.core.jobs.heartbeat(to.who, given.lease_id))
        if beaten.job.cancelling:
            answer["parent_cancelling"] = True
        given = given.model_copy(update={"parent_id": parent})
    if given.payloads is not None:
        return await _enqueue_many(to, given, given.payloads, answer)
    enqueued = await _whole(to.core.jobs.enqueue(to.who, given))
    job = enqueued.job
    if given.wait:
        [job] = await _waited(to, [job], given.wait)
    answer |= {"job": to.job(job), "created": enqueued.created, "final": job.final, **_warning([enqueued])}
    if not enqueued.created:
        answer["note"] = f"Nothing was added: job {job.id} is live with the same dedupe_key or target."
    if not job.final:
        answer["next"] = f"Call wait with job_id {job.id} for its result."
    else:
        answers.fill(answer, await _bodies(to, [(job, answer["job"])], "result"))
    return answer


async def _enqueue_many(to: Context, given: arguments.Enqueue, payloads: list[Json], answer: Json) -> Json:
    requests = [given.model_copy(update={"payload": payload}) for payload in payloads]
    replies = await _whole(to.core.jobs.enqueue_many(to.who, requests))
    added = [reply for reply in replies if isinstance(reply, Enqueued)]
    refusals = [(place, reply) for place, reply in enumerate(replies) if isinstance(reply, OakenError)]
    if not added:
        raise refusals[0][1]
    ids = [reply.job.id for reply in added]
    answer |= {"job_ids": ids, "created": True, **_warning(added)}
    if refusals:
        answer["refused"] = [
            {"place": place, "error": answers.start_of(refusal.message, 500)}
            for place, refusal in refusals[:REFUSALS_SHOWN]
        ]
        answer["note"] = f"{len(refusals)} of {len(replies)} payloads were refused; places count from 0."
    if given.wait:
        jobs = await _waited(to, [reply.job for reply in added[: arguments.MAX_WAITED]], given.wait)
        answer["final"] = all(job.final for job in jobs) and len(jobs) == len(added)
        rows = [to.brief(job, answers.WAITED) for job in jobs]
        answer["jobs"] = answers.compact(rows, answers.LIMIT - answers.size(answer))
    if not answer.get("final"):
        answer["next"] = f"Call wait with up to {arguments.MAX_WAITED} job_ids, or list_jobs."
    return answer


async def _waited(to: Context, jobs: list[Job], seconds: float) -> list[Job]:
    """The jobs after waiting for them; as they were where that fails, for what was added must be told."""
    try:
        return (await to.core.jobs.wait(to.who, [job.id for job in jobs], seconds))[0]
    except OakenError:
        return jobs


def _warning(enqueued: Sequence[Enqueued]) -> Json:
    warned = [one.warning for one in enqueued if one.warning]
    return {"warning": warned[0]} if warned else {}


async def status(to: Context, given: arguments.Status) -> Json:
    if given.job_id is None:
        if given.part is not None:
            raise InvalidRequest("part: it is a part of a job; give job_id, too.")
        return await _overview(to)
    job = await to.core.jobs.get(to.who, given.job_id)
    if given.part is not None:
        return await _part(to, job, given.part, given.offset)
    answer: Json = {"job": to.job(job)}
    answers.fill(answer, await _bodies(to, [(job, answer["job"])], "payload", "result"))
    return answer


async def _part(to: Context, job: Job, part: str, offset: int) -> Json:
    if part == "last_error":
        value = job.last_error
    elif part == "instructions":
        kind = to.core.jobs.rules.kinds.get(job.kind)
        value = kind.instructions if kind else None
    else:
        payloads, results = await to.core.jobs.bodies(to.who, [job])
        value = (payloads if part == "payload" else results).get(job.id)
    if value is None:
        raise NotFound(f"Job {job.id} has no {part}; it is {job.state}.")
    if offset > len(value):
        raise InvalidRequest(f"offset: {offset} is beyond the end; {part} of job {job.id} is {len(value)} characters.")
    answer: Json = {
        "job_id": job.id,
        "part": part,
        "offset": offset,
        "total": len(value),
        "untrusted": answers.UNTRUSTED,
    }
    answer["text"] = answers.start_of(value[offset:], answers.LIMIT - answers.size(answer) - 100)
    end = offset + len(answer["text"])
    if end < len(value):
        answer["next_offset"] = end
    return answer


async def _overview(to: Context) -> Json:
    jobs = to.core.jobs
    answer: Json = {"agent": to.who.agent, "roles": sorted(to.who.roles)}
    held = [job for job in await jobs.held(to.who) if job.agent == to.who.agent]
    recent = await jobs.list(to.who, JobFilter(), limit=RECENT)
    leases = [{**to.brief(job, answers.TAKEN), "expires_at": views.iso(job.lease_expires)} for job in held]
    answer["leases"] = answers.compact(leases[:RECENT], 4_000)
    answer["recent_jobs"] = answers.compact([to.brief(job) for job in recent.jobs], 6_000)
    queues: list[Json] = []
    for queue in await jobs.queues(to.who):
        counts = {state: count for state, count in queue.counts.items() if count and state not in FINAL}
        queues.append({"name": queue.name, "paused": queue.paused, **counts})
    answer["queues"] = queues[: answers.fitting(queues, answers.LIMIT - 3_500)]
    kinds: list[Json] = [
        {"name": kind.name} | ({"instructions": kind.instructions[:200]} if kind.instructions else {})
        for kind in jobs.kinds(to.who)
        if not kind.internal
    ]
    answer["kinds"] = kinds[: answers.fitting(kinds, answers.LIMIT - 3_500)]
    if len(queues) > len(answer["queues"]) or len(kinds) > len(answer["kinds"]) or len(held) > RECENT:
        answer["note"] = "Lists were cut. list_jobs shows jobs by queue, kind and state."
    answer["untrusted"] = answers.UNTRUSTED
    return answer


async def list_jobs(to: Context, given: arguments.ListJobs) -> Json:
    where = JobFilter(
        states=(given.state,) if given.state else (),
        kinds=(given.kind,) if given.kind else (),
        queues=(given.queue,) if given.queue else (),
        parent_id=given.parent_id,
        query=given.query,
        concerns=to.who.name if given.mine else None,
    )
    limit = given.limit
    while True:
        page = await to.core.jobs.list(to.who, where, cursor=given.cursor, limit=limit)
        rows = [to.brief(job) for job in page.jobs]
        fits = answers.fitting(rows, 700)
        if fits == len(rows):
            break
        limit = fits
    answer: Json = {"jobs": rows}
    if page.next_cursor is not None:
        answer["next_cursor"] = page.next_cursor
    if rows:
        answer["untrusted"] = answers.UNTRUSTED
    return answer


async def wait(to: Context, given: arguments.WaitFor) -> Json:
    ids = given.job_ids if given.job_ids is not None else [given.job_id or 0]
    jobs, final = await to.core.jobs.wait(to.who, ids, given.seconds)
    answer: Json = {"final": final}
    if given.job_ids is None:
        answer["job"] = to.job(jobs[0])
        shown = [(jobs[0], answer["job"])]
    else:
        answer["jobs"] = answers.compact([to.brief(job, answers.WAITED) for job in jobs], answers.LIMIT - 2_000)
        shown = list(zip(jobs, answer["jobs"], strict=True))
    if not final:
        answer["next"] = "Not all are final. Do something else, then call wait again with those that are not."
    answers.fill(answer, await _bodies(to, shown, "result"))
    return answer


async def _bodies(to: Context, jobs: Sequence[tuple[Job, Json]], *names: str) -> list[Body]:
    """The named bodies of jobs, on their way into their entries."""
    payloads, results = await to.core.jobs.bodies(to.who, [job for job, _ in jobs])
    texts = {"payload": payloads, "result": results}
    return [
        Body(into, name, job.id, texts[name][job.id]) for job, into in jobs for name in names if job.id in texts[name]
    ]


async def requeue(to: Context, given: arguments.Requeue) -> Json:
    job = await _whole(to.core.jobs.requeue(to.who, given.job_id, given.queue))
    return {"job": to.brief(job)}


async def cancel(to: Context, given: arguments.Cancel) -> Json:
    cancelled = await _whole(to.core.jobs.cancel(to.who, given.job_id))
    job = cancelled.job
    answer: Json = {"job": to.brief(job), "changed": cancelled.changed}
    if job.final and not cancelled.changed:
        answer["note"] = f"Nothing was changed: job {job.id} is {job.state} already."
    elif not job.final:
        answer["note"] = "Its worker was asked to stop and learns it at its next heartbeat."
        answer["next"] = f"Call wait with job_id {job.id} to see it end."
    return answer


# Doing jobs.


async def lease(to: Context, given: arguments.Lease) -> Json:
    # Nothing is awaited after this, so that a caller who goes away is never left with jobs it was not told of.
    leases = await to.core.jobs.lease(
        to.who,
        queues=given.queues,
        kinds=given.kinds,
        max=given.max,
        lease_seconds=given.lease_seconds,
        wait_seconds=given.wait_seconds,
    )
    if not leases:
        return {
            "leases": [],
            "next": f"Nothing to do now. Call lease again, with wait_seconds up to {arguments.MAX_WAIT}.",
        }
    jobs = answers.compact([to.brief(leased.job, answers.TAKEN) for leased in leases], answers.LIMIT // 2)
    bodies: list[Body] = []
    rows: list[Json] = []
    for leased, job in zip(leases, jobs, strict=True):
        row: Json = {"lease_id": leased.lease_id, "expires_at": views.iso(leased.job.lease_expires), "job": job}
        rows.append(row)
        bodies.append(Body(job, "payload", leased.job.id, leased.payload))
        if leased.instructions is not None:
            bodies.append(Body(row, "instructions", leased.job.id, leased.instructions, plain=True))
    answer: Json = {
        "leases": rows,
        "next": "Do the work; call heartbeat before expires_at; end each lease with complete, fail or release.",
    }
    answers.fill(answer, bodies)
    return answer


async def heartbeat(to: Context, given: arguments.Heartbeat) -> Json:
    beaten = await _whole(
        to.core.jobs.heartbeat(
            to.who,
            given.lease_id,
            lease_seconds=given.lease_seconds,
            percent=given.percent,
            message=given.message,
            progress=given.percent is not None or given.message is not None,
        )
    )
    answer: Json = {
        "job_id": beaten.job.id,
        "expires_at": views.iso(beaten.expires_at),
        "cancelling": bool(beaten.job.cancelling),
    }
    if beaten.job.cancelling:
        answer["next"] = "The job is to be cancelled: stop working and call release."
    return answer


async def complete(to: Context, given: arguments.Complete) -> Json:
    usage = _usage(given.usage, given.cost_usd, given.produced_by)
    op = to.core.jobs.complete_op(to.who, given.lease_id, given.result, usage)
    return {"job": to.brief(await _whole(to.core.jobs.finish(to.who, op)))}


async def fail(to: Context, given: arguments.Fail) -> Json:
    op = to.core.jobs.fail_op(
        to.who,
        given.lease_id,
        given.error,
        permanent=given.permanent,
        retry_after=given.retry_after,
        usage=_usage(given.usage, given.cost_usd, None),
    )
    return {"job": to.brief(await _whole(to.core.jobs.finish(to.who, op)))}


async def release(to: Context, given: arguments.Release) -> Json:
    jobs = to.core.jobs
    if given.seconds is None:
        op = jobs.release_op(to.who, given.lease_id)
    else:
        op = jobs.defer_op(to.who, given.lease_id, given.seconds)
    return {"job": to.brief(await _whole(jobs.finish(to.who, op)))}


def _usage(usage: dict[str, int | float] | None, cost_usd: float | None, produced_by: str | None) -> Usage | None:
    if usage is None and cost_usd is None and produced_by is None:
        return None
    return Usage(usage, cost_usd, produced_by)

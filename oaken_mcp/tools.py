"""The tools: what each does with the job store.

A tool is one committed call: it is carried out although its caller goes away; only waiting is given up. Repeating a finish is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.lowlevel

from oaken_jobs import auth, views
from oaken_jobs.core import Core
from oaken_jobs.errors import Forbidden, InvalidRequest, NotFound, OakenError
from oaken_jobs.leasing import lease_id_job
from oaken_jobs.model import CHILDREN, FINAL, Child, Enqueued, Job, Json, Leased, Principal, Usage
from oaken_jobs.store.base import JobFilter
from oaken_jobs.waits import Wait
from oaken_mcp import answers, arguments
from oaken_mcp.answers import Body

T = TypeVar("T")

LEASE_SECONDS = 1800
"""Of a lease of a kind that has no length of its own: an agent that calls tools beats seldom."""
RECENT = 10
"""Jobs in the overview."""
REFUSALS_SHOWN = 10
MOST_RESUMED = 20
"""Leases that an agent is given again, so that all of them fit into the answer."""
CHILDREN_ROOM = 4_000
"""Characters of an answer for children, without their results."""


@dataclass(frozen=True)
class Context:
    """What a tool works with: the store, and who calls."""

    core: Core
    who: Principal
    leased: list[str] = field(default_factory=list[str])
    """Leases that this call has got, so that they can be given back where its answer reaches nobody."""
    ended: Callable[[], Awaitable[None]] = anyio.sleep_forever
    """Returns when the caller's token is good no more."""

    async def give_back(self) -> None:
        """Returns the jobs that this call has leased, for an answer which reaches nobody."""
        if self.leased:
            releases = [self.core.jobs.release_op(self.who, lease_id) for lease_id in self.leased]
            self.leased.clear()
            with anyio.CancelScope(shield=True):
                await self.core.jobs.finish_many(self.who, releases)

    def job(self, row: Job, waits: Sequence[Wait] | None = None) -> tuple[Json, list[Body]]:
        """A job, and its question on the way into it. Without `waits` it shows what its own row says of them."""
        shown = answers.job(row, self.core.jobs.rules, self.core.jobs.now(), waits)
        question = shown.pop("question", None)
        return shown, [] if question is None else [Body(shown, "question", row.id, question, plain=True)]

    def brief(
        self, row: Job, names: tuple[str, ...] = answers.BRIEF, waits: dict[int, list[Wait]] | None = None
    ) -> Json:
        known = None if waits is None else waits[row.id]
        return answers.brief(row, self.core.jobs.rules, self.core.jobs.now(), names, known)

    async def briefs(self, rows: Sequence[Job], names: tuple[str, ...] = answers.BRIEF) -> list[Json]:
        """Jobs that were read, each with all that keeps it from running."""
        waits = await self.core.jobs.waits(rows)
        return [self.brief(row, names, waits) for row in rows]


async def _whole(call: Awaitable[T]) -> T:
    """What was asked for is done although its caller goes away meanwhile."""
    return await asyncio.shield(call)


# Putting jobs in and looking at them.


@dataclass(frozen=True)
class Added:
    """What an enqueue has added or found."""

    jobs: list[Job]
    said: Json
    """What its answer says whatever becomes of the jobs. `job_ids` are in it where they are many."""


async def enqueue(to: Context, given: arguments.Enqueue) -> Json:
    added = await add(to, given)
    jobs = added.jobs
    if given.wait:
        jobs = await _waited(to, jobs[: arguments.MAX_WAITED], given.wait)
    if given.payloads is None:
        return await about_one(to, added.said, jobs[0])
    final = len(jobs) == len(added.jobs) and all(job.final for job in jobs)
    return await about_many(to, added.said, jobs if given.wait else [], final=final)


async def add(to: Context, given: arguments.Enqueue) -> Added:
    """Adds what is asked for, without waiting."""
    said: Json = {}
    if given.lease_id is not None:
        parent = lease_id_job(given.lease_id)
        if given.parent_id not in (None, parent):
            raise InvalidRequest(
                f"parent_id: {given.parent_id} is not the job of lease_id, {parent}. Give one of the two."
            )
        beaten = await _whole(to.core.jobs.heartbeat(to.who, given.lease_id))
        if beaten.job.cancelling:
            said["parent_cancelling"] = True
        given = given.model_copy(update={"parent_id": parent})
    if given.payloads is not None:
        return await _add_many(to, given, given.payloads, said)
    enqueued = await _whole(to.core.jobs.enqueue(to.who, given))
    job = enqueued.job
    said |= {"created": enqueued.created, **_warning([enqueued])}
    if enqueued.replayed:
        said["note"] = (
            f"Nothing was added: idempotency_key was used before, for job {job.id}. status shows how that stands now."
        )
    elif not enqueued.created:
        said["note"] = f"Nothing was added: job {job.id} is live with the same dedupe_key or target."
        if given.on_duplicate == "replace" and job.state == "queued":
            said["note"] += " It has the new payload."
    return Added([job], said)


async def about_one(to: Context, said: Json, job: Job) -> Json:
    """The answer to an enqueue of one job, with the result where it has ended."""
    shown, bodies = to.job(job)
    answer: Json = {**said, "job": shown, "final": job.final}
    if job.final:
        bodies += await _bodies(to, [(job, shown)], "result")
    else:
        answer["next"] = _asking(to, [job]) or f"Call wait with job_id {job.id} for its result."
    if bodies:
        answers.fill(answer, bodies)
    return answer


async def _add_many(to: Context, given: arguments.Enqueue, payloads: list[Json], said: Json) -> Added:
    key = given.idempotency_key
    # Each under a key of its own, so that a repeat of a call that was cut short adds the rest.
    requests = [
        given.model_copy(update={"payload": payload, "idempotency_key": None if key is None else f"{key}/{place}"})
        for place, payload in enumerate(payloads)
    ]
    replies = await _whole(to.core.jobs.enqueue_many(to.who, requests))
    added = [reply for reply in replies if isinstance(reply, Enqueued)]
    refusals = [(place, reply) for place, reply in enumerate(replies) if isinstance(reply, OakenError)]
    if not added:
        raise refusals[0][1]
    ids = [reply.job.id for reply in added]
    replayed = sum(reply.replayed for reply in added)
    said |= {"job_ids": ids, "created": replayed < len(added), **_warning(added)}
    notes: list[str] = []
    if replayed:
        notes.append(f"{replayed} of {len(added)} jobs were added before, under the same idempotency_key.")
    if refusals:
        said["refused"] = [
            {"place": place, "error": answers.start_of(refusal.message, 500)}
            for place, refusal in refusals[:REFUSALS_SHOWN]
        ]
        notes.append(f"{len(refusals)} of {len(replies)} payloads were refused; places count from 0.")
    if notes:
        said["note"] = " ".join(notes)
    return Added([reply.job for reply in added], said)


async def about_many(to: Context, said: Json, jobs: Sequence[Job], *, final: bool) -> Json:
    """The answer to an enqueue of many jobs, with those that were waited for; `final` says that all have ended."""
    answer = {**said}
    if jobs:
        answer["final"] = final
        rows = await to.briefs(jobs[: arguments.MAX_WAITED], answers.WAITED)
        answer["jobs"] = answers.compact(rows, answers.LIMIT - answers.size(answer))
    if not final:
        answer["next"] = f"Call wait with up to {arguments.MAX_WAITED} job_ids, or list_jobs."
    elif len(jobs) > arguments.MAX_WAITED:
        answer["next"] = f"jobs has the first {arguments.MAX_WAITED}; call status or list_jobs for the others."
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
    shown, bodies = to.job(job, (await to.core.jobs.waits([job]))[job.id])
    answer: Json = {"job": shown}
    if following := _asking(to, [job]):
        answer["next"] = following
    answers.fill(answer, [*bodies, *await _bodies(to, [(job, shown)], "payload", "result")])
    return answer


def answerable(to: Context, jobs: Sequence[Job]) -> list[Job]:
    """Those of the jobs that ask something which the caller may answer."""
    free = auth.may(to.who, "manage")
    return [job for job in jobs if job.question is not None and (free or job.actor_id == to.who.name)]


def _asking(to: Context, jobs: Sequence[Job]) -> str | None:
    """What the caller may do where some of these jobs ask a question."""
    # What it has asked itself is for others to answer.
    asking = [str(job.id) for job in answerable(to, jobs) if job.agent != to.who.agent]
    if not asking:
        return None
    if len(asking) == 1:
        return f"Job {asking[0]} asks a question and waits: call answer with job_id {asking[0]} and text if you know."
    return f"Jobs {', '.join(asking)} ask questions and wait: call answer for each whose answer you know."


async def _part(to: Context, job: Job, part: str, offset: int) -> Json:
    if part == "last_error":
        value = job.last_error
    elif part == "instructions":
        kind = to.core.jobs.rules.kinds.get(job.kind)
        value = kind.instructions if kind else None
    elif part == "question":
        value = job.question
    elif part == "answers":
        asked = await to.core.jobs.questions(to.who, job.id)
        value = answers.text(answers.told(asked)) if asked else None
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
    recent = (await jobs.list(to.who, JobFilter(), limit=RECENT)).jobs
    now = await jobs.snapshot(to.who)
    leases = [{**to.brief(job, answers.TAKEN), "expires_at": views.iso(job.lease_expires)} for job in held]
    answer["leases"] = answers.compact(leases[:RECENT], 3_500)
    others = [one for one in now.questions if one.agent != to.who.agent]  # its own are for others to answer
    questions = [
        {"job_id": one.job_id, "agent": one.agent, "question": one.text[: answers.LONGEST_QUESTION]}
        for one in others[:RECENT]
    ]
    if questions:
        answer["questions"] = answers.compact(questions, 2_500)
        if auth.may(to.who, "manage"):
            answer["next"] = (
                "Jobs ask and wait: call answer with job_id and text if you know; status shows all of a question."
            )
    waiting = await to.briefs([job for job in now.active if job.state == "queued"], answers.WAITING)
    if waiting := [row for row in waiting if "waits" in row]:
        answer["waiting"] = answers.compact(waiting[:RECENT], 2_000)
    answer["recent_jobs"] = answers.compact(await to.briefs(recent), 5_000)
    queues: list[Json] = []
    for queue in await jobs.queues(to.who):
        counts = {state: count for state, count in queue.counts.items() if count and state not in FINAL}
        queues.append({"name": queue.name, "paused": queue.paused, **counts})
    answer["queues"] = queues[: answers.fitting(queues, answers.LIMIT - 2_500)]
    kinds: list[Json] = [
        {"name": kind.name} | ({"instructions": kind.instructions[:200]} if kind.instructions else {})
        for kind in jobs.kinds(to.who)
        if not kind.internal
    ]
    kinds += [{"name": name} for name in await jobs.other_kinds(to.who)]
    answer["kinds"] = kinds[: answers.fitting(kinds, answers.LIMIT - 2_500)]
    cut = len(queues) > len(answer["queues"]) or len(kinds) > len(answer["kinds"]) or len(others) > RECENT
    if cut or len(held) > RECENT or len(waiting) > RECENT:
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
        rows = await to.briefs(page.jobs)
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
    bodies: list[Body] = []
    if given.job_ids is None:
        answer["job"], bodies = to.job(jobs[0], (await to.core.jobs.waits(jobs))[jobs[0].id])
        shown = [(jobs[0], answer["job"])]
    else:
        answer["jobs"] = answers.compact(await to.briefs(jobs, answers.WAITED), answers.LIMIT - 2_000)
        shown = list(zip(jobs, answer["jobs"], strict=True))
    if not final:
        asking = _asking(to, jobs)
        answer["next"] = (
            f"{asking} Then call wait again."
            if asking
            else "Not all are final. Do something else, then call wait again with those that are not."
        )
    answers.fill(answer, [*bodies, *await _bodies(to, shown, "result")])
    return answer


async def _bodies(to: Context, jobs: Sequence[tuple[Job, Json]], *names: str) -> list[Body]:
    """The named bodies of jobs, on their way into their entries."""
    payloads, results = await to.core.jobs.bodies(to.who, [job for job, _ in jobs])
    texts = {"payload": payloads, "result": results}
    return [
        Body(into, name, job.id, texts[name][job.id]) for job, into in jobs for name in names if job.id in texts[name]
    ]


async def requeue(to: Context, given: arguments.Requeue) -> Json:
    job = await _whole(to.core.jobs.requeue(to.who, given.job_id, given.queue, retriage=given.retriage))
    return {"job": to.brief(job)}


async def answer_question(to: Context, given: arguments.Answer) -> Json:
    job = await _whole(to.core.jobs.answer(to.who, given.job_id, given.text))
    return {
        "job": to.brief(job),
        "next": f"The job goes on with your answer. Call wait with job_id {job.id} to see it end.",
    }


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
    if given.resume:
        return await _resume(to, given.lease_seconds)
    leases = await to.core.jobs.lease(
        to.who,
        queues=given.queues,
        kinds=given.kinds,
        max=given.max,
        lease_seconds=given.lease_seconds,
        usual_seconds=LEASE_SECONDS,
        wait_seconds=given.wait_seconds,
    )
    to.leased.extend(lease.lease_id for lease in leases)
    try:
        # A cancellation that came together with the jobs is heard here; nothing is awaited after this.
        await anyio.lowlevel.checkpoint_if_cancelled()
    except anyio.get_cancelled_exc_class():
        await to.give_back()
        raise
    if not leases:
        if limited := await to.core.jobs.limited(to.who):
            return {"leases": [], "next": f"Nothing for you now, by {limited}."}
        named = answers.start_of(", ".join([*(given.kinds or ()), *(given.queues or ())]), 200)
        nothing = f"Nothing to do now in {named}" if named else "Nothing to do now"
        other = "; leave out kinds and queues for any work there is" if named else ""
        return {
            "leases": [],
            "next": f"{nothing}. Call lease again, with wait_seconds up to {arguments.MAX_WAIT}{other}.",
        }
    return _leases(to, leases)


async def _resume(to: Context, lease_seconds: float | None) -> Json:
    jobs = to.core.jobs
    if to.who.instance is None:  # in words of this door, where nobody can name one
        raise Forbidden(
            f"resume is not to be had here: {to.who.name} may be several processes, and would take each other's leases. What you hold "
            "goes back to the queue when its lease runs out; take other work until then. Whoever set up this connection can name it, by "
            "a header Oaken-Instance of its own; then resume works."
        )
    leases = await _whole(jobs.resume(to.who, lease_seconds=lease_seconds))
    if not leases:
        return {"leases": [], "next": f"{to.who.agent} holds nothing. Call lease without resume for new work."}
    leases, rest = leases[:MOST_RESUMED], leases[MOST_RESUMED:]
    answer = _leases(to, leases)
    answer["note"] = "Lease ids from before are worth nothing now."
    if rest:
        await _whole(jobs.finish_many(to.who, [jobs.release_op(to.who, one.lease_id) for one in rest]))
        answer["note"] += f" {len(rest)} more jobs you held went back to the queue: lease them as you get to them."
    return answer


def _leases(to: Context, leases: Sequence[Leased]) -> Json:
    jobs = answers.compact([to.brief(leased.job, answers.TAKEN) for leased in leases], answers.LIMIT // 2)
    parents = sum(leased.children is not None for leased in leases)
    bodies: list[Body] = []
    rows: list[Json] = []
    for leased, job in zip(leases, jobs, strict=True):
        row: Json = {"lease_id": leased.lease_id, "expires_at": views.iso(leased.job.lease_expires), "job": job}
        rows.append(row)
        bodies.append(Body(job, "payload", leased.job.id, leased.payload))
        if leased.instructions is not None:
            bodies.append(Body(row, "instructions", leased.job.id, leased.instructions, plain=True))
        if leased.answers is not None:
            bodies.append(Body(row, "answers", leased.job.id, answers.text(answers.told(leased.answers))))
        if leased.children is not None:
            bodies += _children(to, row, leased.job.id, leased.children, CHILDREN_ROOM // parents)
    answer: Json = {
        "leases": rows,
        "next": "Do the work; call heartbeat before expires_at; end each lease with complete, fail or release.",
    }
    answers.fill(answer, bodies)
    return answer


def _children(to: Context, row: Json, parent: int, children: Sequence[Child], room: int) -> list[Body]:
    """Puts the children of a leased job into its row, as many as there is room for; their results are on their way there."""
    shown = answers.compact([to.brief(child.job, answers.CHILD) for child in children], room)
    fits = answers.fitting(shown, answers.LIMIT - room)
    row["children"] = shown[:fits]
    if fits < len(shown):
        row["children_more"] = f"{len(shown) - fits} more: list_jobs with parent_id {parent}, then status."
    found: list[Body] = []
    for child, into in zip(children[:fits], row["children"], strict=True):
        if child.result is not None:
            found.append(Body(into, "result", child.job.id, child.result))
        elif child.cut:
            into["result_more"] = f"Long: status (job_id {child.job.id}, part result)."
    return found


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
    if given.question is not None:
        op = jobs.ask_op(to.who, given.lease_id, given.question, timeout_seconds=given.seconds)
    elif given.seconds is not None:
        op = jobs.defer_op(to.who, given.lease_id, given.seconds)
    else:
        op = jobs.release_op(to.who, given.lease_id, after_children=given.after_children)
    job = await _whole(jobs.finish(to.who, op))
    answer: Json = {"job": to.brief(job)}
    if job.final:
        answer["note"] = "The job was to be cancelled, and is."
    elif given.question is not None:
        answer["next"] = (
            "It can be leased again once it is answered, or time is over; that lease has the answer. Do other work."
        )
    elif given.after_children and job.blocked != CHILDREN:
        answer["note"] = "It has no children that have yet to end, so it can be leased again at once."
    elif given.after_children:
        answer["next"] = "It can be leased again once all its children have ended; that lease has their results."
    return answer


def _usage(usage: dict[str, int | float] | None, cost_usd: float | None, produced_by: str | None) -> Usage | None:
    if usage is None and cost_usd is None and produced_by is None:
        return None
    return Usage(usage, cost_usd, produced_by)

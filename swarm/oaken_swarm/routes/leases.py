"""Leases: taking jobs, keeping them and ending them, one at a time."""

from __future__ import annotations

from dataclasses import replace

from oaken_jobs import views
from oaken_jobs.errors import Forbidden, InvalidRequest, OakenError, Unauthenticated
from oaken_jobs.leasing import Say
from oaken_jobs.model import Leased, Principal, Usage
from oaken_jobs.moves import Finish
from oaken_jobs.requests import (
    AskRequest,
    CompleteRequest,
    DeferRequest,
    EmptyRequest,
    FailRequest,
    HeartbeatRequest,
    LeaseRequest,
    ProgressRequest,
    ReleaseRequest,
    TraceRequest,
)
from oaken_jobs.store.operations import Beat, Beaten
from oaken_swarm.call import REPLAYED, Answer, Call, ClientGone, answer
from oaken_swarm.paths import Route
from oaken_swarm.routes.jobs import shown


def as_agent(who: Principal, agent: str | None) -> Principal:
    """The caller with the instance it names. Raises `Forbidden` for a name that is not the token's."""
    if agent is None or agent == who.name:
        return who
    name, _, instance = agent.partition("/")
    if name != who.name:
        raise Forbidden(
            f"agent {agent!r} is not this token's: it must be {who.name!r} or {who.name + '/INSTANCE'!r}. "
            "Use the token made for that agent."
        )
    return replace(who, instance=instance)


async def lease(call: Call, asked: LeaseRequest) -> Answer:
    jobs = call.core.jobs
    who = as_agent(call.who, asked.agent)
    if asked.resume:
        if asked.queues is not None or asked.kinds is not None or call.idempotency_key is not None:
            raise InvalidRequest(
                "resume gives back all leases of this very agent; leave out queues, kinds and the Idempotency-Key. A repeat gives them "
                "new ids once more."
            )
        resumed = await jobs.resume(who, lease_seconds=asked.lease_seconds)
        return _leases(call, resumed)
    call.polls.check(who.agent, asked.wait_seconds)
    work = jobs.lease(
        who,
        queues=asked.queues,
        kinds=asked.kinds,
        max=asked.max,
        lease_seconds=asked.lease_seconds,
        wait_seconds=asked.wait_seconds,
        idempotency_key=call.idempotency_key,
    )
    waited = await call.wait(work)
    leases: list[Leased] = waited.value if waited.done else []
    if waited.gone:
        await _give_back(call, who, leases)
        raise ClientGone
    if asked.wait_seconds:
        try:
            await call.check_token()
        except Unauthenticated:
            await _give_back(call, who, leases)
            raise
    # Looked at once more: a client that left since would leave its jobs running for nobody until their leases expire.
    if leases and call.waits.gone(call.receive):
        await _give_back(call, who, leases)
        raise ClientGone
    call.polls.count(who.agent, asked.wait_seconds, len(leases))
    return _leases(call, leases, None if leases else await jobs.limited(who))


def _leases(call: Call, leases: list[Leased], limited: str | None = None) -> Answer:
    rules, now = call.core.jobs.rules, call.core.jobs.now()
    more = {} if limited is None else {"limited": limited}
    told = answer({"leases": [views.leased(one, rules, now) for one in leases], **more})
    return told._replace(headers=REPLAYED) if any(one.replayed for one in leases) else told


async def _give_back(call: Call, who: Principal, leases: list[Leased]) -> None:
    """Jobs for a caller that will never hear of them go back unharmed. Under an idempotency key it hears of them when it asks again."""
    if call.idempotency_key is not None:
        return
    jobs = call.core.jobs
    await jobs.finish_many(who, [jobs.release_op(who, one.lease_id) for one in leases])


def heartbeat_op(call: Call, lease_id: str, asked: HeartbeatRequest) -> Beat:
    progress = asked.progress
    return call.core.jobs.heartbeat_op(
        call.who,
        lease_id,
        lease_seconds=asked.lease_seconds,
        percent=progress.percent if progress else None,
        message=progress.message if progress else None,
        seq=progress.seq if progress else None,
        progress=progress is not None,
    )


def progress_op(call: Call, lease_id: str, asked: ProgressRequest) -> Beat:
    return call.core.jobs.heartbeat_op(
        call.who, lease_id, percent=asked.percent, message=asked.message, seq=asked.seq, progress=True
    )


def complete_op(call: Call, lease_id: str, asked: CompleteRequest) -> Finish:
    usage = _usage(asked.usage, asked.cost_usd, asked.produced_by)
    return call.core.jobs.complete_op(call.who, lease_id, asked.result, usage)


def fail_op(call: Call, lease_id: str, asked: FailRequest) -> Finish:
    usage = _usage(asked.usage, asked.cost_usd, None)
    return call.core.jobs.fail_op(
        call.who, lease_id, asked.error, permanent=asked.permanent, retry_after=asked.retry_after, usage=usage
    )


def defer_op(call: Call, lease_id: str, asked: DeferRequest) -> Finish:
    return call.core.jobs.defer_op(call.who, lease_id, asked.seconds)


def release_op(call: Call, lease_id: str, asked: ReleaseRequest) -> Finish:
    return call.core.jobs.release_op(call.who, lease_id, after_children=asked.after_children)


def ask_op(call: Call, lease_id: str, asked: AskRequest) -> Finish:
    return call.core.jobs.ask_op(call.who, lease_id, asked.text, timeout_seconds=asked.timeout_seconds)


def cancelled_op(call: Call, lease_id: str, asked: EmptyRequest) -> Finish:
    return call.core.jobs.cancelled_op(call.who, lease_id)


def trace_op(call: Call, lease_id: str, asked: TraceRequest) -> Say:
    return call.core.jobs.trace_op(call.who, lease_id, asked.rows)


def _usage(usage: dict[str, int | float] | None, cost_usd: float | None, produced_by: str | None) -> Usage | None:
    if usage is None and cost_usd is None and produced_by is None:
        return None
    return Usage(usage, cost_usd, produced_by)


async def heartbeat(call: Call, asked: HeartbeatRequest) -> Answer:
    job, expires_at = await _beat(call, heartbeat_op(call, call.params["lease_id"], asked))
    return answer({"expires_at": views.iso(expires_at), "cancelling": bool(job.cancelling)})


async def progress(call: Call, asked: ProgressRequest) -> Answer:
    job, _ = await _beat(call, progress_op(call, call.params["lease_id"], asked))
    return answer({"job": shown(call, job)})


async def trace(call: Call, asked: TraceRequest) -> Answer:
    traced = await call.core.jobs.trace(call.who, call.params["lease_id"], asked.rows)
    expires_at = views.iso(traced.expires_at)
    return answer({"recorded": traced.recorded, "expires_at": expires_at, "cancelling": bool(traced.job.cancelling)})


async def _beat(call: Call, op: Beat) -> Beaten:
    [reply] = await call.core.jobs.finish_many(call.who, [op])
    if isinstance(reply, OakenError):
        raise reply
    assert isinstance(reply, Beaten)
    return reply


async def _finish(call: Call, op: Finish) -> Answer:
    return answer({"job": shown(call, await call.core.jobs.finish(call.who, op))})


async def complete(call: Call, asked: CompleteRequest) -> Answer:
    return await _finish(call, complete_op(call, call.params["lease_id"], asked))


async def fail(call: Call, asked: FailRequest) -> Answer:
    return await _finish(call, fail_op(call, call.params["lease_id"], asked))


async def defer(call: Call, asked: DeferRequest) -> Answer:
    return await _finish(call, defer_op(call, call.params["lease_id"], asked))


async def release(call: Call, asked: ReleaseRequest) -> Answer:
    return await _finish(call, release_op(call, call.params["lease_id"], asked))


async def ask(call: Call, asked: AskRequest) -> Answer:
    return await _finish(call, ask_op(call, call.params["lease_id"], asked))


async def cancelled(call: Call, asked: EmptyRequest) -> Answer:
    return await _finish(call, cancelled_op(call, call.params["lease_id"], asked))


ROUTES = (
    Route(
        "POST",
        "/v1/leases",
        lease,
        LeaseRequest,
        needs="lease",
        repeats="key",
        says="Lease jobs, waiting for them if wanted",
        gives="Leases",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/heartbeat",
        heartbeat,
        HeartbeatRequest,
        needs="lease",
        repeats="itself",
        says="Keep a lease, and say how far the work is",
        gives="Beaten",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/progress",
        progress,
        ProgressRequest,
        needs="lease",
        repeats="itself",
        says="Say how far the work is",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/trace",
        trace,
        TraceRequest,
        size="result",
        needs="lease",
        says="Add rows to the trace",
        gives="Traced",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/complete",
        complete,
        CompleteRequest,
        size="result",
        needs="lease",
        repeats="itself",
        says="The work is done",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/fail",
        fail,
        FailRequest,
        needs="lease",
        repeats="itself",
        says="The attempt failed",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/defer",
        defer,
        DeferRequest,
        needs="lease",
        repeats="itself",
        says="Not now: back to the queue for a time",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/release",
        release,
        ReleaseRequest,
        needs="lease",
        repeats="itself",
        says="Give the job back unharmed",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/ask",
        ask,
        AskRequest,
        needs="lease",
        repeats="itself",
        says="Ask whoever enqueued the job",
        gives="OneJob",
    ),
    Route(
        "POST",
        "/v1/leases/{lease_id}/cancelled",
        cancelled,
        needs="lease",
        repeats="itself",
        says="The job was asked to stop, and has",
        gives="OneJob",
    ),
)

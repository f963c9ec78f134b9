"""What each verb does to a job: pure functions from a row, as read inside the transaction, to the columns that change.

Both engines call these; neither knows why a job is retried or how long it waits. `lifecycle` says which moves are legal.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from oaken_jobs import retry
from oaken_jobs.errors import Conflict, LeaseLost, OakenError, ResultInvalid
from oaken_jobs.grading import grade, grade_result
from oaken_jobs.kinds import Kind, Rules, Schema, stored_problems
from oaken_jobs.lifecycle import sources
from oaken_jobs.model import CHILDREN, FREE, SERIAL, Actor, Attempt, Effect, Job, Json, LeaseRef, Usage
from oaken_jobs.routing import Route

CORRECTIONS = 2
"""How often an agent may correct a result that does not fit; the next misfit fails the job."""

FREED: dict[str, Any] = {
    "nonce": None,
    "holder": None,
    "lease_expires": None,
    "lease_ms": None,
    "policy": None,
}
"""What ending a lease clears. `agent` stays, so that lists can say who had the job last."""


@dataclass(slots=True)
class Finish:
    """A holder's word that its lease ends: `verb` is complete, fail, defer, release, ask or cancelled."""

    ref: LeaseRef
    holder: str
    actor: Actor
    verb: str
    result: Json | None = None
    result_text: str | None = None
    usage: Usage | None = None
    error: str | None = None
    said: str | None = field(default=None, repr=False)
    """The error as the agent gave it, secrets and all: for the trace alone, None where there is none."""
    permanent: bool = False
    delay_ms: int = 0
    """For a failure: wait at least this long. For a deferral: how long to wait. For a question: how long for its answer."""
    after_children: bool = False
    """For a release: not before all its children are final."""
    question: str | None = None
    strict: bool = False
    """A result that does not fit fails the job at once (in-process handlers cannot correct it)."""
    effects: tuple[Effect, ...] = ()
    may_read: bool = False
    """The caller may read any job, and be told who holds it."""
    within: str | None = None
    """The workspace that the caller is bound to."""

    def body_hash(self) -> str:
        """Tells two finishes of one lease apart, for a repeat must say the same."""
        usage = self.usage
        spent = usage and (usage.usage, usage.cost_usd, usage.produced_by)
        said = (self.after_children, self.question) if self.after_children or self.question is not None else ()
        body = (self.result_text, self.error, self.permanent, self.delay_ms, spent, *said)
        return hashlib.blake2b(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()


class Move(NamedTuple):
    """A decision: the columns to write, how the attempt ends (None: it does not), and what else to keep."""

    verb: str
    changes: dict[str, Any]
    outcome: str | None = None
    error: str | None = None
    result_text: str | None = None
    effects: tuple[Effect, ...] = ()
    refusal: OakenError | None = None
    """Told to the caller although the changes are written."""

    def answer(self, after: Job) -> str:
        """What a repeat of this finish is told again: the columns that changed, but for those of the lease, and those that a
        requeue would clear."""
        changes = {
            "epoch": after.epoch,
            "attempts": after.attempts,
            "agent": after.agent,
            "started_at": after.started_at,
        }
        changes |= self.changes
        for name in FREED:
            changes.pop(name, None)
        changes.pop("blocked", None)
        return orjson.dumps(changes).decode()


def holds(job: Job | None, ref: LeaseRef, holder: str, now: int) -> bool:
    """Whether this is the job's live lease, in the hands of this principal."""
    return (
        job is not None
        and job.state == "running"
        and job.epoch == ref.epoch
        and job.holder == holder
        and job.lease_expires is not None
        and job.lease_expires > now
        and job.nonce is not None
        and hmac.compare_digest(job.nonce, ref.nonce)
    )


def lease_lost(
    job: Job | None, ref: LeaseRef, holder: str, now: int, *, may_read: bool, kept: bool = False
) -> LeaseLost:
    """The refusal for a lease that is not current, saying why only to those who may read the job. `kept` says that the result that
    came with it is kept with its attempt."""
    if not may_read:
        return LeaseLost("Lease lost: this lease is not yours, or no longer current. Lease new work.")
    if job is None:
        return LeaseLost(f"Lease lost: there is no job {ref.job_id}. Lease new work.", job_id=ref.job_id)
    if job.state != "running":
        why = f"job {job.id} is {job.state}"
    elif job.epoch == ref.epoch and job.holder == holder and (job.lease_expires or 0) <= now:
        why = (
            f"it expired {(now - (job.lease_expires or 0)) / 1000:.1f} s ago; beat more often than every lease's length"
        )
    elif job.epoch > ref.epoch:
        why = f"{job.agent} holds job {job.id} now (epoch {job.epoch}, yours was {ref.epoch})"
    else:
        why = f"job {job.id} is held by {job.agent}"
    held_by = job.agent if job.state == "running" else None
    late = f" Nothing was changed; the result is kept and may be adopted (epoch {ref.epoch})." if kept else ""
    return LeaseLost(f"Lease lost: {why}. Lease new work.{late}", job_id=job.id, state=job.state, held_by=held_by)


def claim(job: Job, *, agent: str, holder: str, lease_ms: int, nonce: str, now: int, rules: Rules) -> Move:
    """Gives the job to a holder: one attempt and one epoch more. A question that was not answered in time is closed."""
    changes: dict[str, Any] = {
        "state": "running",
        "epoch": job.epoch + 1,
        "attempts": job.attempts + 1,
        "nonce": nonce,
        "holder": holder,
        "agent": agent,
        "lease_expires": now + lease_ms,
        "lease_ms": lease_ms,
        "policy": rules.policy_for(job.kind),
        "started_at": now,
        "invalid_results": 0,
    }
    if job.progress_seq is not None:
        changes["progress_seq"] = None
    if job.question is not None:
        changes["question"] = None
    return Move("claim", changes)


def resume(job: Job, *, lease_ms: int | None, nonce: str, now: int) -> Move:
    """Gives the job to its own holder again: one epoch more, so that the old lease id is worth nothing; the attempt goes on."""
    length = lease_ms or job.lease_ms or 0
    changes: dict[str, Any] = {
        "epoch": job.epoch + 1,
        "nonce": nonce,
        "lease_expires": now + length,
        "lease_ms": length,
        "invalid_results": 0,
    }
    if job.progress_seq is not None:
        changes["progress_seq"] = None
    return Move("resume", changes, "resumed")


def refuse_payload(job: Job, problems: list[dict[str, str]], now: int, rules: Rules) -> Move:
    """The kind's schema changed since the enqueue and the payload does not fit any more."""
    changes = _final(job, "failed", now, rules, reason="payload_invalid")
    changes["last_error"] = f"payload does not fit the schema of {job.kind}: {stored_problems(problems)}"[:500]
    return Move("claim", changes)


def finish(job: Job, call: Finish, now: int, rules: Rules, share: float) -> Move:
    """Ends the lease as its holder says. `share` in [0, 1) is the part of the jitter taken."""
    if call.verb == "complete":
        return _complete(job, call, now, rules)
    if call.verb == "cancelled":
        if not job.cancelling:
            raise Conflict(
                f"Job {job.id} was not asked to stop. Use fail, defer or release to give it up.", job_id=job.id
            )
        return _cancelled(job, call, now, rules)
    if job.cancelling:
        return _cancelled(job, call, now, rules)
    if call.verb == "fail":
        return _failed(job, call, now, rules, share)
    # None of these counts as an attempt; a release also keeps the job's place in line.
    changes: dict[str, Any] = {"state": "queued", "attempts": job.attempts - 1, **FREED}
    if call.verb == "defer":
        changes["run_at"] = now + call.delay_ms
        changes["deferrals"] = job.deferrals + 1
        return Move("defer", changes, "deferred")
    if call.verb == "ask":
        # Not runnable before its answer, which moves this time to its own.
        changes["run_at"] = now + call.delay_ms
        changes["question"] = call.question
        changes["asked"] = job.asked + 1
        return Move("ask", changes, "asked")
    if call.after_children:
        changes["blocked"] = CHILDREN
        changes["joined"] = 1
    return Move("release", changes, "released")


def give_back(job: Job, now: int, rules: Rules) -> Move:
    """Releases a job unharmed although its holder did not ask: its token was revoked."""
    if job.cancelling:
        return Move("release", _final(job, "cancelled", now, rules, reason="cancelled_by_user"), "released")
    return Move("release", {"state": "queued", "attempts": job.attempts - 1, **FREED}, "released")


def lose(job: Job, now: int, rules: Rules, share: float) -> Move:
    """The lease ran out. Judged by what the claim wrote on the row alone."""
    policy = _policy(job, rules)
    error = f"lease of {job.agent} ran out without a heartbeat (attempt {job.attempts})"
    changes: dict[str, Any] = {"lost": job.lost + 1, "last_error": error[:500]}
    if job.cancelling:
        changes |= _final(job, "cancelled", now, rules, reason="cancelled_by_user")
    elif policy.on_lost == "fail" or job.attempts >= job.max_attempts:
        changes |= _final(job, "failed", now, rules, reason="lease_lost")
    else:
        wait = 0 if job.lost == 0 else retry.delay_ms(policy, job.attempts, share)
        changes |= {"state": "queued", "run_at": now + wait, **FREED}
    return Move("lose", changes, "lost", error=error[:500])


def cancel(job: Job, now: int, rules: Rules) -> Move | None:
    """Ends a queued job, asks a running one to stop. None: nothing to change, it is final or was asked already."""
    if job.state not in sources("cancel") or job.cancelling:
        return None
    if job.state == "running":
        return Move("cancel", {"cancelling": 1, "cancel_deadline": stop_by(now, rules)})
    return Move("cancel", _final(job, "cancelled", now, rules, reason="cancelled_by_user"))


def stop_by(now: int, rules: Rules) -> int:
    """When a job that was asked to stop, and reports nothing from `now` on, is overruled."""
    return now + round(rules.cancel_grace * 1000)


def overrule(job: Job, now: int, rules: Rules) -> Move:
    """Ends a job that was asked to stop and whose worker neither stopped nor reported progress."""
    error = f"{job.agent} was asked to stop and neither stopped nor reported progress for {rules.cancel_grace:g} s"[
        :500
    ]
    changes = {"last_error": error, **_final(job, "cancelled", now, rules, reason="cancel_grace")}
    return Move("overrule", changes, "overruled", error=error)


def expire(job: Job, now: int, rules: Rules) -> Move:
    """Ends a queued job whose time is over."""
    return Move("expire", _final(job, "cancelled", now, rules, reason="expired"))


def answer(job: Job, now: int) -> Move:
    """Makes a job that asked runnable again. Raises `Conflict` where no question is open."""
    if job.state != "queued" or job.question is None:
        raise Conflict(
            f"Job {job.id} has no open question; it is {job.state}. Its questions are closed when it is leased again, ends or is "
            "requeued.",
            job_id=job.id,
            state=job.state,
        )
    return Move("answer", {"question": None, "run_at": now})


def adopt(job: Job, agent: str, result: Json, result_text: str, usage: Usage | None, now: int, rules: Rules) -> Move:
    """Takes a late result, which is `agent`'s, as the job's, whoever has it now. Raises `Conflict` where it has succeeded,
    `ResultInvalid` where the result does not fit its kind."""
    if job.state not in sources("adopt"):
        raise Conflict(f"Job {job.id} has succeeded; its result stands.", job_id=job.id, state=job.state)
    kind = rules.kinds.get(job.kind)
    schema = kind.result_schema if kind else None
    if schema is not None and (problems := schema.problems(result)):
        raise ResultInvalid(
            f"The late result does not fit the schema of {job.kind}: {_told(problems)}. Requeue the job instead.",
            errors=problems,
        )
    done = _succeeded(job, kind, result, result_text, usage, (), now)
    done.changes.update(agent=agent, last_error=None)
    return done._replace(verb="adopt", outcome="superseded" if job.state == "running" else None)


def requeue(job: Job, to: Route | None, now: int) -> Move:
    """Puts a failed, cancelled or queued job back to run now, as new but for its history. Raises `Conflict` otherwise."""
    if job.state not in sources("requeue"):
        hint = "cancel it first" if job.state == "running" else "enqueue a new job instead"
        raise Conflict(
            f"Job {job.id} is {job.state}; only failed, cancelled and queued jobs can be requeued. To run it again, {hint}.",
            job_id=job.id,
            state=job.state,
        )
    changes: dict[str, Any] = {
        "state": "queued",
        "run_at": now,
        "attempts": 0,
        "lost": 0,
        "deferrals": 0,
        "invalid_results": 0,
        "blocked": FREE,
        "cancelling": 0,
        "cancel_deadline": None,
        "expires_at": None,
        "question": None,
        "reason": None,
        "last_error": None,
        "agent": None,
        "percent": None,
        "message": None,
        "progress_at": None,
        "progress_seq": None,
        "produced_by": None,
        "started_at": None,
        "finished_at": None,
        "grade": None,
        "grade_why": None,
        "grade_version": None,
        **FREED,
    }
    if to is not None:
        changes |= {"queue": to.queue, "routed_by": to.by}
    return Move("requeue", changes)


def edit(job: Job, changes: dict[str, Any]) -> Move:
    """Priority, title, tags as a person wants them. Raises `Conflict` for the priority of a job that has ended."""
    if job.final and "priority" in changes:
        raise Conflict(
            f"Job {job.id} is {job.state}; it waits for nothing any more, so its priority cannot be changed. Leave priority out.",
            job_id=job.id,
            state=job.state,
        )
    if job.blocked == SERIAL and changes.get("priority", job.priority) != job.priority:
        changes = {**changes, "blocked": FREE}  # in another lane; the claim hides it again where its key is taken
    return Move("edit", changes)


def check_erase(job: Job) -> None:
    """Raises `Conflict` for a job that has not ended."""
    if not job.final:
        raise Conflict(
            f"Job {job.id} is {job.state}; only jobs that have ended can be erased. Cancel it first.",
            job_id=job.id,
            state=job.state,
        )


def repeat(attempt: Attempt | None, job: Job | None, call: Finish) -> Job | None:
    """The first answer again, if `call` repeats the finish that ended this attempt.

    None where the attempt was not ended by its holder. Raises `Conflict` for another verb or another body.
    """
    if attempt is None or job is None or attempt.verb is None or attempt.holder != call.holder:
        return None
    if not hmac.compare_digest(attempt.nonce, call.ref.nonce):
        return None
    if attempt.verb != call.verb:
        raise Conflict(
            f"This lease of job {job.id} was already ended by {attempt.verb}; {call.verb} comes too late.",
            job_id=job.id,
            ended_by=attempt.verb,
        )
    if attempt.body_hash != call.body_hash():
        raise Conflict(
            f"This lease of job {job.id} was already ended by {attempt.verb} with another body; the first one stands.",
            job_id=job.id,
            ended_by=attempt.verb,
        )
    if attempt.outcome == "refused":
        raise ResultInvalid(f"This result was refused already, and the job has ended: {attempt.error}.", tries_left=0)
    return job.having(orjson.loads(attempt.answer)) if attempt.answer else job


def worth_keeping(job: Job, attempt: Attempt, call: Finish) -> bool:
    """Whether a result that comes after its lease was lost is kept: it is of the attempt's own holder, who has not ended it
    otherwise, and the job could still use it. What would leave more behind than a result cannot be adopted later."""
    return (
        call.verb == "complete"
        and not call.effects
        and job.state != "succeeded"
        and attempt.verb is None
        and attempt.holder == call.holder
        and hmac.compare_digest(attempt.nonce, call.ref.nonce)
    )


def new_nonces(count: int) -> list[str]:
    """Random parts of lease ids, 96 bits each, from one call to the system."""
    text = secrets.token_hex(12 * count)
    return [text[i : i + 24] for i in range(0, len(text), 24)]


def _complete(job: Job, call: Finish, now: int, rules: Rules) -> Move:
    kind = rules.kinds.get(job.kind)
    result = call.result if call.result is not None else {}
    schema = kind.result_schema if kind else None
    if schema is not None and (problems := schema.problems(result)):
        return _misfit(job, call, kind, schema, problems, now, rules)
    return _succeeded(job, kind, result, call.result_text or "{}", call.usage, call.effects, now)


def _succeeded(
    job: Job,
    kind: Kind | None,
    result: Json,
    result_text: str,
    usage: Usage | None,
    effects: tuple[Effect, ...],
    now: int,
) -> Move:
    changes: dict[str, Any] = {
        "state": "succeeded",
        "finished_at": now,
        "reason": None,
        "percent": 100,
        "progress_at": now,
        **_spent(job, usage),
        **FREED,
        **_settled(job),
    }
    fits = True if kind and kind.result_schema else None
    graded = grade_result(job, kind, result, fits, changes.get("cost_usd", job.cost_usd))
    if graded:
        changes["grade"], changes["grade_why"], changes["grade_version"] = graded
    if kind:
        effects = (*effects, *kind.on_success(job, result))
    return Move("complete", changes, "succeeded", None, result_text, effects)


def _misfit(
    job: Job, call: Finish, kind: Kind | None, schema: Schema, problems: list[dict[str, str]], now: int, rules: Rules
) -> Move:
    tries = job.invalid_results + 1
    strict = call.strict or (kind is not None and kind.invalid_result == "fail") or tries > CORRECTIONS
    told = _told(problems)
    if not strict:
        left = CORRECTIONS + 1 - tries
        refusal = ResultInvalid(
            f"The result does not fit the schema of {job.kind}: {told}. You still hold the lease: correct it and complete "
            f"again ({left} more {'try' if left == 1 else 'tries'}).",
            errors=problems,
            tries_left=left,
            result_schema=schema.source,
        )
        return Move("complete", {"invalid_results": tries}, refusal=refusal)
    error = f"result does not fit the schema of {job.kind}: {stored_problems(problems)}"[:500]
    changes: dict[str, Any] = {"last_error": error, "invalid_results": tries, **_spent(job, call.usage)}
    state, reason = ("cancelled", "cancelled_by_user") if job.cancelling else ("failed", "result_invalid")
    changes |= _final(job.having(changes), state, now, rules, reason=reason)
    refusal = ResultInvalid(
        f"The result does not fit the schema of {job.kind}: {told}. The job has ended as {changes['state']}.",
        errors=problems,
        tries_left=0,
    )
    return Move("complete", changes, "refused", error=error, refusal=refusal)


def _told(problems: list[dict[str, str]]) -> str:
    """As the caller may hear it, values included."""
    return "; ".join(f"{p['path']} breaks {p['rule']}: {p['message']}" for p in problems)


def _failed(job: Job, call: Finish, now: int, rules: Rules, share: float) -> Move:
    changes: dict[str, Any] = {"last_error": call.error, **_spent(job, call.usage)}
    if call.permanent or job.attempts >= job.max_attempts:
        reason = "permanent" if call.permanent else "out_of_attempts"
        changes |= _final(job.having(changes), "failed", now, rules, reason=reason)
        return Move("fail", changes, "failed", error=call.error)
    policy = _policy(job, rules)
    wait = retry.delay_ms(policy, job.attempts, share, at_least_ms=call.delay_ms)
    changes |= {"state": "queued", "run_at": now + wait, **FREED}
    return Move("fail", changes, "retry", error=call.error)


def _cancelled(job: Job, call: Finish, now: int, rules: Rules) -> Move:
    spent = _spent(job, call.usage)
    changes = {**spent, **_final(job.having(spent), "cancelled", now, rules, reason="cancelled_by_user")}
    if call.error is not None:
        changes["last_error"] = call.error
    return Move(call.verb, changes, "cancelled", error=call.error)


def _policy(job: Job, rules: Rules) -> retry.Policy:
    """As the claim wrote it on the row, whatever is known of the kind by now."""
    return retry.Policy.load(job.policy or rules.policy_for(job.kind))


def _final(job: Job, state: str, now: int, rules: Rules, *, reason: str) -> dict[str, Any]:
    changes: dict[str, Any] = {"state": state, "reason": reason, "finished_at": now, **FREED, **_settled(job)}
    graded = grade(job.having(changes), rules.kinds.get(job.kind), None, now)
    if graded:
        changes["grade"], changes["grade_why"], changes["grade_version"] = graded
    return changes


def _settled(job: Job) -> dict[str, Any]:
    """What a final job no longer waits for; only what is not so already, since few jobs have any of it."""
    changes: dict[str, Any] = {}
    if job.cancelling:
        changes |= {"cancelling": 0, "cancel_deadline": None}
    if job.blocked:
        changes["blocked"] = FREE
    if job.question is not None:
        changes["question"] = None
    return changes


def _spent(job: Job, usage: Usage | None) -> dict[str, Any]:
    """The job's sums with this attempt's added. Unknown stays unknown."""
    if usage is None:
        return {}
    changes: dict[str, Any] = {}
    if usage.usage is not None:
        total: dict[str, int | float] = orjson.loads(job.usage) if job.usage else {}
        for name, amount in usage.usage.items():
            total[name] = total.get(name, 0) + amount
        changes["usage"] = orjson.dumps(total).decode()
    if usage.cost_usd is not None:
        changes["cost_usd"] = (job.cost_usd or 0.0) + usage.cost_usd
    if usage.produced_by is not None:
        changes["produced_by"] = usage.produced_by
    return changes

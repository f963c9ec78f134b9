"""The client: every HTTP call as a method, with typed errors and retries where a repeat is harmless."""

from __future__ import annotations

import math
import os
import random
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from oaken_jobs import __version__, jsontext
from oaken_jobs.clock import Clock, SystemClock
from oaken_jobs.errors import (
    BadJson,
    ConfigError,
    Conflict,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OakenError,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    error_class,
)

DEFAULT_URL = "http://127.0.0.1:8787"
BACKOFF_BASE = 0.25
BACKOFF_CAP = 8.0
NO_TOKEN = "There is no token: set OAKEN_TOKEN or pass token=…; `oaken token create NAME --role agent` makes one."
LONGEST_RETRY_AFTER = 60.0
"""A server that asks to be left alone for longer than this gets no second try; the caller decides."""

Json = dict[str, Any]

_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "code"})
_BY_STATUS: dict[int, type[OakenError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    413: TooLarge,
    415: UnsupportedMediaType,
    422: InvalidRequest,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
DEFAULT_TRIES = 4
# Nothing of the request has left when one of these is raised, so any call may be made again.
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_REPEATABLE_OPS = frozenset({"complete", "fail", "defer", "release", "ask", "cancelled", "heartbeat"})


class Client:
    """An Oaken server over HTTP. Async; use it as `async with Client() as client`.

    `url` and `token` come from `OAKEN_URL` and `OAKEN_TOKEN` unless given. `timeout` is seconds for a call without its
    waiting, `instance` the name under the token's own by which `lease` asks; `tries` bounds how often one call is made.

    Each method answers with the JSON object that the server gave. Refusals are raised as the classes of
    `oaken_jobs.errors`, with `message`, `details`, `code` and `status`; a server out of reach as `Unavailable`. What JSON
    readers cannot keep (NaN, a date, half a character) is refused with its path before it is sent, as `BadJson`. Calls
    whose repeat is harmless are repeated on lost connections, 503 and 429, with jittered backoff and as `Retry-After`
    asks; others only where they were never sent, or refused with 429. An enqueue and a lease carry an idempotency key, so that
    their repeat gets the first answer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30,
        instance: str | None = None,
        tries: int = DEFAULT_TRIES,
        transport: httpx2.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`transport`, `clock` and `rng` are for tests. Raises `ConfigError` for a URL or a token that is none."""
        self.url = base_url(url or os.environ.get("OAKEN_URL") or DEFAULT_URL)
        self.instance = instance
        self._token = _token(token or os.environ.get("OAKEN_TOKEN"))
        self._timeout = timeout
        self._tries = max(1, tries)
        self._transport = transport
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._http: httpx2.AsyncClient | None = None
        self._name: str | None = None

    @property
    def has_token(self) -> bool:
        """Whether calls are made with a token at all."""
        return self._token is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    # Jobs

    async def enqueue(self, kind: str, payload: Json | None = None, **fields: Any) -> Json:
        """Adds a job: `{"job", "created", "warning"?}`. `fields` are those of `POST /jobs`. An `idempotency_key` of your own makes the
        same call safe to repeat for a day, from another process, too."""
        body = {"kind": kind, "payload": {} if payload is None else payload, **fields}
        return await self._call("POST", "/jobs", body, repeatable=True, key=_new_key())

    async def enqueue_many(self, jobs: Sequence[Json]) -> Json:
        """Adds up to 1,000 jobs: `{"jobs"}`, in order, each with `job` and `created` or with `error`, and `status`."""
        return await self._call("POST", "/jobs", {"jobs": list(jobs)}, repeatable=True, key=_new_key())

    async def job(self, job_id: int) -> Json:
        """`{"job"}`, with payload and result."""
        return await self._get(f"/jobs/{job_id}")

    async def jobs(self, **filters: Any) -> Json:
        """One page, newest first: `{"jobs", "next_cursor"}`. Filters are those of `GET /jobs`; of a list any counts."""
        return await self._get("/jobs", filters)

    async def all_jobs(self, **filters: Any) -> AsyncIterator[Json]:
        """Each job that matches, newest first, page by page."""
        while True:
            page = await self.jobs(**filters)
            for job in page["jobs"]:
                yield job
            if not page.get("next_cursor"):
                return
            filters["cursor"] = page["next_cursor"]

    async def result(self, job_id: int) -> Json:
        """The result itself. Raises `NotFound` or `Conflict` while there is none."""
        return await self._get(f"/jobs/{job_id}/result")

    async def attempts(self, job_id: int) -> Json:
        """`{"attempts"}`: each claim of the job and how it ended."""
        return await self._get(f"/jobs/{job_id}/attempts")

    async def progress(self, job_id: int) -> Json:
        """`{"progress"}`: the newest 200 reports, oldest first."""
        return await self._get(f"/jobs/{job_id}/progress")

    async def activity(self, job_id: int) -> Json:
        """`{"activity"}`: every change of the job, with its actor."""
        return await self._get(f"/jobs/{job_id}/activity")

    async def children(self, job_id: int) -> Json:
        """`{"jobs"}` whose parent this job is."""
        return await self._get(f"/jobs/{job_id}/children")

    async def wait(self, job_ids: int | Iterable[int], seconds: float = 30) -> Json:
        """Answers when all are final or after `seconds`: `{"job", "final"}` for an id, `{"jobs", "final"}` for many."""
        if isinstance(job_ids, int):
            return await self._get(f"/jobs/{job_ids}/wait", {"seconds": seconds}, waits=seconds)
        return await self._get("/jobs/wait", {"ids": list(job_ids), "seconds": seconds}, waits=seconds)

    async def cancel(self, job_id: int) -> Json:
        """Cancels a queued job, asks a running one to stop: `{"job"}`. A final job stays as it is."""
        return await self._call("POST", f"/jobs/{job_id}/cancel", {}, repeatable=True)

    async def edit(
        self, job_id: int, *, priority: int | str | None = None, title: str | None = None, tags: list[str] | None = None
    ) -> Json:
        """Changes priority, title or tags: `{"job"}`. An empty title, or no tags, takes them away."""
        body = _given(priority=priority, title=title, tags=tags)
        return await self._call("PATCH", f"/jobs/{job_id}", body, repeatable=True)

    async def erase(self, job_id: int) -> Json:
        """Takes away a job that has ended, with all that belongs to it: `{"job"}`, as it was. Raises `Conflict` for others."""
        return await self._call("DELETE", f"/jobs/{job_id}")

    async def requeue(self, job_id: int, queue: str | None = None, *, retriage: bool = False) -> Json:
        """Puts a failed, cancelled or queued job back to run now: `{"job"}`. Raises `Conflict` for others. `retriage` clears the
        machine's labels of its subject, so that triage and routing decide again."""
        return await self._call("POST", f"/jobs/{job_id}/requeue", _given(queue=queue, retriage=retriage or None))

    async def requeue_all(self, filter: Json, **fields: Any) -> Json:
        """`requeue` for all that match, some thousands a call: `{"matched", "done", "skipped", "remaining", "cursor"}`. Call again
        with the `cursor` while there is one. `fields` are those of `POST /requeue`."""
        return await self._call("POST", "/requeue", {"filter": filter, **fields})

    async def cancel_all(self, filter: Json, **fields: Any) -> Json:
        """`cancel` for all that match; as `requeue_all`."""
        return await self._call("POST", "/cancel", {"filter": filter, **fields}, repeatable=True)

    async def answer(self, job_id: int, text: str) -> Json:
        """Answers a job's open question: `{"job"}`. Raises `Conflict` where none is open."""
        return await self._call("POST", f"/jobs/{job_id}/answer", {"text": text})

    async def questions(self, job_id: int) -> Json:
        """`{"questions"}`: all that a job has asked, with the answers."""
        return await self._get(f"/jobs/{job_id}/questions")

    async def adopt(self, job_id: int, epoch: int) -> Json:
        """Takes the late result of an attempt as the job's: `{"job"}`. Its attempts say which left one (`late_result`)."""
        return await self._call("POST", f"/jobs/{job_id}/adopt", {"epoch": epoch})

    async def late_result(self, job_id: int, epoch: int) -> Json:
        """The result itself that an attempt left after it had lost its lease. Raises `NotFound` where there is none."""
        return await self._get(f"/jobs/{job_id}/attempts/{epoch}/result")

    async def snapshot(self, actor: str | None = None) -> Json:
        """How things stand: `{"now", "counts", "active", "recent", "questions"}`."""
        return await self._get("/snapshot", {"actor": actor})

    async def events(
        self,
        after: str | None = None,
        *,
        kinds: Sequence[str] | None = None,
        job_id: int | None = None,
        limit: int | None = None,
        seconds: float = 30,
    ) -> Json:
        """What has happened after a cursor, or from now on, waiting up to `seconds` for the first: `{"events", "cursor", "resync"}`.
        Go on from the `cursor`. `resync`: some older events are forgotten; read anew what you follow."""
        asked = {"after": after, "kinds": kinds, "job_id": job_id, "limit": limit, "seconds": seconds}
        return await self._get("/events/wait", asked, waits=seconds)

    async def trace_rows(
        self,
        *,
        job_id: int | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Json:
        """What models and agents were told and answered, newest first, for admins: `{"rows", "next_cursor"}`. Each call is written down."""
        return await self._get("/trace", {"job_id": job_id, "agent": agent, "cursor": cursor, "limit": limit})

    async def audit(self, *, cursor: str | None = None, limit: int | None = None) -> Json:
        """Who did or read what is private, newest first, for admins: `{"audit", "next_cursor"}`."""
        return await self._get("/audit", {"cursor": cursor, "limit": limit})

    async def logs(
        self, *, level: str = "info", cursor: str | None = None, after: int | None = None, limit: int | None = None
    ) -> Json:
        """Log lines of a level or above, for admins: `{"logs", "next_cursor"}`, the newest first; with `after`, the id of a line, what
        came after it, the oldest first."""
        return await self._get("/logs", {"level": level, "cursor": cursor, "after": after, "limit": limit})

    async def intake(
        self, text: str, title: str | None = None, source: str | None = None, *, workspace: str | None = None
    ) -> Json:
        """Hands in a text to be stored, embedded and triaged: `{"job", "created"}`."""
        body = _given(text=text, title=title, source=source, workspace=workspace)
        return await self._call("POST", "/intake", body, repeatable=True, key=_new_key())

    # Leases

    async def lease(
        self,
        *,
        agent: str | None = None,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        max: int = 1,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
    ) -> Json:
        """Takes up to `max` jobs, waiting up to `wait_seconds` for the first: `{"leases"}`, empty when none came; with
        `limited`, why, where that is for the limits of the token.

        `agent` is `name` or `name/instance`; unless given, the token's name with this client's `instance`, if any.
        """
        if agent is None and self.instance is not None:
            agent = f"{await self._own_name()}/{self.instance}"
        body = _given(
            agent=agent,
            queues=None if queues is None else list(queues),
            kinds=None if kinds is None else list(kinds),
            max=max,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
        )
        return await self._call("POST", "/leases", body, waits=wait_seconds, repeatable=True, key=_new_key())

    async def resume(self, *, agent: str | None = None, lease_seconds: float | None = None) -> Json:
        """This agent's own leases again, under new ids: `{"leases"}`. It needs an instance, `name/instance`, always the same."""
        if agent is None and self.instance is not None:
            agent = f"{await self._own_name()}/{self.instance}"
        body = _given(agent=agent, lease_seconds=lease_seconds)
        return await self._call("POST", "/leases", {**body, "resume": True}, repeatable=True)

    async def heartbeat(
        self, lease_id: str, *, lease_seconds: float | None = None, progress: Json | None = None
    ) -> Json:
        """Extends the lease from now: `{"expires_at", "cancelling"}`. Raises `LeaseLost`, as does every call below."""
        body = _given(lease_seconds=lease_seconds, progress=progress)
        return await self._on_lease(lease_id, "heartbeat", body, repeatable=progress is None)

    async def complete(
        self,
        lease_id: str,
        result: Json | None = None,
        *,
        usage: Json | None = None,
        cost_usd: float | None = None,
        produced_by: str | None = None,
    ) -> Json:
        """The job succeeded: `{"job"}`. Raises `ResultInvalid`, the lease kept, if the result does not fit its kind."""
        body = _given(usage=usage, cost_usd=cost_usd, produced_by=produced_by)
        return await self._on_lease(lease_id, "complete", {"result": {} if result is None else result, **body})

    async def fail(
        self,
        lease_id: str,
        error: str,
        *,
        permanent: bool = False,
        retry_after: float | None = None,
        usage: Json | None = None,
        cost_usd: float | None = None,
    ) -> Json:
        """The attempt failed: `{"job"}`. `permanent`: for good; `retry_after`: wait at least so many seconds."""
        body = _given(permanent=permanent or None, retry_after=retry_after, usage=usage, cost_usd=cost_usd)
        return await self._on_lease(lease_id, "fail", {"error": error, **body})

    async def defer(self, lease_id: str, seconds: float) -> Json:
        """Back to the queue for `seconds`, the attempt not counted: `{"job"}`."""
        return await self._on_lease(lease_id, "defer", {"seconds": seconds})

    async def release(self, lease_id: str, *, after_children: bool = False) -> Json:
        """Back to the queue unharmed, the attempt not counted: `{"job"}`. `after_children`: not to be leased before all its children
        are final; its next lease lists them with their results."""
        return await self._on_lease(lease_id, "release", _given(after_children=after_children or None))

    async def ask(self, lease_id: str, text: str, *, timeout_seconds: float | None = None) -> Json:
        """Asks whoever enqueued the job, which waits for the answer: `{"job"}`. Its next lease carries both (`answers`)."""
        return await self._on_lease(lease_id, "ask", _given(text=text, timeout_seconds=timeout_seconds))

    async def cancelled(self, lease_id: str) -> Json:
        """The job was asked to stop, and has: `{"job"}`."""
        return await self._on_lease(lease_id, "cancelled", {})

    async def report(
        self, lease_id: str, percent: float | None = None, message: str | None = None, *, seq: int | None = None
    ) -> Json:
        """Adds to the job's progress, and beats: `{"job"}`. Percent is 0 to 100, a message is cut to 256 characters. With `seq`, which
        grows from report to report, a repeat is known."""
        body = _given(percent=percent, message=message, seq=seq)
        return await self._on_lease(lease_id, "progress", body, repeatable=seq is not None)

    async def trace(self, lease_id: str, rows: Sequence[Json]) -> Json:
        """Adds rows to the server's trace, where it keeps one, and beats: `{"recorded", "expires_at", "cancelling"}`. A row is
        `{operation?, provider?, model?, input?, output?, tool?, usage?, cost_usd?, started_at?, ended_at?}`; at most 100 of them."""
        return await self._on_lease(lease_id, "trace", {"rows": list(rows)}, repeatable=False)

    async def batch(self, ops: Sequence[Json]) -> Json:
        """Many calls on leases in one: `{"results"}`, in order, each with `job` or `error`, and `status`.

        An operation is `{"op": "complete", "lease_id", …}`, with the fields of that call.
        """
        repeatable = all(op.get("op") in _REPEATABLE_OPS for op in ops)
        return await self._call("POST", "/leases/batch", {"ops": list(ops)}, repeatable=repeatable)

    # Queues, subjects, agents

    async def queues(self, *, all: bool = False) -> Json:
        """`{"queues"}`, with `all` the hidden ones too."""
        return await self._get("/queues", {"all": all or None})

    async def pause_queue(self, name: str) -> Json:
        """The queue hands out nothing until resumed."""
        return await self._call("POST", f"/queues/{_part(name)}/pause", {}, repeatable=True)

    async def resume_queue(self, name: str) -> Json:
        """Undoes `pause_queue`."""
        return await self._call("POST", f"/queues/{_part(name)}/resume", {}, repeatable=True)

    async def schedules(self, *, workspace: str | None = None) -> Json:
        """`{"schedules"}`, by name."""
        return await self._get("/schedules", {"workspace": workspace})

    async def schedule(self, name: str, *, workspace: str | None = None) -> Json:
        """`{"schedule"}`."""
        return await self._get(f"/schedules/{_part(name)}", {"workspace": workspace})

    async def put_schedule(self, name: str, queue: str, kind: str, payload: Json | None = None, **fields: Any) -> Json:
        """Adds or changes a schedule: `{"schedule", "changed"}`. `fields` are those of `PUT /schedules/{name}`; either `every_seconds` or
        `cron` is needed."""
        body = {"queue": queue, "kind": kind, "payload": {} if payload is None else payload, **fields}
        return await self._call("PUT", f"/schedules/{_part(name)}", body, repeatable=True)

    async def remove_schedule(self, name: str, *, workspace: str | None = None) -> None:
        """Removes a schedule; jobs that it has enqueued stay."""
        await self._call("DELETE", f"/schedules/{_part(name)}", query={"workspace": workspace})

    async def run_schedule(self, name: str, *, workspace: str | None = None) -> Json:
        """Enqueues the job of a schedule now: `{"job"}`. Its times stay."""
        return await self._call("POST", f"/schedules/{_part(name)}/run", _given(workspace=workspace))

    async def subject(self, subject: str, *, workspace: str | None = None) -> Json:
        """A subject and its labels."""
        return await self._get(f"/subjects/{_part(subject)}", {"workspace": workspace})

    async def set_labels(self, subject: str, human: Mapping[str, str | None], *, workspace: str | None = None) -> Json:
        """Sets people's labels of a subject."""
        body = {"human": dict(human), **_given(workspace=workspace)}
        return await self._call("PUT", f"/subjects/{_part(subject)}/labels", body, repeatable=True)

    async def agents(self) -> Json:
        """`{"agents"}`: when each was last seen, what it holds and what it has done."""
        return await self._get("/agents")

    async def drain(self, agent: str, drain: bool = True) -> Json:
        """Lets an agent (`name` with all its instances, or `name/instance`) get nothing new, or again."""
        return await self._call("POST", f"/agents/{_part(agent)}/drain", {"drain": drain}, repeatable=True)

    async def kinds(self) -> Json:
        """`{"kinds"}` that are configured or were seen."""
        return await self._get("/kinds")

    async def me(self) -> Json:
        """Who this token is, and what it may do."""
        return await self._get("/me")

    async def meta(self) -> Json:
        """`{"version", "features", "limits"}` of the server."""
        return await self._get("/meta")

    async def healthz(self) -> Json:
        """Whether the server is up. Needs no token."""
        return await self._call("GET", "/healthz", prefix="", repeatable=True)

    # Tokens

    async def create_token(self, name: str, roles: Sequence[str], **fields: Any) -> Json:
        """`{"name", "token", …}`: the only time that the token is shown. `fields` are those of `POST /tokens`. For admins."""
        return await self._call("POST", "/tokens", {"name": name, "roles": list(roles), **fields})

    async def rotate_token(self, name: str, **fields: Any) -> Json:
        """The token with a new secret, `{"name", "token", …}`, shown this once; the old one is worthless at once. `expires_in`:
        seconds that it lasts from now. For admins."""
        return await self._call("POST", f"/tokens/{_part(name)}/rotate", fields)

    async def tokens(self) -> Json:
        """`{"tokens"}`, without the tokens themselves. For admins."""
        return await self._get("/tokens")

    async def revoke_token(self, name: str) -> Json:
        """Ends a token and its leases at once. For admins."""
        return await self._call("DELETE", f"/tokens/{_part(name)}")

    # How calls are made

    async def _own_name(self) -> str:
        if self._name is None:
            me = await self.me()
            actor = cast(Json, me.get("actor") or {})
            self._name = str(me.get("name") or actor.get("id"))
        return self._name

    async def _get(self, path: str, query: Mapping[str, Any] | None = None, *, waits: float = 0) -> Json:
        return await self._call("GET", path, query=query, waits=waits, repeatable=True)

    async def _on_lease(self, lease_id: str, verb: str, body: Json, *, repeatable: bool = True) -> Json:
        return await self._call("POST", f"/leases/{_part(lease_id)}/{verb}", body, repeatable=repeatable)

    async def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        waits: float = 0,
        repeatable: bool = False,
        key: str | None = None,
        prefix: str = "/v1",
    ) -> Json:
        content = None if body is None else jsontext.dump(body, what="request", error=BadJson).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        params = {name: _param(name, value) for name, value in (query or {}).items() if value is not None}
        attempt = 1
        while True:
            again = attempt < self._tries
            wait: float | None = None
            try:
                answer = await self._client().request(
                    method,
                    f"{self.url}{prefix}{path}",
                    content=content,
                    params=params or None,
                    headers=headers,
                    timeout=httpx2.Timeout(self._timeout, read=self._timeout + waits),
                )
            except httpx2.TransportError as error:
                if not again or not (repeatable or isinstance(error, _NEVER_SENT)):
                    raise self._unreachable(error) from error
            else:
                if answer.status_code < 400:
                    return self._read(answer)
                refusal = _refusal(answer)
                if self._token is None and isinstance(refusal, Unauthenticated):
                    raise Unauthenticated(NO_TOKEN)
                harmless = isinstance(refusal, RateLimited) or (repeatable and isinstance(refusal, Unavailable))
                wait = _number(refusal.details.get("retry_after"))
                if not (again and harmless) or (wait or 0) > LONGEST_RETRY_AFTER:
                    raise refusal
            backoff = min(BACKOFF_CAP, BACKOFF_BASE * 2.0 ** (attempt - 1)) * self._rng.uniform(0.5, 1.0)
            # Never earlier than asked, and not all callers at the same moment.
            await self._clock.sleep(backoff + (wait or 0))
            attempt += 1

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            headers = {"Accept": "application/json", "User-Agent": f"oaken-swarm/{__version__}"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            self._http = httpx2.AsyncClient(
                headers=headers,
                transport=self._transport,
                # Servers close idle connections after some seconds; one closed while a request is on its way cannot be
                # told from a request that was carried out. A worker may well have hundreds of calls under way.
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=3),
                # A proxy from the environment is no way to a server on this machine.
                trust_env=urlsplit(self.url).hostname not in ("127.0.0.1", "localhost", "::1"),
            )
        return self._http

    def _unreachable(self, error: httpx2.TransportError) -> Unavailable:
        why = str(error) or type(error).__name__
        if isinstance(error, _NEVER_SENT):
            told = f"No Oaken server answers at {self.url} ({why}). Start one with `oaken serve`, or set OAKEN_URL."
        else:
            told = (
                f"The connection to {self.url} was lost before the answer came ({why}). "
                "Whether the call was carried out is unknown: look before making it again."
            )
        return Unavailable(told, url=self.url, sent=not isinstance(error, _NEVER_SENT))

    def _read(self, answer: httpx2.Response) -> Json:
        if not answer.content:
            return {}
        try:
            value: object = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            return cast(Json, value)
        raise OakenError(
            f"{self.url} answered {answer.status_code} and no JSON object. Is that an Oaken server?",
            url=self.url,
            text=answer.text[:200],
        )


def base_url(url: str) -> str:
    """The address of a server as it is used, however it was written. Raises `ConfigError` for what is none."""
    url = url.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except (ValueError, httpx2.InvalidURL):
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is not the address of an Oaken server; it should look like {DEFAULT_URL}", url=url)
    return url


def _token(token: str | None) -> str | None:
    token = (token or "").strip()
    if not all("!" <= c <= "~" for c in token):
        raise ConfigError("This is no token: it holds characters that none has. Look at OAKEN_TOKEN, or at token=….")
    return token or None


def _part(text: str) -> str:
    return quote(_param("name", text), safe="")


def _new_key() -> str:
    """An idempotency key for one call and its repeats."""
    return secrets.token_hex(12)


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_text(item) for item in cast("Iterable[Any]", value))
    return str(value)


def _param(name: str, value: Any) -> str:
    """A value as it stands in a URL. Raises `InvalidRequest` for what cannot."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a finite number (got {value}).")
    text = _text(value)
    if _SURROGATE.search(text):
        raise InvalidRequest(f"{name} holds half a character (a lone surrogate); leave it out.")
    return text


_SURROGATE = re.compile("[\ud800-\udfff]")


def _refusal(answer: httpx2.Response) -> OakenError:
    """The typed error of an answer, also of one that some proxy gave."""
    try:
        value: object = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict):
        problem = cast(Json, value)
    else:
        told = " ".join(answer.text.split())[:200] or answer.reason_phrase or "no text"
        problem: Json = {"detail": f"{answer.request.url.host} answered {answer.status_code}: {told}"}
    error = refusal_of(problem, answer.status_code)
    retry_after = _retry_after(answer)
    if retry_after is not None:
        error.details.setdefault("retry_after", retry_after)
    return error


def refusal_of(problem: Json, status: int) -> OakenError:
    """The typed error that a problem+json object describes; its members beyond the standard ones become `details`."""
    code = problem.get("code")
    cls = error_class(code) if isinstance(code, str) else OakenError
    if cls is OakenError:
        cls = _BY_STATUS.get(status, OakenError)
    error = cls(str(problem.get("detail") or problem.get("title") or f"refused with status {status}"))
    error.details = {name: value for name, value in problem.items() if name not in _PROBLEM_MEMBERS}
    # The class says what to do about it; what the server said is kept where it differs.
    vars(error)["status"] = status
    if isinstance(code, str):
        vars(error)["code"] = code
    return error


def _retry_after(answer: httpx2.Response) -> float | None:
    asked = answer.headers.get("Retry-After")
    if asked is None:
        return None
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        # A date: counted from the server's own, so that its clock and ours need not agree.
        since = parsedate_to_datetime(answer.headers["Date"])
        return max(0.0, (parsedate_to_datetime(asked) - since).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None

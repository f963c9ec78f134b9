"""The client: every HTTP call as a method, with typed errors and safe repeats."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import httpx2

from oaken_jobs import telemetry
from oaken_jobs.clock import Clock, SystemClock
from oaken_swarm.connection import DEFAULT_URL, Connection, Json, Text, param
from oaken_swarm.following import Event, Resync, events, rows

DEFAULT_TRIES = 4
_REPEATABLE_OPS = frozenset({"complete", "fail", "defer", "release", "ask", "cancelled", "heartbeat"})


class Client:
    """An Oaken server over HTTP. Async; `SyncClient` is the same for programs that are not.

        async with Client("http://127.0.0.1:8787", token="…") as client:
            told = await client.enqueue("shout", {"text": "hello"})
            await client.wait(told["job"]["id"], seconds=30)
            print(await client.result(told["job"]["id"]))  # {'text': 'HELLO'}

    `url` and `token` come from `OAKEN_URL` and `OAKEN_TOKEN` unless given. `timeout` is seconds for a call without its
    waiting, `instance` the name under the token's own by which `lease` asks; `tries` bounds how often one call is made.

    Each method answers with the JSON object that the server gave. Refusals are raised as the classes of
    `oaken_jobs.errors`, with `message`, `details`, `code` and `status`; a server out of reach as `Unavailable`. What JSON
    readers cannot keep (NaN, a date, half a character) is refused with its path before it is sent, as `BadJson`.

    Every call is made again, `tries` times in all, on lost connections, 503 and 429, with jittered backoff and never earlier than
    `Retry-After` says. Where a repeat would not be harmless by itself it carries an idempotency key, so that the call is carried out once
    and the repeat gets the first answer; of a new token's secret, which is shown once, it gets a `Conflict`.
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
        self.instance = instance
        self._connection = Connection(
            url or os.environ.get("OAKEN_URL") or DEFAULT_URL,
            token or os.environ.get("OAKEN_TOKEN"),
            timeout=timeout,
            tries=tries,
            transport=transport,
            clock=clock or SystemClock(),
            rng=rng or random.Random(),
        )
        self._name: str | None = None

    @property
    def url(self) -> str:
        """The address of the server, without what follows it in calls."""
        return self._connection.url

    @property
    def has_token(self) -> bool:
        """Whether calls are made with a token at all."""
        return self._connection.token is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        await self._connection.aclose()

    # Jobs

    async def enqueue(self, kind: str, payload: Json | None = None, **fields: Any) -> Json:
        """Adds a job: `{"job", "created", "warning"?}`. `fields` are those of `POST /jobs`. An `idempotency_key` of your own makes the
        same call safe to repeat for a day, from another process, too."""
        body = {"kind": kind, "payload": {} if payload is None else payload, **fields}
        return await self._added("/jobs", body)

    async def enqueue_many(self, jobs: Sequence[Json]) -> Json:
        """Adds up to 1,000 jobs: `{"jobs"}`, in order, each with `job` and `created` or with `error`, and `status`."""
        return await self._added("/jobs", {"jobs": list(jobs)})

    async def job(self, job_id: int) -> Json:
        """`{"job"}`, with payload and result."""
        return await self._get(f"/jobs/{job_id}")

    async def jobs(self, **filters: Any) -> Json:
        """One page, newest first: `{"jobs", "next_cursor"}`. Filters are those of `GET /jobs`; of a list any counts."""
        return await self._get("/jobs", filters)

    async def all_jobs(self, **filters: Any) -> AsyncGenerator[Json]:
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
        return await self._call("POST", f"/jobs/{job_id}/cancel", {})

    async def edit(
        self, job_id: int, *, priority: int | str | None = None, title: str | None = None, tags: list[str] | None = None
    ) -> Json:
        """Changes priority, title or tags: `{"job"}`. An empty title, or no tags, takes them away."""
        body = _given(priority=priority, title=title, tags=tags)
        return await self._call("PATCH", f"/jobs/{job_id}", body)

    async def erase(self, job_id: int) -> Json:
        """Takes away a job that has ended, with all that belongs to it: `{"job"}`, as it was. Raises `Conflict` for others."""
        return await self._call("DELETE", f"/jobs/{job_id}", keyed=True)

    async def requeue(self, job_id: int, queue: str | None = None, *, retriage: bool = False) -> Json:
        """Puts a failed, cancelled or queued job back to run now: `{"job"}`. Raises `Conflict` for others. `retriage` clears the
        machine's labels of its subject, so that triage and routing decide again."""
        return await self._call(
            "POST", f"/jobs/{job_id}/requeue", _given(queue=queue, retriage=retriage or None), keyed=True
        )

    async def requeue_all(self, filter: Json, **fields: Any) -> Json:
        """`requeue` for all that match, some thousands a call: `{"matched", "done", "skipped", "remaining", "cursor"}`. Call again
        with the `cursor` while there is one. `fields` are those of `POST /requeue`."""
        return await self._call("POST", "/requeue", {"filter": filter, **fields}, keyed=True)

    async def cancel_all(self, filter: Json, **fields: Any) -> Json:
        """`cancel` for all that match; as `requeue_all`."""
        return await self._call("POST", "/cancel", {"filter": filter, **fields})

    async def answer(self, job_id: int, text: str) -> Json:
        """Answers a job's open question: `{"job"}`. Raises `Conflict` where none is open."""
        return await self._call("POST", f"/jobs/{job_id}/answer", {"text": text}, keyed=True)

    async def questions(self, job_id: int) -> Json:
        """`{"questions"}`: all that a job has asked, with the answers."""
        return await self._get(f"/jobs/{job_id}/questions")

    async def adopt(self, job_id: int, epoch: int) -> Json:
        """Takes the late result of an attempt as the job's: `{"job"}`. Its attempts say which left one (`late_result`)."""
        return await self._call("POST", f"/jobs/{job_id}/adopt", {"epoch": epoch}, keyed=True)

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

    async def follow(
        self, after: str | None = None, *, kinds: Sequence[str] | None = None, job_id: int | None = None
    ) -> AsyncGenerator[Event | Resync]:
        """Each event after a cursor, or from now on, as it happens and for ever; a lost connection is taken up where it was, without a gap.

        A `Resync` says that events were forgotten meanwhile. Raises refusals, and `Unavailable` where no server answers at the start.
        """
        query = {"kinds": kinds, "job_id": job_id}
        begin = await self._get("/events/wait", {**query, "after": after, "limit": 1, "seconds": 0})
        found = events(self._connection, begin["cursor"] if after is None else after, query)
        async with aclosing(found):
            async for each in found:
                yield each

    async def follow_trace(self, *, job_id: int | None = None, agent: str | None = None) -> AsyncGenerator[Json]:
        """Each row of the trace as it comes, for admins, until the server ends the stream. Raises `Unavailable` where the connection is
        lost; rows that came meanwhile are in `trace_rows`."""
        found = rows(self._connection, {"job_id": job_id, "agent": agent})
        async with aclosing(found):
            async for row in found:
                yield row

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
        return await self._added("/intake", body)

    async def upload(
        self,
        path: str | Path,
        title: str | None = None,
        source: str | None = None,
        *,
        workspace: str | None = None,
    ) -> Json:
        """`intake` of a file of text in UTF-8: `{"job", "created"}`. Its `source` is the path as given, unless you say otherwise. Raises
        `OSError` for a file that cannot be read, `InvalidRequest` for one that is no text."""
        file = Path(path)
        media_type = "text/markdown" if file.suffix.lower() in (".md", ".markdown") else "text/plain"
        text = Text(await asyncio.to_thread(file.read_bytes), media_type)
        query = {"title": title, "source": str(path) if source is None else source, "workspace": workspace}
        return await self._added("/intake", text, query)

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
        return await self._call("POST", "/leases", body, waits=wait_seconds, keyed=True)

    async def resume(self, *, agent: str | None = None, lease_seconds: float | None = None) -> Json:
        """This agent's own leases again, under new ids: `{"leases"}`. It needs an instance, `name/instance`, always the same."""
        if agent is None and self.instance is not None:
            agent = f"{await self._own_name()}/{self.instance}"
        body = _given(agent=agent, lease_seconds=lease_seconds)
        return await self._call("POST", "/leases", {**body, "resume": True})

    async def heartbeat(
        self, lease_id: str, *, lease_seconds: float | None = None, progress: Json | None = None
    ) -> Json:
        """Extends the lease from now: `{"expires_at", "cancelling"}`. Raises `LeaseLost`, as does every call below."""
        body = _given(lease_seconds=lease_seconds, progress=progress)
        return await self._on_lease(lease_id, "heartbeat", body, keyed=progress is not None)

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
        return await self._on_lease(lease_id, "progress", body, keyed=seq is None)

    async def trace(self, lease_id: str, rows: Sequence[Json]) -> Json:
        """Adds rows to the server's trace, where it keeps one, and beats: `{"recorded", "expires_at", "cancelling"}`. A row is
        `{operation?, provider?, model?, input?, output?, tool?, usage?, cost_usd?, started_at?, ended_at?}`; at most 100 of them."""
        return await self._on_lease(lease_id, "trace", {"rows": list(rows)}, keyed=True)

    async def batch(self, ops: Sequence[Json]) -> Json:
        """Many calls on leases in one: `{"results"}`, in order, each with `job` or `error`, and `status`.

        An operation is `{"op": "complete", "lease_id", …}`, with the fields of that call.
        """
        keyed = not all(op.get("op") in _REPEATABLE_OPS for op in ops)
        return await self._call("POST", "/leases/batch", {"ops": list(ops)}, keyed=keyed)

    # Queues, subjects, agents

    async def queues(self, *, all: bool = False) -> Json:
        """`{"queues"}`, with `all` the hidden ones too."""
        return await self._get("/queues", {"all": all or None})

    async def pause_queue(self, name: str) -> Json:
        """The queue hands out nothing until resumed."""
        return await self._call("POST", f"/queues/{_part(name)}/pause", {})

    async def resume_queue(self, name: str) -> Json:
        """Undoes `pause_queue`."""
        return await self._call("POST", f"/queues/{_part(name)}/resume", {})

    async def schedules(self, *, workspace: str | None = None) -> Json:
        """`{"schedules"}`, by name."""
        return await self._get("/schedules", {"workspace": workspace})

    async def schedule(self, name: str, *, workspace: str | None = None) -> Json:
        """`{"schedule"}`, of that name. Raises `NotFound`."""
        return await self._get(f"/schedules/{_part(name)}", {"workspace": workspace})

    async def put_schedule(self, name: str, queue: str, kind: str, payload: Json | None = None, **fields: Any) -> Json:
        """Adds or changes a schedule: `{"schedule", "changed"}`. `fields` are those of `PUT /schedules/{name}`; either `every_seconds` or
        `cron` is needed."""
        body = {"queue": queue, "kind": kind, "payload": {} if payload is None else payload, **fields}
        return await self._call("PUT", f"/schedules/{_part(name)}", body)

    async def remove_schedule(self, name: str, *, workspace: str | None = None) -> None:
        """Removes a schedule; jobs that it has enqueued stay."""
        await self._call("DELETE", f"/schedules/{_part(name)}", query={"workspace": workspace}, keyed=True)

    async def run_schedule(self, name: str, *, workspace: str | None = None) -> Json:
        """Enqueues the job of a schedule now: `{"job"}`. Its times stay."""
        return await self._call("POST", f"/schedules/{_part(name)}/run", _given(workspace=workspace), keyed=True)

    async def subject(self, subject: str, *, workspace: str | None = None) -> Json:
        """A subject and its labels."""
        return await self._get(f"/subjects/{_part(subject)}", {"workspace": workspace})

    async def set_labels(self, subject: str, human: Mapping[str, str | None], *, workspace: str | None = None) -> Json:
        """Sets people's labels of a subject."""
        body = {"human": dict(human), **_given(workspace=workspace)}
        return await self._call("PUT", f"/subjects/{_part(subject)}/labels", body)

    async def agents(self) -> Json:
        """`{"agents"}`: when each was last seen, what it holds and what it has done."""
        return await self._get("/agents")

    async def drain(self, agent: str, drain: bool = True) -> Json:
        """Lets an agent (`name` with all its instances, or `name/instance`) get nothing new, or again."""
        return await self._call("POST", f"/agents/{_part(agent)}/drain", {"drain": drain})

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
        return await self._outside("/healthz")

    async def readyz(self) -> Json:
        """Whether the store answers. Needs no token. Raises `Unavailable` where it does not."""
        return await self._outside("/readyz")

    async def openapi(self) -> Json:
        """The interface described for programs (OpenAPI 3.1)."""
        return await self._outside("/openapi.json")

    async def metrics(self) -> str:
        """Figures of the server, as text for Prometheus."""
        return (await self._connection.call("GET", "/metrics")).text

    # Tokens

    async def create_token(self, name: str, roles: Sequence[str], **fields: Any) -> Json:
        """`{"name", "token", …}`: the only time that the token is shown. `fields` are those of `POST /tokens`. For admins."""
        return await self._call("POST", "/tokens", {"name": name, "roles": list(roles), **fields}, keyed=True)

    async def rotate_token(self, name: str, **fields: Any) -> Json:
        """The token with a new secret, `{"name", "token", …}`, shown this once; the old one is worthless at once. `expires_in`:
        seconds that it lasts from now. For admins."""
        return await self._call("POST", f"/tokens/{_part(name)}/rotate", fields, keyed=True)

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

    async def _outside(self, path: str) -> Json:
        return self._connection.read(await self._connection.call("GET", path))

    async def _get(self, path: str, query: Mapping[str, Any] | None = None, *, waits: float = 0) -> Json:
        return await self._call("GET", path, query=query, waits=waits)

    async def _added(self, path: str, body: Json | Text, query: Mapping[str, Any] | None = None) -> Json:
        """A call that adds jobs, which belong to the trace that the caller is in."""
        span = telemetry.current()
        headers = {} if span is None else {"traceparent": span}
        return await self._call("POST", path, body, query=query, keyed=True, headers=headers)

    async def _on_lease(self, lease_id: str, verb: str, body: Json, *, keyed: bool = False) -> Json:
        return await self._call("POST", f"/leases/{_part(lease_id)}/{verb}", body, keyed=keyed)

    async def _call(
        self,
        method: str,
        path: str,
        body: Json | Text | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        waits: float = 0,
        keyed: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """A call under `/v1`. `keyed` where only an idempotency key makes its repeat harmless."""
        answer = await self._connection.call(
            method, f"/v1{path}", body, query=query, waits=waits, keyed=keyed, headers=headers
        )
        return self._connection.read(answer)


def _part(text: str) -> str:
    return quote(param("name", text), safe="")


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}

"""`oaken job …`: put jobs in, look at them, wait for them, stop them, run them again."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from oaken_app import bulk
from oaken_app.backend import call, place
from oaken_app.options import DataDir, Json
from oaken_app.show import ago, as_json, job_card, job_table, line, lines_of_json, table
from oaken_jobs import jsontext
from oaken_jobs.errors import BadJson, InvalidRequest, OakenError
from oaken_swarm.client import Client

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

JobId = Annotated[int, typer.Argument(help="The job's number.")]
Epoch = Annotated[int, typer.Argument(help="Of the attempt, as `oaken job attempts` shows it.")]
JobIds = Annotated[list[int], typer.Argument(help="Numbers of jobs.")]
SomeIds = Annotated[list[int] | None, typer.Argument(help="Numbers of jobs; or --all with filters.")]


def read_payload(text: str | None) -> dict[str, Any]:
    """`--payload`: JSON, `@FILE`, or `-` for standard input."""
    if text is None:
        return {}
    try:
        if text == "-":
            raw: bytes = sys.stdin.buffer.read()
        elif text.startswith("@"):
            raw = Path(text[1:]).read_bytes()
        else:
            raw = text.encode("utf-8", "surrogateescape")
    except OSError as error:
        raise InvalidRequest(f"--payload {text}: {error.strerror or error}.") from None
    try:
        value = jsontext.parse(raw)
    except BadJson as error:
        if not error.message.startswith("Not JSON: "):
            raise InvalidRequest(f"--payload: {error.message}") from None
        told = error.message.removeprefix("Not JSON: ")
        raise InvalidRequest(
            f'--payload is not JSON: {told} Texts and keys need double quotes: \'{{"text": "hello"}}\'.'
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest('--payload must be a JSON object, for instance \'{"text": "hello"}\'.')
    return value  # pyright: ignore[reportUnknownVariableType]


@app.command()
def enqueue(
    kind: Annotated[str, typer.Argument(help="What kind of job, for instance embed.")],
    payload: Annotated[str | None, typer.Option(help="A JSON object, @FILE, or - for standard input.")] = None,
    subject: Annotated[str | None, typer.Option(help="What it is about, for instance note:17.")] = None,
    target: Annotated[str | None, typer.Option(help="One live job of a kind for each target.")] = None,
    dedupe_key: Annotated[str | None, typer.Option(help="While a job with this key lives, no second one.")] = None,
    on_duplicate: Annotated[
        str | None, typer.Option(help="keep, or replace: a live job that is still queued gets this payload.")
    ] = None,
    serial_key: Annotated[str | None, typer.Option(help="Of one key only one job runs at a time.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="0 to 1000, the higher first; or user (100), ingest (50), backfill (10).")
    ] = None,
    delay_seconds: Annotated[float | None, typer.Option("--delay-seconds", "--delay", help="Run it later.")] = None,
    run_at: Annotated[str | None, typer.Option(help="Run it then: 2030-01-31T12:00:00Z.")] = None,
    ttl_seconds: Annotated[
        float | None, typer.Option("--ttl-seconds", "--ttl", help="Cancelled if it does not run within this time.")
    ] = None,
    expires_at: Annotated[str | None, typer.Option(help="Cancelled if it does not run by then.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="How often it may be tried.")] = None,
    parent_id: Annotated[int | None, typer.Option(help="The job that this one belongs to.")] = None,
    title: Annotated[str | None, typer.Option(help="A line for people.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="May be given several times.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="What it may cost before its grade suffers.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same command with the same key within a day adds nothing.")
    ] = None,
    workspace: Annotated[str | None, typer.Option(help="Into this workspace instead of the default one.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Enqueue a job and print its number."""
    fields: dict[str, Any] = {
        "subject": subject,
        "target": target,
        "dedupe_key": dedupe_key,
        "on_duplicate": on_duplicate,
        "serial_key": serial_key,
        "priority": int(priority) if priority is not None and re.fullmatch("-?[0-9]{1,9}", priority) else priority,
        "delay_seconds": delay_seconds,
        "run_at": run_at,
        "ttl_seconds": ttl_seconds,
        "expires_at": expires_at,
        "max_attempts": max_attempts,
        "parent_id": parent_id,
        "title": title,
        "tags": tag or None,
        "budget_usd": budget_usd,
        "idempotency_key": idempotency_key,
        "workspace": workspace,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    body = read_payload(payload)
    told = call(data_dir, lambda client: client.enqueue(kind, body, **given))
    if json:
        as_json(told)
        return
    job = told["job"]
    line(f"Job {job['id']} ({job['kind']}) {_enqueued(told, idempotency_key is not None)}")
    if "warning" in told:
        note = f"no agent has leased a job of kind {job['kind']} yet; this one waits until one does."
        typer.echo(f"Note: {note}", err=True)


def _enqueued(told: dict[str, Any], keyed: bool) -> str:
    """What became of an enqueue. An answer comes again without a key of the caller's, too: where the first one was lost."""
    job = told["job"]
    if keyed and told.get("replayed"):
        return f"was enqueued before under this idempotency key; `oaken job status {job['id']}` shows how it stands."
    if told["created"]:
        return f"is queued on {job['queue']}."
    match told.get("replaced"):
        case True:
            return f"is {job['state']} already; it has the new payload."
        case False:
            return f"is {job['state']} already; its payload stays as it was."
        case _:
            return f"is {job['state']} already on {job['queue']}."


def _asks(job: dict[str, Any]) -> bool:
    """Whether it waits for the answer to a question."""
    return any(wait["code"] == "answer" for wait in job["waits"])


@app.command()
def status(job_id: JobId, data_dir: DataDir = None, json: Json = False) -> None:
    """Show one job, with payload and result."""
    job = call(data_dir, lambda client: client.job(job_id))["job"]
    if json:
        as_json({"job": job})
        return
    job_card(job)
    if _asks(job):
        typer.echo(f"Note: it asks and waits; `oaken job answer {job_id} TEXT` tells it.", err=True)


@app.command(name="list")
def list_jobs(
    state: Annotated[list[str] | None, typer.Option(help="queued, running, succeeded, failed, cancelled.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="May be given several times.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="May be given several times.")] = None,
    grade: Annotated[list[str] | None, typer.Option(help="ok, note, warn, bad.")] = None,
    agent: Annotated[str | None, typer.Option(help="Who holds or last held it: name or name/instance.")] = None,
    subject: Annotated[str | None, typer.Option(help="What it is about.")] = None,
    tag: Annotated[str | None, typer.Option(help="One of its tags.")] = None,
    parent_id: Annotated[int | None, typer.Option(help="Children of this job.")] = None,
    workspace: bulk.Workspace = None,
    asking: Annotated[bool, typer.Option("--asking", help="Only those with an open question.")] = False,
    query: bulk.Query = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="The next page: what the last one said.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    filters: dict[str, Any] = {
        "state": state or None,
        "kind": kind or None,
        "queue": queue or None,
        "grade": grade or None,
        "agent": agent,
        "subject": subject,
        "tag": tag,
        "parent_id": parent_id,
        "workspace": workspace,
        "asking": asking or None,
        "q": query,
        "limit": limit,
        "cursor": cursor,
    }
    given = {name: value for name, value in filters.items() if value is not None}
    page = call(data_dir, lambda client: client.jobs(**given))
    if json:
        as_json(page)
        return
    job_table(page["jobs"], f"No jobs match in {place(data_dir)}. `oaken job enqueue KIND` adds one.")
    if page["next_cursor"]:
        line(f"There are more: --cursor {page['next_cursor']}")


@app.command()
def wait(
    job_ids: JobIds,
    seconds: Annotated[float, typer.Option(min=0, help="How long at most.")] = 3600,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Wait until all jobs have ended. Exit code 1 if one did not succeed, 3 if time ran out."""

    noted: set[int] = set()

    async def act(client: Client) -> dict[str, Any]:
        left = seconds
        while True:
            # In parts: a server holds a single call for a minute at most.
            part = min(left, 30.0)
            told = await client.wait(job_ids, part)
            left -= part
            for job in told["jobs"]:
                if _asks(job) and job["id"] not in noted:
                    noted.add(job["id"])
                    typer.echo(
                        f"Note: job {job['id']} asks and waits; `oaken job answer {job['id']} TEXT` tells it.", err=True
                    )
            if told["final"] or left <= 0:
                return told

    told = call(data_dir, act)
    as_json(told) if json else job_table(told["jobs"], "")
    if not told["final"]:
        for job in told["jobs"]:
            if job["finished_at"] is None:
                typer.echo(f"oaken: job {job['id']} is still {job['state']} after {seconds:g} s", err=True)
        raise typer.Exit(3)
    if any(job["state"] != "succeeded" for job in told["jobs"]):
        raise typer.Exit(1)


def _each(
    job_ids: list[int],
    data_dir: Path | None,
    json: bool,
    act: Callable[[Client, int], Awaitable[dict[str, Any]]],
    say: Callable[[dict[str, Any]], str],
) -> None:
    """Does the same with several jobs; a refusal for one does not keep the others from it."""

    async def run(client: Client) -> list[dict[str, Any] | OakenError]:
        answers: list[dict[str, Any] | OakenError] = []
        for job_id in job_ids:
            try:
                answers.append(await act(client, job_id))
            except OakenError as refusal:
                answers.append(refusal)
        return answers

    refused = False
    for answer in call(data_dir, run):
        if isinstance(answer, OakenError):
            refused = True
            typer.echo(f"oaken: {' '.join(answer.message.split())}", err=True)
        elif json:
            as_json(answer)
        else:
            line(say(answer))
    if refused:
        raise typer.Exit(1)


@app.command()
def cancel(
    job_ids: SomeIds = None,
    everything: bulk.All = False,
    dry_run: bulk.DryRun = False,
    state: bulk.ToCancel = None,
    kind: bulk.Kinds = None,
    queue: bulk.Queues = None,
    grade: bulk.Grades = None,
    agent: bulk.Agent = None,
    subject: bulk.Subject = None,
    tag: bulk.Tag = None,
    parent_id: bulk.ParentId = None,
    workspace: bulk.Workspace = None,
    query: bulk.Query = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Cancel queued jobs, ask running ones to stop: those named, or with --all every one that matches.

    oaken job cancel --all --kind embed --state queued --dry-run
    """
    filter = bulk.chosen(
        job_ids,
        everything,
        "queued",
        state=state,
        kind=kind,
        queue=queue,
        grade=grade,
        agent=agent,
        subject=subject,
        tag=tag,
        parent_id=parent_id,
        workspace=workspace,
        q=query,
    )
    if filter is not None:
        bulk.change(
            data_dir,
            lambda client, fields: client.cancel_all(filter, **fields),
            "cancelled, or asked to stop",
            dry_run=dry_run,
            json=json,
            states=state or (),
        )
        return

    def say(told: dict[str, Any]) -> str:
        job = told["job"]
        if not told["changed"]:
            return f"Job {job['id']} is {job['state']}; nothing was changed."
        return f"Job {job['id']} " + (
            f"was asked to stop ({job['agent']} has it)." if job["cancelling"] else "is cancelled."
        )

    _one_by_one(dry_run)
    _each(job_ids or [], data_dir, json, lambda client, job_id: client.cancel(job_id), say)


@app.command()
def requeue(
    job_ids: SomeIds = None,
    to_queue: Annotated[str | None, typer.Option(help="Into this queue instead of its own.")] = None,
    retriage: Annotated[
        bool,
        typer.Option("--retriage", help="Of intake jobs: clear the machine's labels, so that triage decides again."),
    ] = False,
    everything: bulk.All = False,
    dry_run: bulk.DryRun = False,
    state: bulk.ToRequeue = None,
    kind: bulk.Kinds = None,
    queue: bulk.Queues = None,
    grade: bulk.Grades = None,
    agent: bulk.Agent = None,
    subject: bulk.Subject = None,
    tag: bulk.Tag = None,
    parent_id: bulk.ParentId = None,
    workspace: bulk.Workspace = None,
    query: bulk.Query = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Put failed, cancelled or queued jobs back to run now: those named, or with --all every failed one that matches.

    A job starts anew: its attempts, error, result and expiry are cleared; its history stays. Cancelled and queued jobs are
    taken by --all only where --state says so.

    oaken job requeue --all --kind embed --dry-run
    """
    if job_ids and queue and not everything:
        raise typer.BadParameter("--queue chooses jobs together with --all; --to-queue is the queue that they go to.")
    states = state or (["failed"] if everything else None)
    filter = bulk.chosen(
        job_ids,
        everything,
        "failed",
        state=states,
        kind=kind,
        queue=queue,
        grade=grade,
        agent=agent,
        subject=subject,
        tag=tag,
        parent_id=parent_id,
        workspace=workspace,
        q=query,
    )
    if filter is not None:
        to: dict[str, Any] = {"retriage": retriage} | ({"queue": to_queue} if to_queue is not None else {})
        bulk.change(
            data_dir,
            lambda client, fields: client.requeue_all(filter, **to, **fields),
            "requeued",
            dry_run=dry_run,
            json=json,
            states=states or (),
            to=to_queue,
        )
        return

    def say(told: dict[str, Any]) -> str:
        return f"Job {told['job']['id']} is queued on {told['job']['queue']}."

    _one_by_one(dry_run)
    _each(
        job_ids or [], data_dir, json, lambda client, job_id: client.requeue(job_id, to_queue, retriage=retriage), say
    )


def _one_by_one(dry_run: bool) -> None:
    if dry_run:
        raise typer.BadParameter("--dry-run counts what --all would change; jobs that are named are few.")


@app.command()
def answer(
    job_id: JobId,
    text: Annotated[str, typer.Argument(help="What the job is told.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Answer the question that a job asks. It can be leased again at once, and its next lease carries the answer."""
    told = call(data_dir, lambda client: client.answer(job_id, text))
    as_json(told) if json else line(f"Job {job_id} has its answer; it is queued on {told['job']['queue']}.")


@app.command()
def questions(job_id: JobId, data_dir: DataDir = None, json: Json = False) -> None:
    """Show what a job has asked and been told, oldest first."""

    async def act(client: Client) -> tuple[dict[str, Any], bool]:
        return await client.questions(job_id), (await client.job(job_id))["job"]["question"] is not None

    told, is_open = call(data_dir, act)
    if json:
        as_json(told)
        return
    rows = [
        (
            ago(q["asked_at"]),
            q["agent"],
            q["text"],
            q["answer"] if q["answer"] is not None else "(none in time)",
            q["answered_by"]["id"] if q["answered_by"] else None,
        )
        for q in told["questions"]
    ]
    if is_open:
        rows[-1] = (*rows[-1][:3], "(open)", None)
    table(
        ("asked", "by", "question", "answer", "from"),
        rows,
        f"Job {job_id} has asked nothing.",
        shrink={"answer": 16, "question": 16, "by": 10},
        drop=("from", "asked"),
    )
    if is_open:
        typer.echo(f"Note: `oaken job answer {job_id} TEXT` answers the open one.", err=True)


@app.command()
def late(job_id: JobId, epoch: Epoch, data_dir: DataDir = None, json: Json = False) -> None:
    """Print the result that an attempt brought too late, its lease lost. `adopt` takes it as the job's."""
    result = call(data_dir, lambda client: client.late_result(job_id, epoch))
    as_json(result) if json else lines_of_json(result)


@app.command()
def adopt(
    job_id: JobId,
    epoch: Epoch,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Take the result that an attempt brought too late, its lease lost, as the job's. Whoever has the job now loses it."""
    told = call(data_dir, lambda client: client.adopt(job_id, epoch))
    as_json(told) if json else line(f"Job {job_id} has succeeded, with the late result of epoch {epoch}.")


@app.command()
def attempts(job_id: JobId, data_dir: DataDir = None, json: Json = False) -> None:
    """Show each attempt at a job: who, when, how it ended."""
    told = call(data_dir, lambda client: client.attempts(job_id))
    if json:
        as_json(told)
        return
    rows = [
        (
            a["epoch"],
            a["attempt"],
            a["agent"],
            ago(a["started_at"]),
            f"{a['outcome'] or 'running'}{', late result kept' if a['late_result'] else ''}",
            a["error"],
        )
        for a in told["attempts"]
    ]
    table(
        ("epoch", "try", "agent", "started", "outcome", "error"),
        rows,
        f"Job {job_id} was never leased.",
        shrink={"error": 16, "agent": 10},
        drop=("agent", "error"),
    )
    if any(a["late_result"] for a in told["attempts"]):
        hint = (
            f"`oaken job late {job_id} EPOCH` shows a late result, `oaken job adopt {job_id} EPOCH` takes it as the job's, "
            "unless that has succeeded."
        )
        typer.echo(f"Note: {hint}", err=True)


@app.command()
def activity(job_id: JobId, data_dir: DataDir = None, json: Json = False) -> None:
    """Show every change of a job, oldest first, with who made it."""
    told = call(data_dir, lambda client: client.activity(job_id))
    if json:
        as_json(told)
        return
    rows = [
        (
            row["ts"],
            row["kind"] if "fields" in row["data"] else row["data"]["verb"],
            _told(row["data"]),
            f"{row['data']['actor']['id']} ({row['data']['actor']['via']})",
        )
        for row in told["activity"]
        if row["kind"] != "question_asked"  # the change of state beside it says the same
    ]
    table(("when", "what", "state", "who"), rows, f"Nothing is known of job {job_id}.", shrink={"who": 10})


def _told(data: dict[str, Any]) -> str:
    """What changed, in a line: from which state to which, or what a plugin's event says."""
    if "fields" in data:
        return ", ".join(f"{name}={value}" for name, value in data["fields"].items())
    return " → ".join(data[end] for end in ("from", "to") if end in data)

"""The main job, end to end, on real documents: `make demo`, or `make demo DOCS=folder`.

Starts a server on a temporary data folder, two embedding agents and a triage agent as processes of their own, takes documents in, kills one
of the embedding agents while it holds a lease, waits until everything is done, and shows the documents with label, grade and nearest
neighbour. Then asks for the jobs behind them through MCP, as an assistant would. Leaves nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mcp import Client as McpClient
from mcp import StdioServerParameters, stdio_client
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from agents_examples.model import similarity
from oaken_swarm import Client

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".md", ".markdown", ".txt", ".rst"}
MOST = 200
LEASE_SECONDS = 2
PATIENCE = 120
"""Seconds until the demo gives up on something."""

console = Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 110)


class DemoError(Exception):
    """Something did not finish; the message says what."""


def find_documents(folder: Path | None) -> list[Path]:
    """The text files of a folder, or the project's own Markdown; at most `MOST`."""
    root = folder or ROOT
    if not root.is_dir():
        raise DemoError(f"{root} is not a folder. Call it as: make demo DOCS=/path/to/folder")
    found = [
        path
        for path in sorted(root.rglob("*"))
        if path.suffix.lower() in (SUFFIXES if folder else {".md"})
        and path.is_file()
        and not any(
            part.startswith(".") or part in ("node_modules", "__pycache__") for part in path.relative_to(root).parts
        )
        and 0 < path.stat().st_size < 900_000
    ]
    if not found:
        raise DemoError(f"There are no documents ({', '.join(sorted(SUFFIXES))}) in {root}.")
    return found[:MOST]


@contextmanager
def process(
    name: str, arguments: list[str], environment: dict[str, str], **streams: Any
) -> Generator[subprocess.Popen[str]]:
    """A process of ours, ended when the block is left: asked first, killed if it does not go."""
    child = subprocess.Popen([sys.executable, "-m", *arguments], env=environment, cwd=ROOT, text=True, **streams)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                console.print(f"[red]{name} did not stop by itself and was killed")
                child.kill()
                child.wait()
        if child.stdout is not None:
            child.stdout.close()


def oaken(environment: dict[str, str], *arguments: str) -> str:
    """What a command of the command line prints."""
    done = subprocess.run(
        [sys.executable, "-m", "oaken_app.main", *arguments],
        env=environment,
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"oaken {' '.join(arguments[:2])} failed: {done.stderr.strip()}")
    return done.stdout.strip()


async def until(what: str, condition: Any) -> Any:
    """Waits for a condition that asks the server. Raises `DemoError` when it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise DemoError(f"{what} took longer than {PATIENCE} s")
        await asyncio.sleep(0.05)


async def take_in(client: Client, paths: list[Path], base: Path) -> list[dict[str, Any]]:
    """Enqueues an intake for each document."""
    console.print(f"Taking in {len(paths)} documents from {base}; 4 jobs a document: intake, store, embed, triage")
    jobs: list[dict[str, Any]] = []
    for path in paths:
        text = path.read_text("utf-8", errors="replace")
        jobs.append((await client.intake(text, source=str(path.relative_to(base))))["job"])
    return jobs


async def waits(client: Client, agent: str) -> None:
    """Returns when the agent has asked for work."""

    async def seen() -> bool:
        return any(row["agent"] == agent for row in (await client.agents())["agents"])

    await until(f"the start of {agent}", seen)


async def kill_holding(client: Client, agent: subprocess.Popen[str], name: str) -> list[int]:
    """Kills an agent with SIGKILL once it holds leases, and says of which jobs."""

    async def held() -> list[int]:
        page = await client.jobs(state="running", agent=name, limit=100)
        return [job["id"] for job in page["jobs"]]

    ids = await until(f"waiting for {name} to hold a lease", held)
    agent.kill()
    agent.wait()
    console.print(f"Killed {name} with SIGKILL while it held job {', '.join(map(str, ids))}")
    return ids


async def finish_all(client: Client, intakes: int) -> list[dict[str, Any]]:
    """Shows progress until every job is final. Raises `DemoError` if one did not succeed."""
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console) as bar:
        task = bar.add_task("Jobs done", total=intakes)
        jobs: list[dict[str, Any]] = []

        async def done() -> bool:
            jobs[:] = [job async for job in client.all_jobs(limit=500)]
            final = sum(job["finished_at"] is not None for job in jobs)
            bar.update(task, total=len(jobs), completed=final)
            return final == len(jobs)

        await until("finishing all jobs", done)
    failed = [job for job in jobs if job["state"] != "succeeded"]
    if failed:
        first = failed[0]
        raise DemoError(
            f"{len(failed)} jobs did not succeed, first {first['id']} ({first['kind']}): {first['last_error']}"
        )
    return jobs


async def show(client: Client, jobs: list[dict[str, Any]]) -> None:
    """A table of the documents."""
    embedded = [job for job in jobs if job["kind"] == "embed"]
    vectors = {job["subject"]: (await client.result(job["id"]))["vector"] for job in embedded}
    triaged = {job["subject"]: job for job in jobs if job["kind"] == "triage"}
    sources: dict[str, str] = {}
    labels: dict[str, dict[str, str]] = {}
    for subject in vectors:
        found = await client.subject(subject)
        labels[subject] = found["labels"]["machine"]
        sources[subject] = ", ".join(found["document"]["sources"])
    table = Table("document", "topic", "grade", "nearest neighbour", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    table.columns[1].no_wrap = True
    for job in sorted(embedded, key=lambda job: sources[job["subject"]]):
        subject = job["subject"]
        others = [(similarity(vectors[subject], vectors[other]), other) for other in vectors if other != subject]
        near, other = max(others, default=(0.0, ""))
        grade = triaged[subject]["grade"]["grade"]
        color = {"ok": "green", "note": "blue", "warn": "yellow", "bad": "red"}[grade]
        table.add_row(
            sources[subject],
            f"{labels[subject].get('confidence', '')} {labels[subject].get('topic', '')}",
            f"[{color}]{grade}",
            f"{near:.2f} {sources[other]}" if other else "—",
        )
    console.print(table)


async def ask_through_mcp(environment: dict[str, str], data_dir: Path, job_id: int) -> None:
    """What an assistant does: asks over stdio for the jobs behind the documents."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "oaken_app.main", "mcp", "--data-dir", str(data_dir)],
        env=environment,
        cwd=str(ROOT),
    )
    async with McpClient(stdio_client(server)) as client:
        listed = await client.call_tool("list_jobs", {"kind": "embed", "limit": 3})
        status = await client.call_tool("status", {"job_id": job_id})
    for name, answer in (("list_jobs", listed), ("status", status)):
        if answer.is_error or answer.structured_content is None:
            raise DemoError(f"the MCP tool {name} answered with an error: {answer.content}")
    jobs = listed.structured_content["jobs"]
    job = status.structured_content["job"]
    console.print(
        f"MCP over stdio: list_jobs gave {', '.join(str(j['id']) for j in jobs)} …; status of {job_id}: {job['state']} "
        f"after {job['attempts']} attempt{'s' if job['attempts'] != 1 else ''}, by {job['agent']}"
    )


async def run(documents: Path | None, data_dir: Path) -> None:
    """The whole demo on an empty data folder. Raises `DemoError` unless everything finished."""
    paths = find_documents(documents)
    base = documents or ROOT
    environment = os.environ | {"OAKEN_DATA_DIR": str(data_dir)}
    for name in ("OAKEN_URL", "OAKEN_TOKEN", "OAKEN_CONFIG"):
        environment.pop(name, None)
    tokens = {
        name: oaken(environment, "token", "create", name, "--role", role)
        for name, role in (("you", "user"), ("embedder", "agent"), ("triager", "agent"))
    }
    with ExitStack() as children:
        log = children.enter_context((data_dir / "server.log").open("w"))
        server = children.enter_context(
            process(
                "the server",
                ["oaken_app.main", "serve", "--port", "0"],
                environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        )
        assert server.stdout is not None
        ready = server.stdout.readline().strip()
        if not ready.startswith("oaken ready on "):
            raise DemoError(f"the server did not start: {(data_dir / 'server.log').read_text().strip()}")
        url = ready.removeprefix("oaken ready on ")
        console.print(f"Server on {url}")

        def agent(module: str, name: str, instance: str, *more: str) -> subprocess.Popen[str]:
            arguments = [
                f"agents_examples.{module}",
                url,
                "--instance",
                instance,
                "--lease-seconds",
                str(LEASE_SECONDS),
                *more,
            ]
            return children.enter_context(
                process(f"{name}/{instance}", arguments, environment | {"OAKEN_TOKEN": tokens[name]}, stderr=log)
            )

        async with Client(url, tokens["you"]) as client:
            victim = agent("embed_agent", "embedder", "first", "--batch", "2")
            agent("triage_agent", "triager", "only")
            await waits(client, "embedder/first")
            agent("embed_agent", "embedder", "second", "--batch", "2")
            await waits(client, "embedder/second")
            # Frozen while it waits for work: it will be handed a lease and do nothing with it.
            victim.send_signal(signal.SIGSTOP)
            intakes = await take_in(client, paths, base)
            lost = await kill_holding(client, victim, "embedder/first")
            jobs = await finish_all(client, len(intakes))
            by_id = {job["id"]: job for job in jobs}
            for job_id in lost:
                if by_id[job_id]["agent"] != "embedder/second" or by_id[job_id]["lost"] != 1:
                    raise DemoError(f"job {job_id} of the killed agent was not finished by the other one")
            console.print(f"Job {', '.join(map(str, lost))} was finished by embedder/second after its lease ran out")
            await show(client, jobs)
            await ask_through_mcp(environment, data_dir, lost[0])
            serve = Path(sys.executable).parent / "oaken"
            console.print(
                f"All {len(jobs)} jobs succeeded. The server at {url} was stopped; `{serve} serve` starts one to keep."
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, help="a folder with documents (default: the project's own Markdown)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oaken-demo-") as folder:
        try:
            asyncio.run(run(options.docs.resolve() if options.docs else None, Path(folder)))
        except DemoError as error:
            console.print(f"[red]The demo did not finish: {error}")
            sys.exit(1)


if __name__ == "__main__":
    main()

"""The examples in docstrings and in docs/clients.md are programs that run against a real server and print what they say."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oaken_swarm import Client, JobContext, SyncClient, Worker
from tests.service import Service, eventually

DOCS = Path(__file__).parents[2] / "docs" / "clients.md"


def of_docstring(cls: type) -> str:
    """The example in the docstring of a class: what stands indented."""
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    found = [line for line in lines if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(found)).strip()


IN_DOCS = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
CALLS = {
    "Client": of_docstring(Client),
    "SyncClient": of_docstring(SyncClient),
    **{f"docs {number}": code for number, code in enumerate(IN_DOCS) if "Worker(" not in code},
}
WORKERS = {
    "Worker": "from oaken_swarm import Worker\n" + of_docstring(Worker),
    **{f"docs {number}": code for number, code in enumerate(IN_DOCS) if "Worker(" in code},
}


def test_there_are_examples() -> None:
    assert len(CALLS) == 5
    assert len(WORKERS) == 2


@pytest.fixture
async def shouter(server: Service) -> AsyncIterator[None]:
    """What does the `shout` jobs of examples."""
    worker = Worker(server.url, "shouter", await server.token("shouter", "agent"))

    @worker.handler("shout")
    async def shout(job: JobContext) -> dict[str, Any]:
        return {"text": job.payload["text"].upper()}

    task = asyncio.ensure_future(worker.run_async())
    yield
    await worker.stop()
    await task


async def run(code: str) -> str:
    """What a program says on standard output; `await` may stand on its first level."""
    said = io.StringIO()
    compiled = compile(code, "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"Client": Client, "SyncClient": SyncClient}
    with contextlib.redirect_stdout(said):
        if compiled.co_flags & inspect.CO_COROUTINE:
            await eval(compiled, names)
        else:
            await asyncio.to_thread(exec, compiled, names)
    return said.getvalue()


@pytest.mark.usefixtures("shouter")
@pytest.mark.parametrize("name", CALLS)
async def test_an_example_of_a_client_prints_what_it_says(
    server: Service, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await server.token("ann", "user")
    monkeypatch.setenv("OAKEN_URL", server.url)
    monkeypatch.setenv("OAKEN_TOKEN", token)
    if "follow" in CALLS[name]:
        await (await server.client("ann", "user")).enqueue("later", delay_seconds=60)
    expected = re.findall(r"print\(.*\)  # (.*)", CALLS[name])
    assert expected
    code = CALLS[name].replace("http://127.0.0.1:8787", server.url).replace("…", token)
    assert (await run(code)).splitlines() == expected


@pytest.mark.parametrize(
    ("name", "kind", "payload", "result"),
    [
        ("Worker", "embed", {"text": "a"}, {"model": "m-1", "vector": [0.1, 0.2]}),
        (next(name for name in WORKERS if name != "Worker"), "summarise", {"text": "a" * 30}, {"summary": "a" * 20}),
    ],
)
async def test_an_example_of_a_worker_does_its_jobs(
    server: Service, name: str, kind: str, payload: dict[str, Any], result: dict[str, Any]
) -> None:
    (agent,) = re.findall(r'agent="(\w+)"', WORKERS[name])
    token = await server.token(agent, "agent")
    code = WORKERS[name].replace("http://127.0.0.1:8787", server.url).replace("…", token)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OAKEN_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stderr=subprocess.PIPE,
        env={**clean, "OAKEN_URL": server.url, "OAKEN_TOKEN": token},
    )
    client = await server.client("ann", "user")
    job_id = (await client.enqueue(kind, payload))["job"]["id"]

    async def done() -> bool:
        assert process.returncode is None, await process.communicate()
        return (await client.job(job_id))["job"]["state"] == "succeeded"

    await eventually(done, 30)
    assert await client.result(job_id) == result
    process.terminate()
    await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0

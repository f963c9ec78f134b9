"""Tasks of a server that is killed: whoever holds one asks the next server, or another process on the folder, and is told what is."""

from __future__ import annotations

import subprocess
from pathlib import Path

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor
from tests.mcp.holder import over_http, over_stdio
from tests.processes import Processes


async def _token(folder: Path) -> str:
    core = Core.on_folder(folder, Rules(), "cli")
    await core.open()
    try:
        return (await core.tokens.create(Actor("user", "root", "cli"), "ann", ["user", "agent"]))[1]
    finally:
        await core.close()


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=20)


async def test_a_task_outlives_servers_that_are_killed_and_is_answered_by_another_process(processes: Processes) -> None:
    process, url = processes.serve()
    token = await _token(processes.folder)
    async with over_http(url, token) as ann:
        one = (await ann.begin(payload={"n": 1}))["taskId"]
        many = (await ann.begin(payloads=[{"n": 2}, {"n": 3}]))["taskId"]
        _kill(process)

    process, url = processes.serve()
    async with over_http(url, token) as ann, over_stdio(processes.folder, "--actor", "user:ann") as desk:
        for holder in (ann, desk):
            assert (await holder.get(one))["status"] == "working"
            assert (await holder.get(many))["statusMessage"].startswith("0 of 2 jobs ended")
        tool = desk.client.call_tool
        leases = (await tool("lease", {"kinds": ["work"], "max": 2})).structured_content["leases"]
        await tool("release", {"lease_id": leases[0]["lease_id"], "question": "Which?"})
        await tool("complete", {"lease_id": leases[1]["lease_id"], "result": {"ok": 2}})
        (key,) = (await ann.get(one))["inputRequests"]
        _kill(process)

    process, url = processes.serve()
    async with over_http(url, token) as ann, over_stdio(processes.folder, "--actor", "user:ann") as desk:
        assert list((await desk.get(one))["inputRequests"]) == [key]
        await ann.update(one, key, {"action": "accept", "content": {"answer": "this"}})
        tool = desk.client.call_tool
        leases = (await tool("lease", {"kinds": ["work"], "max": 2})).structured_content["leases"]
        (answers,) = [leased["answers"] for leased in leases if leased["job"]["id"] == 1]
        assert answers == [{"question": "Which?", "answer": "this"}]
        for leased in leases:
            await tool("complete", {"lease_id": leased["lease_id"], "result": {"ok": True}})
        _kill(process)

    _, url = processes.serve()
    async with (
        over_http(url, token) as ann,
        over_stdio(processes.folder, "--actor", "user:ann") as desk,
        over_stdio(processes.folder, "--actor", "agent:ann") as stranger,
    ):
        for holder in (ann, desk):
            done = await holder.get(one)
            assert (done["status"], done["result"]["structuredContent"]["job"]["result"]) == ("completed", {"ok": True})
            assert (await holder.get(many))["result"]["structuredContent"]["final"] is True
        assert (await stranger.refused("tasks/get", one))[0] == -32602

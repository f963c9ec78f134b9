from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.mcp.process import SECONDS, Peer, server
from tests.service import eventually


async def _discover(peer: Peer) -> None:
    answer = await peer.answer(peer.send("server/discover", peer.modern()))
    assert answer["result"]["supportedVersions"] == ["2026-07-28"]
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["capabilities"]["tools"] == {"listChanged": False}


async def _legacy_call(peer: Peer) -> None:
    assert (await peer.initialize())["serverInfo"]["name"] == "oaken"
    assert (await peer.call("status"))["agent"].startswith("tester/")


async def _modern_call(peer: Peer) -> None:
    answer = await peer.answer(peer.send("tools/call", peer.modern(name="status", arguments={})))
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["structuredContent"]["agent"].startswith("tester/")
    listed = await peer.answer(peer.send("tools/list", peer.modern()))
    assert len(listed["result"]["tools"]) == 12


@pytest.mark.parametrize(
    "order",
    [
        [_legacy_call],
        [_modern_call],
        [_discover, _legacy_call],
        [_discover, _modern_call, _discover],
        [_discover, _discover, _legacy_call],
    ],
    ids=lambda order: ",".join(step.__name__ for step in order),
)
async def test_a_client_may_begin_in_any_order(order: list[object], tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        for step in order:
            await step(peer)  # type: ignore[operator]
        assert await peer.end() == (0, "")


OAKEN_MCP = "import sys; sys.argv.insert(1, 'mcp'); from oaken_app.main import main; main()"


async def test_the_first_request_is_answered_soon_after_the_sdk_could_be_imported(tmp_path: Path) -> None:
    """A client waits for that at its own start. The best of three, in turns, since other tests run meanwhile."""
    imports: list[float] = []
    answers: list[float] = []
    for _ in range(3):
        begun = time.perf_counter()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import mcp.server")
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0
        imports.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        async with server(tmp_path, program=OAKEN_MCP) as peer:
            await peer.initialize()
            answers.append(time.perf_counter() - begun)
    assert min(answers) < 2 * min(imports)


async def test_a_discovery_of_another_version_is_refused_and_settles_nothing(tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        params = peer.modern()
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01"
        refusal = (await peer.answer(peer.send("server/discover", params)))["error"]
        assert (refusal["code"], refusal["data"]["supported"]) == (-32022, ["2026-07-28"])
        assert (await peer.answer(peer.send("server/discover", {})))["error"]["code"] == -32602
        await _legacy_call(peer)


async def test_nothing_but_the_protocol_is_on_stdout_whatever_prints(tmp_path: Path) -> None:
    noisy = (
        "import os, sys\n"
        "import oaken_mcp.wire as wire\n"
        "claim = wire.claim\n"
        "def claimed():\n"
        "    taken = claim()\n"
        "    print('printed'); os.write(1, b'written'); os.system('echo from a child')\n"
        "    return taken\n"
        "wire.claim = claimed\n"
        "from oaken_mcp.__main__ import main\n"
        "sys.exit(main())\n"
    )
    async with server(tmp_path, program=noisy) as peer:
        await _legacy_call(peer)
        assert await peer.end() == (0, "")
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in peer.lines)
        told = await peer.stderr()
        assert "printed" in told
        assert "from a child" in told


async def test_lines_that_are_no_messages_are_answered_and_harm_nothing(tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        await peer.initialize()
        assert peer.process.stdin is not None
        for line, code, request_id in (
            (b"not json\n", -32700, None),
            (b"\xff\xfe\n", -32700, None),
            (b"[" * 100_000 + b"\n", -32700, None),
            (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":1,"a":2}}\n', -32700, 7),
            (b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"a":"\\ud800"}}\n', -32700, 8),
            (b'{"jsonrpc":"2.0","id":9,"method":5}\n', -32600, 9),
            (b"[1]\n", -32600, None),
            (b"\n \n5\n", -32600, None),
        ):
            peer.process.stdin.write(line)
            assert (await peer.answer(request_id))["error"]["code"] == code, line
        refusal = await peer.answer(peer.send("tools/call", {"name": "status", "arguments": [1]}))
        assert refusal["error"]["code"] == -32602
        assert await peer.call("list_jobs") == {"jobs": []}


async def test_calls_that_were_read_are_answered_although_stdin_has_ended(tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        await peer.initialize()
        peer.send("tools/call", {"name": "enqueue", "arguments": {"kind": "work"}})
        peer.send("tools/call", {"name": "lease", "arguments": {"kinds": "other", "wait_seconds": 15}})
        code, rest = await peer.end()
        answers = [json.loads(line) for line in rest.splitlines()]
        assert code == 0
        assert [answer["id"] for answer in answers] == [2, 3]
        assert answers[0]["result"]["structuredContent"]["created"] is True
        assert answers[1]["error"]["message"] == "Connection closed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_at_once_even_while_a_call_waits(number: signal.Signals, tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        await peer.initialize()
        waiting = peer.send("tools/call", {"name": "lease", "arguments": {"wait_seconds": 15}})
        await peer.call("status")
        peer.process.send_signal(number)
        code, rest = await peer.ended()
        assert code == 0
        assert [json.loads(line)["id"] for line in rest.splitlines()] == [waiting]
        assert await peer.stderr() == ""


async def test_it_stops_although_the_client_does_not_read(tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        await peer.initialize()
        assert peer.process.stdin is not None
        await peer.call("enqueue", kind="work", payload={"text": "x" * 17_000})
        for _ in range(100):
            peer.send("tools/call", {"name": "status", "arguments": {"job_id": 1}})
        peer.process.send_signal(signal.SIGTERM)

        async def ended() -> bool:  # `wait` would wait for the rest of stdout, too
            return peer.process.returncode is not None

        await eventually(ended, 4)
        assert peer.process.returncode == 0


async def test_two_processes_on_one_folder_share_jobs_at_once(tmp_path: Path) -> None:
    async with server(tmp_path, name="Claude Code") as asker, server(tmp_path, name="worker") as worker:
        await asker.initialize()
        await worker.initialize()
        waiting = worker.send("tools/call", {"name": "lease", "arguments": {"kinds": "work", "wait_seconds": 15}})
        await worker.call("status")
        loop = asyncio.get_running_loop()
        began = loop.time()
        job = (await asker.call("enqueue", kind="work", payload="hello"))["job"]
        [lease] = (await worker.answer(waiting))["result"]["structuredContent"]["leases"]
        assert loop.time() - began < 1
        assert lease["job"]["payload"] == {"text": "hello"}
        assert job["actor"] == {"kind": "agent", "id": "Claude-Code", "via": "mcp"}
        result = asker.send("tools/call", {"name": "wait", "arguments": {"job_id": job["id"]}})
        await worker.call("complete", lease_id=lease["lease_id"], result={"ok": True})
        assert (await asker.answer(result))["result"]["structuredContent"]["job"]["result"] == {"ok": True}


async def test_two_processes_of_one_name_are_two_agents(tmp_path: Path) -> None:
    async with server(tmp_path) as one, server(tmp_path) as two:
        await one.initialize()
        await two.initialize()
        await one.call("enqueue", kind="work")
        [lease] = (await one.call("lease"))["leases"]
        assert len((await one.call("status"))["leases"]) == 1
        assert (await two.call("status"))["leases"] == []
        forged = lease["lease_id"][:-1] + ("0" if lease["lease_id"][-1] != "0" else "1")
        answer = await two.answer(two.send("tools/call", {"name": "complete", "arguments": {"lease_id": forged}}))
        assert answer["result"]["isError"]


async def test_a_job_of_a_killed_process_goes_to_another_when_its_lease_has_run_out(tmp_path: Path) -> None:
    async with server(tmp_path) as doomed, server(tmp_path) as other:
        await doomed.initialize()
        await other.initialize()
        await doomed.call("enqueue", kind="work")
        [lease] = (await doomed.call("lease", lease_seconds=1))["leases"]
        doomed.process.kill()
        [again] = (await other.call("lease", wait_seconds=15))["leases"]
        assert again["job"]["id"] == lease["job"]["id"]
        assert again["job"]["attempts"] == 2


async def test_a_job_that_is_leased_for_a_client_that_has_died_goes_back_at_once(tmp_path: Path) -> None:
    async with server(tmp_path) as doomed, server(tmp_path) as other:
        await doomed.initialize()
        await other.initialize()
        doomed.send("tools/call", {"name": "lease", "arguments": {"wait_seconds": 15}})
        await doomed.call("list_jobs")
        doomed.hang_up()
        await other.call("enqueue", kind="work")  # while it still waits for calls that were read
        assert await asyncio.wait_for(doomed.process.wait(), SECONDS) == 0
        [again] = (await other.call("lease"))["leases"]
        assert again["lease_id"].startswith("1-2-"), "nobody had it before"
        assert again["job"]["attempts"] == 1


async def test_the_actor_and_the_roles_can_be_named(tmp_path: Path) -> None:
    async with server(tmp_path, "--actor", "ada", "--role", "user") as peer:
        await peer.initialize()
        job = (await peer.call("enqueue", kind="work"))["job"]
        assert job["actor"] == {"kind": "user", "id": "ada", "via": "mcp"}
        assert job["priority"] == 100
        answer = await peer.answer(peer.send("tools/call", {"name": "lease", "arguments": {}}))
        assert "role agent" in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--role", "admin"], "may have the roles viewer, user, agent"),
        (["--actor", "system:x"], "give agent:NAME"),
        (["--actor", "agent:"], "give agent:NAME"),
    ],
)
async def test_a_wrong_option_is_one_line_on_stderr(options: list[str], told: str, tmp_path: Path) -> None:
    async with server(tmp_path, *options) as peer:
        assert await peer.ended(SECONDS) == (1, "")
        text = await peer.stderr()
        assert told in text
        assert text.count("\n") == 1


async def test_the_command_serves_as_the_module_does(tmp_path: Path) -> None:
    command = "import sys\nfrom oaken_app.main import main\nsys.argv[1:1] = ['mcp']\nmain()\n"
    async with server(tmp_path, "--actor", "agent:desk", program=command) as peer:
        await peer.initialize()
        assert (await peer.call("status"))["agent"].startswith("desk/")
        assert await peer.end() == (0, "")


async def test_a_payload_of_a_megabyte_comes_through_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        await peer.initialize()
        job = (await peer.call("enqueue", kind="work", payload={"text": "x" * 1_000_000}))["job"]
        part = await peer.call("status", job_id=job["id"], part="payload", offset=1_000_000)
        assert part["text"] == "x" * 9 + '"}'
        answer = await peer.answer(
            peer.send("tools/call", {"name": "enqueue", "arguments": {"kind": "work", "payload": "x" * 1_100_000}})
        )
        assert answer["result"]["isError"]
        assert "[jobs] max_payload_bytes" in answer["result"]["content"][0]["text"]

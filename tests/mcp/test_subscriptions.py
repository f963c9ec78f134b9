"""Clients are told of what changes: over stdio and HTTP, in both eras."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceUpdatedNotification

from oaken_jobs.core import Core
from oaken_jobs.model import Activity, Actor, Principal
from oaken_jobs.requests import NewJobRequest
from oaken_mcp import subscriptions
from oaken_mcp.http import PATH, Endpoint
from oaken_mcp.subscriptions import MAX_WATCHED, Topic, Watch
from tests.forks import command
from tests.mcp.door import WORKER
from tests.mcp.holder import EXTENSION, over_http
from tests.mcp.process import META, Peer, server
from tests.mcp.test_http import connected
from tests.mcp.test_resources import HOSTILE
from tests.service import ROOT, Service, eventually, serve

ANN = Principal(Actor("user", "ann", "http"), frozenset({"user"}))
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "PACE_SECONDS", 0.05)


async def enqueued(core: Core, who: Principal = ANN) -> tuple[int, str]:
    """A new job, and its address."""
    job_id = (await core.jobs.enqueue(who, NewJobRequest(kind="shout"))).job.id
    return job_id, f"oaken://jobs/{job_id}"


def listening(*uris: str, request_id: int | str = 7) -> dict[str, Any]:
    """A request for a stream."""
    meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
    params = {"notifications": {"resourceSubscriptions": list(uris), "toolsListChanged": True}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}


HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "subscriptions/listen",
}


class Stream:
    """The messages of an event stream."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.aiter_lines()

    async def message(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            async for line in self._lines:
                if line.startswith("data:"):
                    return json.loads(line.removeprefix("data:"))
        raise AssertionError("the stream ended")


@asynccontextmanager
async def stream(service: Service, *uris: str, name: str = "ann") -> AsyncIterator[Stream]:
    """A stream over HTTP, acknowledged."""
    http = await service.http(name)
    async with http.stream("POST", PATH, json=listening(*uris), headers=HEADERS, timeout=20) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        found = Stream(response)
        acknowledged = await found.message()
        assert acknowledged["method"] == ACKNOWLEDGED
        assert acknowledged["params"]["notifications"] == ({"resourceSubscriptions": list(uris)} if uris else {})
        assert acknowledged["params"]["_meta"] == {META + "subscriptionId": 7}
        yield found


def watches(core: Core) -> list[Watch]:
    """What is watched now."""
    return [listener.__self__ for listener in core.follower._listeners]  # type: ignore[attr-defined]


async def none_listens(core: Core) -> bool:
    return not watches(core)


async def test_a_stream_over_http_tells_of_each_change_of_a_job(service: Service) -> None:
    core = service.core
    job_id, uri = await enqueued(core)
    async with connected(service, await service.token("ann", "user"), "auto") as ann:
        assert ann.client.server_capabilities.resources.model_dump() == {"subscribe": True, "list_changed": False}
        async with ann.client.listen(resource_subscriptions=[uri]) as told:
            await enqueued(core)
            await core.jobs.edit(ANN, job_id, title="new")
            await core.jobs.cancel(ANN, job_id)
            assert await asyncio.wait_for(anext(told), 10) == ResourceUpdated(uri)
    await eventually(lambda: none_listens(core))


async def test_changes_by_another_process_are_told(service: Service, tmp_path: Path) -> None:
    job_id, uri = await enqueued(service.core)
    async with server(tmp_path / "data", "--role", "user") as peer, stream(service, uri) as told:
        await peer.initialize()
        await peer.call("cancel", job_id=job_id)
        message = await told.message()
        assert message["method"] == UPDATED
        assert message["params"] == {"uri": uri, "_meta": {META + "subscriptionId": 7}}


async def test_many_changes_are_told_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "PACE_SECONDS", 60)
    job_id, uri = await enqueued(service.core)
    async with stream(service, uri, "oaken://queues") as told:
        await service.core.jobs.edit(ANN, job_id, title="first")
        assert (await told.message())["params"]["uri"] == uri
        for number in range(50):
            await service.core.jobs.edit(ANN, job_id, title=f"title {number}")
        # What was not told yet comes with the end, once.
        [watch] = watches(service.core)

        async def heard() -> bool:
            return bool(watch._changed)

        await eventually(heard)
        await service.app._mounts["mcp"].stop()  # type: ignore[attr-defined]
        assert (await told.message())["params"]["uri"] == uri
        assert (await told.message())["result"]["_meta"][META + "subscriptionId"] == 7


async def test_queues_are_told_when_they_are_paused_and_when_their_counts_change(service: Service) -> None:
    core = service.core
    job_id, _ = await enqueued(core)
    async with stream(service, "oaken://queues", "oaken://kinds") as told:
        for change in (
            lambda: core.jobs.set_paused(ANN, "default", True),
            lambda: enqueued(core),
            lambda: core.jobs.cancel(ANN, job_id),
        ):
            await change()
            assert (await told.message())["params"]["uri"] == "oaken://queues"


@pytest.mark.parametrize("uri", HOSTILE)
async def test_what_means_nothing_is_refused_before_a_stream_begins(service: Service, uri: str) -> None:
    http = await service.http()
    answer = await http.post(PATH, json=listening("oaken://queues", uri), headers=HEADERS)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == -32602
    assert "There is no" in answer.json()["error"]["message"]
    assert await none_listens(service.core)


async def test_odd_filters_are_refused_or_give_a_stream_without_anything(service: Service) -> None:
    http = await service.http()
    for odd in (None, [], "x", 1, {"resourceSubscriptions": "oaken://queues"}, {"resourceSubscriptions": [1, None]}):
        request = listening()
        request["params"]["notifications"] = odd
        answer = await http.post(PATH, json=request, headers=HEADERS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602), odd
    many = [f"oaken://jobs/{number}" for number in range(1, MAX_WATCHED + 2)]
    answer = await http.post(PATH, json=listening(*many), headers=HEADERS)
    assert "more than the 100" in answer.json()["error"]["message"]
    async with stream(service):
        pass
    await eventually(lambda: none_listens(service.core))


async def test_a_job_of_another_workspace_cannot_be_watched_and_its_counts_are_not_told(service: Service) -> None:
    core = service.core
    _, uri = await enqueued(core)
    apart = Principal(Actor("user", "apart", "http"), frozenset({"user"}), workspace="apart")
    _, service.tokens["apart"] = await core.tokens.create(ROOT, "apart", ["user"], workspace="apart")
    http = await service.http("apart")
    answer = await http.post(PATH, json=listening(uri), headers=HEADERS)
    assert "There is no job" in answer.json()["error"]["message"]
    async with stream(service, "oaken://queues", name="apart") as told:
        [watch] = watches(service.core)
        await enqueued(core)
        _, own = await enqueued(core, apart)
        assert (await told.message())["params"]["uri"] == "oaken://queues"
        watch.heard([row for row in await core.store.activity(0, 100) if row.workspace == "default"])
        assert not watch._changed
        assert own


async def test_a_caller_has_a_bounded_number_of_streams(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_LISTENING", 1)
    async with stream(service, "oaken://queues"):
        http = await service.http()
        answer = await http.post(PATH, json=listening("oaken://queues"), headers=HEADERS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
        assert "1 streams open already" in answer.json()["error"]["message"]
        async with stream(service, "oaken://queues", name="bob"):
            pass


async def test_a_revoked_token_ends_its_stream_at_once(service: Service) -> None:
    async with stream(service, "oaken://queues", name="bob") as told, stream(service, "oaken://queues") as other:
        await service.core.tokens.revoke(ROOT, "bob")
        assert "result" in await told.message()
        await enqueued(service.core)
        assert (await other.message())["method"] == UPDATED


async def test_the_stop_of_a_server_ends_streams_at_once(core: Core) -> None:
    endpoint = Endpoint(core)
    service = await serve(core, mounts={"mcp": endpoint})
    async with connected(service, await service.token("ann", "user"), "auto") as ann:
        async with ann.client.listen(resource_subscriptions=["oaken://queues"]) as told:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await endpoint.stop()
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(anext(told), 10)
            await service.server.stop()
            assert loop.time() - began < 1.5
        assert await none_listens(core)
    await service.close()


async def test_a_client_that_does_not_read_holds_up_nobody(service: Service) -> None:
    core = service.core
    ids = [await enqueued(core) for _ in range(MAX_WATCHED)]
    uris = [uri for _, uri in ids]
    async with stream(service, *uris) as reader, stream(service, *uris, name="sleeper"):
        for number in range(5):
            for job_id, _ in ids:
                await core.jobs.edit(ANN, job_id, title=f"title {number}")
            left = set(uris)
            while left:
                left.discard((await reader.message())["params"]["uri"])
        for watch in watches(service.core):
            assert len(watch._changed) <= MAX_WATCHED
    await eventually(lambda: none_listens(core))


def test_a_listener_holds_one_mark_for_each_thing_however_much_happens() -> None:
    watch = Watch(None)

    async def notice(meta: object) -> Any:
        raise AssertionError

    for topic in (Topic("job", (1,), notice), Topic("task", (1, 3), notice), Topic("queues", (), notice)):
        watch.add(topic)
    row = Activity(1, 0, "job_progress", "progress", 1, None, "running", "running", 1, 1, 5, "user", "a", "http")
    watch.heard([row._replace(id=number) for number in range(10_000)])
    assert list(watch._changed) in (["job", "task"], ["task", "job"])
    watch.heard([row._replace(job_id=2, to_state="queued", event="job_state_changed")] * 10_000)
    assert len(watch._changed) == 3
    for name in ("job", "task", "queues", "nothing"):
        watch.remove(name)
    watch.heard([row])
    assert (len(watch), watch._changed, watch._jobs) == (0, {}, {})


@pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed")
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_the_sdks_own_client_is_told_over_stdio(tmp_path: Path, era: Any) -> None:
    updated: asyncio.Queue[str] = asyncio.Queue()

    async def heard(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            updated.put_nowait(message.params.uri)

    program, *arguments = command("oaken_mcp.__main__", "--data-dir", str(tmp_path))
    entry = StdioServerParameters(command=program, args=arguments, env={**os.environ})
    async with Client(entry, mode=era, message_handler=heard) as client:
        assert client.server_capabilities.resources.subscribe is True  # type: ignore[union-attr]
        await client.call_tool("enqueue", {"kind": "work"})
        if era == "legacy":
            await client.subscribe_resource("oaken://jobs/1")
            await client.call_tool("cancel", {"job_id": 1})
            assert await asyncio.wait_for(updated.get(), 10) == "oaken://jobs/1"
            await client.unsubscribe_resource("oaken://jobs/1")
        else:
            async with client.listen(resource_subscriptions=["oaken://jobs/1"]) as told:
                await client.call_tool("cancel", {"job_id": 1})
                assert await asyncio.wait_for(anext(told), 10) == ResourceUpdated("oaken://jobs/1")


async def notified(peer: Peer, method: str = UPDATED) -> dict[str, Any]:
    """The params of the next message without an id, which must be of this method."""
    assert peer.process.stdout is not None
    message = json.loads(await asyncio.wait_for(peer.process.stdout.readline(), 20))
    assert message.get("method") == method, message
    return message["params"]


async def test_a_session_of_the_earlier_era_subscribes_and_unsubscribes(tmp_path: Path) -> None:
    async with server(tmp_path) as asker, server(tmp_path) as worker:
        await asker.initialize()
        await worker.initialize()
        uri = "oaken://jobs/1"
        await asker.call("enqueue", kind="work")
        await asker.answer(asker.send("resources/subscribe", {"uri": uri}))
        [lease] = (await worker.call("lease"))["leases"]
        assert await notified(asker) == {"uri": uri}
        await worker.call("fail", lease_id=lease["lease_id"], error="e", permanent=True)
        assert await notified(asker) == {"uri": uri}
        await asker.answer(asker.send("resources/unsubscribe", {"uri": uri}))
        await worker.call("requeue", job_id=1)
        for method in ("resources/subscribe", "subscriptions/listen"):
            for odd in ("oaken://jobs/9", "x", "", "\x00"):
                params = {"uri": odd} if method == "resources/subscribe" else listening(odd)["params"]
                refusal = (await asker.answer(asker.send(method, params)))["error"]
                assert refusal["code"] == (-32602 if method == "resources/subscribe" else -32600)
        for odd in ("oaken://jobs/9", "x", ""):
            assert "result" in await asker.answer(asker.send("resources/unsubscribe", {"uri": odd}))
        await asker.answer(asker.send("resources/subscribe", {"uri": "oaken://queues"}))
        assert await asker.end() == (0, "")
        assert await asker.stderr() == ""


@pytest.mark.parametrize("signalled", [True, False], ids=["by a signal", "by the end of stdin"])
async def test_a_stream_over_stdio_tells_of_another_process_and_ends_with_the_stop(
    signalled: bool, tmp_path: Path
) -> None:
    async with server(tmp_path) as asker, server(tmp_path) as worker:
        await worker.initialize()
        await worker.call("enqueue", kind="work")
        listen = listening("oaken://jobs/1", "oaken://queues")
        asked = asker.send("subscriptions/listen", listen["params"])
        meta = {META + "subscriptionId": asked}
        assert (await notified(asker, ACKNOWLEDGED))["_meta"] == meta
        [lease] = (await worker.call("lease"))["leases"]
        told = [await notified(asker), await notified(asker)]
        assert sorted(one["uri"] for one in told) == ["oaken://jobs/1", "oaken://queues"]
        assert all(one["_meta"] == meta for one in told)
        assert lease
        loop = asyncio.get_running_loop()
        began = loop.time()
        if signalled:
            asker.process.terminate()
        code, rest = await (asker.ended() if signalled else asker.end())
        assert code == 0
        [last] = [json.loads(line) for line in rest.splitlines()]
        assert (last["id"], last["result"]["_meta"][META + "subscriptionId"]) == (asked, asked)
        assert loop.time() - began < 1.5
        assert await asker.stderr() == ""


async def test_a_stream_over_stdio_is_cancelled_by_its_client(tmp_path: Path) -> None:
    async with server(tmp_path) as peer:
        asked = peer.send("subscriptions/listen", listening("oaken://queues")["params"])
        await notified(peer, ACKNOWLEDGED)
        peer.write({"method": "notifications/cancelled", "params": {"requestId": asked}})
        call = peer.modern(name="enqueue", arguments={"kind": "work"})
        assert "result" in await peer.answer(peer.send("tools/call", call))
        assert await peer.end() == (0, "")


@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
async def test_over_http_the_earlier_era_is_not_told_that_it_could_subscribe(service: Service) -> None:
    async with connected(service, await service.token("ann", "user"), "legacy") as ann:
        assert ann.client.server_capabilities.resources.model_dump() == {"subscribe": False, "list_changed": False}
        with pytest.raises(MCPError) as told:
            await ann.client.subscribe_resource("oaken://queues")
        assert told.value.code == -32601


# Tasks.


def listening_to(*task_ids: object, declared: bool = True, **more: Any) -> dict[str, Any]:
    """A request for a stream about tasks."""
    request = listening()
    request["params"]["notifications"] = {"taskIds": list(task_ids), **more}
    if declared:
        request["params"]["_meta"][META + "clientCapabilities"] = {"extensions": {EXTENSION: {}}}
    return request


async def test_a_task_is_told_whole_at_once_and_at_each_change(service: Service) -> None:
    uri = "oaken://jobs/1"
    async with over_http(service.url, await service.token("ann", "user", "agent")) as ann:
        task = await ann.begin(payloads=[{}, {}])
        http = await service.http()
        request = listening_to(task["taskId"], resourceSubscriptions=[uri])
        async with http.stream("POST", PATH, json=request, headers=HEADERS, timeout=20) as response:
            told = Stream(response)
            acknowledged = (await told.message())["params"]["notifications"]
            assert acknowledged == {"resourceSubscriptions": [uri], "taskIds": [task["taskId"]]}
            first = await told.message()
            assert (first["method"], first["params"]["status"]) == ("notifications/tasks", "working")
            assert first["params"]["_meta"] == {META + "subscriptionId": 7}
            for _ in range(2):
                (lease,) = await service.core.jobs.lease(WORKER)
                await service.core.jobs.complete(WORKER, lease.lease_id, {"n": 1})
            last: dict[str, Any] = {}
            uris: list[str] = []
            while last.get("status") != "completed" or not uris:
                message = await told.message()
                if message["method"] == "notifications/tasks":
                    last = message["params"]
                else:
                    uris.append(message["params"]["uri"])
            assert set(uris) == {uri}
        del last["_meta"]
        assert last == await ann.get(task["taskId"])


async def test_a_task_is_told_over_stdio_also_when_another_process_ends_it(core: Core, tmp_path: Path) -> None:
    async with server(tmp_path / "data", name="ann") as peer:
        params = peer.modern(name="enqueue", arguments={"kind": "work", "wait": 5})
        params["_meta"][META + "clientCapabilities"] = {"extensions": {EXTENSION: {}}}
        task = (await peer.answer(peer.send("tools/call", params)))["result"]
        assert task["resultType"] == "task"
        peer.send("subscriptions/listen", {**params, "notifications": {"taskIds": [task["taskId"]]}})
        assert (await notified(peer, ACKNOWLEDGED))["notifications"] == {"taskIds": [task["taskId"]]}
        assert (await notified(peer, "notifications/tasks"))["status"] == "working"
        (lease,) = await core.jobs.lease(WORKER)
        await core.jobs.complete(WORKER, lease.lease_id, {"n": 1})
        while (told := await notified(peer, "notifications/tasks"))["status"] != "completed":
            pass
        assert told["result"]["structuredContent"]["job"]["result"] == {"n": 1}


async def test_only_ones_own_tasks_can_be_listened_to_by_clients_that_take_them(service: Service) -> None:
    async with over_http(service.url, await service.token("ann", "user", "agent")) as ann:
        task_id = (await ann.begin())["taskId"]
    other, http = await service.http("eve", "user"), await service.http()
    for of, request, code in (
        (other, listening_to(task_id), -32602),
        (http, listening_to("x" * 32), -32602),
        (http, listening_to(7), -32602),
        (http, listening_to(*(f"{n}" for n in range(101))), -32602),
        (http, listening_to(task_id, declared=False), -32021),
    ):
        answer = await of.post(PATH, json=request, headers=HEADERS)
        assert answer.json()["error"]["code"] == code, answer.text

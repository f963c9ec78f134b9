"""Bodies: their type, their size, what JSON may hold, and that text comes back byte for byte."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_swarm import ResultInvalid, TooLarge
from tests.service import RULES, Service, problem, serve

MIB = 1 << 20


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON",
        'application/json; charset="utf-8"',
    ],
)
async def test_json_is_read_whatever_the_spelling_of_its_type(server: Service, media_type: str) -> None:
    http = await server.http()
    response = await http.post("/v1/jobs", content=b'{"kind":"echo"}', headers={"Content-Type": media_type})
    assert response.status_code == 201


@pytest.mark.parametrize(
    "media_type",
    [
        None,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "application/jsonp",
        "application/problem+json",
        "application/json, text/plain",
        "x" * 5000,
    ],
)
async def test_a_body_of_another_type_or_none_is_415(server: Service, media_type: str | None) -> None:
    http = await server.http()
    headers = {"Content-Type": media_type} if media_type is not None else {}
    response = await http.post("/v1/jobs", content=b'{"kind":"echo"}', headers=headers)
    told = problem(response, 415, "unsupported_media_type")
    assert "Content-Type: application/json" in told["detail"]
    assert len(told["detail"]) < 300


async def test_a_compressed_body_is_415(server: Service) -> None:
    http = await server.http()
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    problem(await http.post("/v1/jobs", content=b"{}", headers=headers), 415, "unsupported_media_type")


async def test_a_call_that_needs_no_field_needs_no_body(server: Service) -> None:
    http = await server.http()
    assert (await http.post("/v1/leases")).json() == {"leases": []}
    assert (await http.post("/v1/queues/default/pause")).status_code == 200
    assert (await http.post("/v1/queues/default/resume", headers={"Content-Type": "text/plain"})).status_code == 200
    assert "kind: is required" in problem(await http.post("/v1/jobs"), 422, "invalid_request")["detail"]


async def test_a_body_may_come_in_pieces(server: Service) -> None:
    http = await server.http()

    async def pieces() -> Any:
        for byte in b'{"kind":"echo","payload":{"a":"b"}}':
            yield bytes([byte])
            await asyncio.sleep(0)

    response = await http.post("/v1/jobs", content=pieces(), headers={"Content-Type": "application/json"})
    assert response.status_code == 201, response.text


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "line 1, column 2"),
        (b"nonsense", "Not JSON"),
        (b"   ", "empty"),
        (b'{"kind":"echo"} x', "Not JSON"),
        (b'\xef\xbb\xbf{"kind":"echo"}', "byte order mark"),
        (b'{"kind":"ec\xffho"}', "not UTF-8"),
        (b'{"kind":"echo","payload":{"a":NaN}}', "NaN or an infinite number at /payload/a"),
        (b'{"kind":"echo","payload":{"a":-Infinity}}', "NaN or an infinite number at /payload/a"),
        (b'{"kind":"echo","payload":{"a":1e999}}', "NaN or an infinite number at /payload/a"),
        (b'{"kind":"echo","payload":{"a":18446744073709551616}}', "an integer beyond 64 bits at /payload/a"),
        (b'{"kind":"echo","payload":{"a":' + b"9" * 5000 + b"}}", "an integer beyond 64 bits at /payload/a"),
        (b'{"kind":"echo","payload":{"a":"\\ud800"}}', "a lone surrogate at /payload/a"),
        (b'{"kind":"echo","payload":{"\\udc00":1}}', "a lone surrogate in the key"),
        (b'{"kind":"echo","payload":{"a":1,"a":2}}', "the key 'a' twice in the object at /payload"),
        (b'{"kind":"echo","kind":"echo"}', "the key 'kind' twice"),
        (b'{"kind":"echo","payload":{"a":' + b"[" * 99 + b"]" * 99 + b"}}", "nesting deeper than 100 levels"),
        (b"[" * 100_000, "nesting deeper than 100 levels"),
        (b'{"a":' * 100_000, "nesting deeper than 100 levels"),
    ],
)
async def test_what_json_readers_cannot_keep_is_refused_with_its_place(server: Service, body: bytes, told: str) -> None:
    http = await server.http()
    for path in ("/v1/jobs", "/v1/leases", "/v1/leases/x/complete", "/v1/intake", "/v1/subjects/x/labels"):
        method = "PUT" if path.endswith("labels") else "POST"
        response = await http.request(method, path, content=body, headers={"Content-Type": "application/json"})
        assert told in problem(response, 400, "bad_json")["detail"]


TEXTS = [
    "plain",
    "emoji 👩‍👩‍👧‍👦 🏴‍☠️ 🇩🇪 and e\u0301 é",
    "שלום \u202eמימין\u202c العربية",
    "NUL \u0000 and \u0001\u001f\u007f\u0080\u2028\u2029\ufeff\ufffe\uffff",
    'quotes " \\ / \b\f\n\r\t',
    "𝕿 \U0010ffff",
    "' ; drop table jobs; --",
    "%00 %s {} ${x} <script>",
    "",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_text_comes_back_byte_for_byte(server: Service, text: str) -> None:
    client, http = await server.client(), await server.http()
    value = {"text": text, text[:50]: [text, {"n": [1, -1, 2**64 - 1, -(2**63), 1.5, 1e-300, True, None]}]}
    job_id = (await client.enqueue("echo", value))["job"]["id"]
    [lease] = (await client.lease())["leases"]
    assert lease["job"]["payload"] == value
    await client.complete(lease["lease_id"], {"back": lease["job"]["payload"]})
    job = (await client.job(job_id))["job"]
    assert job["payload"] == value
    assert job["result"] == {"back": value}
    raw = (await http.get(f"/v1/jobs/{job_id}/result")).content
    assert raw == orjson.dumps({"back": value})


def payload_of(size: int) -> dict[str, str]:
    """A payload whose compact JSON is exactly `size` bytes."""
    return {"t": "x" * (size - len('{"t":""}'))}


async def test_a_payload_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(server: Service) -> None:
    client = await server.client()
    job_id = (await client.enqueue("echo", payload_of(MIB)))["job"]["id"]
    assert (await client.job(job_id))["job"]["payload"] == payload_of(MIB)
    with pytest.raises(TooLarge) as caught:
        await client.enqueue("echo", payload_of(MIB + 1))
    assert caught.value.details == {"limit": MIB, "actual": MIB + 1, "setting": "[jobs] max_payload_bytes"}
    assert f"{MIB + 1} bytes" in caught.value.message


async def test_the_limit_counts_compact_json_however_it_was_written(server: Service) -> None:
    http = await server.http()
    text = "ж" * (MIB // 2 - 10)
    body = b'{"kind": "echo", "payload": {"t": "' + text.encode("unicode_escape").replace(b"\\u", b"\\u") + b'"}}'
    assert len(body) > 2.9 * MIB
    response = await http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 201, response.text


async def test_a_result_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(server: Service) -> None:
    client = await server.client()
    await client.enqueue("echo")
    lease_id = (await client.lease())["leases"][0]["lease_id"]
    with pytest.raises((TooLarge, ResultInvalid)) as caught:
        await client.complete(lease_id, payload_of(MIB + 1))
    assert caught.value.details["setting"] == "[jobs] max_result_bytes"
    assert (await client.complete(lease_id, payload_of(MIB)))["job"]["state"] == "succeeded"


async def test_a_body_far_too_large_is_413_before_it_is_read(server: Service) -> None:
    http = await server.http()
    headers = {"Content-Type": "application/json"}
    for path, size in (
        ("/v1/jobs", 17),
        ("/v1/leases", 2),
        ("/v1/leases/x/complete", 5),
        ("/v1/intake", 5),
        ("/v1/leases/batch", 17),
    ):
        response = await http.post(path, content=b" " * (size * MIB), headers=headers)
        told = problem(response, 413, "too_large")
        assert told["limit"] < told["actual"]
        assert str(told["limit"]) in told["detail"]
    assert (await http.get("/v1/me")).status_code == 200


async def test_an_endless_body_is_cut_off(server: Service) -> None:
    token = await server.token("ann", "user")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/intake HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b"x" * MIB + b"\r\n"
    sent = 0
    try:
        while sent < 200 and not reader.at_eof():
            writer.write(chunk)
            await asyncio.wait_for(writer.drain(), 5)
            sent += 1
    except ConnectionError:
        pass
    assert sent < 100
    writer.close()


async def test_a_client_that_leaves_in_the_middle_of_a_body_adds_nothing(server: Service) -> None:
    token = await server.token("ann", "user")
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b'Content-Length: 100\r\n\r\n{"kind":"echo"')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await (await server.client()).jobs())["jobs"] == []


async def test_configured_limits_are_the_ones_that_count(core: Core, tmp_path: Any) -> None:
    rules = Rules(kinds=RULES.kinds, queues=RULES.queues, max_payload_bytes=20)
    small = Core.on_folder(tmp_path / "small", rules, "serve")
    await small.open()
    service = await serve(small)
    client = await service.client()
    await client.enqueue("echo", payload_of(20))
    with pytest.raises(TooLarge, match="21 bytes of JSON; at most 20"):
        await client.enqueue("echo", payload_of(21))
    await service.close()
    await small.close()


def bombs() -> dict[str, bytes]:
    """Bodies of many megabytes that take far longer to read than others of their size."""
    deep = b"[" + b",".join([b"[" * 95 + b"]" * 95] * 20_000) + b"]"
    return {
        "deep": b'{"kind":"k","payload":{"x":' + deep + b"}}",
        "deep bulk": b'{"jobs":[{"kind":"k","payload":{"x":' + deep * 3 + b"}}]}",
        "objects": b'{"kind":"k","payload":{"c":"\\u003a","x":[' + b"{}," * 1_300_000 + b"0]}}",
        "integers": b'{"kind":"k","payload":{"c":"\\u003a","x":[' + b"1," * 2_000_000 + b"0]}}",
        "twice": b'{"kind":"k","payload":{' + b",".join(b'"%d":1' % (n % 300_000) for n in range(310_000)) + b"}}",
    }


@pytest.mark.parametrize("name", [*bombs()])
async def test_other_calls_are_answered_while_a_large_body_is_read(server: Service, name: str) -> None:
    http, other = await server.http(), await server.http("eve", "viewer")
    assert (await other.get("/v1/me")).status_code == 200
    headers = {"Content-Type": "application/json"}
    large = asyncio.ensure_future(http.post("/v1/jobs", content=bombs()[name], headers=headers, timeout=60))
    answered = 0
    while not large.done():
        assert (await other.get("/v1/me")).status_code == 200
        answered += 1
    assert answered > 2
    assert (await large).status_code in (400, 413)


async def test_one_job_may_not_have_a_body_of_the_size_for_many(server: Service) -> None:
    http = await server.http()
    headers = {"Content-Type": "application/json"}
    job = b'{"kind":"echo","payload":{"t":"' + b"x" * (5 * MIB) + b'"}}'
    for body in (job, b" " * (5 * MIB) + b"{}", b'{"title":"jobs","jobs":[' + job + b"]}"):
        told = problem(await http.post("/v1/jobs", content=body, headers=headers), 413, "too_large")
        assert (told["setting"], told["limit"]) == ("[jobs] max_payload_bytes", 4 * MIB)
    small = b'{"kind":"echo","payload":{"t":"' + b"x" * (MIB // 2) + b'"}}'
    for begin in (b'{"jobs":[', b' \n{ "jobs" : ['):
        response = await http.post("/v1/jobs", content=begin + b",".join([small] * 10) + b"]}", headers=headers)
        assert [one["created"] for one in response.json()["jobs"]] == [True] * 10


async def test_a_body_of_too_many_objects_is_refused_before_it_is_parsed(server: Service) -> None:
    http = await server.http()
    headers = {"Content-Type": "application/json"}
    body = b'{"jobs":[' + b"{}," * (1 << 20) + b"{}]}"
    told = problem(await http.post("/v1/jobs", content=body, headers=headers), 413, "too_large")
    assert told["actual"] == (1 << 20) + 3
    text = b'{"jobs":[{"kind":"echo","payload":{"t":"' + b"[{" * (MIB // 2 - 100) + b'"}},'
    response = await http.post("/v1/jobs", content=text + text[9:] + text[9:-1] + b"]}", headers=headers)
    assert [one["created"] for one in response.json()["jobs"]] == [True] * 3  # brackets in texts are none

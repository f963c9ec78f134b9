"""The door itself: Host, Origin, tokens, methods, paths, and errors that say nothing of the inside."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from oaken_jobs.config import ServerSettings
from oaken_jobs.core import Core
from oaken_swarm.call import Answer, Call
from oaken_swarm.guard import Guard
from tests.service import Service, plain, problem, serve


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "LOCALHOST:1", "127.0.0.1:65535", "[::1]", "[::1]:80", "localhost."]
)
async def test_loopback_names_are_taken_with_any_port(server: Service, host: str) -> None:
    http = await server.http()
    assert (await http.get("/v1/me", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "a@localhost", "localhost:x", "10.0.0.1", "::1"],
)
async def test_other_hosts_are_misdirected(server: Service, host: str) -> None:
    http = await server.http()
    for path in ("/v1/me", "/healthz", "/nothing"):
        told = problem(await http.get(path, headers={"Host": host}), 421, "misdirected")
        assert told["setting"] == "[server] allowed_hosts"


async def test_space_around_the_value_of_a_header_is_no_part_of_it(server: Service) -> None:
    status, body = await server.raw(b"GET /healthz HTTP/1.1\r\nHost: \t localhost \t\r\n\r\n")
    assert status == 200, body


async def test_a_request_without_host_or_with_two_is_misdirected(server: Service) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
        status, body = await server.raw(b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\n")
        assert status == 421, body


def test_the_configured_host_and_allowed_ones_are_taken() -> None:
    guard = Guard("oaken.lan", ["jobs.example:443", "2001:db8::1", "UPPER.example"], [])
    for host in (b"oaken.lan:8787", b"jobs.example", b"[2001:db8::1]:8787", b"upper.example", b"Jobs.Example:1"):
        guard.check([host], None)


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://localhost:1", "https://127.0.0.1", "", "file://"]
)
async def test_foreign_origins_are_refused(server: Service, origin: str) -> None:
    http = await server.http()
    told = problem(await http.get("/v1/me", headers={"Origin": origin}), 403, "forbidden")
    assert told["setting"] == "[server] allowed_origins"


async def test_the_own_origin_is_taken(server: Service) -> None:
    http = await server.http()
    assert (await http.get("/v1/me", headers={"Origin": server.url})).status_code == 200


async def test_allowed_origins_are_taken(core: Core) -> None:
    settings = ServerSettings(host="127.0.0.1", port=0, allowed_origins=["https://ui.example"])
    service = await serve(core, settings)
    http = await service.http()
    assert (await http.get("/v1/me", headers={"Origin": "https://ui.example"})).status_code == 200
    assert (await http.get("/v1/me", headers={"Origin": "https://ui.example.evil"})).status_code == 403
    await service.close()


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", "Basic YTpi", "bearer oak_", "Bearer é", "Token x", "Bearer " + "x" * 5000],
)
async def test_a_call_without_a_good_token_is_401_and_says_how(server: Service, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    async with plain(base_url=server.url) as http:
        for method, path in (
            ("GET", "/v1/jobs"),
            ("POST", "/v1/jobs"),
            ("GET", "/v1/me"),
            ("POST", "/v1/leases"),
            ("DELETE", "/v1/tokens/x"),
        ):
            response = await http.request(method, path, headers=headers)
            problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"


async def test_the_scheme_of_a_token_is_taken_in_any_case(server: Service) -> None:
    token = await server.token("ann", "user")
    async with plain(base_url=server.url) as http:
        assert (await http.get("/v1/me", headers={"Authorization": f"bEARER  {token}"})).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/jobs/",
        "/v1//jobs",
        "/v2/jobs",
        "/v1/jobs/1/nothing",
        "/v1/jobs/1/result/x",
        "/v1/leases/x",
        "/favicon.ico",
        "/v1/%6Aobs",
        "/" + "a" * 3000,
    ],
)
async def test_unknown_paths_are_404(server: Service, path: str) -> None:
    http = await server.http()
    told = problem(await http.get(path), 404, "not_found")
    assert len(told["detail"]) < 400


@pytest.mark.parametrize(
    "job_id",
    [
        "0",
        "-1",
        "1.0",
        "1e3",
        "abc",
        "%31%00",
        "99999999999999999999",
        "9007199254740993",
        "١",
        "1%2F..%2F2",
        "%2E%2E",
        "%FF",
        "0x1",
        "+1",
    ],
)
async def test_an_id_that_cannot_be_one_is_404(server: Service, job_id: str) -> None:
    http = await server.http()
    for method, tail in (("GET", ""), ("GET", "/result"), ("GET", "/wait"), ("POST", "/cancel"), ("POST", "/requeue")):
        problem(await http.request(method, f"/v1/jobs/{job_id}{tail}"), 404, "not_found")


async def test_dots_in_a_path_lead_nowhere(server: Service) -> None:
    token = (await server.token("root", "admin")).encode()
    for path in (b"/v1/jobs/../tokens", b"/v1/./jobs", b"/../etc/passwd", b"/v1/jobs/..;/tokens"):
        status, _ = await server.raw(
            b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
        )
        assert status == 404, path


@pytest.mark.parametrize(
    "request_line",
    [b"GET /v1/jobs/\xff\xfe HTTP/1.1", b"GET http://[ HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"x", b"GET  HTTP/1.1"],
)
async def test_what_is_not_http_is_refused(server: Service, request_line: bytes) -> None:
    status, _ = await server.raw(request_line + b"\r\nHost: localhost\r\n\r\n")
    assert 400 <= status < 500


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/jobs", "GET, HEAD, OPTIONS, POST"),
        ("PUT", "/v1/jobs/1", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("GET", "/v1/jobs/1/cancel", "OPTIONS, POST"),
        ("GET", "/v1/leases", "OPTIONS, POST"),
        ("POST", "/v1/subjects/x/labels", "OPTIONS, PUT"),
        ("GET", "/v1/tokens/x", "DELETE, OPTIONS"),
        ("PATCH", "/healthz", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1/me", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_405_with_the_right_ones(server: Service, method: str, path: str, allow: str) -> None:
    if method == "BREW":  # the parser knows the methods there are
        status, _ = await server.raw(b"BREW /v1/me HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status in (400, 405)
        return
    http = await server.http()
    response = await http.request(method, path)
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == allow


async def test_head_is_get_without_a_body(server: Service) -> None:
    http = await server.http()
    get, head = await http.get("/v1/me"), await http.head("/v1/me")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


async def test_options_says_what_is_possible_and_allows_no_foreign_page(server: Service) -> None:
    http = await server.http()
    response = await http.options("/v1/jobs")
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize("key", ["", "x" * 201, "caf\u00e9"])
async def test_an_idempotency_key_that_is_none_is_refused(server: Service, key: str) -> None:
    http = await server.http()
    response = await http.post("/v1/jobs", json={"kind": "echo"}, headers={"Idempotency-Key": key.encode("latin-1")})
    assert "Idempotency-Key" in problem(response, 422, "invalid_request")["detail"]


async def test_a_fault_inside_is_a_500_without_a_word_of_it(
    server: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    http = await server.http()

    async def broken(who: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(server.core.jobs, "agents", broken)
    with caplog.at_level(logging.ERROR):
        response = await http.get("/v1/agents")
    problem(response, 500, "internal")
    assert "secret" not in response.text
    assert "the secret inside" in caplog.text
    assert (await http.get("/v1/me")).status_code == 200


async def test_nothing_is_logged_of_ordinary_calls(server: Service, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        client = await server.client()
        await client.enqueue("echo")
        await client.complete((await client.lease())["leases"][0]["lease_id"])
        await client.jobs(q="private")
    assert [record.name for record in caplog.records if not record.name.startswith("httpx")] == []


async def test_another_application_can_be_mounted_behind_the_same_checks(core: Core) -> None:
    async def other(call: Call, scope: Any, raw: bytes, send: object) -> Answer:
        assert (call.who.actor.id, call.who.actor.via) == ("ann", "other")
        return Answer(b"hi " + raw, media_type=b"text/plain")

    service = await serve(core, mounts={"other": other})
    http = await service.http()
    for path in ("/other", "/other/deep?x=1"):
        assert (await http.get(path)).text == "hi "
    assert (await http.post("/other", json=[1])).text == "hi [1]"
    problem(
        await http.post("/other", content=b"[1]", headers={"Content-Type": "text/csv"}), 415, "unsupported_media_type"
    )
    problem(
        await http.post("/other", content=b"[" * (3 << 20), headers={"Content-Type": "application/json"}),
        413,
        "too_large",
    )
    problem(
        await http.post("/other", content=b" " * (17 << 20), headers={"Content-Type": "application/json"}),
        413,
        "too_large",
    )
    counted = (await http.get("/metrics")).text
    assert 'oaken_requests_total{method="POST",route="/other",status="200"} 1.0' in counted
    problem(await http.get("/other", headers={"Authorization": "Bearer wrong"}), 401, "unauthenticated")
    problem(await http.get("/others"), 404, "not_found")
    problem(await http.get("/other", headers={"Host": "evil.example"}), 421, "misdirected")
    problem(await http.get("/other", headers={"Origin": "null"}), 403, "forbidden")
    await service.close()

"""Files as they are at `POST /v1/intake`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_swarm import InvalidRequest, SyncClient, TooLarge, openapi
from oaken_swarm.routes import ROUTES
from tests.service import RULES, Service, problem, serve

NOTES = "# Nötes\n\nA text 🌳 to keep.\n"


async def sent(http: httpx2.AsyncClient, content: bytes, media_type: str | None, **more: Any) -> httpx2.Response:
    headers = {**({} if media_type is None else {"Content-Type": media_type}), **more.pop("headers", {})}
    return await http.post("/v1/intake", content=content, headers=headers, **more)


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "text/markdown",
        "text/markdown; charset=utf-8",
        'Text/Plain ;charset="UTF-8"',
        "text/markdown; variant=GFM; charset=utf-8",
        'text/plain; format=flowed; delsp="yes"',
    ],
)
async def test_a_file_becomes_the_job_that_the_same_text_in_json_would(server: Service, media_type: str) -> None:
    http, client = await server.http(), await server.client()
    query = {"title": "T", "source": "a b/ö.md", "workspace": "side"}
    told = await sent(http, NOTES.encode(), media_type, params=query)
    assert told.status_code == 201
    job = (await client.job(told.json()["job"]["id"]))["job"]
    assert job["payload"] == {"text": NOTES, "title": "T", "source": "a b/ö.md"}
    assert (job["kind"], job["title"], job["workspace"]) == ("intake", "T", "side")


@pytest.mark.parametrize(
    "media_type",
    [
        None,
        "text/html",
        "text/plain; charset=latin-1",
        "text/markdown; charset=utf-16",
        "text/markdown; variant=GFM; charset=utf-16",
        "text/plain; charset=utf-8; charset=latin-1",
        "text/plain, application/json",
        "application/pdf",
        "application/x-www-form-urlencoded",
    ],
)
async def test_another_type_is_refused_with_those_that_are_taken(server: Service, media_type: str | None) -> None:
    told = problem(
        await sent(await server.http(), b"x", media_type, params={"source": "s"}), 415, "unsupported_media_type"
    )
    for taken in ("application/json", "text/plain", "text/markdown", "UTF-8"):
        assert taken in told["detail"]


async def test_a_text_without_a_mark_is_refused_before_a_job_is_made_of_it(server: Service) -> None:
    http = await server.http()
    for told in (await sent(http, b" \n\t ", "text/plain"), await http.post("/v1/intake", json={"text": "\u2003 "})):
        assert "nothing but white space" in problem(told, 422, "invalid_request")["detail"]


async def test_other_routes_take_no_text(server: Service) -> None:
    http = await server.http()
    told = problem(
        await http.post("/v1/jobs", content=b"x", headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type"
    )
    assert "markdown" not in told["detail"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The body is empty"),
        (b"abc\xff", "not UTF-8: byte 3 "),
        ("ab".encode("utf-16"), "not UTF-8: byte 0 "),
        (b"ab\xed\xa0\x80", "not UTF-8: byte 2 "),
        ("ö\0".encode(), "a NUL at byte 2"),
    ],
)
async def test_what_is_no_text_is_refused_with_its_place_and_adds_nothing(
    server: Service, content: bytes, said: str
) -> None:
    told = problem(await sent(await server.http(), content, "text/plain"), 422, "invalid_request")
    assert said in told["detail"]
    assert (await (await server.client()).jobs())["jobs"] == []


async def test_a_query_is_read_as_strictly_as_a_body(server: Service) -> None:
    http = await server.http()
    for query, said in (
        ("sorce=x", "sorce: unknown field; did you mean source?"),
        ("text=x", "text: is the body itself"),
        ("source=a&source=b", "source: must be text"),
        ("workspace=UP", "workspace: must match"),
        ("title=%FF", "not UTF-8"),
    ):
        told = problem(
            await http.post(f"/v1/intake?{query}", content=b"x", headers={"Content-Type": "text/plain"}),
            422,
            "invalid_request",
        )
        assert said in told["detail"]
    told = problem(await http.post("/v1/intake?source=s", json={"text": "x"}), 422, "invalid_request")
    assert "takes no query with JSON" in told["detail"]


async def test_a_compressed_file_is_refused(server: Service) -> None:
    refused = await sent(await server.http(), b"x", "text/plain", headers={"Content-Encoding": "gzip"})
    assert "as it is" in problem(refused, 415, "unsupported_media_type")["detail"]


async def test_a_file_may_be_as_long_as_a_payload(tmp_path: Path) -> None:
    core = Core.on_folder(
        tmp_path / "data", Rules(kinds=RULES.kinds, queues=RULES.queues, max_payload_bytes=100), "serve"
    )
    await core.open()
    service = await serve(core)
    http, client = await service.http(), await service.client()
    fits = 100 - len('{"text":""}')
    assert (await sent(http, b"x" * fits, "text/plain")).status_code == 201
    # Within the body's own size, not within the payload's; then over both; then far over.
    for size in (fits + 1, 101, 5 << 20):
        told = problem(await sent(http, b"x" * size, "text/plain"), 413, "too_large")
        assert (told["limit"], told["setting"]) == (100, "[jobs] max_payload_bytes")
        assert "[jobs] max_payload_bytes" in told["detail"]
    large = tmp_path / "large.txt"
    large.write_text("x" * 200)
    with pytest.raises(TooLarge, match="at most 100"):
        await client.upload(large)
    await service.close()
    await core.close()


async def test_a_repeat_under_a_key_gets_the_first_answer_in_either_form(server: Service) -> None:
    http, headers = await server.http(), {"Idempotency-Key": "k"}
    first = await sent(http, NOTES.encode(), "text/markdown", params={"source": "s"}, headers=headers)
    again = await sent(http, NOTES.encode(), "text/markdown", params={"source": "s"}, headers=headers)
    as_json = await http.post("/v1/intake", json={"text": NOTES, "source": "s"}, headers=headers)
    assert [one.json()["job"]["id"] for one in (again, as_json)] == [first.json()["job"]["id"]] * 2
    assert [one.headers.get("idempotency-replayed") for one in (first, again, as_json)] == [None, "true", "true"]
    other = await sent(http, b"other", "text/markdown", params={"source": "s"}, headers=headers)
    problem(other, 409, "idempotency_conflict")


async def test_both_clients_upload_a_file_under_its_path(server: Service, tmp_path: Path) -> None:
    file, odd = tmp_path / "nötes.md", tmp_path / "odd.txt"
    file.write_text(NOTES, "utf-8")
    odd.write_bytes(b"a\xff")
    client = await server.client()
    told = (await client.upload(file, "T"))["job"]
    assert (await client.job(told["id"]))["job"]["payload"] == {"text": NOTES, "title": "T", "source": str(file)}
    with SyncClient(server.url, await server.token("ann")) as blocking:
        told = (await asyncio.to_thread(blocking.upload, str(file), source="here"))["job"]
    assert (await client.job(told["id"]))["job"]["payload"] == {"text": NOTES, "source": "here"}
    with pytest.raises(InvalidRequest, match="byte 1 "):
        await client.upload(odd)
    with pytest.raises(FileNotFoundError):
        await client.upload(tmp_path / "none.md")


def test_the_description_has_all_types_of_the_body_with_an_example_and_the_query() -> None:
    said = openapi.describe(ROUTES)["paths"]["/v1/intake"]["post"]
    content = said["requestBody"]["content"]
    assert content.keys() == {"application/json", "text/plain", "text/markdown"}
    assert content["text/markdown"]["example"] == content["application/json"]["example"]["text"]
    assert [one["name"] for one in said["parameters"] if one["in"] == "query"] == ["title", "source", "workspace"]
    assert "the text itself" in openapi.page(ROUTES)


def test_the_description_bounds_what_an_attempt_can_have_used() -> None:
    schemas = openapi.describe(ROUTES)["components"]["schemas"]
    for name in ("CompleteRequest", "FailRequest"):
        usage = schemas[name]["properties"]["usage"]["anyOf"][0]["additionalProperties"]
        assert (usage.get("type"), usage.get("minimum"), usage.get("maximum")) == ("number", 0, 1e15)

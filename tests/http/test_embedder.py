"""The embedder plugin against a real HTTP server that answers as a test says, and with the real small model."""

from __future__ import annotations

import asyncio
import logging
import socket
import tomllib
from collections.abc import AsyncIterator, Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from oaken_jobs import pipeline, plugins
from oaken_jobs.clock import FakeClock
from oaken_jobs.config import load
from oaken_jobs.core import Core
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Actor, Job, Principal
from oaken_jobs.plugin import Plugin
from oaken_jobs.requests import NewJobRequest
from oaken_jobs.routing import QueueRule
from oaken_jobs.runner import Runner
from oaken_swarm.plugins import embedder
from oaken_swarm.plugins.embeddings import Backend, Endpoint, WordLlama
from tests.contract.world import until

ME = Principal(Actor("user", "me", "http"), frozenset({"user"}))
KEY = "a-key-that-nobody-may-see"
RULES = Rules(
    kinds=pipeline.kinds(),
    queues={"default": QueueRule("default", workers=2), "embed": QueueRule("embed", kind="embed")},
    backoff_jitter=0,
)


def answer(texts: list[str], **more: Any) -> Response:
    """As an embedder answers: a vector of two numbers for each text."""
    data = [{"index": n, "embedding": [len(text) / 7, 1]} for n, text in enumerate(texts)]
    return Response(orjson.dumps({"data": data, "usage": {"prompt_tokens": 10 * len(texts)}, **more}))


class Stub:
    """An embedder on a port of loopback; `reply` is what it does."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.keys: set[str | None] = set()
        self.reply: Callable[[list[str]], Response] = answer
        self.go = asyncio.Event()
        self.go.set()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _embeddings(self, request: Request) -> Response:
        body = await request.json()
        assert body["model"] == "m"
        self.asked.append(body["input"])
        self.keys.add(request.headers.get("authorization"))
        await self.go.wait()
        return self.reply(body["input"])

    async def start(self) -> None:
        app = Starlette(routes=[Route("/v1/embeddings", self._embeddings, methods=["POST"])])
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self.port, lifespan="off", log_config=None, access_log=False
        )
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server._serve())
        await until(lambda: self._server is not None and self._server.started)

    async def stop(self) -> None:
        self.go.set()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task


class Bench:
    """A core on a fake clock whose `embed` jobs a plugin does."""

    def __init__(self, core: Core, clock: FakeClock) -> None:
        self.core = core
        self.clock = clock
        self.plugin: Plugin | None = None
        self.handlers = pipeline.handlers()

    def use(self, backend: Backend, max_batch: int = 64, max_characters: int = 8000) -> None:
        self.plugin = embedder.build(backend, max_batch, max_characters, self.clock)
        self.handlers.take(self.plugin.handlers)

    async def add(self, *texts: str) -> list[Job]:
        found: list[Job] = []
        for text in texts:
            request = NewJobRequest(kind="embed", payload={"text": text}, subject=f"text:{len(found)}")
            found.append((await self.core.jobs.enqueue(ME, request)).job)
        return found

    async def work(self) -> None:
        runner = Runner(self.core.jobs, self.core.follower, self.clock, self.handlers, 1)
        await runner.drain()

    async def done(self, *texts: str) -> list[Job]:
        """The jobs of these texts after one round of work."""
        jobs = await self.add(*texts)
        await self.work()
        return await self.core.store.jobs([job.id for job in jobs])

    async def health(self) -> str | None:
        assert self.plugin is not None
        assert self.plugin.health_check is not None
        return await self.plugin.health_check.check()


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    found = Stub()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    clock = FakeClock()
    core = Core.on_folder(tmp_path / "data", RULES, "serve", clock)
    await core.open()
    yield Bench(core, clock)
    await core.close()


def endpoint(stub: Stub, key: str | None = None, timeout: float = 10) -> Endpoint:
    return Endpoint(stub.url, "m", key, timeout)


async def test_a_text_taken_in_is_stored_and_embedded_by_the_plugin(
    bench: Bench, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SOME_KEY", KEY)
    said = {"url": stub.url, "model": "m", "api_key_env": "SOME_KEY"}
    settings = load(tmp_path, {}, plugins={"modules": ["oaken_swarm.plugins.embedder"], "settings": {"embedder": said}})
    loaded = plugins.load(settings)
    assert loaded.broken == []
    bench.handlers = loaded.handlers()
    await bench.core.jobs.enqueue(ME, NewJobRequest(kind="intake", payload={"text": "# Oaks\n\ngrow slowly"}))
    await bench.work()
    ((subject, model, vector),) = await bench.core.jobs.vectors(ME)
    assert (subject.split(":")[0], model, vector) == ("document", "m", [len("# Oaks\n\ngrow slowly\n") / 7, 1])
    job = next(one for one in await bench.core.store.jobs(range(9)) if one.kind == "embed")
    assert (job.state, job.produced_by, orjson.loads(job.usage or "")) == ("succeeded", "m", {"input_tokens": 10})
    assert stub.keys == {f"Bearer {KEY}"}
    await bench.core.close()
    assert KEY.encode() not in (tmp_path / "data" / "core.db").read_bytes()
    assert KEY not in caplog.text
    assert KEY not in repr(settings) + repr(loaded)


async def test_many_texts_go_in_batches_and_each_gets_its_own_vector(bench: Bench, stub: Stub) -> None:
    bench.use(endpoint(stub), max_batch=4)
    # In whatever order they come back.
    stub.reply = lambda texts: answer(texts, data=orjson.loads(answer(texts).body)["data"][::-1])
    texts = ["x" * n for n in range(1, 11)]
    jobs = await bench.done(*texts)
    assert [job.state for job in jobs] == ["succeeded"] * 10
    assert [len(batch) for batch in stub.asked] == [4, 4, 2]
    assert {vector[0] for _, _, vector in await bench.core.jobs.vectors(ME)} == {n / 7 for n in range(1, 11)}


async def test_of_a_long_text_the_beginning_is_embedded(bench: Bench, stub: Stub) -> None:
    bench.use(endpoint(stub), max_characters=5)
    await bench.done("1234567")
    assert stub.asked == [["12345"]]


async def test_jobs_are_put_off_while_the_address_is_down_and_done_when_it_is_up(bench: Bench) -> None:
    stub = Stub()
    bench.use(endpoint(stub))
    (job,) = await bench.done("first")
    assert (job.state, job.attempts, job.deferrals, job.last_error) == ("queued", 0, 1, None)
    assert job.run_at == bench.clock.now() + 15_000
    assert await bench.health() == "cannot be reached (ConnectError)"
    await stub.start()
    (second,) = await bench.done("second")
    assert (second.deferrals, stub.asked) == (1, []), "asked again although it had only just failed"
    bench.clock.advance(15)
    await bench.work()
    assert [one.state for one in await bench.core.store.jobs([job.id, second.id])] == ["succeeded", "succeeded"]
    assert await bench.health() is None
    await stub.stop()


async def test_while_the_address_stays_down_each_job_is_put_off_seldom_and_not_all_come_back_at_once(
    bench: Bench,
) -> None:
    stub = Stub()
    bench.use(endpoint(stub))
    ids = [job.id for job in await bench.done(*(f"text {n}" for n in range(40)))]
    for _ in range(4 * 60):  # two hours
        bench.clock.advance(30)
        await bench.work()
        assert await bench.health() is not None
    jobs = await bench.core.store.jobs(ids)
    assert max(job.deferrals for job in jobs) <= 7 + 2 * 6
    assert len({job.run_at for job in jobs}) > 30
    await stub.start()
    bench.clock.advance(1200)
    await bench.work()
    assert {job.state for job in await bench.core.store.jobs(ids)} == {"succeeded"}
    await stub.stop()
    (job,) = await bench.done("one more")
    assert job.run_at == bench.clock.now() + 15_000, "it was well meanwhile"


ILL: list[tuple[int, dict[str, str], float, str]] = [
    (500, {}, 15, "answers with status 500"),
    (503, {"Retry-After": "7"}, 7, "answers with status 503"),
    (429, {"Retry-After": "120"}, 120, "answers with status 429"),
    (429, {"Retry-After": "999999"}, 3600, "answers with status 429"),
    (429, {"Retry-After": "0"}, 1, "answers with status 429"),
    (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 15, "answers with status 429"),
    (401, {}, 15, "the key is refused with status 401; check the variable that api_key_env names"),
    (403, {}, 15, "the key is refused with status 403; check the variable that api_key_env names"),
    (404, {}, 15, "answers with status 404"),
    (302, {"Location": "http://127.0.0.1:9/"}, 15, "answers with status 302"),
]


@pytest.mark.parametrize(("status", "headers", "seconds", "told"), ILL)
async def test_an_ill_address_puts_jobs_off_and_says_why(
    bench: Bench, stub: Stub, status: int, headers: dict[str, str], seconds: float, told: str
) -> None:
    bench.use(endpoint(stub))
    stub.reply = lambda texts: Response(KEY, status, headers)
    jobs = await bench.done("a", "b")
    for job in jobs:
        assert (job.state, job.attempts, job.deferrals) == ("queued", 0, 1)
        assert job.run_at == bench.clock.now() + seconds * 1000
    assert await bench.health() == told
    assert len(stub.asked) == 1, "asked by the check although it is to be left alone"
    bench.clock.advance(seconds)
    stub.reply = answer
    await bench.work()
    assert {job.state for job in await bench.core.store.jobs([1, 2])} == {"succeeded"}


async def test_an_address_that_does_not_answer_in_time_puts_jobs_off(bench: Bench, stub: Stub) -> None:
    bench.use(endpoint(stub, timeout=0.05))
    stub.go.clear()
    (job,) = await bench.done("a")
    assert (job.state, job.attempts, job.deferrals) == ("queued", 0, 1)
    assert await bench.health() == "no answer within 0.05 s"


@pytest.mark.parametrize("key", [None, "", "two\nlines"])
async def test_without_a_usable_key_in_the_environment_nothing_is_asked(
    bench: Bench, stub: Stub, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("SOME_KEY", key)
    bench.use(endpoint(stub, "SOME_KEY"))
    (job,) = await bench.done("a")
    assert (job.deferrals, stub.asked) == (1, [])
    assert (await bench.health() or "").startswith("the environment variable that api_key_env names")


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_only_the_text_at_fault_fails_and_for_good(bench: Bench, stub: Stub, status: int) -> None:
    bench.use(endpoint(stub))
    stub.reply = lambda texts: Response("secret", status) if "bad" in texts else answer(texts)
    jobs = await bench.done("a", "b", "c", "bad", "d", "e", "f")
    assert [job.state for job in jobs] == ["succeeded"] * 3 + ["failed"] + ["succeeded"] * 3
    bad = jobs[3]
    assert (bad.reason, bad.attempts) == ("permanent", 1)
    assert f"takes other texts but not this one: refused with status {status}" in (bad.last_error or "")
    assert "secret" not in (bad.last_error or "")


async def test_an_address_that_refuses_whatever_it_is_sent_is_ill_and_fails_no_job(bench: Bench, stub: Stub) -> None:
    bench.use(endpoint(stub))
    stub.reply = lambda texts: Response("no such model", 400)
    jobs = await bench.done("a", "b")
    assert [(job.state, job.attempts, job.deferrals) for job in jobs] == [("queued", 0, 1)] * 2
    assert await bench.health() == "not even one word is taken: refused with status 400; check url and model"


async def test_an_address_that_falls_ill_while_the_fault_is_looked_for_puts_the_rest_off(
    bench: Bench, stub: Stub
) -> None:
    bench.use(endpoint(stub))

    def reply(texts: list[str]) -> Response:
        if "bad" in texts:
            return Response(status_code=400)
        return Response(status_code=500) if "d" in texts else answer(texts)

    stub.reply = reply
    jobs = await bench.done("a", "b", "bad", "c", "d", "e", "f", "g")
    assert [job.state for job in jobs] == ["succeeded"] * 2 + ["queued"] + ["succeeded"] + ["queued"] * 4
    assert {job.attempts for job in jobs if job.state == "queued"} == {0}


WRONG: list[tuple[bytes, str]] = [
    (b"not json", "the answer is not JSON of the form"),
    (b'{"data": 7}', "the answer is not JSON of the form"),
    (b'{"data": [{"vector": [1]}, {"embedding": [1]}]}', "the answer is not JSON of the form"),
    (b'{"data": [{"embedding": [NaN]}, {"embedding": [1]}]}', "the answer is not JSON of the form"),
    (b'{"data": [{"embedding": [1]}]}', "1 vectors came back for 2 texts"),
    (b'{"data": []}', "0 vectors came back for 2 texts"),
    (b'{"data": [{"embedding": [1]}, {"embedding": ["1"]}]}', "something that is not a finite number"),
    (b'{"data": [{"embedding": [1]}, {"embedding": [true]}]}', "something that is not a finite number"),
    (b'{"data": [{"embedding": [1]}, {"embedding": [null]}]}', "something that is not a finite number"),
    (b'{"data": [{"embedding": [1]}, {"embedding": []}]}', "a vector is not a list of 1 to 16384 numbers"),
    (b'{"data": [{"embedding": [1]}, {"embedding": "AAAA"}]}', "a vector is not a list of 1 to 16384 numbers"),
    (b'{"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}', "the vectors have different lengths"),
    (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}', "the indices of the answer"),
    (b'{"data": [{"index": "0", "embedding": [1]}, {"index": true, "embedding": [1]}]}', "the indices of the answer"),
]


@pytest.mark.parametrize(("body", "told"), WRONG)
async def test_a_wrong_answer_is_a_failed_attempt_that_says_what_is_wrong(
    bench: Bench, stub: Stub, body: bytes, told: str
) -> None:
    bench.use(endpoint(stub))
    stub.reply = lambda texts: Response(body)
    for job in await bench.done("a", "b"):
        assert (job.state, job.attempts, job.deferrals) == ("queued", 1, 0)
        assert told in (job.last_error or "")


async def test_an_address_that_answers_wrongly_is_not_well(bench: Bench, stub: Stub) -> None:
    bench.use(endpoint(stub))
    stub.reply = lambda texts: Response(b'{"data": []}')
    assert await bench.health() == "0 vectors came back for 1 texts"


async def test_an_answer_without_end_is_cut_off(bench: Bench, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oaken_swarm.plugins.embeddings.MAX_ANSWER_BYTES", 1000)
    bench.use(endpoint(stub))
    stub.reply = lambda texts: Response(b" " * 2000)
    (job,) = await bench.done("a")
    assert "the answer is longer than 1000 bytes" in (job.last_error or "")


async def test_usage_that_is_not_known_is_unknown(bench: Bench, stub: Stub) -> None:
    bench.use(endpoint(stub))
    for usage in (None, {}, {"prompt_tokens": -1}, {"prompt_tokens": "9"}):
        stub.reply = lambda texts, usage=usage: answer(texts, usage=usage)
        (job,) = await bench.done("a")
        assert (job.state, job.usage) == ("succeeded", None)


@pytest.mark.parametrize(
    ("tokens", "sizes", "expected"),
    [
        (10, [1, 1, 2], [2, 3, 5]),
        (7, [0, 0], [0, 7]),
        (0, [5, 5], [0, 0]),
        (1, [9, 9, 9], [0, 0, 1]),
        (3, [100], [3]),
    ],
)
def test_the_shares_of_a_call_add_up_to_what_it_used(tokens: int, sizes: list[int], expected: list[int]) -> None:
    assert [share and share["input_tokens"] for share in embedder.shares(tokens, sizes)] == expected
    assert sum(expected) == tokens


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 3}, 'set either backend = "wordllama" or url'),
    ({"backend": "wordllama", "url": "http://x"}, "set either"),
    ({"backend": "other"}, "backend: must be 'wordllama'"),
    ({"backend": "wordllama", "model": "m"}, "model and api_key_env go with url"),
    ({"url": "http://x/v1"}, "url needs a model"),
    ({"url": "x/v1", "model": "m"}, "url must be as http://host:port/v1"),
    ({"url": "http://x:99999/v1", "model": "m"}, "Port out of range"),
    ({"url": "http://me:SECRET@x/v1", "model": "m"}, "url must be as http://host:port/v1"),
    ({"url": "http://x/v1?key=SECRET", "model": "m"}, "url must be as http://host:port/v1"),
    ({"url": "http://x/v1", "model": "m", "api_key_env": "sk-SECRET"}, "must be the name of an environment variable"),
    ({"url": "http://x/v1", "model": "m", "api_key": "SECRET"}, "field; did you mean api_key_env?"),
    ({"backend": "wordllama", "max_batch": 0}, "max_batch: must be at least 1"),
]


@pytest.mark.parametrize(("said", "told"), SETTINGS, ids=[str(n) for n in range(len(SETTINGS))])
def test_wrong_settings_make_it_a_broken_plugin_and_show_no_secret(
    tmp_path: Path, said: dict[str, Any], told: str
) -> None:
    modules = ["oaken_swarm.plugins.embedder"]
    loaded = plugins.load(load(tmp_path, {}, plugins={"modules": modules, "settings": {"embedder": said}}))
    ((name, reason),) = loaded.broken
    assert name == "embedder"
    assert told in reason
    assert "SECRET" not in reason


def test_without_settings_it_is_absent(tmp_path: Path) -> None:
    loaded = plugins.load(load(tmp_path, {}, plugins={"modules": ["oaken_swarm.plugins.embedder"]}))
    assert (loaded.plugins, loaded.broken) == ([], [])
    assert 'set backend = "wordllama", or url and model' in loaded.absent[0].reason


def test_it_is_an_entry_point_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][plugins.GROUP].items()
    assert (name, EntryPoint(name, value, plugins.GROUP).load()) == ("embedder", embedder.plugin)


async def test_the_model_inside_the_package_embeds_for_real(bench: Bench) -> None:
    bench.use(WordLlama())
    jobs = await bench.done("oaks grow slowly", "", "trees take their time", "the invoice is overdue")
    assert [job.state for job in jobs] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert "there is no word in it" in (jobs[1].last_error or "")
    oaks, trees, invoice = [vector for _, _, vector in await bench.core.jobs.vectors(ME)]
    assert len(oaks) == 256
    likeness = [sum(x * y for x, y in zip(oaks, other, strict=True)) for other in (trees, invoice)]
    assert likeness[0] > likeness[1]
    assert await bench.health() is None


def test_without_the_package_of_the_model_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oaken_swarm.plugins.embeddings.find_spec", lambda name: None)
    said = {"modules": ["oaken_swarm.plugins.embedder"], "settings": {"embedder": {"backend": "wordllama"}}}
    (left,) = plugins.load(load(tmp_path, {}, plugins=said)).broken
    assert "`pip install 'oaken-swarm[examples]'`" in left.reason

"""The command line as a person meets it: real processes on a data folder of the test's own, and against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from oaken_app.main import COMMANDS
from oaken_jobs.errors import LeaseLost
from tests.forks import Said, oaken
from tests.service import Service, eventually

Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return lambda *arguments, **more: oaken(*arguments, data=tmp_path / "data", **more)


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, oaken_app.main\nsys.argv = ['oaken', '--help']\n"
        "try:\n    oaken_app.main.main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('pydantic', 'starlette', 'mcp', 'httpx2', 'orjson', 'rich.table') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for command in ("serve", "runner", "mcp", "intake", "job", "queue", "agents", "snapshot", "token", "doctor"):
        assert command in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_finds_all_it_needs_in_an_interpreter_of_its_own(command: str) -> None:
    """Other tests run it where everything has been imported."""
    told = [sys.executable, "-m", "oaken_app.main", command, "--help"]
    said = subprocess.run(told, capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stderr) == (0, "")
    assert f"Usage: oaken {command}" in said.stdout


def test_the_first_command_ever_called_makes_an_owner_only_database(run: Run, tmp_path: Path) -> None:
    said = run("job", "enqueue", "greet", "--payload", '{"name": "Ada"}')
    assert (said.code, said.out) == (0, "Job 1 (greet) is queued on default.\n")
    assert "no agent has leased a job of kind greet yet" in said.err
    for file in (tmp_path / "data").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_a_job_can_be_put_in_looked_at_stopped_and_run_again(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"text": "🦉"}')
    enqueued = run(
        "job", "enqueue", "work", "--payload", f"@{file}", "--priority", "backfill", "--title", "T", "--tag", "a", "--tag", "b",
        "--dedupe-key", "k", "--delay", "60", "--max-attempts", "2", "--budget-usd", "1.5", "--json",
    ).json  # fmt: skip
    job = enqueued["job"]
    assert (job["priority"], job["tags"], job["max_attempts"], job["budget_usd"]) == (10, ["a", "b"], 2, 1.5)
    assert job["actor"]["kind"] == "user"
    assert job["actor"]["via"] == "cli"
    again = run("job", "enqueue", "work", "--dedupe-key", "k")
    assert again.out == "Job 1 (work) is queued already on default.\n"
    assert run("job", "status", "1", "--json").json["job"]["payload"] == {"text": "🦉"}
    assert "🦉" in run("job", "status", "1").out
    assert [j["id"] for j in run("job", "list", "--tag", "a", "--json").json["jobs"]] == [1]
    assert "No jobs match" in run("job", "list", "--state", "running").out
    assert run("job", "cancel", "1").out == "Job 1 is cancelled.\n"
    assert run("job", "cancel", "1").out == "Job 1 is cancelled; nothing was changed.\n"
    assert run("job", "wait", "1").code == 1
    assert run("job", "requeue", "1").out == "Job 1 is queued on default.\n"
    assert run("job", "wait", "1", "--seconds", "0").code == 3
    assert "never leased" in run("job", "attempts", "1").out
    assert run("job", "enqueue", "work", "--payload", "-", stdin=b'{"from": "stdin"}').code == 0


def test_queues_are_listed_paused_and_resumed(run: Run) -> None:
    assert run("queue", "pause", "default").out == "Queue default is paused.\n"
    assert [(q["name"], q["paused"]) for q in run("queue", "list", "--json").json["queues"]] == [("default", True)]
    assert {q["name"] for q in run("queue", "list", "--all", "--json").json["queues"]} == {"default", "store", "embed"}
    assert "paused" in run("queue", "list").out
    assert run("queue", "resume", "default").code == 0
    refused = run("queue", "pause", "nowhere")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("oaken: There is no queue 'nowhere'")


def test_tokens_are_made_listed_and_revoked_and_the_secret_stands_alone(run: Run) -> None:
    made = run("token", "create", "bot", "--role", "agent")
    assert made.out.startswith("oak_")
    assert made.out.count("\n") == 1
    secret = made.out.strip()
    listed = run("token", "list", "--json")
    assert secret not in listed.out
    assert [(t["name"], t["kind"], t["roles"]) for t in listed.json["tokens"]] == [("bot", "agent", ["agent"])]
    assert run("token", "create", "lab-bot", "--role", "agent", "--workspace", "lab").code == 0
    assert re.search(r"^bot +agent +agent +all ", run("token", "list").out, re.MULTILINE)
    assert re.search(r"^lab-bot +agent +agent +lab ", run("token", "list").out, re.MULTILINE)
    assert run("token", "revoke", "bot").code == 0
    assert "revoked" in run("token", "list").out
    assert "never used again" in run("token", "create", "bot", "--role", "agent").err
    assert run("token", "create", "x", "--role", "root").code == 1
    assert run("token", "create", "x").code == 2


def test_texts_are_taken_in_and_what_is_no_text_is_named(run: Run, tmp_path: Path) -> None:
    good, bad = tmp_path / "a.md", tmp_path / "b.bin"
    good.write_text("# A\n")
    bad.write_bytes(b"\xff\xfe")
    said = run("intake", str(good), str(bad), str(tmp_path / "missing.md"))
    assert said.code == 1
    assert said.out == f"{good}: job 1\n"
    assert "not UTF-8" in said.err
    assert "missing.md: No such file" in said.err
    assert run("job", "status", "1", "--json").json["job"]["payload"] == {"text": "# A\n", "source": str(good)}


def test_the_doctor_says_what_is_wrong(run: Run, tmp_path: Path) -> None:
    well = run("doctor", "--json")
    assert well.code == 0
    assert {f["level"] for f in well.json["findings"]} == {"ok", "warn"}
    run("job", "enqueue", "work")
    run("queue", "pause", "default")
    (tmp_path / "data" / "core.db").chmod(0o644)
    ill = run("doctor").out
    assert "queue default is paused with 1 jobs waiting" in ill
    assert "can be read by others" in ill
    (tmp_path / "data" / "core.db").write_bytes(b"this is no database" * 100)
    broken = run("doctor")
    assert broken.code == 1
    assert "bad" in broken.out


BAD: list[tuple[list[str], str]] = [
    (["job", "enqueue", "a b"], "kind: must match"),
    (["job", "enqueue", "x", "--payload", "{"], "--payload is not JSON: "),
    (["job", "enqueue", "x", "--payload", "{a: 1}"], "need double quotes"),
    (["job", "enqueue", "x", "--priority", "²"], "user, ingest, backfill"),
    (["job", "enqueue", "x", "--priority", "9" * 5000], "user, ingest, backfill"),
    (["job", "enqueue", "x", "--delay", "nan"], "/delay_seconds"),
    (["job", "enqueue", "x", "--budget-usd", "inf"], "/budget_usd"),
    (["token", "create", "x", "--role", "agent", "--expires-in", "nan"], "/expires_in"),
    (["token", "create", "x", "--role", "root"], "--role: "),
    (["job", "list", "--state", "done"], "--state: "),
    (["serve", "--port", "99999"], "--port is 99999"),
    (["job", "enqueue", "x", "--payload", "[1]"], "must be a JSON object"),
    (["job", "enqueue", "x", "--payload", '{"a":1,"a":2}'], "'a' twice"),
    (["job", "enqueue", "x", "--payload", '{"a":99999999999999999999}'], "/a"),
    (["job", "enqueue", "x", "--payload", "@/no/such/file"], "No such file"),
    (["job", "enqueue", "x", "--priority", "urgent"], "user, ingest, backfill"),
    (["job", "enqueue", "x", "--priority", "-1"], "at least 0"),
    (["job", "enqueue", "x", "--run-at", "soon"], "give a time with its zone"),
    (["job", "enqueue", "x", "--delay", "1", "--run-at", "2030-01-01T00:00:00Z"], "give one of them"),
    (["job", "status", "99"], "There is no job 99"),
    (["job", "list", "--state", "done"], "state"),
    (["job", "list", "--cursor", "x"], "cursor"),
    (["job", "requeue", "1", "--to-queue", "nowhere"], "'nowhere' is not configured"),
    (["job", "requeue", "1", "--to-queue", "default", "--retriage"], "give one of them"),
    (["job", "requeue", "--all", "--state", "done"], "--state: must be 'queued'"),
    (["job", "requeue", "--all", "--state", "succeeded"], "only queued, failed, cancelled jobs can be changed so"),
    (["job", "cancel", "--all", "--agent", "a b"], "--agent: must match"),
    (["job", "cancel", "--all", "--parent-id", "-1"], "--parent-id: must be more than 0"),
    (["job", "enqueue", "x", "--ttl", "1", "--expires-at", "2030-01-01T00:00:00Z"], "give one of them"),
    (["job", "enqueue", "x", "--on-duplicate", "replace"], "needs a dedupe_key or a target"),
    (["job", "enqueue", "x", "--workspace", "No Such"], "workspace: must match"),
    (["job", "answer", "99", "Blue."], "There is no job 99"),
    (["job", "adopt", "99", "1"], "There is no job 99"),
    (["job", "late", "99", "1"], "There is no job 99"),
    (["job", "questions", "99"], "There is no job 99"),
    (["queue", "requeue", "nowhere"], "There is no queue 'nowhere'"),
    (["agents", "drain", "nobody"], "There is no agent 'nobody'"),
    (["snapshot", "--actor", ""], "actor"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=[" ".join(a)[:60] for a, _ in BAD])
def test_a_refusal_is_one_line_on_stderr_and_exit_code_1(run: Run, arguments: list[str], told: str) -> None:
    said = run(*arguments)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("oaken: ")
    assert said.err.count("\n") == 1
    assert told in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["frob"],
        ["job", "frob"],
        ["job", "status"],
        ["job", "status", "x"],
        ["job", "list", "--limit", "0"],
        ["job", "wait", "1", "--seconds", "nan"],
        ["job", "requeue"],
        ["job", "requeue", "1", "--queue", "default"],
        ["job", "cancel", "--all"],
        ["job", "requeue", "1", "--all", "--state", "failed"],
        ["job", "cancel", "1", "--state", "failed"],
        ["job", "cancel", "1", "--dry-run"],
        ["job", "adopt", "1"],
        ["job", "late", "1"],
        ["agents", "drain"],
    ],
)
def test_wrong_usage_is_exit_code_2_without_a_traceback(run: Run, arguments: list[str]) -> None:
    said = run(*arguments)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_bad_settings_name_the_key_the_value_and_what_is_allowed(run: Run, tmp_path: Path) -> None:
    said = run("job", "list", OAKEN_JOBS__LEASE_SECONDS="soon")
    assert said.code == 1
    assert "OAKEN_JOBS__LEASE_SECONDS" in said.err
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "config.toml").write_text("[jobs]\nlease_secnds = 5\n")
    said = run("job", "list")
    assert said.code == 1
    assert "lease_seconds" in said.err


def test_text_of_others_cannot_steer_the_terminal(run: Run) -> None:
    run("job", "enqueue", "x", "--payload", '{"t": "\\u001b[31mred\\u0007"}', "--title", "a\x1b]0;owned\x07b")
    for said in (run("job", "list"), run("job", "status", "1")):
        assert "\x1b" not in said.out
        assert "\x07" not in said.out


async def test_with_a_url_the_same_commands_are_a_client_of_that_server(server: Service, tmp_path: Path) -> None:
    token = await server.token("remote", "user")

    def call(*arguments: str, **more: str) -> Any:
        return asyncio.to_thread(oaken, *arguments, OAKEN_URL=server.url, OAKEN_TOKEN=token, **more)

    assert (await call("job", "enqueue", "greet", "--json")).json["job"]["actor"] == {
        "kind": "user",
        "id": "remote",
        "via": "http",
    }
    assert [j["kind"] for j in (await call("job", "list", "--json")).json["jobs"]] == ["greet"]
    refused = await call("token", "list")
    assert refused.code == 1
    assert "role admin" in refused.err
    lost = await asyncio.to_thread(oaken, "job", "list", OAKEN_URL="http://127.0.0.1:9", OAKEN_TOKEN="oak_x")
    assert lost.code == 1
    assert "127.0.0.1:9" in lost.err
    here = await call("job", "list", "--json", "--data-dir", str(tmp_path / "own"))
    assert here.json["jobs"] == [], "a folder that is named wins over OAKEN_URL"


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are text there")
@pytest.mark.parametrize(
    "arguments",
    [
        [b"\xff"],
        [b"job", b"enqueue", b"\xff"],
        [b"job", b"enqueue", b"x", b"--title", b"\xff"],
        [b"job", b"list", b"-q", b"\xff"],
        [b"intake", b"\xff.md"],
        [b"queue", b"pause", b"\xff"],
        [b"job", b"list", b"--data-dir", b"\xff"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_one_line(arguments: list[bytes], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "oaken_app.main", *arguments],
        env=os.environ | {"OAKEN_DATA_DIR": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"oaken: argument ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"OAKEN_URL": "http://[::1", "OAKEN_TOKEN": "t"}, "should look like"),
        ({"OAKEN_URL": "http://127.0.0.1:99999", "OAKEN_TOKEN": "t"}, "should look like"),
        ({"OAKEN_URL": "http://127.0.0.1:9", "OAKEN_TOKEN": "é"}, "OAKEN_TOKEN"),
        ({"OAKEN_URL": "http://127.0.0.1:9"}, "keeps one, or set OAKEN_TOKEN"),
    ],
)
def test_a_wrong_environment_is_one_line(environment: dict[str, str], told: str) -> None:
    said = oaken("job", "list", **environment)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("oaken: ")
    assert said.err.count("\n") == 1
    assert told in said.err


TERMINAL = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm"}


def seen(said: Said) -> list[str]:
    """The lines on a terminal, without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", said.out).splitlines()


def test_a_list_is_a_line_a_job_and_only_a_title_or_an_agent_is_cut(run: Run) -> None:
    kind, title = "transcribe-meeting", "a title that is far too long for a terminal of this width " * 3
    for _ in range(3):
        run("job", "enqueue", kind, "--title", title)
    run("job", "cancel", "2")
    narrow = seen(run("job", "list", **TERMINAL))
    assert len(narrow) == 4
    assert all(cell_len(line) <= 80 for line in narrow)
    for line, (number, state) in zip(narrow[1:], ((3, "queued"), (2, "cancelled"), (1, "queued")), strict=True):
        assert line.split()[:2] == [str(number), kind]
        assert state in line
        assert line.endswith("…")
    assert narrow[0].split()[-3:] == ["title", "/", "error"]
    piped = run("job", "list", COLUMNS="80").out.splitlines()
    assert len(piped) == 4
    assert all(title.strip() in line for line in piped[1:])
    longest = run("job", "enqueue", "k" * 64)
    assert longest.code == 0
    assert "k" * 64 in seen(run("job", "list", **TERMINAL))[1]
    queues = seen(run("queue", "list", "--all", **TERMINAL))
    assert all(len(line) <= 80 for line in queues)
    assert queues[0].split()[-5:] == ["queued", "running", "succeeded", "failed", "cancelled"]


def test_a_card_says_only_what_there_is_to_say_and_cuts_what_is_long(run: Run) -> None:
    run("job", "enqueue", "x", "--payload", json.dumps({"text": "y" * 5000}), "--tag", "a", "--tag", "b")
    card = dict(line.split(maxsplit=1) for line in run("job", "status", "1").out.splitlines())
    assert not {"lost", "deferrals", "coalesced", "attempts", "cancelling", "lease"} & card.keys()
    assert card["actor"].endswith(" (cli)")
    assert card["tags"] == "a, b"
    assert card["payload"].endswith("… (--json shows all)")
    assert len(card["payload"]) < 500


async def test_a_card_tells_of_a_lease_and_its_progress_in_words(server: Service) -> None:
    bot, ann = await server.client("bot", "agent"), await server.token("ann", "user")
    job_id = (await (await server.client("eve", "user")).enqueue("x"))["job"]["id"]
    (lease,) = (await bot.lease(agent="bot/1"))["leases"]
    await bot.report(lease["lease_id"], 40, "half")
    said = await asyncio.to_thread(oaken, "job", "status", str(job_id), OAKEN_URL=server.url, OAKEN_TOKEN=ann)
    card = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert card["lease"].startswith("held by bot/1, runs out in ")
    assert card["progress"].startswith("40 %, half (")
    assert card["attempts"] == "1 of 5"


def test_signs_made_of_several_characters_stay_whole_and_nothing_turns_the_line(run: Run) -> None:
    family = "👩\u200d👩\u200d👧"
    run("job", "enqueue", "x", "--title", f"{family} a\u202eb\u2066c\u061cd")
    for said in (run("job", "list"), run("job", "status", "1")):
        assert family in said.out
        assert not set("\u202e\u2066\u061c") & set(said.out)


def test_a_wait_that_is_over_says_what_is_still_open(run: Run) -> None:
    run("job", "enqueue", "x")
    said = run("job", "wait", "1", "--seconds", "0")
    assert (said.code, said.err) == (3, "oaken: job 1 is still queued after 0 s\n")


def test_what_is_empty_says_where_it_looked(run: Run, tmp_path: Path) -> None:
    assert f"No jobs match in {tmp_path / 'data'}." in run("job", "list").out


def test_the_doctor_minds_the_folder_and_the_url(run: Run, tmp_path: Path) -> None:
    run("job", "enqueue", "x")
    config = tmp_path / "data" / "config.toml"
    config.write_text("")
    config.chmod(0o644)
    assert "can be read by others" not in run("doctor").out
    (tmp_path / "data").chmod(0o755)
    assert f"{config} can be read by others" in run("doctor").out
    assert "OAKEN_URL is set but not used here" in run("doctor", OAKEN_URL="http://127.0.0.1:9").out


def test_the_story_of_a_job_is_told(run: Run) -> None:
    run("job", "enqueue", "x")
    run("job", "cancel", "1")
    assert re.search(r"^grade +note \(.+\)$", run("job", "status", "1").out, re.MULTILINE)
    told = run("job", "activity", "1").out
    assert "queued → cancelled" in told
    assert "(cli)" in told


def test_a_job_may_have_a_serial_key_a_time_to_live_a_workspace_and_a_key_of_its_own(run: Run) -> None:
    options = ("--serial-key", "agent:me", "--ttl", "600", "--workspace", "lab", "--idempotency-key", "k", "--json")
    job = run("job", "enqueue", "x", *options).json["job"]
    assert (job["serial_key"], job["workspace"]) == ("agent:me", "lab")
    assert job["expires_at"] > job["created_at"]
    assert run("job", "enqueue", "x", *options).json["job"]["id"] == job["id"]
    assert (
        run("job", "enqueue", "x", *options[:-1]).out
        == "Job 1 (x) was enqueued before under this idempotency key; `oaken job status 1` shows how it stands.\n"
    )
    assert "idempotency" in run("job", "enqueue", "y", "--idempotency-key", "k").err
    assert [j["id"] for j in run("job", "list", "--workspace", "lab", "--json").json["jobs"]] == [1]
    assert run("job", "list", "--workspace", "default", "--json").json["jobs"] == []


def test_a_duplicate_may_bring_a_new_payload(run: Run) -> None:
    run("job", "enqueue", "x", "--target", "t", "--payload", '{"n": 1}')
    again = run("job", "enqueue", "x", "--target", "t", "--payload", '{"n": 2}', "--on-duplicate", "replace")
    assert again.out == "Job 1 (x) is queued already; it has the new payload.\n"
    assert run("job", "status", "1", "--json").json["job"]["payload"] == {"n": 2}


async def test_a_duplicate_that_runs_keeps_its_payload_and_is_shown_to_be_asked_to_stop(server: Service) -> None:
    bot, ann = await server.client("bot", "agent"), await server.token("ann", "user")

    def call(*arguments: str) -> Any:
        return asyncio.to_thread(oaken, *arguments, OAKEN_URL=server.url, OAKEN_TOKEN=ann)

    await call("job", "enqueue", "x", "--target", "t")
    await bot.lease()
    again = await call("job", "enqueue", "x", "--target", "t", "--on-duplicate", "replace")
    assert again.out == "Job 1 (x) is running already; its payload stays as it was.\n"
    await call("job", "cancel", "1")
    card = (await call("job", "status", "1")).out
    assert re.search(r"^state +running, cancelling$", card, re.MULTILINE)
    assert not re.search(r"^cancelling ", card, re.MULTILINE)


def test_a_text_is_taken_into_the_workspace_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("# A\n")
    assert run("intake", str(file), "--workspace", "lab", "--json").json["job"]["workspace"] == "lab"


def test_all_jobs_that_match_are_cancelled_and_run_again_in_one_command(run: Run) -> None:
    for kind in ("x", "x", "y"):
        run("job", "enqueue", kind)
    counted = run("job", "cancel", "--all", "--kind", "x", "--dry-run").out
    assert counted == "2 jobs would be cancelled, or asked to stop; nothing was changed.\n"
    assert run("job", "cancel", "--all", "--kind", "x").out == "Cancelled, or asked to stop: 2 of 2 jobs.\n"
    assert run("job", "cancel", "--all", "--kind", "x").out.startswith("No jobs match in ")
    counted = run("job", "requeue", "--all", "--state", "cancelled", "--query", "x", "--dry-run", "--json")
    assert counted.json == {"matched": 2, "done": 0, "skipped": 0, "remaining": 2}
    assert run("job", "requeue", "--all", "--kind", "x").out.startswith("No failed jobs match in ")
    again = ("job", "requeue", "--all", "--state", "cancelled", "--queue", "default", "--to-queue", "default")
    assert run(*again, "--dry-run").out == (
        "2 cancelled jobs would be requeued to queue default; nothing was changed.\n"
    )
    assert run(*again).out == "Requeued 2 of 2 cancelled jobs to queue default.\n"
    assert run("job", "list", "--state", "cancelled", "--json").json["jobs"] == []
    assert "no subject, so there is nothing to triage" in run("job", "requeue", "3", "--retriage").err


async def test_all_failed_jobs_are_run_again_without_a_state(server: Service) -> None:
    bot, ann = await server.client("bot", "agent"), await server.token("ann", "user")

    def call(*arguments: str) -> Any:
        return asyncio.to_thread(oaken, *arguments, OAKEN_URL=server.url, OAKEN_TOKEN=ann)

    for _ in range(2):
        await call("job", "enqueue", "x")
    await bot.fail((await bot.lease())["leases"][0]["lease_id"], "no", permanent=True)
    assert (await call("job", "cancel", "2")).code == 0
    assert (await call("job", "requeue", "--all", "--kind", "x")).out == "Requeued 1 of 1 failed job.\n"
    assert (await call("job", "requeue", "--all")).out.startswith("No failed jobs match in ")


def test_a_filter_or_an_example_that_would_not_do_is_not_offered(run: Run) -> None:
    assert "--to-queue" in run("job", "requeue", "1", "--queue", "default").err
    assert "--state queued" in " ".join(run("job", "cancel", "--all").err.split())


def test_the_failed_jobs_of_a_queue_are_run_again(run: Run) -> None:
    run("job", "enqueue", "x")
    run("job", "cancel", "1")
    assert run("queue", "requeue", "default").out.startswith("No failed jobs match in ")
    assert run("queue", "requeue", "default", "--state", "cancelled", "--dry-run").out.startswith(
        "1 cancelled job would be requeued"
    )
    assert run("queue", "requeue", "default", "--state", "cancelled").out == "Requeued 1 of 1 cancelled job.\n"


async def test_a_question_is_shown_and_answered(server: Service) -> None:
    bot, ann = await server.client("bot", "agent"), await server.token("ann", "user")
    job_id = str((await (await server.client("eve", "user")).enqueue("x", title="T"))["job"]["id"])
    (lease,) = (await bot.lease())["leases"]
    await bot.ask(lease["lease_id"], "Which colour?")

    def call(*arguments: str) -> Any:
        return asyncio.to_thread(oaken, *arguments, OAKEN_URL=server.url, OAKEN_TOKEN=ann)

    card = await call("job", "status", job_id)
    assert re.search(r"^question +Which colour\?$", card.out, re.MULTILINE)
    assert re.search(r"^waits +asks a question; goes on without an answer in 7 d$", card.out, re.MULTILINE)
    assert f"`oaken job answer {job_id} TEXT` tells it" in card.err
    assert "asks: Which colour?" in (await call("job", "list", "--asking")).out
    assert f"`oaken job answer {job_id} TEXT` tells it" in (await call("job", "wait", job_id, "--seconds", "0")).err
    asked = await call("job", "questions", job_id)
    assert re.search(r"bot +Which colour\? +\(open\)$", asked.out, re.MULTILINE)
    shown = await call("snapshot", "--actor", "eve")
    assert f"{server.url}: 1 queued, 0 running" in shown.out
    assert re.search(rf"^{job_id} +bot .*Which colour\?$", shown.out, re.MULTILINE)
    assert (await call("snapshot", "--actor", "nobody", "--json")).json["questions"] == []

    assert (
        await call("job", "answer", job_id, "Blue.")
    ).out == f"Job {job_id} has its answer; it is queued on default.\n"
    assert "no open question" in (await call("job", "answer", job_id, "Red.")).err
    assert re.search(r"Which colour\? +Blue\. +ann$", (await call("job", "questions", job_id)).out, re.MULTILINE)
    assert (await call("job", "questions", job_id, "--json")).json["questions"][0]["answer"] == "Blue."
    (lease,) = (await bot.lease())["leases"]
    assert lease["answers"][0]["answer"] == "Blue."
    asked = [
        r for r in (await call("job", "activity", job_id, "--json")).json["activity"] if r["kind"] == "question_asked"
    ]
    assert len(asked) == 1
    assert (await call("job", "activity", job_id)).out.count(" ask ") == 1


async def test_a_late_result_is_shown_and_may_be_adopted(server: Service) -> None:
    bot, ann = await server.client("bot", "agent"), await server.token("ann", "user")
    job_id = str((await (await server.client("eve", "user")).enqueue("x"))["job"]["id"])
    (lease,) = (await bot.lease(lease_seconds=1))["leases"]
    eve = await server.client("eve", "user")

    async def lost() -> bool:
        await server.core.maintenance.tick()
        return (await eve.job(int(job_id)))["job"]["state"] == "queued"

    await eventually(lost)
    with pytest.raises(LeaseLost):
        await bot.complete(lease["lease_id"], {"n": 1})

    def call(*arguments: str) -> Any:
        return asyncio.to_thread(oaken, *arguments, OAKEN_URL=server.url, OAKEN_TOKEN=ann)

    told = await call("job", "attempts", job_id)
    assert "lost, late result kept" in told.out
    assert f"oaken job late {job_id} EPOCH" in told.err
    assert f"oaken job adopt {job_id} EPOCH" in told.err
    late = await call("job", "late", job_id, "1")
    assert late.json == (await call("job", "late", job_id, "1", "--json")).json == {"n": 1}
    assert "no late result" in (await call("job", "late", job_id, "2")).err
    adopted = await call("job", "adopt", job_id, "1")
    assert adopted.out == f"Job {job_id} has succeeded, with the late result of epoch 1.\n"
    assert "late result" not in (await call("job", "attempts", job_id)).out


async def test_an_agent_is_drained_and_given_jobs_again(server: Service) -> None:
    bot, ann = await server.client("bot", "agent"), await server.token("ann", "user")
    await bot.lease(agent="bot/1")
    await (await server.client("eve", "user")).enqueue("x")

    def call(*arguments: str) -> Any:
        return asyncio.to_thread(oaken, *arguments, OAKEN_URL=server.url, OAKEN_TOKEN=ann)

    assert (await call("agents", "drain", "bot")).out == "Agent bot is drained.\n"
    assert (await call("agents", "drain", "bot")).out == "Agent bot is drained already.\n"
    assert re.search(r"^bot/1 +draining ", (await call("agents")).out, re.MULTILINE)
    assert (await bot.lease())["leases"] == []
    assert (await call("agents", "undrain", "bot")).out == "Agent bot is given new jobs.\n"
    assert [a["draining"] for a in (await call("agents", "--json")).json["agents"]] == [False] * 2
    assert len((await bot.lease())["leases"]) == 1


def test_a_folder_named_before_a_subcommand_of_agents_counts(tmp_path: Path) -> None:
    told = oaken("agents", "--data-dir", str(tmp_path / "own"), "drain", "x", OAKEN_URL="http://127.0.0.1:9")
    assert "There is no agent 'x'" in told.err

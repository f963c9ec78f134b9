import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs.config import Settings, load, rules, shown
from oaken_jobs.errors import ConfigError
from oaken_jobs.kinds import Kind, Schema


def _load(folder: Path, toml: str = "", environ: dict[str, str] | None = None, **overrides: Any) -> Settings:
    (folder / "config.toml").write_text(toml, encoding="utf-8")
    return load(folder, environ or {}, **overrides)


def test_without_a_file_everything_is_as_documented(tmp_path: Path) -> None:
    settings = load(tmp_path, {})
    assert settings.data_dir == tmp_path
    assert (settings.file, settings.url, settings.token, settings.origins) == (None, None, None, {})
    assert settings.server.model_dump() == {
        "host": "127.0.0.1",
        "port": 8787,
        "allowed_hosts": [],
        "allowed_origins": [],
        "behind_proxy": False,
        "tls_cert": None,
        "tls_key": None,
    }
    assert settings.jobs.model_dump() == {
        "lease_seconds": 60,
        "max_attempts": 5,
        "backoff_base": 5,
        "backoff_max": 3600,
        "backoff_jitter": 0.2,
        "recovery_grace": 20,
        "cancel_grace": 300,
        "ask_timeout": 604_800,
        "keep_days": 30,
        "kind_limits": {},
        "unknown_kinds": "accept",
        "max_payload_bytes": 1_048_576,
        "max_result_bytes": 1_048_576,
        "max_batch": 1000,
    }
    assert (settings.queues, settings.kinds) == ({}, {})
    assert (settings.runner.grace, settings.log.level) == (30, "info")
    assert (settings.log.events_file, settings.log.file_max_bytes, settings.log.file_backups) == (
        "events.jsonl",
        10_485_760,
        5,
    )
    assert settings.log.audit_keep_days == 365
    assert settings.trace.model_dump() == {"enabled": False, "keep_days": 30, "max_bytes": 104_857_600}


def test_the_call_goes_before_the_environment_before_the_file_before_the_defaults(tmp_path: Path) -> None:
    toml = "[server]\nport = 1\nhost = 'file'\n[jobs]\nmax_attempts = 3\n"
    environ = {"OAKEN_SERVER__PORT": "2", "OAKEN_SERVER__HOST": "variable"}
    settings = _load(tmp_path, toml, environ, server={"port": 3, "host": None})
    assert (settings.server.port, settings.server.host) == (3, "variable")
    assert (settings.jobs.max_attempts, settings.jobs.max_batch) == (3, 1000)
    assert settings.file == tmp_path / "config.toml"
    assert settings.origins == {
        "[server] port": "the call",
        "[server] host": "OAKEN_SERVER__HOST",
        "[jobs] max_attempts": str(tmp_path / "config.toml"),
    }


def test_one_queue_may_be_configured_by_file_and_environment_together(tmp_path: Path) -> None:
    settings = _load(tmp_path, "[queues.review]\nkind = 'triage'\n", {"OAKEN_QUEUES__REVIEW__WORKERS": "3"})
    assert settings.queues["review"].model_dump() == {"kind": "triage", "workers": 3, "by_label": True, "hidden": False}


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("OAKEN_JOBS__LEASE_SECONDS", "30", 30),
        ("OAKEN_JOBS__LEASE_SECONDS", "1.5", 1.5),
        ("OAKEN_JOBS__KIND_LIMITS", '{"embed": 2}', {"embed": 2}),
        ("OAKEN_JOBS__UNKNOWN_KINDS", "reject", "reject"),
        ("OAKEN_SERVER__ALLOWED_HOSTS", '["a.example"]', ["a.example"]),
        ("OAKEN_SERVER__HOST", "0", "0"),
        ("OAKEN_LOG__LEVEL", "DEBUG", "debug"),
        ("OAKEN_QUEUES__Q__BY_LABEL", "no", False),
        ("OAKEN_QUEUES__Q__BY_LABEL", "True", True),
        ("OAKEN_QUEUES__Q__HIDDEN", "1", True),
        ("OAKEN_KINDS__K__INSTRUCTIONS", "[1]", "[1]"),
        ("OAKEN_KINDS__K__RESULT_SCHEMA", '{"type": "object"}', {"type": "object"}),
        ("OAKEN_KINDS__K__REQUIRES_OUTPUT", "on", True),
    ],
)
def test_a_variable_is_read_as_its_setting_wants(tmp_path: Path, variable: str, text: str, value: object) -> None:
    found: Any = load(tmp_path, {variable: text})
    for step in variable.removeprefix("OAKEN_").lower().split("__"):
        found = found[step] if isinstance(found, dict) else getattr(found, step)
    assert found == value


def test_url_and_token_come_from_the_environment_and_the_token_is_not_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, {"OAKEN_URL": "http://x", "OAKEN_TOKEN": "hunter2"})
    assert (settings.url, settings.token) == ("http://x", "hunter2")
    assert "hunter2" not in repr(settings)
    assert load(tmp_path, {"OAKEN_URL": "", "OAKEN_TOKEN": ""}).url is None


def test_the_data_folder_is_the_callers_then_the_environments_then_the_systems(tmp_path: Path) -> None:
    environ = {"OAKEN_DATA_DIR": str(tmp_path / "variable")}
    assert load(tmp_path / "call", environ).data_dir == tmp_path / "call"
    assert load(None, environ).data_dir == tmp_path / "variable"
    assert load(None, {}).data_dir.name == "oaken-swarm"
    assert load(Path("relative"), {}).data_dir == Path.cwd() / "relative"


def test_a_file_may_be_named_by_the_environment_or_the_call(tmp_path: Path) -> None:
    for name, port in (("variable.toml", 1), ("call.toml", 2)):
        (tmp_path / name).write_text(f"[server]\nport = {port}\n")
    environ = {"OAKEN_CONFIG": str(tmp_path / "variable.toml")}
    assert load(tmp_path, environ).server.port == 1
    assert load(tmp_path, environ, tmp_path / "call.toml").server.port == 2


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("[jobs]\nlease_seconds = 0", ["[jobs] lease_seconds is 0", "a number from 1 to 86400"]),
        ("[jobs]\nlease_seconds = 86401", ["[jobs] lease_seconds is 86401"]),
        ("[jobs]\nlease_seconds = nan", ["[jobs] lease_seconds is NaN"]),
        ("[jobs]\nlease_seconds = '60'", ['[jobs] lease_seconds is "60"', "a number"]),
        ("[jobs]\nmax_attempts = true", ["[jobs] max_attempts is true", "a whole number from 1"]),
        ("[jobs]\nmax_attempts = 1.5", ["[jobs] max_attempts is 1.5"]),
        ("[jobs]\nbackoff_jitter = 1.1", ["a number from 0 to 1"]),
        ("[jobs]\nunknown_kinds = 'no'", ['[jobs] unknown_kinds is "no"', '"accept" or "reject"']),
        ("[jobs]\nkind_limits = { a = 0 }", ['[jobs] kind_limits is {"a": 0}', "a whole number from 1"]),
        ("[jobs]\nlease_second = 5", ["[jobs] lease_second", "Did you mean lease_seconds?"]),
        ("[jobs]\nzzz = 5", ["[jobs] zzz", "There are: lease_seconds"]),
        ("[job]\n", ["[job]", "Did you mean jobs?"]),
        ("lease_seconds = 5", ["lease_seconds", "[jobs] lease_seconds"]),
        ("jobs = 1", ["[jobs] is 1", "a table"]),
        ("[server]\nport = 65536", ["[server] port is 65536", "from 0 to 65535"]),
        ("[server]\nallowed_hosts = 'a'", ['[server] allowed_hosts is "a"', "a list of texts"]),
        ("[server]\nallowed_hosts = ['a', 1]", ["[server] allowed_hosts"]),
        ("[queues]\nreview = 1", ["[queues.review] is 1", "a table"]),
        ("[queues.review]\nworker = 1", ["[queues.review] worker", "Did you mean workers?"]),
        ("[queues.review]\nworkers = -1", ["[queues.review] workers is -1"]),
        ("[queues.Review]\n", ["[queues.Review]", "[a-z][a-z0-9_-]{0,40}"]),
        (f"[queues.{'a' * 42}]\n", ["[a-z][a-z0-9_-]{0,40}"]),
        ("[queues.'a\\n']\n", ["[a-z][a-z0-9_-]{0,40}"]),
        ("[kinds.'']\n", ["[kinds.]", "1 to 200"]),
        ("[kinds.k]\non_lost = 'drop'", ['[kinds.k] on_lost is "drop"', '"requeue" or "fail"']),
        ("[kinds.k]\npayload_schema = 'x'", ["[kinds.k] payload_schema", "a table that is a JSON Schema"]),
        ("[log]\nlevel = 'loud'", ['[log] level is "loud"', '"info"']),
        ("[runner]\ngrace = 2026-01-01", ['[runner] grace is "2026-01-01"']),
        ("[jobs\n", ["is not TOML", "line 1"]),
        ("a = " + "[" * 5000, ["nested too deep"]),
    ],
)
def test_what_is_wrong_in_a_file_is_refused_by_name(tmp_path: Path, toml: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        _load(tmp_path, toml)
    assert refused.value.message.startswith(str(tmp_path / "config.toml"))
    for part in parts:
        assert part in refused.value.message
    assert "pydantic" not in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("variable", "text", "parts"),
    [
        ("OAKEN_JOBS__LEASE_SECONDS", "soon", ['[jobs] lease_seconds is "soon"', "a number from 1 to 86400"]),
        ("OAKEN_JOBS__LEASE_SECONDS", "", ['[jobs] lease_seconds is ""']),
        ("OAKEN_JOBS__LEASE_SECONDS", "[" * 100_000, ["[jobs] lease_seconds"]),
        ("OAKEN_JOBS__KIND_LIMITS", "{", ['[jobs] kind_limits is "{"']),
        ("OAKEN_JOBS__LEASE_SECOND", "5", ["[jobs] lease_second", "Did you mean lease_seconds?"]),
        ("OAKEN_JOBS__KIND_LIMITS__EMBED", "5", ["OAKEN_JOBS__KEY"]),
        ("OAKEN_QUEUES__REVIEW", "5", ["OAKEN_QUEUES__NAME__KEY"]),
        ("OAKEN_QUEUES__1__WORKERS", "5", ["[queues.1]"]),
        ("OAKEN_QUEUES__Q__HIDDEN", "maybe", ['[queues.q] hidden is "maybe"', "true or false"]),
        ("OAKEN_JOB__X", "5", ["[job]", "Did you mean jobs?"]),
        ("OAKEN_DATADIR", "x", ["Did you mean OAKEN_DATA_DIR?"]),
        ("OAKEN_TOKENS", "x", ["Did you mean OAKEN_TOKEN?"]),
    ],
)
def test_what_is_wrong_in_the_environment_is_refused_by_the_variables_name(
    tmp_path: Path, variable: str, text: str, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, {variable: text})
    assert refused.value.message.startswith(f"{variable}: ")
    for part in parts:
        assert part in refused.value.message
    assert len(refused.value.message) < 300


def test_variables_that_others_make_are_let_be(tmp_path: Path) -> None:
    environ = {"OAKEN_SERVICE_HOST": "10.0.0.1", "OAKEN_PORT": "tcp://10.0.0.1:8787", "HOME": "/", "OTHER__X": "1"}
    assert load(tmp_path, environ).origins == {}


def test_a_file_that_was_named_must_be_there_and_readable(tmp_path: Path) -> None:
    for missing in (tmp_path / "gone.toml", tmp_path):
        with pytest.raises(ConfigError, match=str(missing)):
            load(tmp_path, {"OAKEN_CONFIG": str(missing)})
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path, {})


def test_what_is_wrong_in_the_call_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the call: \[server\] porto is no setting. Did you mean port\?"):
        load(tmp_path, {}, server={"porto": 1})


def test_the_rules_say_what_the_settings_say(tmp_path: Path) -> None:
    toml = "[jobs]\nlease_seconds = 7\nmax_batch = 9\nunknown_kinds = 'reject'\nkind_limits = { a = 2 }"
    found = rules(_load(tmp_path, toml))
    assert (found.lease_seconds, found.max_batch, found.unknown_kinds, found.kind_limits) == (7, 9, "reject", {"a": 2})
    assert found.max_payload_bytes == 1 << 20


def test_the_built_in_queues_are_there_and_come_first(tmp_path: Path) -> None:
    queues = rules(_load(tmp_path, "[queues.alpha]\nkind = 'triage'\n[queues.beta]\n")).queues
    assert [(q.name, q.kind, q.workers, q.hidden) for q in queues.values()] == [
        ("default", None, 2, False),
        ("store", "store", 1, True),
        ("embed", "embed", 1, True),
        ("alpha", "triage", 1, False),
        ("beta", None, 1, False),
    ]


def test_a_built_in_queue_keeps_what_the_configuration_does_not_say(tmp_path: Path) -> None:
    queues = rules(_load(tmp_path, "[queues.default]\nby_label = false\n[queues.embed]\nworkers = 4\n")).queues
    assert (queues["default"].workers, queues["default"].by_label) == (2, False)
    assert (queues["embed"].kind, queues["embed"].workers, queues["embed"].hidden) == ("embed", 4, True)
    assert list(queues) == ["default", "store", "embed"]


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("[queues.a]\nkind = 't'\n[queues.b]\nkind = 't'\n", ["[queues.b] kind", '"t"', 'queue "a"']),
        ("[queues.a]\nkind = 'embed'\n", ["[queues.a] kind", 'queue "embed"']),
        ("[queues.store]\nkind = 't'\n", ["[queues.store] kind", 'the stage of "store"']),
        ("[queues.a]\nkind = 'intake'\n", ["[queues.a] kind", "default"]),
        ("[kinds.k]\npayload_schema = { type = 'objekt' }", ["[kinds.k] payload_schema", "JSON Schema"]),
        ("[kinds.k]\nresult_schema = { x = 2026-01-01 }", ["[kinds.k] result_schema", "type date", "/x"]),
    ],
)
def test_settings_that_contradict_are_refused_by_name(tmp_path: Path, toml: str, parts: list[str]) -> None:
    settings = _load(tmp_path, toml)
    with pytest.raises(ConfigError) as refused:
        rules(settings)
    for part in (str(tmp_path / "config.toml"), *parts):
        assert part in refused.value.message


def test_a_configured_kind_has_what_was_said(tmp_path: Path) -> None:
    toml = """
        [kinds.report]
        limit = 3
        lease_seconds = 600
        on_lost = "fail"
        invalid_result = "fail"
        expected_wait = 60
        requires_output = true
        instructions = "Write it."
        payload_schema = { type = "object", required = ["about"] }
    """
    kind = rules(_load(tmp_path, toml)).kinds["report"]
    assert (kind.limit, kind.lease_seconds, kind.on_lost, kind.invalid_result) == (3, 600, "fail", "fail")
    assert (kind.expected_wait, kind.requires_output, kind.instructions) == (60, True, "Write it.")
    assert kind.payload_schema is not None
    assert [p["path"] for p in kind.payload_schema.problems({})] == ["/"]
    assert (kind.result_schema, kind.max_attempts) == (None, None)


def test_configuring_a_built_in_kind_changes_only_the_keys_given(tmp_path: Path) -> None:
    schema = Schema.compile({"type": "object"}, "here")
    builtin = Kind("embed", payload_schema=schema, limit=8, lease_seconds=120, on_lost="fail", internal=True)
    found = rules(_load(tmp_path, "[kinds.embed]\nlimit = 2\n"), [builtin, Kind("store", internal=True)])
    assert found.kinds["embed"] == Kind(
        "embed", payload_schema=schema, limit=2, lease_seconds=120, on_lost="fail", internal=True
    )
    assert found.internal == ("embed", "store")
    assert rules(load(tmp_path / "none", {}), [builtin]).kinds == {"embed": builtin}


def test_importing_the_settings_brings_in_no_schema_engine_and_no_database() -> None:
    code = "import sys, oaken_jobs.config; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jsonschema_rs", "aiosqlite", "sqlite3", "asyncio", "pydantic_settings", "platformdirs"} & set(loaded)


def test_the_database_is_named_by_a_variable_before_the_file_and_shown_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[database]\nurl = "postgresql://elsewhere/jobs"\n')
    url = "postgresql://ann:not-a-real-password@somewhere:5433/jobs"
    settings = load(tmp_path, environ={"OAKEN_DATABASE_URL": url})
    assert settings.database.url == url
    (line,) = [line for line in shown(settings) if line.key == "[database] url"]
    assert (line.value, line.origin) == ("postgresql://ann@somewhere:5433/jobs", "OAKEN_DATABASE_URL")


def test_what_the_settings_say_of_rules_reaches_them(tmp_path: Path) -> None:
    toml = (
        "[jobs]\ncancel_grace = 7\nask_timeout = 8\nkeep_days = 9\n[scheduler]\ncatch_up_spread = 10\n"
        "[api]\nevent_ring_size = 11\nstream_buffer = 13\n[log]\naudit_keep_days = 12\nkeep_days = 14\n"
        "[kinds.slow]\nretry_delays = [1, 60]\n"
    )
    found = rules(_load(tmp_path, toml))
    assert (found.cancel_grace, found.ask_timeout, found.keep_days) == (7, 8, 9)
    assert (found.catch_up_spread, found.event_ring_size, found.audit_keep_days) == (10, 11, 12)
    assert (found.stream_buffer, found.log_keep_days) == (13, 14)
    assert found.kinds["slow"].retry_delays == (1, 60)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ({"file": "core.db"}, '[log] file is "core.db"; it must be another file: this one is the database\'s.'),
        ({"events_file": "core.db-wal"}, "the database's"),
        ({"file": "CORE.DB"}, "the database's"),
        ({"events_file": "logs/../core.db"}, "the database's"),
        ({"events_file": "config.toml"}, "for the settings"),
        ({"file": "trace.jsonl"}, "the trace's"),
        ({"file": "events.jsonl"}, "[log] events_file"),
        ({"file": "a.log", "events_file": "./a.log"}, "[log] events_file"),
        ({"file": "trace.jsonl.lock"}, ".lock, .tmp or a number"),
        ({"file": "events.jsonl.1"}, ".lock, .tmp or a number"),
        ({"file": "logs"}, "a folder is not"),
        ({"events_file": ".."}, "a folder is not"),
        ({"file": "new/"}, "a folder is not"),
        ({"file": "link"}, "the database's"),
        ({"file": "a\0b"}, "the name of a file"),
    ],
)
def test_a_log_is_never_written_into_a_file_that_is_there_for_something_else(
    tmp_path: Path, log: dict[str, str], told: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to("core.db")
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, {}, log=log)
    assert told in refusal.value.message


def test_a_log_may_have_a_name_of_its_own_wherever_it_is(tmp_path: Path) -> None:
    settings = load(tmp_path, {}, log={"file": "logs/oaken.log", "events_file": str(tmp_path / "other" / "core.db")})
    assert settings.log.file == "logs/oaken.log"
    own = tmp_path / "own.toml"
    own.write_text("[log]\nfile = 'own.toml'\n")
    with pytest.raises(ConfigError, match="for the settings"):
        load(tmp_path, {}, own)

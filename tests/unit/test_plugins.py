"""Loading plugins: a broken one is left out and named, whatever is wrong with it, and the others are there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from oaken_jobs import plugins
from oaken_jobs.config import Settings, load
from oaken_jobs.errors import ConfigError
from oaken_jobs.plugins import Left, Loaded

HEAD = "from oaken_jobs.plugin import NotConfigured, Plugin\n"
GOOD = (
    HEAD
    + """
plugin = Plugin("good")
plugin.kind("good-work", payload={"type": "object", "required": ["n"]})
plugin.schedule("daily", kind="good-work", payload={"n": 1}, every_seconds=86_400)

@plugin.handler("good-work")
async def work(job):
    return {}

@plugin.batch_handler("embed", max=3)
async def embed(jobs):
    return []
"""
)
FACTORY = (
    HEAD
    + """
def plugin(settings):
    if "folder" not in settings:
        raise NotConfigured("set folder")
    if settings["folder"] == "none":
        return None
    found = Plugin("made")
    found.kind(settings["folder"])
    return found
"""
)


class Modules:
    """Modules of the test's own, and settings that name them. `names` tell them from those of other tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []

    def add(self, name: str, text: str) -> str:
        full = f"{name}_{self.folder.name.replace('-', '_')}"
        (self.folder / f"{full}.py").write_text(text)
        self.names.append(full)
        return full

    def settings(self, toml: str = "", **said: dict[str, Any]) -> Settings:
        (self.folder / "config.toml").write_text(toml)
        return load(self.folder, {}, plugins={"modules": self.names, "settings": said})

    def load(self, toml: str = "", **said: dict[str, Any]) -> Loaded:
        return plugins.load(self.settings(toml, **said))


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    monkeypatch.syspath_prepend(tmp_path)
    return Modules(tmp_path)


def test_a_plugins_kinds_and_handlers_stand_beside_the_built_in_ones(modules: Modules) -> None:
    modules.add("good", GOOD)
    loaded = modules.load()
    assert [plugin.name for plugin in loaded.plugins] == ["good"]
    assert loaded.rules.kinds.keys() == {"intake", "store", "embed", "triage", "good-work"}
    assert loaded.handlers().kinds == ["intake", "store", "good-work", "embed"]
    assert loaded.broken == []


def test_what_is_configured_of_a_plugins_kind_goes_before_what_the_plugin_says(modules: Modules) -> None:
    modules.add("good", GOOD)
    kind = modules.load("[kinds.good-work]\nlimit = 7\n").rules.kinds["good-work"]
    assert kind.limit == 7
    assert kind.payload_schema is not None


BROKEN: list[tuple[str, str]] = [
    ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
    ("def broken(:", "SyntaxError: "),
    ("raise RuntimeError('boom at import')", "RuntimeError: boom at import"),
    ("import sys; sys.exit(3)", "SystemExit: 3"),
    ("class Own(BaseException): pass\nraise Own('boom')", "Own: boom"),
    ("import asyncio; raise asyncio.CancelledError('odd')", "CancelledError: odd"),
    ("x = 1", "has no attribute 'plugin'"),
    ("plugin = 17", "is of type int; it must be a Plugin, or a function that returns one"),
    ("def plugin(settings): return 17", "returned of type int; it must return a Plugin, or None"),
    ("def plugin(settings): raise KeyError('x')", "KeyError: 'x'"),
    ("def plugin(): ...", "TypeError: plugin() takes 0 positional arguments"),
    (HEAD + "plugin = Plugin('Bad Name')", "'Bad Name' is no name for a plugin"),
    (
        HEAD + "plugin = Plugin('x'); plugin.kind('k', payload={'type': 7})",
        "payload_schema is not a usable JSON Schema",
    ),
    (HEAD + "plugin = Plugin('good')", "there is a plugin named good already"),
    (HEAD + "plugin = Plugin('x'); plugin.kind('intake')", "declares the kind 'intake', which is built in"),
    (HEAD + "plugin = Plugin('x'); plugin.kind('good-work')", "'good-work', which is the plugin good's"),
    (HEAD + "plugin = Plugin('x'); plugin.handler('store')(print)", "'store', which only Oaken itself runs"),
    (HEAD + "plugin = Plugin('x'); plugin.handler('embed')(print)", "'embed', which the plugin good does already"),
    (HEAD + "plugin = Plugin('x'); plugin.handler('typo')(print)", "handles the kind 'typo', which nobody declares"),
    (
        HEAD + "plugin = Plugin('x'); plugin.schedule('s', kind='embed', queue='nowhere', every_seconds=9)",
        "schedule x.s: queue 'nowhere' is not configured",
    ),
    (
        HEAD + "plugin = Plugin('x'); plugin.schedule('s', kind='good-work', every_seconds=9)",
        "schedule x.s: The payload does not fit the schema of good-work",
    ),
    (
        HEAD + "plugin = Plugin('x'); plugin.schedule('s', kind='triage', payload={'text': ''}, cron='61 * * * *')",
        "schedule x.s: cron '61 * * * *'",
    ),
    ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    ("raise RuntimeError('password=hunter2hunter2')", "RuntimeError: password=[redacted]"),
]


@pytest.mark.parametrize(("text", "told"), BROKEN, ids=[told for _, told in BROKEN])
def test_a_broken_plugin_is_named_with_its_reason_and_the_others_are_there(
    modules: Modules, text: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    modules.add("good", GOOD)
    name = modules.add("bad", text)
    modules.add("later", HEAD + "plugin = Plugin('later'); plugin.kind('later-work')")
    loaded = modules.load()
    assert [plugin.name for plugin in loaded.plugins] == ["good", "later"]
    assert loaded.rules.kinds.keys() >= {"good-work", "later-work"}
    assert loaded.rules.kinds.keys() <= {"intake", "store", "embed", "triage", "good-work", "later-work"}
    (left,) = loaded.broken
    assert left.name == name
    assert told in left.reason
    with caplog.at_level(logging.DEBUG, "oaken.plugins"):
        loaded.report()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert lines == [f"the plugin {name} is broken and left out: {left.reason}"]


def test_a_module_that_is_named_but_not_there_is_broken(modules: Modules) -> None:
    modules.add("good", GOOD)
    modules.names.append("nowhere.at_all")
    loaded = modules.load()
    assert [name for name, _ in loaded.broken] == ["at_all"]
    assert len(loaded.plugins) == 1


@pytest.mark.parametrize("settings", [{}, {"folder": "none"}])
def test_a_plugin_that_is_not_configured_is_absent_without_a_word(
    modules: Modules, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    name = modules.add("factory", FACTORY)
    loaded = modules.load(**{name: settings} if settings else {})
    assert (loaded.plugins, loaded.broken) == ([], [])
    assert name in [left.name for left in loaded.absent]
    with caplog.at_level(logging.INFO):
        loaded.report()
    assert caplog.records == []


def test_a_plugin_gets_the_settings_of_its_module_by_its_last_name(modules: Modules) -> None:
    name = modules.add("factory", FACTORY)
    assert "some-kind" in modules.load(**{name: {"folder": "some-kind"}}).rules.kinds


def test_settings_that_no_plugin_reads_are_said_to_be_wrong(modules: Modules) -> None:
    name = modules.add("good", GOOD)
    loaded = modules.load(**{name: {"a": 1}, "good": {"a": 1}})
    assert loaded.plugins == []
    assert loaded.broken == [
        Left(name, f"it takes no settings; leave [plugins.settings.{name}] out"),
        Left("good", "there is no such plugin, but [plugins.settings.good]. Check the name."),
    ]


def test_a_module_named_twice_is_loaded_once(modules: Modules) -> None:
    name = modules.add("good", GOOD)
    modules.names.append(name)
    assert (len(modules.load().plugins), modules.load().broken) == (1, [])


def test_what_a_plugin_prints_while_it_is_loaded_goes_to_stderr(
    modules: Modules, capsys: pytest.CaptureFixture[str]
) -> None:
    modules.add(
        "chatty", HEAD + "print('hello')\ndef plugin(settings):\n    print('made')\n    return Plugin('chatty')\n"
    )
    assert len(modules.load().plugins) == 1
    assert capsys.readouterr() == ("", "hello\nmade\n")


def test_installed_packages_bring_plugins_by_an_entry_point(modules: Modules) -> None:
    info = modules.folder / "some_oak-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-oak\nVersion: 1.0\n")
    name = modules.add("installed", FACTORY)
    modules.names.clear()
    (info / "entry_points.txt").write_text(f"[oaken.plugins]\nfound = {name}:plugin\n")
    assert "found" in [left.name for left in modules.load().absent]
    assert [plugin.name for plugin in modules.load(found={"folder": "k"}).plugins] == ["made"]


def test_wrong_settings_of_our_own_are_a_refusal_and_no_broken_plugin(modules: Modules) -> None:
    modules.add("good", GOOD)
    with pytest.raises(ConfigError, match="not a usable JSON Schema"):
        modules.load("[kinds.x]\npayload_schema = {type = 7}\n")
    modules.names.append("no module")
    with pytest.raises(ConfigError, match="must be a list of names of modules"):
        modules.load()


def test_plugins_are_set_in_the_file_and_in_variables(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[plugins]\nmodules = ['a.b']\n[plugins.settings.b]\nfolder = 'docs'\n")
    found = load(tmp_path, {}).plugins
    assert (found.modules, found.settings) == (["a.b"], {"b": {"folder": "docs"}})
    environ = {"OAKEN_PLUGINS__MODULES": '["c"]', "OAKEN_PLUGINS__SETTINGS": '{"c": {"n": 1}}'}
    found = load(tmp_path, environ).plugins
    assert (found.modules, found.settings) == (["c"], {"c": {"n": 1}})
    assert "docs" not in repr(load(tmp_path, {}))


def test_a_user_who_interrupts_the_loading_is_obeyed(modules: Modules) -> None:
    modules.add("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        modules.load()

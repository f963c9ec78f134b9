"""Plugins in real processes: a good one at work beside broken ones, and what the command line says of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import READY, Processes, clean_environ

DOC = "# Title\n\n[here](#title) and [there](other.md#none), [gone](gone.md)\n"


class Site:
    """A data folder whose processes load the example plugin and others."""

    def __init__(self, folder: Path) -> None:
        self.processes = Processes(folder / "data")
        (folder / "docs").mkdir()
        (folder / "docs" / "a.md").write_text(DOC)
        (folder / "docs" / "other.md").write_text("# Other\n")
        (folder / "leaves_at_import.py").write_text("import sys\nsys.exit('no')\n")
        modules = ["leaves_at_import", "agents_examples.links", "no_such_module"]
        self.environ = {
            "OAKEN_PLUGINS__MODULES": json.dumps(modules),
            "OAKEN_PLUGINS__SETTINGS": json.dumps({"links": {"folder": str(folder / "docs")}}),
            "PYTHONPATH": ":".join([str(folder), *sys.path]),
        }

    def serve(self, *arguments: str) -> subprocess.Popen[str]:
        process = self.processes.start("serve", "--port", "0", *arguments, **self.environ)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert READY.fullmatch(line), (line, process.stderr and process.stderr.read())
        return process

    def run(self, *arguments: str, **environ: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "oaken_app.main", *arguments],
            env=clean_environ() | {"OAKEN_DATA_DIR": str(self.processes.folder)} | self.environ | environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    def json(self, *arguments: str) -> Any:
        code, out, err = self.run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def findings(self) -> dict[str, str]:
        """What the doctor finds of plugins, with its level."""
        out = json.loads(self.run("doctor", "--json", "--quick")[1])
        return {f["what"]: f["level"] for f in out["findings"] if f["what"].startswith("plugin")}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    for process in found.processes.started:
        process.kill()
        process.communicate()


def test_a_plugin_works_in_a_server_beside_broken_ones_and_stops_with_it(site: Site) -> None:
    process = site.serve()
    told = site.json("job", "enqueue", "check-links")
    assert "warning" not in told
    job = site.json("job", "wait", str(told["job"]["id"]))["jobs"][0]
    assert (job["state"], job["grade"]["grade"], job["progress"]["percent"]) == ("succeeded", "warn", 100)
    result = site.json("job", "status", str(job["id"]))["job"]["result"]
    assert (result["files"], result["total"], result["failed"]) == (2, 3, 2)
    assert [one["target"] for one in result["broken"]] == ["other.md#none", "gone.md"]
    rows = site.json("job", "activity", str(job["id"]))["activity"]
    (event,) = [row["data"]["fields"] for row in rows if row["kind"] == "links.checked"]
    assert (event["files"], event["links"], event["broken"]) == (2, 3, 2)
    assert "links.checked  files=2, links=3, broken=2, seconds=" in site.run("job", "activity", str(job["id"]))[1]
    (schedule,) = site.json("schedule", "list")["schedules"]
    assert (schedule["name"], schedule["owner"], schedule["cron"]) == ("links.nightly", "links", "0 3 * * *")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    broken = re.findall(r"ERROR oaken.plugins: the plugin (\w+) is broken and left out: (.*)", err)
    assert broken == [
        ("leaves_at_import", "SystemExit: no"),
        ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ]
    assert "Traceback" not in err
    assert err.rstrip().endswith("oaken.process: stopped")


def test_the_doctor_tells_of_healthy_broken_and_absent_plugins(site: Site) -> None:
    assert site.findings() == {
        'plugin embedder is not configured: set backend = "wordllama", or url and model, in [plugins.settings.embedder]': "ok",
        "plugin links is loaded; nobody has looked yet whether it is healthy": "ok",
        "plugin leaves_at_import is broken: SystemExit: no": "bad",
        "plugin no_such_module is broken: ModuleNotFoundError: No module named 'no_such_module'": "bad",
    }
    assert site.run("doctor", "--quick")[0] == 1
    site.serve()
    deadline = time.monotonic() + 20
    while not any(re.match(r"plugin links was healthy \d+ s ago", what) for what in site.findings()):
        assert time.monotonic() < deadline, site.findings()
    site.environ["OAKEN_PLUGINS__SETTINGS"] = "{}"
    found = site.findings()
    assert found["plugin links is not configured: set folder in [plugins.settings.links]"] == "ok"


def test_the_payload_of_a_plugins_kind_is_checked_by_whoever_enqueues_it(site: Site) -> None:
    code, _, err = site.run("job", "enqueue", "check-links", "--payload", '{"file": "a.md"}')
    assert code == 1
    assert "payload does not fit the schema of check-links" in err
    assert err.count("\n") == 1
    assert site.run("job", "enqueue", "check-links", "--payload", '{"files": "a.md"}')[0] == 0


def test_a_server_without_a_runner_leaves_the_work_and_the_schedules_to_one_with_it(site: Site) -> None:
    site.serve("--no-runner")
    site.json("job", "enqueue", "check-links")
    assert site.json("schedule", "list")["schedules"] == []
    runner = site.processes.start("runner", **site.environ)
    assert site.json("job", "wait", "1")["jobs"][0]["state"] == "succeeded"
    assert len(site.json("schedule", "list")["schedules"]) == 1
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(20) == 0

"""The files for servers are at least well formed, and name what there is."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oaken_app.main import COMMANDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_the_unit_is_one_and_starts_a_command_there_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "oaken.service").read_text())
    assert unit["Service"]["ExecStart"].split()[1] in COMMANDS
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here; only the form was checked")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(DEPLOY / "oaken.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    wrong = [line for line in done.stderr.splitlines() if "oaken.service" in line and "is not executable" not in line]
    assert [line for line in wrong if "Unknown" in line or "Invalid" in line or "Failed to parse" in line] == []


def test_the_composition_names_files_and_commands_there_are() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
            assert service["command"][0] in COMMANDS


def test_the_container_file_holds_known_instructions_alone() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    words = {line.split()[0] for line in lines if line and not line.startswith(("#", " "))}
    known = {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "ENV",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert words <= known
    assert [line for line in lines if line.startswith("FROM")][-1] == "FROM python:3.13-slim"


def test_the_page_about_servers_names_settings_that_exist() -> None:
    from oaken_jobs.config import JobsSettings, RunnerSettings, ServerSettings

    text = (ROOT / "docs" / "deployment.md").read_text()
    assert {"grace"} <= set(RunnerSettings.model_fields)
    assert {"keep_days"} <= set(JobsSettings.model_fields)
    for name in re.findall(r"`(allowed_hosts|behind_proxy)`", text):
        assert name in ServerSettings.model_fields

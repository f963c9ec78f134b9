"""The description of the interface is put to the test by a program that knows nothing else of it: schemathesis, on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import Processes, clean_environ

EXAMPLES = os.environ.get("OAKEN_SCHEMA_EXAMPLES", "4")
SEED = os.environ.get("OAKEN_SCHEMA_SEED", "1")
SETTINGS = """
[parameters]
seconds = 0

[checks.positive_data_acceptance]
# 422 says what no schema can: a cursor of other filters, two fields that exclude each other, a filter that matches everything.
# 400 in free JSON: an integer that has more than 64 bits.
expected-statuses = ["2xx", "400", "401", "403", "404", "409", "422", "429"]
"""

HOOKS = """
import schemathesis


@schemathesis.hook
def map_body(context, body):  # a lease request may wait for a minute, and would
    if isinstance(body, dict) and type(body.get("wait_seconds")) in (int, float):
        return {**body, "wait_seconds": min(body["wait_seconds"], 0)}
    return body
"""


def test_no_call_that_the_description_allows_or_forbids_is_answered_otherwise_than_it_says(
    processes: Processes, tmp_path: Path
) -> None:
    environ = {**clean_environ(), "OAKEN_DATA_DIR": str(processes.folder)}
    made = [sys.executable, "-m", "oaken_app.main", "token", "create", "root", "--role", "admin", "--role", "agent"]
    token = subprocess.run(made, env=environ, text=True, capture_output=True, check=True).stdout.strip()
    _, url = processes.serve()
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    (tmp_path / "hooks.py").write_text(HOOKS)
    environ |= {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": f"{tmp_path}{os.pathsep}{environ.get('PYTHONPATH', '')}"}
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--no-color"),
        *("-H", f"Authorization: Bearer {token}", "--checks", "all", "-n", EXAMPLES, "--seed", SEED),
        # A job that was just added is there, but its result is not.
        *("--exclude-checks", "ensure_resource_availability"),
        # Streams never end, and who may revoke tokens revokes its own.
        *("--exclude-path-regex", "/events$|/stream$|/v1/tokens/", "--suppress-health-check", "all"),
    ]
    run = subprocess.run(command, cwd=tmp_path, env=environ, text=True, capture_output=True, timeout=240, check=False)
    told = run.stdout
    if "No module named" in run.stderr:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    failures = re.findall(r"^\s+❌ (.*)$", told[told.rfind("SUMMARY") :], re.MULTILINE)
    assert [one for one in failures if re.match(r"ST\d", one)] == [], told[-8000:]
    cases = re.search(r"(\d+) generated", told)
    assert cases is not None, (told[-3000:], run.stderr[-2000:])
    assert int(cases[1]) > 500

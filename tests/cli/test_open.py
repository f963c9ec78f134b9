"""`oaken open`: logged in on the machine itself, by a file that only its owner reads."""

from __future__ import annotations

import re
import signal
import stat
from pathlib import Path

import httpx2

from tests.forks import Said, oaken
from tests.processes import Processes


def opened(folder: Path, *arguments: str, **environ: str) -> Said:
    """`echo` stands for the browser: what it is given is what a list of processes shows."""
    return oaken("open", "--data-dir", str(folder), *arguments, BROWSER="echo GIVEN %s", **environ)


def test_a_file_for_its_owner_alone_posts_a_code_that_is_good_once(processes: Processes) -> None:
    server, url = processes.serve()
    said = opened(processes.folder)
    file = processes.folder / "open.html"
    assert said.code == 0, said.err
    assert f"GIVEN {file.as_uri()}" in said.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    page = file.read_text()
    code = re.search(r'name="code" value="([^"]+)"', page)
    assert code is not None
    assert f'action="{url}/login/code"' in page
    assert code[1] not in said.out + said.err
    post = {"data": {"code": code[1]}, "headers": {"Origin": "null", "Accept": "text/html"}}
    with httpx2.Client(base_url=url, trust_env=False) as http:
        answer = http.post("/login/code", **post)
        assert answer.status_code == 200
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert "local-admin" in http.get("/", headers={"Accept": "text/html"}).text
        assert http.get("/v1/me").json()["name"] == "local-admin"
    with httpx2.Client(base_url=url, trust_env=False) as http:
        again = http.post("/login/code", **post)
        assert again.status_code == 401
        assert "set-cookie" not in again.headers
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    events = (processes.folder / "events.jsonl").read_text()
    assert code[1] not in events


def test_without_a_server_or_with_a_name_that_is_no_token_it_says_so(processes: Processes) -> None:
    oaken("job", "enqueue", "x", "--data-dir", str(processes.folder))
    assert "oaken serve" in opened(processes.folder).err
    processes.serve()
    said = opened(processes.folder, "--as", "nobody")
    assert (said.code, "no token named 'nobody'" in said.err) == (1, True)
    assert not (processes.folder / "open.html").exists()


def test_where_the_token_is_no_good_it_says_how_to_go_on(processes: Processes) -> None:
    processes.serve()
    folder = ("--data-dir", str(processes.folder))
    oaken("token", "revoke", "local-admin", *folder)
    said = opened(processes.folder)
    assert said.code == 1
    assert "local-admin was revoked" in said.err
    assert "oaken token create NAME --role admin" in said.err
    assert "oaken open --as NAME" in said.err

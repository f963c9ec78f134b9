from __future__ import annotations

import pytest

from oaken_jobs.auth import NAME
from oaken_jobs.errors import InvalidRequest
from oaken_mcp.caller import Caller, name_of


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("claude-ai", "claude-ai"),
        ("Claude Code", "Claude-Code"),
        ("Visual Studio Code – Insiders", "Visual-Studio-Code-Insiders"),
        ("  ../../etc ", "etc"),
        ("agent:root", "agent-root"),
        ("x" * 200, "x" * 64),
        ("", "mcp"),
        ("日本語", "mcp"),
        (None, "mcp"),
    ],
)
def test_a_client_is_called_by_its_name_in_the_characters_of_a_token(client: str | None, name: str) -> None:
    assert name_of(client) == name
    assert NAME.fullmatch(name)


def test_two_processes_of_one_name_are_two_instances() -> None:
    one, two = Caller().principal("x"), Caller().principal("x")
    assert one.name == two.name
    assert one.agent != two.agent
    assert one.roles == {"user", "agent"}


def test_a_process_that_is_given_the_instance_of_an_earlier_one_is_the_same_agent() -> None:
    one, two = Caller(instance="desk:1").principal("x"), Caller(instance="desk:1").principal("x")
    assert one.agent == two.agent == "x/desk:1"


@pytest.mark.parametrize("instance", ["", "a b", "a/b", "-a", "x" * 65, "é"])
def test_an_instance_that_cannot_be_is_refused(instance: str) -> None:
    with pytest.raises(InvalidRequest, match="--instance"):
        Caller(instance=instance)

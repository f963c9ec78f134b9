"""The example plugin: which links lead nowhere; and the page that teaches plugins is right."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

from agents_examples import links
from oaken_jobs.plugin import NotConfigured, Plugin

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("line", "count", "broken"),
    [
        ("[a](other.md)", 1, []),
        ("[a](other.md#some-thing-else)", 1, []),
        ("[a](#here) and [b](<there.md>)", 2, ["there.md"]),
        ("[a](other.md#nothing)", 1, ["other.md#nothing"]),
        ("[a](sub/) [b](sub/none.md 'with a title')", 2, ["sub/none.md"]),
        ("[a](https://example.org) [b](mailto:a@b) [c](//host/x)", 0, []),
        ("![picture](none.png)", 0, []),
        ("`[a](none.md)`", 0, []),
        ("```\n[a](none.md)\n```", 0, []),
    ],
)
def test_links_that_lead_nowhere_are_found(tmp_path: Path, line: str, count: int, broken: list[str]) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "other.md").write_text("# Other\n\n## Some `thing`, else!\n")
    file = tmp_path / "a.md"
    file.write_text(f"# Here\n\n{line}\n")
    found = links.examine(tmp_path, file)
    assert (found[0], [one.target for one in found[1]]) == (count, broken)
    assert {one.line for one in found[1]} <= {3}


@pytest.mark.parametrize("pattern", ["/etc/*.md", "../*.md", "docs/../../*.md"])
def test_a_job_reads_nothing_outside_the_folder(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "secret.md").write_text("secret")
    assert links._files(tmp_path / "docs", pattern) == []


async def test_it_is_well_while_its_folder_is_there(tmp_path: Path) -> None:
    plugin = links.plugin({"folder": str(tmp_path / "docs")})
    assert plugin.health_check is not None
    assert "there is no folder" in (await plugin.health_check.check() or "")
    (tmp_path / "docs").mkdir()
    assert await plugin.health_check.check() is None


def test_without_a_folder_it_is_not_configured() -> None:
    with pytest.raises(NotConfigured):
        links.plugin({})


def test_the_projects_own_pages_have_no_broken_links() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "agents_examples").glob("*.md")]
    assert len(pages) > 5
    assert [one for page in pages for one in links.examine(ROOT, page)[1]] == []


def test_the_plugins_of_the_page_work_as_they_stand_there() -> None:
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = types.ModuleType("shout")
    exec(compile(first, "shout.py", "exec"), module.__dict__)
    assert isinstance(module.plugin, Plugin)
    assert module.plugin.handlers.kinds == list(module.plugin.kinds) == ["shout"]
    exec(compile(second, "links.py", "exec"), module.__dict__)
    with pytest.raises(NotConfigured):
        module.plugin({})

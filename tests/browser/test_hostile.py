"""Text of others is text: nothing of it runs, none of it turns, widens or hides what stands around it."""

from __future__ import annotations

import itertools
from typing import Any

from playwright.async_api import expect

from oaken_jobs.model import Usage
from oaken_jobs.requests import ScheduleRequest, TraceRow
from tests.browser.conftest import USER, Cockpit, agent

HOSTILE = {
    "script": "<script>broken('ran')</script>",
    "attribute": "\"' onmouseover=broken('ran') autofocus onfocus=broken('ran') x='",
    "image": "<img src=x onerror=broken('ran')><svg onload=broken('ran')>",
    "template": "{{ 7 * 7 }}{% for x in y %}${7 * 7}#{7*7}<%= 7 * 7 %>",
    "override": "\u202e\u2066abc\u2067 evil.example/\u202dgpj.exe",
    "long": "W" * 10_000,
    "nul": "a\0b\x1b[31mc",
    "close": "</bdi></td></tr></table></main></pre><h1>gone</h1>",
    "link": "javascript:broken('ran')",
}


async def hostile_world(cockpit: Cockpit, text: str) -> dict[str, int]:
    """Jobs with this text in every field that a client can set, in all the states they show in."""
    jobs, bot = cockpit.core.jobs, agent("bot")
    line, key = text.replace("\n", " ")[:200], text.replace("\0", "␀").replace("\x1b", "␛")[:255]
    said: dict[str, Any] = {
        "title": line,
        "tags": [line[:64]],
        "subject": key,
        "target": key,
        "dedupe_key": key,
        "serial_key": key,
    }
    numbers = itertools.count()
    made: dict[str, int] = {}

    async def held(name: str) -> Any:
        mark = f"{next(numbers)}"
        fields = {**said, "target": None, "dedupe_key": None, "serial_key": None} if name != "failed" else said
        made[name] = await cockpit.enqueue("slow", payload={"n": mark, text[:5000]: text, "list": [text]}, **fields)
        [lease] = await jobs.lease(bot, kinds=["slow"])
        return lease

    lease = await held("failed")
    await jobs.heartbeat(bot, lease.lease_id, percent=10, message=text, progress=True)
    await jobs.fail(bot, lease.lease_id, text, permanent=True)
    lease = await held("succeeded")
    await jobs.complete(bot, lease.lease_id, {text[:5000]: text}, Usage({line[:64] or "x": 1}, 0.1, line))
    lease = await held("asking")
    await jobs.ask(bot, lease.lease_id, text[:4000])
    lease = await held("answered")
    await jobs.ask(bot, lease.lease_id, text[:4000])
    await jobs.answer(USER, made["answered"], text)
    [lease] = await jobs.lease(bot, kinds=["slow"])
    await jobs.heartbeat(bot, lease.lease_id, percent=60, message=text, progress=True)
    await jobs.trace(
        bot, lease.lease_id, [TraceRow(model=line, provider=line, tool=line, input=text, output={"x": text})]
    )
    await jobs.set_labels(USER, key, {"note": line[:200]}, None)
    await cockpit.core.schedules.put(
        USER, "brief", ScheduleRequest(queue="slow", kind="brief", every_seconds=60, payload={"x": text})
    )
    return made


async def test_hostile_text_is_shown_as_text_and_breaks_no_layout(cockpit: Cockpit) -> None:
    made = {name: await hostile_world(cockpit, text) for name, text in HOSTILE.items()}
    context = await cockpit.context("admin", viewport={"width": 1100, "height": 800})
    page = await context.new_page()
    lists = ["/", "/jobs", "/feed", "/agents", "/schedules", "/events", "/trace"]
    for path in [
        *lists,
        *(f"/activity/{one[state]}" for one in made.values() for state in ("failed", "answered")),
    ]:
        await page.goto(path)
        found = await page.evaluate(_FOUND)
        assert found == {"heads": 1, "alive": 0, "foot": 1, "wide": 0, "turning": 0}, (path, found)
    await page.goto(f"/activity/{made['override']['succeeded']}")
    await page.locator("#result summary").click()
    await expect(page.locator("#result pre")).to_contain_text("\ufffd\ufffdabc\ufffd evil.example")
    await page.goto(f"/activity/{made['nul']['succeeded']}")
    await page.locator("#result summary").click()
    await expect(page.locator("#result pre")).to_contain_text("\\u0000")
    assert "a␀b␛[31mc" in await page.locator("main").inner_text()
    await page.set_viewport_size({"width": 390, "height": 800})
    for path in [*lists, *(f"/activity/{made[name]['asking']}" for name in ("long", "override", "close"))]:
        await page.goto(path)
        assert (await page.evaluate(_FOUND))["wide"] == 0, (path, "phone")


_FOUND = """() => ({
  heads: document.querySelectorAll("h1").length,
  alive: document.querySelectorAll("main script, main img, main iframe, main [onload], main [onerror], main [onmouseover]").length,
  foot: document.querySelectorAll("body > footer").length,
  turning: [...document.body.textContent.matchAll(/[\u202a-\u202e\u2066-\u2069]/g)].length,
  wide: Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth),
})"""


async def test_the_direction_of_a_text_ends_with_it_however_its_marks_are_paired(cockpit: Cockpit) -> None:
    around = (
        "\u202e\u2066abc",
        "\u2069\u202eabc",
        "\u2029\u202eabc",
        "\x85\u202eabc",
        "\u2067\u2069\u2069\u202e\u2068abc",
    )
    bot = agent("bot")
    jobs: list[int] = []
    for text in around:
        jobs.append(await cockpit.enqueue(max_attempts=1))
        lease = await cockpit.lease()
        await cockpit.core.jobs.heartbeat(bot, lease.lease_id, percent=10, message=text, progress=True)
        await cockpit.core.jobs.trace(bot, lease.lease_id, [TraceRow(model=text, tool="x")])
    page = await cockpit.page(f"/activity/{jobs[0]}", "admin")
    for job in jobs:
        await page.goto(f"/activity/{job}")
        assert await page.locator(".progress time").evaluate(_LEFT_TO_RIGHT), job
    await page.goto("/trace")
    for row in await page.locator(".added > .dim").all():
        assert await row.evaluate(_LEFT_TO_RIGHT)
    await page.get_by_role("button", name="Follow").click()
    await page.mouse.move(0, 0)
    for text in around:
        await cockpit.enqueue("slow")
        lease = await cockpit.lease("slow")
        await cockpit.core.jobs.trace(bot, lease.lease_id, [TraceRow(model=text, tool="x")])
        row = page.locator(f"article[data-key='{lease.job.id}-{lease.job.epoch}'] .added > .dim")
        assert await row.evaluate(_LEFT_TO_RIGHT), text
        assert (await page.evaluate(_FOUND))["turning"] == 0


_LEFT_TO_RIGHT = """(element) => {
  const words = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let last = null;
  while (words.nextNode()) {
    const word = words.currentNode;
    if (word.data.trim().length > 1 && !word.parentNode.closest("bdi")) last = word;
  }
  const left = (at) => {
    const range = document.createRange();
    range.setStart(last, at);
    range.setEnd(last, at + 1);
    return range.getBoundingClientRect().left;
  };
  return left(0) < left(last.data.trimEnd().length - 1);
}"""


async def test_a_body_that_says_it_is_a_page_is_text(cockpit: Cockpit) -> None:
    cockpit.expected.append("404")  # a text names no icon, so the browser looks for one
    job = await cockpit.enqueue("slow", payload={"x": "<html><script>broken('ran')</script>"})
    page = await cockpit.page(f"/activity/{job}/payload")
    assert "<script>" in await page.locator("body").inner_text()
    assert await page.locator("script").count() == 0


async def test_what_stands_in_an_address_is_not_taken_for_a_notice(cockpit: Cockpit) -> None:
    page = await cockpit.page("/jobs?said=<b>x</b>&q=<script>broken(1)</script>")
    assert await page.locator(".notice").count() == 0
    assert await page.get_by_label("Search").input_value() == "<script>broken(1)</script>"

"""The pages for everyone: by keyboard, by what reads them aloud, in both themes, on a phone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from oaken_jobs.model import Usage
from oaken_jobs.requests import ScheduleRequest
from tests.browser.conftest import USER, Cockpit, agent
from tests.mcp.conformance import node

AXE = node.FOLDER / "node_modules/axe-core/axe.min.js"
SHOTS = Path(os.environ.get("OAKEN_SHOTS", Path(__file__).parents[2] / ".screenshots"))
CHECKS = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast"]},
}
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
NARROW = {"width": 375, "height": 667}
SHOTS.mkdir(exist_ok=True)


async def lively(cockpit: Cockpit) -> dict[str, str]:
    """A server with something of everything; its pages by name."""
    jobs, embedder, writer = cockpit.core.jobs, agent("embedder"), agent("writer")
    for number in range(14):
        await cockpit.enqueue(
            "embed", payload={"text": f"note {number}"}, title=f"Embed note {number}", subject=f"note:{number}"
        )
    for number in range(5):
        await cockpit.enqueue("report", title=f"Report {number}", tags=["weekly"], priority=100, budget_usd=0.5)
    await cockpit.enqueue("mystery", title="Nobody takes these")
    for number in range(9):
        [lease] = await jobs.lease(embedder, kinds=["embed"])
        if number in (2, 5):
            await jobs.fail(
                embedder, lease.lease_id, "the model did not answer: 503 from upstream", permanent=number == 5
            )
        else:
            result = {"model": "m-1", "vector": [0.1]}
            await jobs.complete(embedder, lease.lease_id, result, Usage({"input_tokens": 120}, 0.0013, "m-1"))
    [lease] = await jobs.lease(writer, kinds=["report"])
    await jobs.ask(writer, lease.lease_id, "For whom is the report, and how long may it be?")
    asks = lease.job.id
    [lease] = await jobs.lease(writer, kinds=["report"])
    await jobs.complete(writer, lease.lease_id, {"failed": 2, "total": 9}, Usage({"input_tokens": 5120}, 0.21, "m-2"))
    [lease] = await jobs.lease(writer, kinds=["report"])
    await jobs.heartbeat(writer, lease.lease_id, percent=40, message="12 of 30 chapters", progress=True)
    await cockpit.core.schedules.put(
        USER, "brief", ScheduleRequest(queue="default", kind="brief", cron="30 6 * * mon-fri", timezone="Europe/Berlin")
    )
    await jobs.set_paused(USER, "embed", True)
    await jobs.flush()
    return {
        "overview": "/",
        "jobs": "/jobs",
        "bulk": "/jobs/bulk?action=cancel&state=queued",
        "activity": f"/activity/{lease.job.id}",
        "question": f"/activity/{asks}",
        "feed": "/feed",
        "agents": "/agents",
        "queues": "/queues",
        "schedules": "/schedules",
        "events": "/events",
        "trace": "/trace",
        "tokens": "/tokens",
        "login": "/login",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_fit_are_pictured_and_an_automated_checker_finds_nothing(cockpit: Cockpit, scheme: str) -> None:
    """The checker comes from npm: without `make node` the pages are only pictured. In the dark it looks at contrast alone."""
    pages = await lively(cockpit)
    context = await cockpit.context("admin", color_scheme=scheme, viewport=WIDE, bypass_csp=True)
    page = await context.new_page()
    found: list[Any] = []
    for name, path in pages.items():
        await page.goto(path)
        if AXE.exists():
            await page.evaluate(AXE.read_text())
            told = await page.evaluate("(options) => axe.run(options)", CHECKS[scheme])
            found += [
                (name, one["id"], [node["html"][:150] for node in one["nodes"][:2]]) for one in told["violations"]
            ]
        for size, viewport in (("wide", WIDE), ("phone", PHONE)):
            await page.set_viewport_size(viewport)
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, (name, size)
            await page.screenshot(path=SHOTS / f"{name}-{scheme}-{size}.png")
        await page.set_viewport_size(WIDE)
    assert not found, "\n".join(map(str, found))


async def test_on_a_phone_words_stay_whole_and_what_helps_is_in_sight(cockpit: Cockpit) -> None:
    pages = await lively(cockpit)
    page = await (await cockpit.context("admin", viewport=PHONE)).new_page()
    for name in ("overview", "agents", "queues", "schedules", "events", "tokens"):
        await page.goto(pages[name])
        assert await page.evaluate(_BROKEN) == [], name
    await page.goto("/")
    box = await page.get_by_role("button", name="Resume embed").bounding_box()
    assert box["x"] + box["width"] <= PHONE["width"]


async def test_on_a_phone_the_navigation_and_what_acts_lie_within_the_width(cockpit: Cockpit) -> None:
    pages = await lively(cockpit)
    await cockpit.service.token("old", "viewer")
    page = await (await cockpit.context("admin", viewport=NARROW)).new_page()
    for name in ("overview", "agents", "queues", "schedules", "tokens", "trace"):
        await page.goto(pages[name])
        assert await page.locator("nav a").count() == 9
        assert await page.evaluate(_OUTSIDE) == [], name
    await page.goto("/tokens")
    await page.get_by_role("row", name="old").get_by_text("Revoke", exact=True).click()
    assert await page.evaluate(_OUTSIDE) == []


_OUTSIDE = """() => [...document.querySelectorAll("nav a, main button, main summary, main td .button")]
  .filter((one) => one.getClientRects().length)
  .filter((one) => {
    const box = one.getBoundingClientRect();
    return box.left < 0 || box.right > document.documentElement.clientWidth;
  })
  .map((one) => one.textContent)"""


_BROKEN = """() => {
  const broken = [];
  for (const cell of document.querySelectorAll("td, th")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const { 0: word, index } of texts.currentNode.data.matchAll(/[a-z]{1,12}/gi)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, index);
        range.setEnd(texts.currentNode, index + word.length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word);
      }
    }
  }
  return broken;
}"""


async def test_everything_is_reached_and_done_by_keyboard(cockpit: Cockpit) -> None:
    job = await cockpit.enqueue("slow")
    page = await cockpit.page(f"/activity/{job}")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to what")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Jobs").last).to_be_focused()
    await page.keyboard.press("Tab")
    cancel = page.get_by_role("button", name="Cancel")
    await expect(cancel).to_be_focused()
    assert await cancel.evaluate("(one) => getComputedStyle(one).outlineStyle") == "solid"
    await page.keyboard.press("Enter")
    await expect(page.locator(".status .state")).to_have_text("cancelled")
    await expect(page.get_by_role("status").filter(has_text="Cancelled.")).to_be_visible()


async def test_focus_and_what_is_being_written_survive_what_happens_meanwhile(cockpit: Cockpit) -> None:
    job = await cockpit.enqueue()
    lease = await cockpit.lease()
    await cockpit.core.jobs.ask(agent("bot"), lease.lease_id, "Which?")
    page = await cockpit.page(f"/activity/{job}")
    field = page.get_by_role("textbox", name="Answer")
    await field.fill("The second")
    await cockpit.core.jobs.cancel(USER, job)
    await expect(page.locator(".status .state")).to_have_text("cancelled")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("The second")


async def test_every_action_works_without_scripts(cockpit: Cockpit) -> None:
    job = await cockpit.enqueue("slow", tags=["old"])
    cockpit.expected.append("404")  # a text names no icon, so the browser looks for one
    page = await cockpit.page(f"/activity/{job}", java_script_enabled=False)
    await page.get_by_role("button", name="Cancel").click()
    assert "Cancelled." in await page.inner_text("main")
    await page.get_by_role("button", name="Requeue").first.click()
    assert "Put back" in await page.inner_text("main")
    await page.get_by_text("Payload").click()
    await page.get_by_role("link", name="Read it as text").first.click()
    assert await page.inner_text("body") == "{}"
    await page.goto("/queues")
    await page.get_by_role("row", name="default").get_by_role("button", name="Pause").click()
    assert "paused" in await page.get_by_role("row", name="default").inner_text()
    await page.goto("/jobs/bulk?action=cancel&tag=old")
    await page.get_by_role("button", name="Cancel 1 job").click()
    assert "All through." in await page.inner_text("main")
    await page.get_by_role("button", name="Log out").click()
    assert "You are logged out." in await page.inner_text("main")

"""The pages over PostgreSQL: what they show live comes from its activity, what they change goes there."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from oaken_jobs.config import DatabaseSettings
from tests.browser.conftest import USER, Cockpit, agent


@pytest.fixture
def database(emptied_url: str) -> DatabaseSettings:
    return DatabaseSettings(url=emptied_url)


async def test_a_person_logs_in_watches_a_job_cancels_one_and_filters(cockpit: Cockpit) -> None:
    jobs = cockpit.core.jobs
    page = await (await cockpit.context()).new_page()
    await page.goto("/")
    await page.get_by_label("Token").fill(await cockpit.service.token("ann", "user"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Nothing here yet")).to_be_visible()
    job, other = await cockpit.enqueue(payload={"n": 1}, title="Add them up"), await cockpit.enqueue("slow")
    await expect(page.locator("#counts .queued .figure")).to_have_text("2")
    await page.goto(f"/activity/{job}")
    status = page.locator(".status .state")
    await expect(status).to_have_text("queued")
    lease = await cockpit.lease()
    await expect(status).to_have_text("running")
    await jobs.heartbeat(agent("bot"), lease.lease_id, percent=40, message="12 of 30", progress=True)
    await expect(page.get_by_text("12 of 30").first).to_be_visible()
    await jobs.complete(agent("bot"), lease.lease_id, {"sum": 6})
    await expect(status).to_have_text("succeeded")
    await page.locator("#result summary").click()
    await expect(page.locator("#result pre")).to_contain_text('"sum": 6')
    await page.goto(f"/activity/{other}")
    await page.get_by_role("button", name="Cancel").click()
    await expect(status).to_have_text("cancelled")
    assert (await jobs.get(USER, other)).state == "cancelled"
    await page.goto("/jobs")
    rows = page.locator("[data-rows] tr")
    await expect(rows).to_have_count(2)
    await page.get_by_label("State").select_option("cancelled")
    await page.get_by_label("Kind").fill("slow,")
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(str(other))

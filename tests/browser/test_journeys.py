"""What a person does with a browser: logs in, watches a job, acts on it, and logs out."""

from __future__ import annotations

import re

from playwright.async_api import expect

from oaken_jobs.requests import TraceRow
from tests.browser.conftest import Cockpit, agent, root_token
from tests.service import eventually


async def test_a_person_logs_in_lands_where_it_wanted_to_go_and_logs_out(cockpit: Cockpit) -> None:
    cockpit.expected.append("401")
    token = await root_token(cockpit.core, "ann", "user")
    page = await (await cockpit.context()).new_page()
    await page.goto("/jobs?state=failed")
    await expect(page).to_have_url(re.compile(r"/login\?next="))
    await page.get_by_label("Token").fill("oak_wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("not known here")
    await page.get_by_label("Token").fill(token)
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{cockpit.url}/jobs?state=failed")
    await expect(page.get_by_label("State")).to_have_value("failed")
    assert token not in str(await page.context.cookies())
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_text("You are logged out.")).to_be_visible()
    await page.goto("/")
    await expect(page).to_have_url(f"{cockpit.url}/login")


async def test_a_job_is_watched_through_all_its_states(cockpit: Cockpit) -> None:
    jobs = cockpit.core.jobs
    overview = await cockpit.page("/")
    await expect(overview.get_by_text("Nothing here yet")).to_be_visible()
    await expect(overview.locator("#first")).to_contain_text("oaken token create NAME --role user")
    job = await cockpit.enqueue(payload={"n": 1}, title="Add them up")
    await expect(overview.locator("#counts .queued .figure")).to_have_text("1")
    await expect(overview.get_by_text("Nothing here yet")).to_be_hidden()
    page = await overview.context.new_page()
    await page.goto(f"/activity/{job}")
    status = page.locator(".status .state")
    await expect(status).to_have_text("queued")
    lease = await cockpit.lease()
    await expect(status).to_have_text("running")
    await jobs.heartbeat(agent("bot"), lease.lease_id, percent=40, message="12 of 30", progress=True)
    await expect(page.get_by_text("12 of 30").first).to_be_visible()
    await jobs.ask(agent("bot"), lease.lease_id, "In which order?")
    await expect(status).to_have_text("queued")
    await page.get_by_role("textbox", name="Answer").fill("Any.")
    await page.get_by_role("button", name="Answer").click()
    await expect(page.get_by_text("Answered. It can run on.")).to_be_visible()
    lease = await cockpit.lease()
    await expect(status).to_have_text("running")
    await jobs.fail(agent("bot"), lease.lease_id, "out of fingers")
    await expect(page.locator(".waits")).to_contain_text("retry in")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.get_by_text("Put back to run now.")).to_be_visible()
    lease = await cockpit.lease()
    await jobs.complete(agent("bot"), lease.lease_id, {"sum": 6})
    await expect(status).to_have_text("succeeded")
    await expect(page.locator(".status .grade")).to_have_text("ok")
    await page.locator("#result summary").click()
    await expect(page.locator("#result pre")).to_contain_text('"sum": 6')
    await expect(page.locator(".story")).to_contain_text("out of fingers")
    await expect(overview.locator("#counts .succeeded .figure")).to_have_text("1")


async def test_running_and_queued_jobs_are_cancelled_and_requeued(cockpit: Cockpit) -> None:
    queued, running = await cockpit.enqueue("slow"), await cockpit.enqueue()
    lease = await cockpit.lease()
    page = await cockpit.page(f"/activity/{queued}")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".status .state")).to_have_text("cancelled")
    await expect(page.locator(".story")).to_contain_text("user through http")
    await page.get_by_role("button", name="Requeue", exact=True).click()
    await expect(page.locator(".status .state")).to_have_text("queued")
    await page.goto(f"/activity/{running}")
    await page.get_by_role("button", name="Ask to stop").click()
    await expect(page.locator(".status .state")).to_have_text("cancelling")
    await cockpit.core.jobs.cancelled(agent("bot"), lease.lease_id)
    await expect(page.locator(".status .state")).to_have_text("cancelled")


async def test_a_queue_is_paused_and_the_overview_says_what_is_stuck(cockpit: Cockpit) -> None:
    await cockpit.enqueue()
    page = await cockpit.page("/queues")
    await page.get_by_role("row", name="default").get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("row", name="default")).to_contain_text("paused")
    await page.goto("/")
    await expect(page.locator(".verdict")).to_contain_text("Nothing moves")
    await page.get_by_role("button", name="Resume default").click()
    await expect(page.get_by_role("row", name="default")).not_to_contain_text("paused")


async def test_many_are_cancelled_after_a_preview_that_is_frozen(cockpit: Cockpit) -> None:
    for _ in range(3):
        await cockpit.enqueue(tags=["old"])
    page = await cockpit.page("/jobs?tag=old")
    await page.get_by_role("link", name="Cancel all that match").click()
    await expect(page.locator(".lead")).to_contain_text("3 jobs would be cancelled")
    late = await cockpit.enqueue(tags=["old"])
    await page.get_by_role("button", name="Cancel 3 jobs").click()
    await expect(page.locator(".lead")).to_contain_text("3 of 3: 3 cancelled")
    assert (await cockpit.core.store.jobs([late]))[0].state == "queued"


async def test_a_viewer_sees_no_button_that_would_be_refused(cockpit: Cockpit) -> None:
    job = await cockpit.enqueue()
    await cockpit.core.jobs.lease(agent("bot"), kinds=["checked"])
    page = await cockpit.page("/", "viewer")
    for path in ("/", "/jobs?state=queued", f"/activity/{job}", "/feed", "/agents", "/queues", "/schedules", "/events"):
        await page.goto(path)
        names = [await one.inner_text() for one in await page.get_by_role("button").all()]
        assert set(names) <= {"Log out", "Show", "Pause"}, (path, names)
        assert path == "/events" or "Pause" not in names
    assert await page.get_by_role("link", name="Trace").count() == 0


async def test_a_trace_is_read_and_followed_by_an_admin_and_refused_to_a_user(cockpit: Cockpit) -> None:
    cockpit.expected.append("403")
    job = await cockpit.enqueue(payload={"n": 1})
    lease = await cockpit.lease()
    said = TraceRow(model="m-1", input="What is 1?", output="It is one.", usage={"input_tokens": 12}, cost_usd=0.25)
    await cockpit.core.jobs.trace(agent("bot"), lease.lease_id, [said])
    page = await cockpit.page("/trace", "user")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")
    admin = await cockpit.page("/trace", "admin")
    row = admin.locator("article").first
    for text in (f"Job {job}", "model m-1", "What is 1?", "It is one.", "input_tokens 12", "$0.25"):
        await expect(row).to_contain_text(text)
    await admin.get_by_role("button", name="Follow").click()
    await eventually(lambda: _follows(cockpit))
    await cockpit.core.jobs.complete(agent("bot"), lease.lease_id, {"sum": 1})
    await expect(row.locator('[data-side="input"]')).to_contain_text('"n": 1')
    await expect(row.locator('[data-side="output"]')).to_contain_text('"sum": 1')
    assert await admin.locator("article").count() == 1
    other = await cockpit.enqueue("slow")
    await cockpit.lease("slow")
    await expect(admin.locator("article").first).to_contain_text(f"Job {other}")
    await admin.reload()
    await expect(admin.locator("article").last.locator('[data-side="output"]')).to_contain_text('"sum": 1')
    await admin.get_by_label("Job", exact=True).fill("99")
    await admin.get_by_role("button", name="Show").click()
    await expect(admin.get_by_text("There are no such rows.")).to_be_visible()
    rows = [row for row in await cockpit.core.store.audit(None, 10) if row.action == "trace.read"]
    assert [(row.actor_id, row.outcome) for row in rows] == [("admin", "allowed")] * 3 + [("user", "refused")]


async def _follows(cockpit: Cockpit) -> bool:
    return any(row.action == "trace.stream" for row in await cockpit.core.store.audit(None, 5))


async def test_a_secret_is_shown_once_and_a_reload_says_so(cockpit: Cockpit) -> None:
    page = await cockpit.page("/tokens", "admin")
    await page.get_by_label("Name").fill("fresh")
    await page.get_by_label("agent").check()
    await page.get_by_role("button", name="Make it").click()
    secret = await page.locator(".made code").inner_text()
    await page.reload()
    await expect(page.locator(".notice")).to_contain_text("is not shown again")
    await page.get_by_role("row", name="fresh").get_by_role("button", name="New secret").click()
    other = await page.locator(".made code").inner_text()
    await page.reload()
    await expect(page.locator(".notice")).to_contain_text("is not shown again")
    assert secret != other
    assert (await cockpit.core.tokens.authenticate(other, "http")).name == "fresh"


async def test_a_token_is_revoked_for_good_in_two_steps(cockpit: Cockpit) -> None:
    await cockpit.service.token("gone", "agent")
    page = await cockpit.page("/tokens", "admin")
    row = page.get_by_role("row", name="gone")
    end = row.get_by_role("button", name="Revoke gone for good")
    await expect(end).to_be_hidden()
    await row.get_by_text("Revoke", exact=True).click()
    await end.click()
    await expect(page.locator(".notice")).to_contain_text("Revoked.")
    await expect(row).to_contain_text("revoked")

"""Much of everything: jobs, text, and servers in one browser."""

from __future__ import annotations

import time
from pathlib import Path

from playwright.async_api import expect

from oaken_app.open import redirect
from oaken_jobs.core import Core
from oaken_jobs.files import DATABASE
from oaken_jobs.sessions import PREFIX
from oaken_jobs.store.sqlite.driver import connect
from tests.browser.conftest import Cockpit, agent
from tests.service import serve

JOBS = 100_000
_FILL = f"""
with recursive c(n) as (select 1 union all select n + 1 from c where n < {JOBS})
insert into jobs (workspace, kind, queue, routed_by, state, priority, title, tags, max_attempts, created_at, run_at,
  actor_kind, actor_id, actor_via)
select 'default', 'k' || (n % 7), 'default', 'default', case when n % 3 then 'succeeded' else 'queued' end, 50, 'Job ' || n,
  case when n % 1000 = 0 then '["rare"]' end, 5, 1700000000000 + n, 1700000000000 + n, 'user', 'ann', 'http' from c
"""


async def test_a_hundred_thousand_jobs_are_filtered_and_paged(cockpit: Cockpit, tmp_path: Path) -> None:
    database = await connect(tmp_path / "data" / DATABASE)
    await database.run(lambda db: db.execute(_FILL).fetchall())
    await database.run(lambda db: db.execute("commit") if db.in_transaction else None)
    await database.close()
    page = await cockpit.page("/jobs")
    await page.get_by_text("More to filter by").click()
    await page.get_by_label("Tag", exact=True).fill("rare")
    await page.get_by_label("State").select_option("queued")
    began = time.monotonic()
    await page.get_by_role("button", name="Show", exact=True).click()
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(33)
    assert time.monotonic() - began < 2
    await page.get_by_label("Search").fill("Job 99000")
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(1)
    await page.goto("/jobs?kind=k3")
    await page.get_by_role("link", name="Older").click()
    await expect(rows).to_have_count(50)
    assert await page.get_by_label("Kind").input_value() == "k3"
    await page.get_by_role("link", name="Cancel all that match").click()
    await expect(page.locator(".lead")).to_contain_text("4,762 jobs")
    await page.goto("/")
    await expect(page.locator("#counts .queued .figure")).to_have_text("33,333")


async def test_a_result_of_a_megabyte_is_read_piece_by_piece_and_holds_up_nothing(cockpit: Cockpit) -> None:
    job = await cockpit.enqueue("slow")
    lease = await cockpit.lease("slow")
    await cockpit.core.jobs.complete(agent("bot"), lease.lease_id, {"text": "word " * 200_000})
    page = await cockpit.page(f"/activity/{job}")
    await expect(page.locator("#result summary")).to_contain_text("1.0 MB")
    await page.locator("#result summary").click()
    more = page.get_by_role("button", name="Show more")
    await expect(more).to_be_visible()
    assert len(await page.locator("#result pre").inner_text()) < 40_000
    await more.click()
    assert await page.evaluate(_FRAME) < 500
    answer = await page.request.get(f"/activity/{job}/result")
    assert len(await answer.text()) > 1_000_000
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_two_servers_in_one_browser_do_not_log_each_other_out(cockpit: Cockpit, tmp_path: Path) -> None:
    other = Core.on_folder(tmp_path / "other", cockpit.core.jobs.rules, "serve")
    await other.open()
    theirs = await serve(other)
    context = await cockpit.context()
    for service in (cockpit.service, theirs):
        page = await context.new_page()
        await page.goto(f"{service.url}/login")
        await page.get_by_label("Token").fill(await service.token("ann", "user"))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Nothing here yet")).to_be_visible()
    here, there = context.pages
    await there.get_by_role("button", name="Log out").click()
    await expect(there.get_by_text("You are logged out.")).to_be_visible()
    await here.reload()
    await expect(here.get_by_role("heading", name="Nothing here yet")).to_be_visible()
    await context.close()
    await theirs.close()
    await other.close()


async def test_a_file_that_posts_a_login_code_logs_the_browser_in(cockpit: Cockpit, tmp_path: Path) -> None:
    await cockpit.service.token("ann", "admin")
    file = tmp_path / "open.html"
    file.write_text(redirect(cockpit.url, await cockpit.core.sessions.new_code("ann")))
    page = await (await cockpit.context()).new_page()
    await page.goto(file.as_uri())
    await expect(page).to_have_url(f"{cockpit.url}/")
    await expect(page.get_by_role("link", name="Trace")).to_be_visible()
    [kept] = [one for one in await page.context.cookies() if one["name"].startswith("oaken_")]
    assert (kept["httpOnly"], kept["sameSite"], kept["value"][: len(PREFIX)]) == (True, "Strict", PREFIX)


_FRAME = """async () => {
  const began = performance.now();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""

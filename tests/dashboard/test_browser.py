"""The pages in a real browser: no complaints, no serious findings of axe, working buttons and keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyxq.client import Client
from tests.dashboard.browser import Tab, browser
from tests.dashboard.pages_world import HOSTILE, MARKUP, Filled

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}},
}
ALL_LOOKS = bool(os.environ.get("ONYXQ_TEST_LOOKS"))
"""Check each page in each look."""
PICTURES = os.environ.get("ONYXQ_TEST_PICTURES", "")
"""Directory for a picture of each checked page."""


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """Run the browser."""
    with browser() as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("turn", range(3))
def test_pages_are_fit_for_everybody(turn: int, running: Any, world: Filled) -> None:
    """No page has a finding of axe, a complaint of the browser, or content wider than the window.

    The looks are light, dark and phone. Each page is checked in one of them, or in all if that is requested.
    """
    found: dict[str, Any] = {}
    look = tuple(LOOKS)[turn]
    for place, (name, path) in enumerate(world.pages().items()):
        if not ALL_LOOKS and place % 3 != turn:
            continue
        with Tab(running, **LOOKS[look]) as tab:
            page = tab.open(world.base + path)
            if PICTURES:
                page.screenshot(path=Path(PICTURES) / f"{name.replace(' ', '-')}-{look}.png", full_page=True)
            wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
            wrong = [*tab.findings(), *tab.complaints, *(["it is wider than the window"] if wide else [])]
            if wrong:
                found[name] = wrong
    assert not found


@pytest.mark.long
def test_hostile_texts_do_nothing(running: Any, world: Filled) -> None:
    """No dialog opens, whatever text names and payloads contain."""
    with Tab(running) as tab:
        opened: list[str] = []
        tab.page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
        for path in ("/ui/queues", "/ui/tasks", f"/ui/tasks/{world.claimed}", "/ui/tasks?state=failed", "/ui/log"):
            page = tab.open(world.base + path)
            page.evaluate("document.querySelectorAll('*').forEach(one => one.dispatchEvent(new Event('mouseover')))")
        assert MARKUP.decode() in tab.open(f"{world.base}/ui/tasks/{world.claimed}").inner_text("main")
        assert not opened and not tab.complaints


def test_the_theme_is_chosen_and_kept(running: Any, world: Filled) -> None:
    """The switch changes the theme, and the next page keeps it."""
    with Tab(running, color_scheme="light") as tab:
        page = tab.open(world.base)
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        light = page.evaluate(ground)
        page.click("#theme")
        page.click("#theme")
        assert page.inner_text("#theme") == "Theme: dark" and page.evaluate(ground) != light
        dark = page.evaluate(ground)
        assert tab.open(f"{world.base}/ui/queues").evaluate(ground) == dark
        page.click("#theme")
        assert page.inner_text("#theme") == "Theme: system" and page.evaluate(ground) == light


@pytest.mark.long
def test_a_long_name_leaves_room_for_the_other_columns(running: Any, world: Filled) -> None:
    """A long name is broken into lines in each list, so the state is visible without scrolling."""
    with Tab(running, **LOOKS["light"]) as tab:
        for path in ("/", "/ui/queues", "/ui/tasks"):
            page = tab.open(world.base + path)
            assert page.locator("table", has_text=HOSTILE[-1]).count() == 1, path
            assert page.evaluate(
                "[...document.querySelectorAll('.scrolls')].every(one => one.scrollWidth <= one.clientWidth)"
            ), path


def test_the_present_page_is_in_sight_of_a_phone(running: Any, world: Filled) -> None:
    """The menu, which is wider than the screen, shows the present page."""
    with Tab(running, **LOOKS["phone"]) as tab:
        page = tab.open(f"{world.base}/ui/settings")
        box = page.locator("nav [aria-current]").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= LOOKS["phone"]["viewport"]["width"]
        assert page.evaluate("window.scrollY") == 0


def test_the_keyboard_is_enough(running: Any, world: Filled) -> None:
    """The first key skips the menu; the filter can be filled in and sent; the focus is visible."""
    with Tab(running) as tab:
        page = tab.open(f"{world.base}/ui/queues")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.name") == "like"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.type(HOSTILE[0])
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/queues?like=*")
        assert page.locator("tbody tr").count() == 1


TRACEBACK = """Traceback (most recent call last):
  File "/app/shop.py", line 41, in charge
    gateway.charge(order)
gateway.Timeout: the gateway took 30 s
"""


def test_the_day_of_an_operator(running: Any, world: Filled) -> None:
    """Find the failed tasks of one error, read a traceback, requeue them all, and watch them finish."""
    with Client(world.address) as client, Tab(running) as tab:
        data = [b'{"task": "shop.charge", "args": [%d], "kwargs": {}}' % number for number in range(60)]
        client.enqueue_many("shop", data, retries=0, format="json")
        claims = client.claim("shop", max=60, worker="shop-1:7", wait_ms=30_000)
        client.give_up(claims[:55], "gateway.Timeout: the gateway took 30 s", traceback=TRACEBACK)
        client.give_up(claims[55:], "KeyError: 'price'")

        page = tab.open(world.base)
        page.fill("#q", "gateway.Timeout")
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/tasks?where=*")
        page.click(".tabs a:has-text('failed')")
        page.wait_for_url("**state=failed**")
        assert (
            page.locator("tbody tr").count() == 50 and page.locator("tbody .title").first.inner_text() == "shop.charge"
        )

        page.locator("tbody .title").first.click()
        page.wait_for_selector("h1:has-text('shop.charge')")
        assert "gateway.charge(order)" in page.inner_text(".attempts pre")
        page.go_back()

        page.check("input[name=which][value=all]")
        page.click("text=Requeue…")
        page.wait_for_selector("h1:has-text('Requeue 55 tasks?')")
        assert "gateway.Timeout" in page.inner_text("main") and "KeyError" not in page.inner_text("main")
        page.click("button:has-text('Requeue 55 tasks')")
        page.wait_for_selector("[role=status]:has-text('Requeued 55 tasks.')")
        again = client.claim("shop", max=60, wait_ms=30_000)
        assert len(again) == 55
        page.wait_for_selector("tbody .state-claimed")
        client.complete(again)
        page.wait_for_selector("tbody:not(:has(.state-claimed)) .state-completed")
        assert client.count("shop")["shop"]["failed"] == 5 and not tab.complaints


@pytest.mark.long
def test_ticked_tasks_are_discarded(running: Any, world: Filled) -> None:
    """The page before counts the ticked ones; a refresh does not untick them."""
    with Client(world.address) as client, Tab(running) as tab:
        client.enqueue_many("breaks", [b"1"] * 3, retries=0)
        client.fail(client.claim("breaks", max=3, wait_ms=30_000), "no")
        page = tab.open(f"{world.base}/ui/tasks?state=failed&queue=breaks")
        page.click("[data-tick-all]")
        assert page.locator("input[name=id]:checked").count() == 3 and page.inner_text("[data-ticked]") == "(3)"
        with page.expect_response("**/ui/tasks?*"):
            pass
        page.locator("input[name=id]").first.uncheck()
        page.click("text=Discard…")
        page.wait_for_selector("h1:has-text('Discard 2 tasks?')")
        page.click("button:has-text('Discard 2 tasks')")
        page.wait_for_selector("[role=status]:has-text('Discarded 2 tasks.')")
        counts = client.count("breaks")["breaks"]
        assert (counts["failed"], counts["cancelled"]) == (1, 2)


@pytest.mark.long
def test_a_task_runs_again_with_other_data(running: Any, world: Filled) -> None:
    """The link unfolds the form; the new task has the edited data, and the old one stays."""
    with Client(world.address) as client, Tab(running) as tab:
        client.enqueue("edits", b'{"to": "ann"}', format="json")
        claim = client.claim("edits", wait_ms=30_000)
        client.complete(claim)
        page = tab.open(f"{world.base}/ui/tasks/{claim[0].id.hex()}")
        assert page.locator("text=Discard").count() == page.locator("button:has-text('Cancel')").count() == 0
        page.click("text=Edit and enqueue >> nth=0")
        page.fill("textarea", '{"to": "bob"}')
        page.click("text=Enqueue a new task")
        page.wait_for_selector("[role=status]:has-text('This task is enqueued.')")
        assert "bob" in page.inner_text("main") and claim[0].id.hex() not in page.url
        assert client.count("edits")["edits"]["ready"] == 1 and not tab.complaints


@pytest.mark.long
def test_requests_are_tried_on_the_page_of_the_interface(running: Any, world: Filled) -> None:
    """A form sends its request and shows the answer as text; what may change something asks first."""
    with Tab(running) as tab:
        page = tab.open(f"{world.base}/docs#list_tasks")
        form = page.locator("#list_tasks form")
        form.locator("input[name=queue]").fill("calls")
        form.locator("button").click()
        form.locator("pre:not([hidden])").wait_for()
        assert ": 200 in" in form.locator("[role=status]").inner_text()
        assert "<script>alert(2)</script>" in form.locator("pre").inner_text()
        page.evaluate("location.hash = 'enqueue'")
        form = page.locator("#enqueue form")
        form.locator("textarea").fill('{"tasks": [{"queue": "tried", "data": 1}]}')
        page.once("dialog", lambda dialog: dialog.dismiss())
        form.locator("button").click()
        assert form.locator("[role=status]").inner_text() == ""
        page.once("dialog", lambda dialog: dialog.accept())
        form.locator("button").click()
        form.locator("pre:not([hidden])").wait_for()
        assert ": 201 in" in form.locator("[role=status]").inner_text() and not tab.complaints


def test_the_slider_moves_through_the_log(running: Any, world: Filled) -> None:
    """A key moves it, and the replica of that position is loaded without the rest of the page."""
    with Tab(running) as tab:
        page = tab.open(f"{world.base}/ui/log")
        page.focus("#slide")
        page.evaluate("window.stays = true")
        page.keyboard.press("Home")
        page.wait_for_selector("h2:has-text('The replica at 0')")
        assert page.inner_text("#slide-now") == "0"
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("h2:has-text('The replica at 1')")
        assert page.evaluate("window.stays") is True and not tab.complaints


@pytest.mark.long
def test_the_log_is_read_once_the_history_of_a_task_is_unfolded(running: Any, world: Filled) -> None:
    """Until then the page shows what a user of the task needs, and asks for no log."""
    with Tab(running) as tab:
        page = tab.open(f"{world.base}/ui/tasks/{world.dead}")
        assert not page.is_visible("#story") and "from its id" in page.text_content("#story")
        page.click("#history > summary")
        page.wait_for_selector("#story:has-text('These are all entries of the log that name the task.')")
        assert not tab.complaints


@pytest.mark.long
def test_the_curves_show_what_happens(running: Any, world: Filled) -> None:
    """Tasks that are enqueued while the page is open change its figures."""
    with Tab(running) as tab, Client(world.address) as client:
        page = tab.open(world.base)
        page.wait_for_selector("[data-rate=enqueued]:text-is('0.0')")
        client.enqueue_many("busy", [b"1"] * 500)
        page.wait_for_selector("[data-rate=enqueued]:text-matches('[1-9]')")
        assert page.locator("#charts canvas").count() == 2 and not tab.complaints


@pytest.mark.long
def test_a_page_refreshes_itself(running: Any, world: Filled) -> None:
    """Changes appear without a reload."""
    with Tab(running) as tab, Client(world.address) as client:
        page = tab.open(f"{world.base}/ui/queues?like=brand-new")
        client.enqueue("brand-new", b"1")
        page.wait_for_selector("tbody th:has-text('brand-new')")
        assert not tab.complaints

"""An operator's work on timers, periodic tasks and jobs, the log and settings, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import frozen

from onyxq.client import Client
from onyxq.jobs.encoding import encode_map, from_map, to_map
from onyxq.system.settings import SETTINGS, load
from tests.dashboard.browser import Tab, browser
from tests.interfaces.http_world import JOB
from tests.interfaces.live_world import running
from tests.jobs.fake_host import SPARK_UI, FakeHosts, FakeLink, Message, obedient
from tests.timers.receivers import Receiver, Request, http_receiver

PLAN = """AnalysisException: [UNRESOLVED_COLUMN] A column with name `totl` cannot be resolved;
'Project ['totl, id#12]
+- SubqueryAlias orders
   +- StreamingRelationV2 queues, [id#12, total#13]
Traceback (most recent call last):
  File "/app/orders.py", line 12, in totals
"""
BATCHES = 30
PHONE = {"width": 360, "height": 740}


@frozen
class World:
    """A cluster of one peer, with a receiver of callbacks and a fake host of Spark."""

    base: str
    client: Client
    receiver: Receiver


def _acts(link: FakeLink, order: Message) -> None:
    """Fail jobs called ``bad``; report batches of all others."""
    obedient(link, order)
    if order["do"] != "start":
        return
    job, version, now_ms = order["job"], order["version"], time.time_ns() // 1_000_000
    if job == "bad":
        link.say("failed", job, version, error=PLAN, restart=False)
        return
    for batch in range(BATCHES):
        said = {"batch": batch, "rows": 7, "inputs": {"in": 7}, "late": {"window": 3}, "watermark_ms": now_ms - 90_000}
        said |= {"lags": {"in": batch % 9}, "state_bytes": 4_000}
        times = {"duration_ms": 100 + batch, "at_ms": now_ms - 1_000 * (BATCHES - batch)}
        link.say("progress", job, version, progress={**said, **times})


def _answer(request: Request) -> int:
    return 503 if request.path.endswith("/broken") else 200


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run it; its peer has an archive of the log, and settings from a flag, the environment and a file."""
    kept = tmp_path_factory.mktemp("archive")
    file = tmp_path_factory.mktemp("settings") / "onyxq.toml"
    file.write_text('checkpoints = "s3a://key:hush@bucket/state"\n')
    config = load({"ONYXQ_ZONE": "a", "ONYXQ_TOKEN": "hush"}, str(file))
    given = tuple(config.setting(name, str(kept) if name == "archive" else None).shown for name in SETTINGS)
    first = {"archive": str(kept), "given": given}
    hosts = FakeHosts(_acts)
    with (
        running(http=True, slots=4, launch_host=hosts.launch, first=first) as cluster,
        http_receiver(_answer) as receiver,
        Client(cluster.addresses[0]) as client,
    ):
        yield World(f"http://{cluster.http_addresses[0]}", client, receiver)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Run the browser."""
    with browser() as found:
        yield found


@pytest.fixture
def tab(chromium: Any) -> Iterator[Tab]:
    """Open a tab that accepts each question; at the end, the browser has complained about nothing."""
    with Tab(chromium) as found:
        found.page.on("dialog", lambda dialog: (found.asked.append(dialog.message), dialog.accept()))
        yield found
        assert not found.complaints


def first_title(page: Any) -> str:
    """Return the title of the first row."""
    return str(page.locator("tbody .title").first.inner_text())


@pytest.mark.long
def test_a_timer_is_found_edited_and_delivered(world: World, tab: Tab) -> None:
    """What is due next comes first; an edited timer is delivered, and its row says so."""
    uri = world.receiver.uri
    for number in range(60):
        world.client.set_timer(f"order-{number}", 3_600_000 + 60_000 * number, f"{uri}/{number}", {"order": number})
    page = tab.open(f"{world.base}/ui/timers")
    assert first_title(page) == "order-0" and page.locator("tbody tr").count() == 50
    page.fill("input[name=where]", "hook/17")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=*")
    assert page.locator("tbody tr").count() == 1
    page.click("text=order-17")
    page.click("a:has-text('Edit')")
    assert page.input_value("textarea") == '{\n  "order": 17\n}'
    page.fill("input[name=timeout]", "100ms")
    page.fill("textarea", '{"order": 18}')
    page.click("button:has-text('Set the timer')")
    page.wait_for_selector("[role=status]:has-text('The timer is set.')")
    assert world.receiver.until(1)[0].body == b'{"order":18}'
    page.goto(f"{world.base}/ui/timers?state=fired&where=order-17")
    page.wait_for_selector("tbody tr:has-text('delivered')")
    assert page.locator("tbody .state-fired").inner_text() == "fired"


@pytest.mark.long
def test_timers_are_cancelled_with_a_count(world: World, tab: Tab) -> None:
    """The page between counts them by their target; failed ones can be requeued."""
    client, uri = world.client, world.receiver.uri
    client.set_queue("onyxq.timers", retries=0)
    client.set_timer("late", 1, f"{uri}/broken")
    for number in range(3):
        client.set_timer(f"gone-{number}", 7_200_000, f"{uri}/gone")
    page = tab.open(f"{world.base}/ui/timers?where=gone-")
    page.check("input[name=which][value=all]")
    page.click("text=Cancel…")
    page.wait_for_selector("h1:has-text('Cancel 3 tasks?')")
    assert f"POST {uri}/gone" in page.inner_text("main")
    page.click("button:has-text('Cancel 3 tasks')")
    page.wait_for_selector("[role=status]:has-text('Cancelled 3 tasks.')")
    assert "/ui/timers?" in page.url and client.timer("gone-1")["state"] == "cancelled"
    page.goto(f"{world.base}/ui/timers?state=failed")
    page.wait_for_selector("tbody tr:has-text('the answer was 503')")
    assert "failed" in page.inner_text("tbody td:last-child")


@pytest.mark.long
def test_a_periodic_task_is_run_paused_and_removed(world: World, tab: Tab) -> None:
    """Its schedule is in words, its last run has an outcome, and an extra run is a task with its data."""
    client = world.client
    client.set_periodic("nightly", "reports", "30 3 * * mon-fri", zone="Europe/Berlin", payload=b"all")
    client.set_periodic("quick", "quick", "every 1s")
    client.complete(client.claim("quick", max=100, wait_ms=30_000))
    page = tab.open(f"{world.base}/ui/periodic?like=nightly")
    assert "Monday to Friday at 03:30, Europe/Berlin" in page.inner_text("tbody tr")
    assert "none yet" in page.inner_text("tbody tr")
    page.click("button:has-text('Run now')")
    page.wait_for_selector("[role=status]:has-text('besides those of the schedule')")
    assert tab.asked == ["Enqueue one task of nightly now?"]
    assert [claim.data for claim in client.claim("reports", wait_ms=30_000)] == [b"all"]
    page.goto(f"{world.base}/ui/periodic?like=quick")
    page.click("button:has-text('Pause')")
    page.wait_for_selector("tbody .state:has-text('paused')")
    assert page.locator("tbody td .state-completed, tbody td .state-ready").count() == 1
    page.goto(f"{world.base}/ui/periodic?like=quick")
    page.click("button:has-text('Remove')")
    page.wait_for_selector("[role=status]:has-text('The periodic task is removed.')")
    assert "stay." in tab.asked[1] and [one["name"] for one in client.periodics()] == ["nightly"]


def _submit(client: Client, name: str, **more: Any) -> None:
    client.call("job.submit", {"body": encode_map(to_map(from_map({**JOB, "id": name, **more})))})


@pytest.mark.long
def test_a_job_is_watched_and_killed(world: World, tab: Tab) -> None:
    """The list has the figures of its driver; its page has curves, which stay after the end, and buttons that apply."""
    world.client.enqueue_many("a", [b"1"] * 5)
    _submit(world.client, "totals")
    _submit(world.client, "huge", min_slots=65)
    page = tab.open(f"{world.base}/ui/jobs?state=running")
    page.wait_for_selector(f"tbody tr:has-text('{BATCHES - 1}')")
    shown = page.inner_text("tbody tr").split()
    assert shown[0] == "totals" and {"210", "5", "3", "129"} <= set(shown)
    page.click("text=totals")
    page.wait_for_selector("svg.curve")
    names = page.locator("figcaption").all_inner_texts()
    assert names == [
        *("Rows per second, up to 7.0", "Lag, rows, up to 8", "Late rows, up to 3", "Batch time, up to 129 ms"),
        *("Age of the watermark, up to 1.49 min", "State, KiB, up to 4"),
    ]
    assert page.locator("svg.curve rect").count() == 6 * BATCHES
    assert page.inner_text("tbody tr").split()[:5] == ["in", "queue", "a", "210", "5"]
    assert page.get_attribute("a:has-text('127.0.0.1:4040')", "href") == SPARK_UI
    page.click("button:has-text('Seal')")
    page.wait_for_selector("td:has-text('sealed: no more data')")
    page.click("button:has-text('Kill')")
    page.wait_for_selector("[role=status]:has-text('The job is killed.')")
    assert page.locator("form[action^='/ui/do/']").count() == 0
    page.reload()
    assert page.locator("svg.curve").count() == 6 and page.locator("a:has-text('4040')").count() == 0
    page.goto(f"{world.base}/ui/jobs?state=waiting")
    assert "needs 65 slots" in page.inner_text("tbody tr")


@pytest.mark.long
def test_the_error_of_a_job_comes_first(world: World, tab: Tab) -> None:
    """Its first line stands out, and Spark's plan is folded."""
    _submit(world.client, "bad")
    page = tab.open(f"{world.base}/ui/jobs")
    page.wait_for_selector("tbody tr:has-text('bad') .state-failed")
    page.click("text=bad")
    assert page.inner_text(".bad").endswith("`totl` cannot be resolved;")
    assert "line 12, in totals" in page.inner_text("main") and "SubqueryAlias" not in page.inner_text("main")
    page.click("text=Spark's plan")
    assert "'Project ['totl, id#12]" in page.inner_text("#plan")


@pytest.mark.long
def test_the_slider_reaches_into_the_archive(world: World, tab: Tab) -> None:
    """After a collection it still begins at 0, and its first record is in words."""
    page = tab.open(f"{world.base}/ui/settings")
    page.click("button:has-text('Trim the log')")
    page.wait_for_selector("[role=status]:has-text('The log is trimmed.')")
    page = tab.open(f"{world.base}/ui/log")
    page.focus("#slide")
    page.keyboard.press("Home")
    page.wait_for_selector("h2:has-text('The replica at 0')")
    assert "cluster main is created" in page.inner_text(".timeline")


@pytest.mark.long
def test_settings_have_sources_and_no_secrets(world: World, tab: Tab) -> None:
    """Chosen settings come first; of a URI only the password is hidden."""
    page = tab.open(f"{world.base}/ui/settings")
    rows = {row.split("\t")[0]: row.split("\t")[1:3] for row in page.locator("tbody tr").all_inner_texts()}
    assert rows["zone"] == ["a", "environment ONYXQ_ZONE"] and rows["token"][0] == "(hidden)"
    assert rows["checkpoints"][0] == "s3a://(hidden)@bucket/state" and rows["checkpoints"][1].startswith("file ")
    assert rows["archive"][1] == "flag --archive" and rows["gc_records"][0] == "20\u202f000"
    assert "hush" not in page.content()


@pytest.mark.long
def test_the_pages_are_fit_for_everybody(world: World, chromium: Any) -> None:
    """With content, axe has no finding on a page, and nothing is wider than a phone."""
    client, uri = world.client, world.receiver.uri
    client.set_queue("onyxq.timers", retries=0)
    client.set_timer("ahead", 3_600_000, f"{uri}/ahead", {"order": 3})
    client.set_timer("behind", 1, f"{uri}/broken")
    client.set_periodic("weekly", "reports", "0 9 * * mon", zone="Europe/Berlin")
    _submit(client, "huge", min_slots=65)
    _submit(client, "bad")
    _submit(client, "drawn")
    timer, failed = (client.timer(name)["task"].hex() for name in ("ahead", "behind"))
    with Tab(chromium) as tab:
        tab.open(f"{world.base}/ui/timers?state=failed&where=behind").wait_for_selector("tbody tr:has-text('503')")
    paths = ("/ui/timers", "/ui/timers?state=failed", "/ui/periodic", "/ui/jobs", "/ui/job?id=bad", "/ui/job?id=huge")
    paths += ("/ui/job?id=drawn",)
    paths += ("/ui/log", "/ui/settings", "/ui/cluster", f"/ui/tasks/{timer}", f"/ui/tasks/{failed}")
    found = {}
    for path in paths:
        with Tab(chromium, viewport=PHONE, color_scheme="dark") as tab:
            page = tab.open(world.base + path)
            page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
            found[path] = [*tab.findings(), *tab.complaints, *(["it is wider than a phone"] if wide else [])]
    assert not any(found.values()), found

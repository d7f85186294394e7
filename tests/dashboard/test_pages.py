"""Every page against a real node: it answers, is valid and accessible HTML, and shows texts as texts."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

import html5lib
import httpx
import pytest

from onyxq.client import Client
from onyxq.core.facts import pack_task
from onyxq.core.ids import make_id
from onyxq.core.limits import TIMERS_QUEUE
from onyxq.interfaces.dashboard.queues import pace_of
from onyxq.interfaces.dashboard.rendering import beginning
from onyxq.interfaces.dashboard.task import progress_of
from tests.dashboard.pages_world import HOSTILE, Filled
from tests.interfaces.http_world import NOW_MS, FakeService, client_of, on_trio

HTML = "{http://www.w3.org/1999/xhtml}"
NAMES = tuple(Filled("", "", "", "").pages())
DIGEST = re.compile(r"[0-9a-f]{32}")
FILES = re.compile(r"/ui/static/[A-Za-z.-]+")


@pytest.fixture(scope="module")
def http(world: Filled) -> Iterator[httpx.Client]:
    """A client of the node."""
    with httpx.Client(base_url=world.base, timeout=60, trust_env=False) as client:
        yield client


def parsed(text: str) -> Any:
    """Return the page's tree; raise an error for invalid HTML."""
    return html5lib.HTMLParser(strict=True).parse(text)


def texts(tree: Any) -> str:
    """All text of a page."""
    return " ".join(tree.itertext())


def found(tree: Any, name: str) -> list[Any]:
    """All elements of a name."""
    return list(tree.iter(HTML + name))


def digest_of(tree: Any) -> str:
    """The digest that the page of the log shows."""
    (found_one,) = [one.text for one in found(tree, "code") if DIGEST.fullmatch(one.text or "")]
    return str(found_one)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_sound(name: str, world: Filled, http: httpx.Client) -> None:
    """A page is well-formed, has its landmarks, one main heading, and a name for every field and button."""
    answer = http.get(world.pages()[name])
    assert answer.status_code == (400 if name == "error" else 200), answer.text
    tree = parsed(answer.text)
    assert tree.get("lang") == "en" and found(tree, "title")[0].text.strip()
    assert len(found(tree, "main")) == len(found(tree, "h1")) == 1
    ids = [one.get("id") for one in tree.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    labelled = {one.get("for") for one in found(tree, "label")}
    inside = {id(field) for label in found(tree, "label") for field in label.iter()}
    for kind in ("input", "select", "textarea"):
        for field in found(tree, kind):
            named = field.get("id") in labelled or id(field) in inside or field.get("aria-label")
            assert named or field.get("type") == "hidden", field.attrib
    for one in found(tree, "button") + found(tree, "a"):
        assert one.get("aria-label") or "".join(one.itertext()).strip(), one.attrib
    for one in found(tree, "th"):
        assert one.get("scope"), one.text


@pytest.mark.parametrize("name", NAMES)
def test_a_page_runs_nothing_of_its_own_text(name: str, world: Filled, http: httpx.Client) -> None:
    """Scripts and styles are files of this peer, headers forbid all others, and no text became markup."""
    answer = http.get(world.pages()[name])
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and "default-src 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
    tree = parsed(answer.text)
    assert not found(tree, "style") and not found(tree, "b") and not found(tree, "i") and not found(tree, "iframe")
    for script in found(tree, "script"):
        assert script.get("src", "").startswith("/ui/static/") and not script.text
    for one in tree.iter():
        assert not any(key.startswith("on") or key == "style" for key in one.attrib), one.attrib
        for key in ("href", "src", "action", "formaction"):
            assert one.get(key, "/").startswith(("/", "#", "http://www.w3.org")), one.get(key)


def test_hostile_names_are_shown_as_they_are(world: Filled, http: httpx.Client) -> None:
    """They are shown in the list, on the queue's page, and in its list of tasks; invisible characters as escapes."""
    tree = parsed(http.get("/ui/queues").text)
    links = {one.text: one.get("href") for one in found(tree, "a") if one.get("href", "").startswith("/ui/queue?")}
    for name in HOSTILE:
        shown = name if name.isprintable() else r"in\u202egnp.exe\u2066\u2028\u200bvoice"
        page = parsed(http.get(links[shown]).text)
        assert found(page, "h1")[0].text == shown
        tasks = next(
            one.get("href") for one in found(page, "a") if one.text == "Tasks" and "queue=" in str(one.get("href"))
        )
        listed = parsed(http.get(tasks).text)
        assert len(found(listed, "tbody")[0]) == 2 and "<script>alert('data')</script>" in texts(listed)


def test_a_filter_finds_queues_by_a_part_of_their_name(http: httpx.Client) -> None:
    """No other queue is listed, and an empty result says so."""
    tree = parsed(http.get("/ui/queues", params={"like": "<script", "order": "unfinished", "skip": 0}).text)
    assert len(found(tree, "tbody")[0]) == 1
    assert "No name of a queue contains" in texts(parsed(http.get("/ui/queues?like=nothing&order=").text))


def test_tasks_are_filtered(world: Filled, http: httpx.Client) -> None:
    """Tasks are filtered by queue and state; an id opens its task; an invalid id is reported."""
    tree = parsed(http.get("/ui/tasks?queue=mail&state=failed&id=").text)
    assert len(found(tree, "tbody")[0]) == 5
    assert http.get("/ui/tasks", params={"id": world.dead.upper()}).headers["location"] == f"/ui/tasks/{world.dead}"
    answer = http.get("/ui/tasks?id=12")
    assert answer.status_code == 400 and "40 hex digits" in answer.text
    assert http.get(f"/ui/tasks/{'0' * 40}").status_code == 404


def titles(tree: Any) -> list[str]:
    """Return the titles of the tasks of a list."""
    return [one.text for one in found(tree, "a") if one.get("class") == "title"]


def test_the_newest_tasks_come_first(world: Filled, http: httpx.Client) -> None:
    """A list begins with what is due last; each task has its function's name, its arguments, age and attempt."""
    tree = parsed(http.get("/ui/tasks").text)
    shown = [one.get("value") for one in found(tree, "input") if one.get("name") == "id"]
    assert shown == sorted(shown, reverse=True) and "in 59 min" in texts(found(tree, "tbody")[0][0])
    (row,) = found(parsed(http.get("/ui/tasks?queue=calls").text), "tbody")[0]
    assert titles(row) == ["<script>alert(2)</script>"] and '"<img src=x onerror=alert(3)>", <i>=1' in texts(row)
    (row, *_) = found(parsed(http.get("/ui/tasks?state=failed").text), "tbody")[0]
    assert "1 of 1" in texts(row) and "worker <1>" in texts(row) and "ValueError: <script>" in texts(row)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("where=ValueError", 5),
        ("where=onerror", 2),
        ("where=somebody&state=ready", 12),
        ("where=no+such+text", 0),
        ("queue=mail&since=2001-01-01T00:00", 20),
        ("queue=mail&until=2001-01-01T00:00:00", 0),
        ("where=队列", 1),
    ],
)
def test_tasks_are_searched(query: str, count: int, world: Filled, http: httpx.Client) -> None:
    """A search finds a function, an error, data and a time, and the page says what it has read."""
    text = http.get(f"/ui/tasks?{query}").text
    tree = parsed(text)
    assert len(titles(tree)) == count
    assert ("Searched the data, keys, errors and tracebacks of all" in texts(tree)) == ("where" in query)


def test_tabs_have_counts(http: httpx.Client) -> None:
    """Each state has a tab with its number of tasks, and a tab keeps the search."""
    tree = parsed(http.get("/ui/tasks?queue=mail&where=a").text)
    tabs = {
        " ".join(texts(one).split()): one.get("href") for one in found(tree, "a") if "where=a" in one.get("href", "")
    }
    assert {"all 20", "failed 5", "claimed 2", "completed 1"} <= tabs.keys()
    assert tabs["failed 5"] == "/ui/tasks?queue=mail&state=failed&where=a"


def test_bad_searches_are_named(http: httpx.Client) -> None:
    """A time or a state that is none is an error that names the field."""
    for query, field in (("since=soon", "since"), ("until=99999-01-01", "until"), ("state=lost", "state")):
        answer = http.get(f"/ui/tasks?{query}")
        assert answer.status_code == 400 and f"({field})" in answer.text


def test_the_search_field_finds_ids_and_queues(world: Filled, http: httpx.Client) -> None:
    """An id, its beginning, and a queue lead to their pages; another text to a search of tasks."""
    for text, there in (
        (world.dead, f"/ui/tasks/{world.dead}"),
        (world.dead.upper()[:36], f"/ui/tasks/{world.dead}"),
        ("mail", "/ui/queue?name=mail"),
        ("ValueError", "/ui/tasks?where=ValueError"),
        ("0123456789abcdef", "/ui/tasks?where=0123456789abcdef"),
        ("", "/ui/tasks"),
    ):
        answer = http.get("/ui/search", params={"q": text})
        found_place = answer.headers["location"]
        same_start = text and there.startswith("/ui/tasks/") and found_place[:46] == there[:46]
        assert found_place == there or same_start, text


def test_progress_that_is_too_large_for_a_number_is_none() -> None:
    """The page of the task is still shown."""
    data = b'{"progress": {"done": 1%s, "total": null, "note": ""}}' % (b"0" * 400)
    assert progress_of([{"data": data, "at_ms": 1}]) is None


@pytest.mark.parametrize("before", range(4))
def test_the_beginning_of_a_long_text_is_text(before: int) -> None:
    """Wherever its characters are cut. Bytes that are not text stay bytes."""
    text = "x" * before + "队" * 200
    assert beginning(text.encode()).startswith(text[:80])
    assert beginning(text.encode()[:-1]).startswith(text[:80]), "only the beginning is read"
    assert beginning(b"\xff" * 500).startswith("bytes, as hexadecimal digits: ffff")
    assert beginning("队".encode()[:-1]).startswith("bytes, as hexadecimal digits: e9")


def test_a_task_shows_its_progress_and_attempts(world: Filled, http: httpx.Client) -> None:
    """A claimed task has a bar and can be cancelled. A failed one can be requeued or discarded, and shows its error."""
    tree = parsed(http.get(f"/ui/tasks/{world.claimed}").text)
    (bar,) = found(tree, "progress")
    assert bar.get("value") == "75" and "<b>page</b> 3" in texts(tree)
    actions = {one.get("action") for one in found(tree, "form")}
    assert "/ui/do/cancel" in actions and not {"/ui/do/requeue", "/ui/do/discard"} & actions
    tree = parsed(http.get(f"/ui/tasks/{world.dead}").text)
    actions = {one.get("action") for one in found(tree, "form")}
    assert {"/ui/do/requeue", "/ui/do/discard"} <= actions and "/ui/do/cancel" not in actions
    assert "attempt 1: failed" in next(one.get("aria-label") for one in tree.iter() if one.get("class") == "life")


def test_the_history_of_a_task_is_folded(world: Filled, http: httpx.Client) -> None:
    """It has partitions, epochs and peers, which a new user need not know."""
    tree = parsed(http.get(f"/ui/tasks/{world.dead}").text)
    (history,) = [one for one in found(tree, "details") if one.get("id") == "history"]
    assert history.get("open") is None and "epoch" not in texts(tree).replace(texts(history), "")
    assert any(one.get("id") == "story" for one in found(history, "div"))


def test_the_age_of_a_count_is_said_only_if_it_matters(http: httpx.Client) -> None:
    """A page refreshes every few seconds, so the age of a new count tells nothing."""
    http.get("/ui/queues")
    assert "counted" not in texts(parsed(http.get("/ui/queues").text))


def test_a_mistyped_address_is_answered_with_a_page(http: httpx.Client) -> None:
    """A browser asks for HTML, and a program does not."""
    answer = http.get("/ui/quues", headers={"accept": "text/html,*/*;q=0.8"})
    assert answer.status_code == 404 and "there is no such path" in texts(parsed(answer.text))
    assert [one.get("href") for one in found(parsed(answer.text), "a")] == ["/"]
    assert http.get("/ui/quues").json()["code"] == "not_found"
    under_api = http.get("/v1/quues", headers={"accept": "text/html, image/gif, *; q=.2, */*; q=.2"})
    assert under_api.headers["content-type"] == "application/problem+json"


def test_a_long_list_has_parts(world: Filled, http: httpx.Client) -> None:
    """The parts together have each task once."""
    path, seen = "/ui/tasks", []
    while path:
        tree = parsed(http.get(path).text)
        seen += [one.get("href") for one in found(tree, "a") if one.get("class") == "title"]
        path = next((one.get("href") for one in found(tree, "a") if one.get("rel") == "next"), "")
    assert len(seen) == len(set(seen)) == 2 * len(HOSTILE) + 24


def test_the_story_has_every_entry_that_names_the_task(world: Filled, http: httpx.Client) -> None:
    """The story shows from the log which worker got the task and how it failed."""
    told = texts(parsed(http.get(f"/ui/tasks/{world.dead}/story").text))
    assert "grants it to worker worker <1>" in " ".join(told.split())
    assert "These are all entries of the log that name the task." in told
    assert "<script>alert('error')</script>" in told


def test_who_works_is_listed(world: Filled, http: httpx.Client) -> None:
    """Each worker is listed with its claims, and with the tasks that it runs and for how long."""
    with Client(world.address) as client:
        client.enqueue("runs", b'{"task": "shop.charge", "args": [], "kwargs": {}}')
        client.claim("runs", worker="shop-1.example.com:77", lease_ms=3_600_000, wait_ms=30_000)
    tree = parsed(http.get("/ui/workers").text)
    found_rows = [" ".join(texts(row).split()) for body in found(tree, "tbody") for row in body]
    assert any(row.startswith("worker <1> busy 2 ") for row in found_rows)
    assert any(re.match(r"shop-1.example.com:77 busy 1 shop.charge \d+ m?s", row) for row in found_rows)
    heads = [" ".join(texts(one).split()) for one in found(tree, "h2")]
    assert "shop-1.example.com 1 worker, 1 busy with 1 task" in heads


def test_a_queue_says_its_limits_and_pace(world: Filled, http: httpx.Client) -> None:
    """Limits are sentences; the pace is of the latest completed tasks."""
    with Client(world.address) as client:
        client.set_queue("mail", rate=2.5, concurrency=1, retries=0)
    text = " ".join(texts(parsed(http.get("/ui/queue?name=mail").text)).split())
    assert "at most 2.5 tasks start per second, at most 1 task run at a time." in text
    assert (
        "Unless its function has other retries, a failed task is not retried." in text
        and "Finished tasks are kept for 7 d." in text
    )
    assert "wait, p95 of the last 1" in text
    assert "no task yet" in http.get("/ui/queue?name=paused").text


def test_the_run_times_of_a_queue_leave_out_the_pauses_between_attempts() -> None:
    """A task that lay failed until it was requeued by hand ran no longer than its attempts did."""
    attempts = [{"duration_ms": 30}, {"duration_ms": 12}]
    retried = {"created_ms": 0, "started_ms": 5, "finished_ms": 43_700, "duration_ms": 43_695, "claims": attempts}
    pace = pace_of([retried], 50_000)
    assert pace is not None and (pace.run_p95_ms, pace.wait_p95_ms) == (12, 5)


@on_trio
async def test_a_queue_with_a_long_backlog_does_not_say_that_none_was_completed() -> None:
    """The search for the latest completed tasks ends after some of the newest tasks; the count has all."""
    service = FakeService()
    first = make_id(NOW_MS, 3, 7, 0)
    await service.call("enqueue", {"runs": [[first, pack_task({"queue": "mail"}, [b"1"])]], "w": None})
    service.tasks[first].state = "completed"  # it has no times, so the page finds none
    async with client_of(service) as client:
        text = (await client.get("/ui/queue?name=mail")).text
    assert "none of the newest tasks" in text and "no task yet" not in text


@on_trio
async def test_a_queue_without_a_worker_says_so() -> None:
    """It is marked in the list, and its page says what to do."""
    service = FakeService()
    body = pack_task({"queue": "mail"}, [b"1"])
    await service.call("enqueue", {"runs": [[make_id(NOW_MS, 3, 7, 0), body]], "w": None})
    async with client_of(service) as client:
        for path in ("/ui/queue?name=mail", "/ui/queues"):
            told = " ".join(texts(parsed((await client.get(path)).text)).split())
            hint = "Start one with: onyxq worker start MODULE:APP"
            assert f"No worker asks for queue 'mail'. {hint}" in told
            assert ("mail no worker" in told) == (path == "/ui/queues")


@on_trio
async def test_each_of_many_ready_timers_is_on_a_page() -> None:
    """The first page has some of them, and a link to the list of all, in the order of their times."""
    service = FakeService()
    body = pack_task({"queue": TIMERS_QUEUE, "unique_key": "late"}, [b"1"] * 60)
    await service.call("enqueue", {"runs": [[make_id(NOW_MS, 3, 7, 0), body]], "w": None})
    seen: list[str | None] = []
    async with client_of(service) as client:
        tree = parsed((await client.get("/ui/timers")).text)
        links = [one.get("href") for one in found(tree, "a") if "".join(one.itertext()) == "All ready timers"]
        while links:
            tree = parsed((await client.get(links[0] or "")).text)
            assert "cancel" in [one.get("value") for one in found(tree, "button")]
            seen += [one.get("value") for one in found(tree, "input") if one.get("name") == "id"]
            links = [one.get("href") for one in found(tree, "a") if one.get("rel") == "next"]
    assert seen == [one.hex() for one in sorted(service.tasks)]


def test_a_timer_is_listed_and_cancelled(world: Filled, http: httpx.Client) -> None:
    """A timer is shown with its callback and due time; the button has the effect of DELETE."""
    tree = parsed(http.get("/ui/timers").text)
    (row,) = found(tree, "tbody")[0]
    assert found(row, "a")[0].text == "<i>7" and "POST http://127.0.0.1:9/remind" in texts(row)
    (due,) = found(row, "time")
    assert re.fullmatch(r"in \d+ min", due.text) and re.fullmatch(r"\d{4}-\d\d-\d\d [\d:]{8} UTC", due.get("title"))
    answer = http.post("/ui/do/timer-cancel", data={"id": "<i>7"}, headers={"origin": world.base})
    assert answer.headers["location"] == "/ui/timers?did=timer-cancel"
    assert http.get("/timer/%3Ci%3E7").json()["state"] == "cancelled"


def test_the_log_is_shown_at_any_position(http: httpx.Client) -> None:
    """The page shows the replica of that position; before the peer joined it was empty."""
    early = parsed(http.get("/ui/log?at=0").text)
    late = parsed(http.get("/ui/log").text)
    (slide,) = [one for one in found(late, "input") if one.get("type") == "range"]
    assert slide.get("min") == "0" and slide.get("value") == slide.get("max")
    assert not any("at=-" in one.get("href", "") for one in found(early, "a")), "there is no record before the first"
    assert "The replica at 0" in texts(early) and f"The replica at {slide.get('max')}" in texts(late)
    digests = [digest_of(tree) for tree in (early, late)]
    assert len(set(digests)) == 2
    known = http.get("/v1/replica").json()
    if known["position"] == int(slide.get("max")):
        assert digests[1] == known["digest"]
    assert http.get("/ui/log?at=999999999").status_code == 200


def test_the_log_is_the_same_whichever_way_one_comes(http: httpx.Client) -> None:
    """The digest of a position does not depend on the positions that were viewed before."""

    def digest(at: int) -> str:
        return digest_of(parsed(http.get(f"/ui/log?at={at}").text))

    up = [digest(at) for at in range(8)]
    assert [digest(at) for at in reversed(range(8))] == up[::-1]


@pytest.mark.long
def test_records_without_entries_are_told_of_as_one(http: httpx.Client) -> None:
    """Consecutive ones are one line with first and last position; no position is left out."""

    def shown() -> list[str]:
        (steps,) = [one for one in found(parsed(http.get("/ui/log").text), "ol") if one.get("class") == "timeline"]
        return [" ".join(step.itertext()) for step in steps]

    give_up = time.monotonic() + 60
    while not any("records without entries" in step for step in shown()):
        assert time.monotonic() < give_up, "an idle log grows by records that carry its time"
        time.sleep(0.2)
    steps = shown()
    spans = [[int(one) for one in re.findall(r"(?:^\s*|back to\s+)(\d+)\s+\d{4}-", step)] for step in steps]
    assert all(older[0] == span[-1] - 1 for span, older in itertools.pairwise(spans))
    for span, step in zip(spans, steps, strict=True):
        assert len(span) == 1 or f"{span[0] - span[1] + 1} records without entries" in step


def test_a_job_is_described(http: httpx.Client) -> None:
    """Times are shown as words and its digest in hexadecimal, not in the program's form."""
    text = texts(parsed(http.get("/ui/job?id=words").text))
    assert re.search(r"digest\s+[0-9a-f]{32}\s", text) and re.search(r"submitted\s+\d+ (s|min) ago", text)
    assert "b'" not in text and "{}" not in text


def test_the_ring_is_drawn(world: Filled, http: httpx.Client) -> None:
    """A circle for each peer."""
    tree = parsed(http.get("/ui/cluster").text)
    circles = [one for one in tree.iter() if str(one.tag).endswith("}circle")]
    assert len(circles) == 1 and len(found(tree, "tbody")[0]) == 64


def test_files_come_from_the_peer_and_are_kept(http: httpx.Client) -> None:
    """All files that pages name exist, and are cached."""
    for path in sorted(set(FILES.findall(http.get("/").text))):
        answer = http.get(path)
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff", path
        again = http.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert http.get("/ui/static/..%2f__init__.py").status_code == 404


def test_rates_only_grow(http: httpx.Client) -> None:
    """Rates are computed from counters of all nodes that answer."""
    first = http.get("/ui/rates").json()
    assert first["events"]["enqueued"] >= 38 and first["silent"] == [] and len(first["nodes"]) == 1
    assert len(first["waited"]) == len(first["bounds_s"]) + 1
    assert http.get("/ui/rates").json()["events"]["enqueued"] >= first["events"]["enqueued"]


def test_tiles_lead_to_what_they_count(http: httpx.Client) -> None:
    """Failed tasks stand out; each tile leads to a list with as many tasks."""
    tree = parsed(http.get("/").text)
    tiles = {" ".join(texts(one).split()): one for one in found(tree, "li") if "tile" in str(one.get("class"))}
    (failed,) = [one for name, one in tiles.items() if name.startswith("failed ")]
    assert failed.get("class") == "tile tile-bad"
    for name in ("failed 5", "completed 1"):
        listed = parsed(http.get(found(tiles[name], "a")[0].get("href")).text)
        assert len(titles(listed)) == int(name.split()[1])
    assert "ValueError: <script>alert('error')</script>" in texts(tree)


def test_the_minutes_are_data_for_the_curves(http: httpx.Client) -> None:
    """The minutes of the peer have the tasks that were enqueued."""
    found_minutes = http.get("/ui/rates/history").json()["minutes"]
    assert sum(one["events"]["enqueued"] for one in found_minutes) >= 38


@pytest.mark.parametrize(("retry_in_ms", "said"), [(3_600_000, ", due again in 59 min"), (1, ", was due again ")])
def test_a_retry_was_due_once_its_time_has_come(retry_in_ms: int, said: str, world: Filled, http: httpx.Client) -> None:
    """A time in the past is shown as one."""
    with Client(world.address) as client:
        [task] = client.enqueue_many("retried", [b"1"], retries=3)
        [claim] = client.claim("retried", wait_ms=30_000)
        client.fail([claim], error="no", retry_in_ms=retry_in_ms)
        if retry_in_ms == 1:
            client.claim("retried", wait_ms=30_000)
    assert said in " ".join(texts(parsed(http.get(f"/ui/tasks/{task.hex()}").text)).split())

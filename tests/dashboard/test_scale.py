"""Many queues and tasks in a real browser: lists have pages, and at full size each page is fast.

``ONYXQ_TEST_QUEUES=10000`` (with a hundred tasks each) is the full size. Then each page must also
answer within ``ANSWER_MS_MAX``, which needs a machine without other work.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from onyxq.client import Client
from tests.dashboard.browser import Tab, browser
from tests.interfaces.live_world import running

QUEUES = int(os.environ.get("ONYXQ_TEST_QUEUES", "120"))
FULL = QUEUES >= 10_000
TASKS = 100 if FULL else 3
"""Tasks of each queue."""
FLOW_TASKS = 100
ANSWER_MS_MAX = 100
TIMES = 9 if FULL else 1
ROWS = 50
TOOK_MS = (
    "(() => { const one = performance.getEntriesByType('navigation')[0]; return one.responseEnd - one.requestStart })()"
)


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[str, str, str]]:
    """Run a cluster with that many queues; return its address, and the ids of a task and of a flow."""
    with running(http=True) as cluster, Client(cluster.addresses[0]) as client:
        for number in range(QUEUES):
            client.enqueue_many(f"queue-{number:05}", [b'{"to": "somebody@example.com"}'] * TASKS, retries=0)
        claims = client.claim("queue-00000", max=TASKS, wait_ms=30_000)
        client.fail(claims, "no")
        steps = client.group(*((f"queue-{number:05}", b"{}") for number in range(FLOW_TASKS)))
        flow = client.make_flow(client.chain(("queue-00001", b"{}"), steps), name="many")
        counted: Any = None
        while counted is None:
            counted = client.call("queues.page", {"wait_ms": 60_000})["counted_ms_ago"]
        yield f"http://{cluster.http_addresses[0]}", claims[0].id.hex(), flow.id.hex()


@pytest.fixture(scope="module")
def base(made: tuple[str, str, str]) -> str:
    """Return the address of the cluster."""
    return made[0]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Run the browser."""
    with browser() as found:
        yield found


@pytest.mark.long
def test_lists_come_by_the_page(chromium: Any, base: str) -> None:
    """No page has more rows than its limit, and all pages together have each queue once."""
    with Tab(chromium) as tab:
        page = tab.open(f"{base}/ui/queues")
        seen: list[str] = []
        while True:
            names = page.locator("tbody th a").all_inner_texts()
            assert 0 < len(names) <= ROWS
            seen += [one for one in names if not one.startswith("onyxq.")]
            following = page.locator("a[rel=next]")
            if not following.count() or len(seen) >= 10 * ROWS:
                break
            page = tab.open(base + str(following.get_attribute("href")))
        assert seen[: 10 * ROWS] == [f"queue-{number:05}" for number in range(min(QUEUES, 10 * ROWS))]
        assert not tab.complaints


@pytest.mark.long
def test_pages_answer_soon(chromium: Any, made: tuple[str, str, str]) -> None:
    """The median time in the browser, from the request to the last byte, is below the limit."""
    base, task, flow = made
    paths = (
        "/",
        "/ui/queues",
        f"/ui/queues?order=oldest&skip={QUEUES // 2}",
        f"/ui/queue?name=queue-{QUEUES // 2:05}",
        "/ui/tasks",
        f"/ui/tasks?queue=queue-{QUEUES // 2:05}&state=ready",
        "/ui/tasks?state=failed",
        "/ui/tasks?where=no%20such%20text",
        f"/ui/tasks/{task}",
        f"/ui/search?q={task[:16]}",
        "/ui/flows",
        f"/ui/flow?id={flow}",
        "/ui/workers",
        "/ui/timers",
        "/ui/periodic",
        "/ui/jobs",
        "/ui/cluster",
        "/ui/log",
        "/ui/log?at=1",
        "/ui/settings",
    )
    took: dict[str, float] = {}
    with Tab(chromium) as tab:
        for path in paths:
            asked = [float(tab.open(base + path).evaluate(TOOK_MS)) for _ in range(TIMES)]
            assert min(asked) > 0 and tab.page.locator("h1").count() == 1
            took[path] = round(statistics.median(asked), 1)
        assert not tab.complaints
    slow = {path: ms for path, ms in took.items() if ms >= ANSWER_MS_MAX}
    assert not (FULL and slow), took

"""The next tasks of a queue come by their due times, each once, whatever other tasks there are."""

from __future__ import annotations

from typing import Any

from onyxq.client import Client
from tests.interfaces.live_world import PATIENCE_MS, running


def _all(client: Client, **wanted: Any) -> tuple[list[Any], list[Any], int]:
    """Return all ready and later tasks, and the number of pages."""
    ready: list[Any] = []
    later: list[Any] = []
    pages, place = 0, {}
    while True:
        found = client.call("list.next", {**wanted, **place})
        ready, later, pages = [*ready, *found["ready"]], [*later, *found["later"]], pages + 1
        if found["after"] is None:
            return ready, later, pages
        place = {"after_ms": found["after_ms"], "after": found["after"]}


def test_the_next_tasks_of_a_queue_come_in_order() -> None:
    """Ready tasks come first; tasks of one due time, retried tasks and many pages are complete."""
    with running(peers=2) as cluster, Client(cluster.addresses[0]) as client:
        retried = client.enqueue("mail", b"retried", retries=5)
        client.fail(client.claim("mail", wait_ms=PATIENCE_MS), "no", retry_in_ms=90_000)
        at_ms = client.call("routes", {})["now_ms"] + 60_000
        one_time = client.enqueue_many("mail", [b"%d" % number for number in range(70)], at_ms=at_ms)
        others = [client.enqueue("mail", b"x", delay_ms=30_000 + 1_000 * number) for number in range(90)]
        client.enqueue_many("other", [b"y"] * 200, delay_ms=45_000)
        now = client.enqueue_many("mail", [b"now"] * 3)

        ready, later, pages = _all(client, queue="mail", limit=20)
        assert sorted(one["id"] for one in ready) == sorted(now)
        assert len(later) == 161 and {one["id"] for one in later} == {retried, *one_time, *others}
        places = [(one["at_ms"], one["id"]) for one in later]
        assert places == sorted(places) and pages >= 9

        _, found, _ = _all(client, queue="mail", where="retried")
        assert [one["id"] for one in found] == [retried] and found[0]["claims"][-1]["outcome"] == "failed"
        assert _all(client, queue="nothing") == ([], [], 1)

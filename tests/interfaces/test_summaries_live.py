"""Requests of the dashboard to a node: queues by the page, holders of claims, counts of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onyxq.client import Client
from onyxq.errors import BadRequest
from tests.interfaces.live_world import Wire, claim_of, running

DEPTHS = {"apple": 1, "banana": 3, "cherry": 2}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a cluster of two nodes with three queues, one failed task, and two claimed ones."""
    with running(peers=2) as cluster, Client(cluster.addresses[0]) as client:
        for name, count in DEPTHS.items():
            client.enqueue_many(name, [b"1"] * count, retries=0)
        client.fail(client.claim("cherry", wait_ms=30_000), "no")
        client.claim("banana", max=2, worker="w1", lease_ms=3_600_000, wait_ms=30_000)
        client.pause("apple")
        assert client.call("queues.page", {"wait_ms": 30_000})["counted_ms_ago"] is not None
        yield client


def names(page: dict[str, Any]) -> list[str]:
    """Return the queues of a page."""
    return [one["queue"] for one in page["queues"]]


def test_queues_are_sorted_and_cut(client: Client) -> None:
    """They are sorted by name, unfinished tasks or failures; the sums are those of all."""
    page = client.call("queues.page", {})
    assert names(page) == ["apple", "banana", "cherry"] and page["all"] == page["found"] == 3
    assert (page["sums"]["total"], page["sums"]["failed"], page["sums"]["claimed"]) == (6, 1, 2)
    assert [one["paused"] for one in page["queues"]] == [True, False, False]
    assert {one["queue"]: one["depth"] for one in page["queues"]} == client.count()
    assert names(client.call("queues.page", {"order": "unfinished", "limit": 2})) == ["banana", "apple"]
    assert names(client.call("queues.page", {"order": "failed", "limit": 1})) == ["cherry"]
    assert names(client.call("queues.page", {"skip": 2})) == ["cherry"]
    assert names(client.call("queues.page", {"order": "oldest"}))[0] == "apple"


def test_queues_are_found_by_a_part_of_their_name(client: Client) -> None:
    """The total number is still reported."""
    page = client.call("queues.page", {"like": "an"})
    assert (names(page), page["found"], page["all"]) == (["banana"], 1, 3)


@pytest.mark.parametrize(
    ("args", "field"),
    [({"order": "best"}, "order"), ({"like": 1}, "like"), ({"skip": -1}, "skip"), ({"limit": 0}, "limit")],
)
def test_bad_arguments_are_named(client: Client, args: dict[str, Any], field: str) -> None:
    """They are named as in all requests."""
    with pytest.raises(BadRequest) as raised:
        client.call("queues.page", args)
    assert raised.value.field == field


def test_who_holds_claims_is_told(client: Client) -> None:
    """The answer has the number of tasks and the first end of a lease."""
    found = client.call("workers", {})
    (worker,) = [one for one in found["workers"] if one["worker"] == "w1"]
    assert found["all"] == len(found["workers"]) and worker["claimed"] == 2
    assert 0 < worker["next_deadline_in_ms"] <= 3_600_000 and worker["waits"] == 0


def test_who_waits_is_told_wherever_he_asks(client: Client) -> None:
    """A worker without tasks at another node is listed with the queues of all its claims that wait."""
    others = [one["address"] for one in client.peers()["peers"]]
    wires = [Wire(address) for address in others]
    try:
        for number, wire in enumerate(wires):
            wire.send([98, "claim", claim_of("nothing", "comes", worker="idle", wait_ms=60_000)])
            wire.send([99, "claim", claim_of(f"node-{number}", worker="idle", wait_ms=60_000)])
            wire.call("$ping", {})
        (idle,) = [one for one in client.call("workers", {})["workers"] if one["worker"] == "idle"]
        assert (idle["claimed"], idle["waits"], idle["free"]) == (0, 4, 4 * claim_of("nothing")["max"])
        assert idle["waits_for"] == ["comes", "node-0", "node-1", "nothing"]
    finally:
        for wire in wires:
            wire.__exit__(None, None, None)


def test_what_happened_is_summed_over_the_nodes(client: Client) -> None:
    """Each event counts once at any node; as many tasks waited as were claimed."""
    found = client.call("rates", {})
    assert len(found["nodes"]) == 2 and found["silent"] == []
    events = found["events"]
    assert (events["enqueued"], events["claimed"], events["failed"]) == (6, 3, 1)
    assert sum(found["waited"]) == 3
    assert len(found["waited"]) == len(found["ran"]) == len(found["bounds_s"]) + 1


def test_tasks_are_found_by_a_text_and_a_time(client: Client) -> None:
    """A text is found in data, in escaped JSON, in keys and in errors; times limit the ids in both directions."""
    data = [b'{"to": "ann"}', b'{"to": "\\u00e4nn"}', '{"to": "änn"}'.encode(), b"\xff\xfe"]
    client.enqueue_many("found", data, retries=0)
    client.enqueue("found", b"1", ordering_key="key of ann")

    def found(**args: Any) -> list[bytes]:
        return [one["data"] for one in client.call("list", {"queue": "found", **args})["tasks"]]

    assert sorted(found(where="ann")) == [b"1", data[0]] and sorted(found(where="änn")) == sorted(data[1:3])
    assert found(where="ann", newest_first=True) == found(where="ann")[::-1]
    assert found(where="bob") == [] and [one.data for one in client.list(where="key of ann").tasks] == [b"1"]
    claims = client.claim("found", max=5, wait_ms=30_000)
    client.fail([one for one in claims if one.data == b"\xff\xfe"], "ValueError: no such host")
    assert found(where="no such", state="failed") == found(where="no such") == [b"\xff\xfe"]
    ms = sorted(int.from_bytes(one["id"][:6], "big") for one in client.call("list", {"queue": "found"})["tasks"])
    for down in (False, True):
        assert len(found(since_ms=ms[0], until_ms=ms[-1], newest_first=down)) == 5
        assert found(until_ms=ms[0] - 1, newest_first=down) == found(since_ms=ms[-1] + 1, newest_first=down) == []
        assert found(until_ms=(1 << 48) - 1, limit=1, newest_first=down) == found(limit=1, newest_first=down)


def test_the_last_minutes_are_kept(client: Client) -> None:
    """The minutes of both nodes together have every task that was enqueued since they started."""
    client.enqueue_many("minutes", [b"1"] * 30)
    found = client.call("rates.history", {})
    enqueued = sum(one["events"]["enqueued"] for one in found["minutes"])
    assert enqueued == client.call("rates", {})["events"]["enqueued"] and found["silent"] == []
    times = [one["at_ms"] for one in found["minutes"]]
    assert times == sorted(set(times)) and all(ms % 60_000 == 0 for ms in times)

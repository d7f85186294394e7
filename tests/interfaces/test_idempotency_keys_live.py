"""Idempotency-Key over HTTP at real peers: a repeat is the same request at every one of them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.live_world import ANSWER_S_MAX, running


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three peers."""
    with running(peers=3, http=True) as found:
        yield found


def post(address: str, body: object, key: str) -> httpx.Response:
    """Enqueue at one peer."""
    url = f"http://{address}/v1/tasks"
    with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False) as http:
        return http.post(url, json=body, headers={"idempotency-key": key})


def test_a_repeat_at_another_peer_is_the_same_tasks(cluster: LocalCluster) -> None:
    """Its ids are the same, also of delayed tasks and of tasks with keys. No peer keeps anything in memory."""
    body = {"tasks": [{"queue": "a"}, {"queue": "a", "delay_ms": 60_000}, {"queue": "b", "ordering_key": "k"}]}
    answers = [post(address, body, "order 7") for address in cluster.http_addresses * 2]
    assert [answer.status_code for answer in answers] == [201] * 6
    assert len({tuple(answer.json()["ids"]) for answer in answers}) == 1


def test_another_body_is_refused_at_every_peer(cluster: LocalCluster) -> None:
    """The key belongs to the first body."""
    first, *others = cluster.http_addresses
    assert post(first, {"tasks": [{"queue": "c"}]}, "order 8").status_code == 201
    for address in (*others, first):
        refused = post(address, {"tasks": [{"queue": "d"}]}, "order 8")
        assert (refused.status_code, refused.json()["field"]) == (409, "Idempotency-Key")

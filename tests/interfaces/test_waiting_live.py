"""Waiting for the end of a task over HTTP and with a client, at a peer that does not lead the task."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from onyxq.client import Client
from tests.interfaces.live_world import ANSWER_S_MAX, running

WAIT_S = 20


@pytest.mark.long
def test_an_end_is_answered_at_every_peer_when_it_comes() -> None:
    """The request waits at the server, so nothing polls; a wait without an end is answered with the task as it is."""
    with running(peers=3, http=True) as cluster, Client(cluster.addresses[0]) as client:
        task_id = client.enqueue("work", b"x")
        answers: list[tuple[Any, float]] = []

        def get(address: str) -> None:
            with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False) as http:
                answer = http.get(f"http://{address}/v1/tasks/{task_id.hex()}", params={"wait_ms": 1_000 * WAIT_S})
                answers.append((answer.json(), time.monotonic()))

        def wait(address: str) -> None:
            with Client(address) as waiting:
                answers.append((waiting.wait(task_id, 1_000 * WAIT_S), time.monotonic()))

        threads = [threading.Thread(target=get, args=[one]) for one in cluster.http_addresses]
        threads += [threading.Thread(target=wait, args=[one]) for one in cluster.addresses]
        for thread in threads:
            thread.start()
        with httpx.Client(
            base_url=f"http://{cluster.http_addresses[1]}", timeout=ANSWER_S_MAX, trust_env=False
        ) as http:
            path = f"/v1/tasks/{task_id.hex()}"
            assert http.get(path, params={"wait_ms": 200}).json()["state"] == "ready"
            assert http.get(path, params={"wait_ms": -1}).json()["field"] == "wait_ms"
        assert not answers
        client.complete(client.claim("work", wait_ms=10_000), b'"done"')
        completed_s = time.monotonic()
        for thread in threads:
            thread.join()
        assert len(answers) == len(threads)
        assert {one["result"] if isinstance(one, dict) else one.result for one, _ in answers} == {"done", b'"done"'}
        assert max(at_s for _, at_s in answers) - completed_s < WAIT_S / 2

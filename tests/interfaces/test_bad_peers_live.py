"""Broken peers: whatever they send to a real node, it answers with an error and continues."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from onyxq.core.facts import pack_task
from tests.interfaces.bad_calls import HUGE, ID, NAN, PEER_METHODS, QUEUE, RUN, VALUES
from tests.interfaces.live_world import Live, Wire, complete_error, running


def a_row(first: bytes, header: Any) -> list[bytes]:
    """Return a task row with a right checksum and any header."""
    key = first[6:8] + b"T" + first
    body = pack_task(header, [b"x"])
    return [key, body + zlib.crc32(body, zlib.crc32(key)).to_bytes(4, "little")]


@pytest.fixture(scope="module")
def harmed() -> Iterator[Live]:
    """A node only for broken peers."""
    with running(http=True) as cluster:
        live = Live(cluster)
        yield live
        live.check_serves()
        live.close()


@pytest.fixture
def peer(harmed: Live) -> Iterator[Wire]:
    """A connection in the role of a peer."""
    hello = harmed.wire.greeting[2] | {"role": "peer", "node": "ghost", "peer": "ghost-1"}
    with Wire(harmed.address, hello=hello) as wire:
        assert wire.greeting[0] == "onyxq"
        yield wire
    harmed.check_serves()


class TestPeersThatSayNonsense:
    """Methods of peers, called by a broken peer of the cluster."""

    @pytest.mark.parametrize(
        ("method", "args"),
        [
            ("lead.claim", {"requests": [[[QUEUE], "5", 30_000, "w", 0]]}),
            ("lead.claim", {"requests": [[[QUEUE], 1, "x", "w", 0]]}),
            ("lead.claim", {"requests": [[[QUEUE], 1, 30_000, 5, 0]]}),
            ("lead.claim", {"requests": [[5, 1, 30_000, "w", 0]]}),
            ("lead.claim", {"requests": [[[[]], 1, 30_000, "w", 0]]}),
            ("lead.claim", {"requests": [5]}),
            ("lead.head", {"queue": QUEUE, "known": "xx", "timeout_ms": 10}),
            ("lead.head", {"queue": [], "known": None, "timeout_ms": 10}),
            ("lead.head", {"queue": QUEUE, "known": None, "timeout_ms": "x"}),
            ("lead.head", {"queue": QUEUE, "known": None, "timeout_ms": -5}),
            ("lead.enqueue", {"runs": [[ID, b""]], "w": None}),
            ("lead.enqueue", {"runs": [[ID, pack_task({}, [b"x"])]], "w": None}),
            ("lead.enqueue", {"runs": [[b"", RUN]], "w": None}),
            ("lead.enqueue", {"runs": [[ID, RUN]], "w": "x"}),
            ("lead.enqueue", {"runs": [[ID, pack_task({"queue": 5}, [b"x"])]], "w": None}),
            ("lead.complete", {"items": [[b"", 1, 1, None, []]]}),
            ("lead.complete", {"items": [[ID, 5_000, 1, None, []]]}),
            ("lead.complete", {"items": [[ID, -5, 1, None, []]]}),
            ("lead.complete", {"items": [[ID, 1, "x", None, 5]]}),
            ("lead.fail", {"items": [[ID, 1, 1, 5, "x"]]}),
            ("lead.renew", {"items": [[ID, 1, 1, NAN]]}),
            ("lead.update", {"items": [[ID, 1, 0, 5]]}),
            ("lead.cancel", {"ids": [5]}),
            ("lead.view", {"id": b""}),
            ("lead.view", {"id": 5}),
            ("lead.list", {"queue": None, "state": None, "after": b"short", "limit": 5}),
            ("lead.list", {"queue": None, "state": None, "after": None, "limit": "x"}),
            ("lead.list.next", {"queue": QUEUE, "after": b"short"}),
            ("lead.list.next", {"queue": QUEUE, "after_ms": "x", "after": ID}),
            ("lead.list.next", {"queue": QUEUE, "partitions": {1: "x"}}),
            ("lead.counts", {"queue": 5}),
            ("lead.counts", {"queue": None, "partitions": [1]}),
            ("lead.counts", {"queue": None, "partitions": {"x": 1}}),
            ("lead.counts", {"queue": None, "partitions": {1 << 16: 1}}),
            ("lead.list", {"queue": None, "partitions": {1: "x"}}),
            ("lead.dead", {"queue": None, "partitions": {1: HUGE}}),
            ("lead.offer", {"partition": 1, "rows": [[b"", b""]]}),
            ("lead.offer", {"partition": 1, "rows": [a_row(ID, {"queue": 5})]}),
            ("lead.offer", {"partition": 1, "rows": [a_row(ID, {})]}),
            ("lead.offer", {"partition": "1", "rows": []}),
            ("cohort.write", {"writes": [5]}),
            ("cohort.write", {"writes": [[1, "x", []]]}),
            ("cohort.write", {"writes": [[1, 1, [a_row(ID, {"queue": 5})]]]}),
            ("cohort.write", {"writes": [[1, 1, [a_row(ID, [])]]]}),
            ("cohort.write", {"writes": [[1, 1, [[b"x" * 23, b"y" * 9]]]]}),
            ("cohort.push", {"partition": 1, "epoch": 1, "rows": [a_row(ID, {"queue": QUEUE, "priority": "x"})]}),
            ("cohort.push", {"partition": 1, "epoch": NAN, "rows": []}),
            ("cohort.push", {"partition": 2, "epoch": 1, "rows": [a_row(ID, {"queue": QUEUE})]}),
            ("cohort.reach", {"partition": 1, "epoch": "x"}),
            ("cohort.reach", {"partition": 1, "epoch": NAN}),
            ("cohort.reach", {"partition": 1, "epoch": -1}),
            ("cohort.reach", {"partition": 1, "epoch": True}),
            ("cohort.reach", {"partition": 1, "epoch": HUGE}),
            ("cohort.reach", {"partition": -1, "epoch": 1}),
            ("cohort.reach", {"partition": 1 << 16, "epoch": 1}),
            ("cohort.reach", {"partition": "x", "epoch": 1}),
            ("cohort.reach", {"partition": [], "epoch": 1}),
            ("cohort.hours", {"partition": -1}),
            ("cohort.hours", {"partition": 1 << 40}),
            ("cohort.leaves", {"partition": 1, "hour": -1}),
            ("cohort.leaves", {"partition": 1, "hour": "x"}),
            ("cohort.keys", {"partition": 1, "hour": 1, "leaves": [256]}),
            ("cohort.keys", {"partition": 1, "hour": 1, "leaves": 5}),
            ("cohort.rows", {"keys": [b"", 5]}),
            ("cohort.rows", {"keys": [b"x" * 5_000]}),
            ("cohort.covering", {"id": b""}),
            ("cohort.covering", {"id": "x"}),
        ],
    )  # fmt: skip
    def test_nonsense_is_an_error_and_harms_nobody(self, peer: Wire, method: str, args: dict[str, Any]) -> None:
        """The node and the connection continue."""
        result, error = peer.answer(method, args)
        refusals = [error] if error else refusals_in(result)
        assert refusals and all(map(complete_error, refusals)), result
        assert peer.call("health", {})["ready"]

    @pytest.mark.long
    @seed(20_262)
    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(
        method=st.sampled_from(sorted(set(PEER_METHODS) - {"cohort.reach", "peer.leave"})),
        args=st.fixed_dictionaries(
            {},
            optional={
                name: VALUES | st.lists(st.lists(VALUES, max_size=5), max_size=2)
                for name in ("runs", "w", "items", "ids", "requests", "queue", "known", "id", "after", "state", "limit")
            }
            | {"partition": st.integers(0, 70) | VALUES, "epoch": st.integers(0, 3) | VALUES, "timeout_ms": st.just(1)}
            | dict.fromkeys(("rows", "writes", "hour", "leaves", "keys", "peer"), VALUES),
        ),
    )
    def test_generated_nonsense_harms_nobody(self, harmed: Live, method: str, args: dict[str, Any]) -> None:
        """Every call is answered."""
        said = harmed.wire.greeting[2]
        with Wire(harmed.address, hello=said | {"role": "peer", "node": "ghost"}) as wire:
            _, error = wire.answer(method, args)
            assert error is None or complete_error(error)


def refusals_in(result: Any) -> list[Any]:
    """Return the error maps anywhere in a result."""
    if isinstance(result, dict):
        return [result] if "code" in result else [found for one in result.values() for found in refusals_in(one)]
    return [found for one in result for found in refusals_in(one)] if isinstance(result, list) else []

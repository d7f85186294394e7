"""Rows that must be on disk never travel in a message that a node may answer from memory."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest
import trio
import trio.testing

from onyxq.core.facts import Row
from onyxq.errors import OnyxqError
from onyxq.leader.cohort import replication
from onyxq.leader.cohort.member import Cohort
from onyxq.leader.cohort.replication import SENDER_FLIGHTS, Sender, Vote

ROWS = 200


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_must_be_on_disk_travel_apart(seed: int) -> None:
    """Rows of both kinds wait together while the first messages are on their way; all of them arrive."""
    random = Random(seed)
    wanted = {number: random.random() < 0.5 for number in range(ROWS)}
    """Whether each row may be answered from memory."""
    travelled: dict[int, bool] = {}

    async def main() -> None:
        free = trio.Event()
        sender = Sender(_Host(travelled, free), "node", missed=_nobody_waits)
        vote = Vote(leader="leader", members=["node"], target=["node"], failed=_failed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run)
            for number, early in wanted.items():
                sender.submit(1, 1, [Row(b"%d" % number, bytes(random.randrange(100)))], vote, early=early)
                if number == SENDER_FLIGHTS:
                    await trio.testing.wait_all_tasks_blocked()
            free.set()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert travelled == wanted


def test_a_node_that_keeps_up_is_sent_any_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows that still wait count towards the limit above which a node counts as down."""
    monkeypatch.setattr(replication, "WAITING_BYTES_MAX", 1_000)
    travelled: dict[int, bool] = {}

    async def main() -> None:
        free = trio.Event()
        free.set()
        sender = Sender(_Host(travelled, free), "node", missed=_nobody_waits)
        vote = Vote(leader="leader", members=["node"], target=["node"], failed=_failed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run)
            for number in range(0, ROWS, 2):
                for one in (number, number + 1):
                    sender.submit(1, 1, [Row(b"%d" % one, bytes(100))], vote)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert list(travelled) == list(range(ROWS))


class _Host:
    """A node that notes the rows of its messages, and whether they may be answered from memory."""

    node_id = "leader"
    cohort = cast(Cohort, None)

    def __init__(self, travelled: dict[int, bool], free: trio.Event) -> None:
        self._travelled = travelled
        self._free = free

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Answer once the node is free."""
        early = args.get("early", False)
        self._travelled.update((int(key), early) for _, _, rows in args["writes"] for key, _ in rows)
        await self._free.wait()
        return [None] * len(args["writes"])


def _failed(node: str, error: OnyxqError) -> None:
    raise error


def _nobody_waits() -> None:
    raise AssertionError("nobody waits for the node to return")

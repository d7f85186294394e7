"""Rows that must be on disk never travel in a message that a node may answer from memory."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio
import trio.testing

from onyxq.core.facts import Row
from onyxq.errors import OnyxqError
from onyxq.leader.cohort import replication
from onyxq.leader.cohort.replication import SENDER_FLIGHTS, Sender

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

        async def send(group: list[tuple[int, int, Sequence[Row]]], early: bool) -> list[OnyxqError | None]:
            travelled.update((int(row.key), early) for _, _, rows in group for row in rows)
            await free.wait()
            return [None] * len(group)

        sender = Sender("node", send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run)
            for number, early in wanted.items():
                sender.submit(1, 1, [Row(b"%d" % number, bytes(random.randrange(100)))], _heard, early=early)
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
    arrived: list[int] = []

    async def main() -> None:
        async def send(group: list[tuple[int, int, Sequence[Row]]], early: bool) -> list[OnyxqError | None]:
            arrived.extend(int(row.key) for _, _, rows in group for row in rows)
            return [None] * len(group)

        sender = Sender("node", send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run)
            for number in range(0, ROWS, 2):
                for one in (number, number + 1):
                    sender.submit(1, 1, [Row(b"%d" % one, bytes(100))], _heard)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert arrived == list(range(ROWS))


def _heard(node: str, error: OnyxqError | None) -> None:
    assert error is None

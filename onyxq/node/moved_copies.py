"""Copies of partitions that moved to other nodes: handed over and dropped.

A node outside a partition's cohorts waits until the move is settled and the partition is served. Then it
offers the leader the rows that its own digests have and the leader's lack, and drops its copy.

A node may read the log late. A leader that has read of a cohort with this node asks the node to promise its
epoch before it reads the copy. So a copy is kept while a promised epoch is newer than the replica's. A
promise that arrives later waits in the store until after the drop; that leader then sees that the copy is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import trio

from onyxq.core.errors import OnyxqError
from onyxq.core.facts import Row
from onyxq.core.placement import holders
from onyxq.core.replica import Partition, Replica, leader_node
from onyxq.leader.cohort.anti_entropy import Exchange, Transfer
from onyxq.leader.cohort.copy_pace import Pacer
from onyxq.store.interface import Batch
from onyxq.store.store import Store

LOOK_EVERY_S = 5.0
LOOK_PAUSE_S = 0.5
"""Delay between a change of placement and a check, so that one check covers many changes; in seconds."""
CALL_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class MovedAwayHost(Protocol):
    """The members of the node that `MovedAway` uses."""

    node_id: str
    peer_id: str
    replica: Replica
    store: Store
    epochs: dict[int, int]
    """Epoch promised per partition."""
    pacer: Pacer

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...

    async def changed(self, replica: Replica) -> None:
        """Wait until the partitions are placed otherwise than in ``replica``."""
        ...

    def synced(self, direction: str, rows: int, size: int) -> None:
        """Count a page of rows that was exchanged to make copies equal."""
        ...


class MovedAway:
    """Hands over and drops copies of partitions that moved away."""

    def __init__(self, host: MovedAwayHost) -> None:
        self._host = host

    async def run(self) -> None:
        """Check after each change of placement, and now and then, until cancelled."""
        host = self._host
        while True:
            with trio.move_on_after(LOOK_EVERY_S):
                await host.changed(host.replica)
            await trio.sleep(LOOK_PAUSE_S)
            if host.peer_id and host.peer_id in host.replica.ring.members:
                await self._look()

    async def _look(self) -> None:
        for number in self._host.store.partitions():
            if not self._is_elsewhere(number):
                continue
            try:
                await self._offer_and_drop(number)
            except OnyxqError as error:
                log.info("partition %d is kept for now: %s", number, error.message)

    def _is_elsewhere(self, number: int) -> bool:
        """Return whether a partition is served without this node, and no leader relies on the copy here."""
        host = self._host
        placed = host.replica.partitions.get(number)
        if placed is None or not placed.ready or host.node_id in holders(placed):
            return False
        return not self._is_relied_on(number, placed)

    def _is_relied_on(self, number: int, placed: Partition) -> bool:
        """Return whether a leader that is not known here yet may count on the copy: this node promised its epoch."""
        return self._host.epochs.get(number, 0) > placed.epoch

    async def _offer_and_drop(self, number: int) -> None:
        """Send the partition's leader the rows that it lacks, then drop the copy."""
        host = self._host
        leader = leader_node(host.replica, number)
        if leader is None:
            return

        async def call(method: str, args: dict[str, Any]) -> Any:
            method = "lead.offer" if method == "cohort.push" else method
            return await host.call(leader.id, method, args, timeout_s=CALL_TIMEOUT_S)

        async def keep(rows: Sequence[Row]) -> None:
            raise AssertionError("an offer pulls nothing")

        exchange = Exchange(
            store=host.store,
            partition=number,
            epoch=0,
            call=call,
            keep=keep,
            pacer=host.pacer,
            transfer=Transfer(host.synced),
        )
        await exchange.run(pull=False, push=True)
        if self._is_elsewhere(number):
            await host.store.write(Batch(drop=(number,)))
            log.info("partition %d moved away: %d rows were handed over, its copy is dropped", number, exchange.pushed)

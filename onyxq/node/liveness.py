"""Signs of life from the nodes that a node writes to.

Nodes that receive no writes are asked now and then, because a leader must notice that it is cut off. Nodes
that did not answer are asked often: rows wait for them.
"""

from __future__ import annotations

from typing import Any, Protocol

import trio

from onyxq.core.errors import OnyxqError
from onyxq.leader.cohort.replication import Sender
from onyxq.leader.leader import PartitionLeader
from onyxq.wire.protocol import PING

PROBE_EVERY_S = 2.0
PROBE_TIMEOUT_S = 2.0
MISSED_EVERY_S = 0.25
MISSED_TIMEOUT_S = 1.0


class ProbingHost(Protocol):
    """The members of the node that `Probing` uses."""

    node_id: str
    leaders: dict[int, PartitionLeader]
    senders: dict[str, Sender]

    def sender(self, node: str) -> Sender:
        """Return the sender of writes to a node."""
        ...

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...


class Probing:
    """Asks other nodes for signs of life."""

    def __init__(self, host: ProbingHost) -> None:
        self._host = host
        self._missed = trio.Event()

    def missed(self) -> None:
        """Note that rows wait for a node to answer again."""
        self._missed.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_quiet, nursery)
            nursery.start_soon(self._ask_missed)

    async def _ask_quiet(self, nursery: trio.Nursery) -> None:
        host = self._host
        while True:
            await trio.sleep(PROBE_EVERY_S)
            others = {node for leader in host.leaders.values() for node in leader.holders()} - {host.node_id}
            for sender in map(host.sender, sorted(others)):
                if not sender.down and trio.current_time() - sender.heard_at >= PROBE_EVERY_S:
                    nursery.start_soon(self._probe, sender)

    async def _probe(self, sender: Sender) -> None:
        try:
            await self._host.call(sender.node, PING, {}, timeout_s=PROBE_TIMEOUT_S)
            sender.heard_at = trio.current_time()
        except OnyxqError as error:
            sender.suspect(error)

    async def _ask_missed(self) -> None:
        while True:
            missed = [sender for _, sender in sorted(self._host.senders.items()) if sender.missed]
            if not missed:
                self._missed = trio.Event()
                await self._missed.wait()
                continue
            await trio.sleep(MISSED_EVERY_S)
            async with trio.open_nursery() as nursery:
                for sender in missed:
                    nursery.start_soon(self._look_for, sender)

    async def _look_for(self, sender: Sender) -> None:
        try:
            await self._host.call(sender.node, PING, {}, timeout_s=MISSED_TIMEOUT_S)
        except OnyxqError:
            return  # It is asked again.
        sender.returned()

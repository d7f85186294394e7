"""The replica with which a new log begins after the old one was lost (design: a log that went back).

Pure. The old log may have had records that are in no store. Their decisions are unknown, so:

* claims are void: a task that is not completed is ready again, and its attempts stay as they are;
* a claim that a committed transaction holds stays, and the transaction is made visible as usual;
* an epoch is greater than any that a node can have promised, so rows of the new epoch win over rows of an
  old one;
* the ring is empty, partitions have no leader and jobs no driver: peers join as they start;
* the latest peer of a node is unknown, so any directory of the node may join.

Members, settings, periodic tasks, jobs and the state of extensions stay as they were. Log time
continues, so a transaction that was prepared and not committed ends at its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve
from pyrsistent import pmap

from onyxq.core import ring
from onyxq.core.entry import Stamp
from onyxq.core.log.digest import chained
from onyxq.core.placement import holders
from onyxq.core.replica import HELD_MS, ClaimPiece, Partition, Replica, Ring, Snapshot, with_pieces

WRITER = "recover"
"""Writer of the records with which the new log begins."""
EPOCHS_AHEAD = 1_000_000
"""By how much epochs rise.

The lost part cannot have raised one as far: at a change a second that takes days.
"""
SEGMENTS_AHEAD = 2
"""The new log begins this many segments after the last known one, as the lost part may have opened one more."""


def new_replica(last: Replica, *, position: int, epochs: Mapping[int, int]) -> Replica:
    """Return the replica at ``position``, where the new log begins, made of the last known one.

    ``epochs``: the highest epoch that any store has promised, by partition.
    """
    without_peers = ring.move(
        _without_claims(last), Ring(), Stamp(position, 0, WRITER, last.log_time_ms, last.clock_ms)
    )
    partitions = {
        number: _free(placed, max(last.partitions[number].epoch, epochs.get(number, 0)))
        for number, placed in sorted(without_peers.partitions.items())
    }
    return evolve(
        without_peers,
        position=position,
        digest=chained(last.digest, position, 0, WRITER.encode()),
        nodes=pmap({name: evolve(node, latest_peer="") for name, node in sorted(without_peers.nodes.items())}),
        partitions=pmap(partitions),
        outbox=pmap(),
        snapshot=Snapshot(),
        grown_records=0,
        grown_bytes=0,
        hold=None,
        void_below=position,
    )


def void_claims(last: Replica) -> int:
    """Return the number of tasks whose claims a recovery makes void."""
    pieces = (piece for stretches in last.claims.values() for found in stretches.values() for piece in found)
    return sum(count for _, count, _, _, deadline_ms in pieces if deadline_ms != HELD_MS)


def expected_nodes(last: Replica) -> dict[str, int]:
    """Return the nodes whose stores a recovery should see -> number of partitions in which they hold a copy."""
    found = {node.id: 0 for _, node in sorted(last.nodes.items()) if not node.replaced}
    for _, placed in sorted(last.partitions.items()):
        for node_id in holders(placed):
            found[node_id] = found.get(node_id, 0) + 1
    return found


def _free(placed: Partition, reached: int) -> Partition:
    return evolve(placed, leader="", ready=False, yields=0, epoch=reached + EPOCHS_AHEAD)


def _without_claims(last: Replica) -> Replica:
    replica = last
    for partition, stretches in sorted(last.claims.items()):
        kept: dict[bytes, tuple[ClaimPiece, ...]] = {
            stretch: tuple(piece for piece in pieces if piece[4] == HELD_MS)
            for stretch, pieces in sorted(stretches.items())
        }
        replica = with_pieces(replica, partition, kept)
    return replica

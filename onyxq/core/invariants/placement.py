"""Invariants of partitions and claims in every replica (design: entries, replica, step).

Pure.  They complement the invariants of the ring: checked after every step in tests
and simulation, sampled in production.
"""

from __future__ import annotations

from collections.abc import Iterator

from onyxq.core.claims import merged
from onyxq.core.ids import ID_BYTES, STRETCH_TASKS, ms_of, offset_of, partition_of
from onyxq.core.limits import LEASE_MS_MAX
from onyxq.core.placement import LOST, holders
from onyxq.core.purged import KEPT_MAX, is_purged
from onyxq.core.replica import HELD_MS, ClaimPiece, Partition, Replica


def violations(replica: Replica) -> list[str]:
    """Return every broken invariant of partitions and claims, in words."""
    return [*partition_violations(replica), *claim_violations(replica)]


def partition_violations(replica: Replica) -> Iterator[str]:
    """Yield every broken invariant of partitions, in words."""
    numbers = sorted(replica.partitions)
    if numbers and numbers != list(range(replica.settings.partitions)):
        yield f"partitions are {numbers}, not 0 to {replica.settings.partitions - 1}"
    for number in numbers:
        for problem in _of_partition(replica, replica.partitions[number]):
            yield f"partition {number}: {problem}"


def _of_partition(replica: Replica, found: Partition) -> Iterator[str]:
    for name, cohort in (("members", found.members), ("target", found.target)):
        if list(cohort) != sorted(set(cohort)):
            yield f"{name} {cohort} are not sorted or repeat"
        for node in cohort:
            known, _, lost = node.partition(LOST)
            if known not in replica.nodes or (lost and (name == "target" or lost == replica.nodes[known].store)):
                yield f"{name} name the unknown node {node}"
    if len(found.target) > replica.settings.replicas:
        yield f"target {found.target} has more than {replica.settings.replicas} copies"
    if found.target and not found.members:
        yield "a target without members"
    yield from _of_leader(replica, found)
    if list(found.kept) != sorted(set(found.kept)) or len(found.kept) > KEPT_MAX:
        yield "the stretches below the watermark are unsorted, repeat or are too many"
    if not all(ms_of(stretch) < found.purged_ms and not offset_of(stretch) for stretch in found.kept):
        yield "a stretch is kept that does not lie below the watermark"


def _of_leader(replica: Replica, found: Partition) -> Iterator[str]:
    live = [node for node in holders(found) if node in replica.nodes and replica.nodes[node].peer]
    if not found.leader:
        if live:
            yield f"no leader although {live[0]} is live"
        if found.ready:
            yield "ready without a leader"
        return
    if found.leader not in [replica.nodes[node].peer for node in live]:
        yield f"the leader {found.leader} is not the peer of a live holder"
    if found.leader not in replica.ring.members:
        yield f"the leader {found.leader} is not in the ring"


def claim_violations(replica: Replica) -> Iterator[str]:
    """Yield every broken invariant of claims, in words."""
    for number in sorted(replica.claims):
        if number not in replica.partitions:
            yield f"claims on the unknown partition {number}"
        stretches = replica.claims[number]
        if not stretches:
            yield f"an empty map of claims for partition {number}"
        for stretch in sorted(stretches):
            if number in replica.partitions and is_purged(replica.partitions[number], stretch):
                yield f"claims on {stretch.hex()}, which is purged"
            for problem in _of_stretch(replica, number, stretch, stretches[stretch]):
                yield f"claims on {stretch.hex()}: {problem}"


def _of_stretch(replica: Replica, number: int, stretch: bytes, pieces: tuple[ClaimPiece, ...]) -> Iterator[str]:
    if len(stretch) != ID_BYTES or offset_of(stretch) or partition_of(stretch) != number:
        yield f"no stretch of partition {number}"
    if not pieces or pieces != merged(pieces):
        yield "pieces are missing, unsorted or not merged"
    end = 0
    for offset, count, token, _, deadline in pieces:
        if offset < end or count < 1 or offset + count > STRETCH_TASKS:
            yield f"the piece at {offset} overlaps or leaves the stretch"
        if token > replica.position:
            yield f"token {token} is ahead of the position"
        if HELD_MS != deadline > replica.log_time_ms + LEASE_MS_MAX:
            yield f"the deadline of token {token} is beyond the longest lease"
        end = offset + count

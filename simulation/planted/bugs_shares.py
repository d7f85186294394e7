"""Planted bugs of the order of claims over several partitions and nodes."""

from __future__ import annotations

from onyxq.leader.grants.window import SortKey
from onyxq.store.interface import Piece
from simulation.planted.planted import Planted
from simulation.planted.seams import instead


def _earlier_is_outdated(key: SortKey, head: Piece) -> bool:
    return head.sort_key < key


def _no_shares(offers: object, maximum: int) -> dict[int, int]:
    return {}


SHARE_BUGS: tuple[Planted, ...] = (
    Planted(
        "a claim of many takes from one node",
        "onyxq.operations.claim_shares:_counts",
        instead(_no_shares),
        "a task that is older than those that are claimed and given back is never granted",
        "shared_claims",
        quick=1,
    ),
    Planted(
        "partitions with outdated heads come first",
        "onyxq.leader.grants.ready_heads:_is_outdated",
        instead(_earlier_is_outdated),
        "worse tasks of one partition are granted before better ones of another",
        "shared_claims",
    ),
)

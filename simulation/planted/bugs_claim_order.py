"""Planted bugs in the order of claims over several partitions and nodes."""

from __future__ import annotations

from onyxq.leader.grants.window import SortKey
from onyxq.store.interface import Piece
from simulation.planted.planted import Planted
from simulation.planted.seams import instead


def _earlier_is_outdated(key: SortKey, head: Piece) -> bool:
    return head.sort_key < key


def _no_shares(offers: object, maximum: int) -> dict[int, int]:
    return {}


CLAIM_ORDER_BUGS: tuple[Planted, ...] = (
    Planted(
        "a claim of many tasks takes all from one node",
        "onyxq.operations.claim_shares:_counts",
        instead(_no_shares),
        "a task of another node is never granted, although claimed and released ones are newer",
        "shared_claims",
        quick=1,
    ),
    Planted(
        "partitions with outdated heads are served first",
        "onyxq.leader.grants.ready_heads:_is_outdated",
        instead(_earlier_is_outdated),
        "later tasks of one partition are granted before earlier ones of another",
        "shared_claims",
    ),
)

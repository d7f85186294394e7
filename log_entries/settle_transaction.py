"""Record that a partition has made its part of a committed transaction visible.

Submitted by the ready leader of the epoch, once a majority has stored the pending facts of its part
as facts. The claims of the partition that the transaction held become free; their tasks are
finished by then. With the last part the transaction ends, and its name is remembered.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.claims import refusal
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica
from onyxq.core.transactions import settled

VERSION = 1


@frozen
class Args:
    """The transaction, and the leader's partition and epoch."""

    name: str
    partition: int
    epoch: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """End the partition's part."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp)
    if refused:
        return replica, refused
    found = replica.transactions.get(args.name)
    if found is None:
        return replica, "no such transaction"
    if args.partition not in found.parts:
        return replica, "no part of it"
    if found.position == stamp.position:  # no peer has read the commit yet
        return replica, "too early"
    return settled(replica, args.name, args.partition), APPLIED

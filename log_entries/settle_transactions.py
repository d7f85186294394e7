"""Record that a partition has made its parts of committed transactions visible.

Submitted by the ready leader of the epoch, once a majority has stored the pending facts of these parts
as facts. The claims of the partition that the transactions held become free; their tasks are
finished by then. With its last part a transaction ends, and its name is remembered. Names without
such a part are left out: another leader may have settled them.
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
    """The transactions, and the leader's partition and epoch."""

    names: tuple[str, ...]
    partition: int
    epoch: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """End the partition's parts."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp)
    if refused:
        return replica, refused
    transactions = {name: found for name in args.names if (found := replica.transactions.get(name)) is not None}
    if not transactions:
        return replica, "no such transaction"
    parts = {name: found for name, found in transactions.items() if args.partition in found.parts}
    if not parts:
        return replica, "no part of it"
    if any(found.position == stamp.position for found in parts.values()):  # no peer has read the commit yet
        return replica, "too early"
    return settled(replica, parts, args.partition), APPLIED

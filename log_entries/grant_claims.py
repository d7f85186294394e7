"""Grant tasks of a partition to workers.

Submitted by the ready leader of the epoch. Applies only if every task of all runs is free, and then
grants all of them. The token of each claim is the position of the record, so tokens rise strictly
per task. The deadline is the log time of the record plus the lease. A grant of a deposed leader is
void on every peer, because its epoch is stale.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import frozen

from onyxq.core.claims import BAD_LEASE, BAD_RUN, Pieces, gather, lease_fits, merged, refusal
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.ids import Run, spans
from onyxq.core.purged import PURGED, names_purged
from onyxq.core.replica import ClaimPiece, Replica, claimed_bits, with_pieces

VERSION = 1


class Grant(NamedTuple):
    """Runs for one worker; the lease is 1 ms to 24 hours."""

    worker: str
    lease_ms: int
    runs: tuple[Run, ...]


@frozen
class Args:
    """The leader's partition and epoch, and its grants."""

    partition: int
    epoch: int
    grants: tuple[Grant, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Add the claims if all runs are free."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp)
    if refused:
        return replica, refused
    if not all(lease_fits(grant.lease_ms) for grant in args.grants):
        return replica, BAD_LEASE
    kinds = [((at, grant.worker, grant.lease_ms), grant.runs) for at, grant in enumerate(args.grants)]
    wanted = gather(args.partition, kinds)
    if wanted is None or names_purged(replica, args.partition, wanted):
        return replica, BAD_RUN if wanted is None else PURGED
    asked = sum(count for grant in args.grants for _, count in grant.runs)
    present = replica.claims.get(args.partition)
    changes: dict[bytes, Pieces] = {}
    given = 0
    for stretch, masks in wanted.items():
        # Mostly there are none; a map answers `in` at once, and `get` by way of an exception.
        pieces = present[stretch] if present is not None and stretch in present else ()
        taken = claimed_bits(pieces)
        fresh: list[ClaimPiece] = []
        for (_, worker, lease_ms), bits in masks.items():
            if bits & taken:
                return replica, "not free"
            taken |= bits
            given += bits.bit_count()
            deadline = stamp.log_time_ms + lease_ms
            fresh += [(offset, count, stamp.position, worker, deadline) for offset, count in spans(bits)]
        changes[stretch] = merged([*pieces, *fresh])
    if given != asked:  # a task was named twice by one grant
        return replica, "not free"
    return with_pieces(replica, args.partition, changes), APPLIED

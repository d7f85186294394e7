"""Extend leases of a partition's claims.

Submitted by the ready leader of the epoch for its workers. Tasks of the runs that are still held
under the token get a new deadline: log time plus lease. This holds even if the old deadline has
passed, as long as the claim has not been expired.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import frozen

from onyxq.core.claims import (
    BAD_LEASE,
    BAD_RUN,
    NOTHING_HELD,
    Pieces,
    change,
    gather,
    lease_fits,
    merged,
    refusal,
    split,
    under,
)
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.ids import Run
from onyxq.core.replica import Replica

VERSION = 1


class Renewal(NamedTuple):
    """Runs claimed under one token; the lease is 1 ms to 24 hours from now."""

    token: int
    lease_ms: int
    runs: tuple[Run, ...]


@frozen
class Args:
    """The leader's partition and epoch, and its renewals."""

    partition: int
    epoch: int
    renewals: tuple[Renewal, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Move the deadlines of the claims that are held."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp)
    if refused:
        return replica, refused
    if not all(lease_fits(renewal.lease_ms) for renewal in args.renewals):
        return replica, BAD_LEASE
    kinds = [((at, item.token, item.lease_ms), item.runs) for at, item in enumerate(args.renewals)]
    wanted = gather(args.partition, kinds)
    if wanted is None:
        return replica, BAD_RUN

    def renew(pieces: Pieces, kind: tuple[int, int, int], bits: int) -> Pieces | None:
        _, token, lease_ms = kind
        outside, inside = split(pieces, bits, under(token))
        deadline = stamp.log_time_ms + lease_ms
        return merged([*outside, *((*piece[:4], deadline) for piece in inside)]) if inside else None

    changed = change(replica, args.partition, wanted, renew)
    return (replica, NOTHING_HELD) if changed is None else (changed, APPLIED)

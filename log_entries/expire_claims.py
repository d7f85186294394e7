"""End claims whose lease has run out.

Submitted by the ready leader of the epoch. A claim ends only if it is still held under the token.
Its deadline must be over 100 ms before the log time of this record. So no wrong clock and no outage
of the log can end a claim early.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import frozen

from onyxq.core.claims import BAD_RUN, NOTHING_HELD, Pieces, change, gather, lapsed, merged, refusal, split
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.ids import Run
from onyxq.core.replica import Replica

VERSION = 1


class Expiry(NamedTuple):
    """Runs claimed under one token, and the number of their counted attempts so far."""

    token: int
    attempts: int
    runs: tuple[Run, ...]


@frozen
class Args:
    """The leader's partition and epoch, and the claims that it expires."""

    partition: int
    epoch: int
    expirations: tuple[Expiry, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Drop the claims that are held and whose lease has run out."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp)
    if refused:
        return replica, refused
    wanted = gather(args.partition, [(item.token, item.runs) for item in args.expirations])
    if wanted is None:
        return replica, BAD_RUN

    def expire(pieces: Pieces, token: int, bits: int) -> Pieces | None:
        outside, inside = split(pieces, bits, lambda piece: piece[2] == token and lapsed(piece[4], stamp.log_time_ms))
        return merged(outside) if inside else None

    changed = change(replica, args.partition, wanted, expire)
    return (replica, NOTHING_HELD) if changed is None else (changed, APPLIED)

"""Purge old tasks of a partition: tasks below the watermark are gone for good.

Submitted by the ready leader of the epoch. By then every task that goes is finished, its retention
has passed, and it is archived if its queue asks for that. Raises the partition's ``purged_ms`` to
``before_ms``: ids with an earlier time are purged, except the stretches in ``keep``. The watermark
never sinks, and a purged stretch is never kept again. The same watermark with fewer stretches
purges some that were kept. Applies only if no purged task is claimed. From this record on, purged
rows are not shown and not accepted. Every node deletes them in the background.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.claims import refusal
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.ids import ID_BYTES, ms_of, offset_of, partition_of
from onyxq.core.purged import KEPT_MAX, MARGIN_MS, contains
from onyxq.core.replica import Partition, Replica

VERSION = 1


@frozen
class Args:
    """``before_ms``: the new watermark, in ms of ids; ``keep``: the stretches below it that remain, sorted."""

    partition: int
    epoch: int
    before_ms: int
    keep: tuple[bytes, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Raise the watermark if no task is lost that may still be needed."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp) or _misfit(args)
    if refused:
        return replica, refused
    found = replica.partitions[args.partition]
    refused = _refusal(replica, found, args)
    if refused:
        return replica, refused
    after = evolve(found, purged_ms=args.before_ms, kept=args.keep)
    return evolve(replica, partitions=replica.partitions.set(args.partition, after)), APPLIED


def _misfit(args: Args) -> str:
    if len(args.keep) > KEPT_MAX:
        return "keeps too many"
    fits = all(
        len(stretch) == ID_BYTES
        and not offset_of(stretch)
        and partition_of(stretch) == args.partition
        and ms_of(stretch) < args.before_ms
        for stretch in args.keep
    )
    return "" if fits and list(args.keep) == sorted(set(args.keep)) else "bad keep"


def _refusal(replica: Replica, found: Partition, args: Args) -> str:
    if args.before_ms < found.purged_ms:
        return "watermark would sink"
    if args.before_ms > replica.clock_ms - MARGIN_MS:
        return "too recent"
    if not all(ms_of(one) >= found.purged_ms or contains(found.kept, one) for one in args.keep):
        return "keeps what is purged"
    if args.before_ms == found.purged_ms and args.keep == found.kept:
        return "already so"
    claimed = replica.claims.get(args.partition) or ()
    goes = (ms_of(one) < args.before_ms and not contains(args.keep, one) for one in sorted(claimed))
    return "claimed" if any(goes) else ""

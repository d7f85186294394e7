"""The leader of a partition opens failed tasks again: dead letters that somebody wants requeued.

Submitted by the ready leader of the epoch.  Nothing of the replica changes, as finished tasks
are no part of it: the entry puts the reopening between the grants before it and those behind
it, on all nodes alike, and the store takes it from the log as history.  It holds if nobody has
claimed any of the tasks.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import frozen

from onyxq.core.claims import BAD_RUN, gather, refusal
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.ids import Run
from onyxq.core.purged import PURGED, names_purged
from onyxq.core.replica import Replica, claimed_bits, pieces_of

VERSION = 1


class Reopened(NamedTuple):
    """Tasks alike, and how many counted attempts they have had so far."""

    run: Run
    attempts: int


@frozen
class Args:
    """``due_ms``: the wall-clock time at which the tasks are due again."""

    partition: int
    epoch: int
    due_ms: int
    runs: tuple[Reopened, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Say whether it holds."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp)
    if refused:
        return replica, refused
    if args.due_ms < 0 or any(one.attempts < 0 for one in args.runs):
        return replica, "bad number"
    wanted = gather(args.partition, [("", [one.run for one in args.runs])])
    if wanted is None or names_purged(replica, args.partition, wanted):
        return replica, BAD_RUN if wanted is None else PURGED
    if any(claimed_bits(pieces_of(replica, stretch)) & masks[""] for stretch, masks in wanted.items()):
        return replica, "not free"
    return replica, APPLIED

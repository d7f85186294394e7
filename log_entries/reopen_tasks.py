"""Reopen failed tasks of a partition, to requeue dead letters.

Submitted by the ready leader of the epoch. Applies only if none of the tasks is claimed. The
replica does not change, because it does not contain finished tasks. The entry orders the reopening
between earlier and later grants, the same on all nodes, and the store takes it from the log as
history.
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
    """Equal tasks, and the number of their counted attempts so far."""

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
    """Decide whether the tasks may be reopened."""
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

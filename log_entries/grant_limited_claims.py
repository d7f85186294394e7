"""Grant tasks of a queue with limits to workers.

Submitted by the ready leader of the epoch instead of ``grant_claims`` if the queue has a rate limit
or a concurrency limit. Like that entry, it applies only if every task of all runs is free. In
addition, the queue must not be paused, and all its partitions together must keep within the limits,
which a single leader cannot know. Granted tasks count in ``limited`` and ``running`` until their
claims end. They are subtracted from the queue's rate at the log's clock.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import evolve, frozen

from log_entries import grant_claims
from onyxq.core.claims import gather
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.ids import spans
from onyxq.core.queues import is_name, room, settings_of, taken
from onyxq.core.replica import Counted, Replica, with_counted

VERSION = 1

PAUSED = "paused"
OVER_THE_LIMIT = "over the limit"
Grant = grant_claims.Grant


@frozen
class Args:
    """The leader's partition and epoch, the queue, and the grants of its tasks."""

    partition: int
    epoch: int
    queue: str
    grants: tuple[grant_claims.Grant, ...]


class _Asked(NamedTuple):
    """Tasks that a grant asks for: masks of stretches, and the number of tasks."""

    masks: dict[bytes, int]
    count: int  # type: ignore[assignment]  # shadows the tuple's method


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Add the claims if all runs are free and the queue's limits allow all of them."""
    if not is_name(args.queue):
        return replica, "bad queue"
    granted, verdict = grant_claims.apply(replica, grant_claims.Args(args.partition, args.epoch, args.grants), stamp)
    if verdict != APPLIED:
        return replica, verdict
    if settings_of(replica, args.queue).paused:
        return replica, PAUSED
    asked = _asked(args)
    left = room(replica, args.queue)
    if left is not None and asked.count > left:
        return replica, OVER_THE_LIMIT
    counted = {stretch: _counted(replica, args.queue, stretch, bits) for stretch, bits in asked.masks.items()}
    after = with_counted(granted, counted)
    rate = taken(replica, args.queue, asked.count)
    return (after if rate is None else evolve(after, rates=after.rates.set(args.queue, rate))), APPLIED


def _asked(args: Args) -> _Asked:
    masks, total = dict[bytes, int](), 0
    runs = [run for grant in args.grants for run in grant.runs]
    for stretch, kinds in (gather(args.partition, [("", runs)]) or {}).items():
        masks[stretch] = kinds[""]
        total += kinds[""].bit_count()
    return _Asked(masks, total)


def _counted(replica: Replica, queue: str, stretch: bytes, bits: int) -> tuple[Counted, ...]:
    """Return what counts in a stretch once the free tasks ``bits`` of the queue count too."""
    others = []
    for name, offset, count in replica.limited.get(stretch, ()):
        if name == queue:
            bits |= ((1 << count) - 1) << offset
        else:
            others.append((name, offset, count))
    return tuple(sorted([*others, *((queue, offset, count) for offset, count in spans(bits))]))

"""End claims of a partition.

Submitted by the ready leader of the epoch when tasks were completed, were given back, or failed and
are due again later. By then a completion is a stored fact. Tasks of the runs that are still held
under the token become free. The other arguments are history, which the store takes from the log.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import frozen

from onyxq.core.claims import BAD_RUN, NOTHING_HELD, Pieces, change, gather, merged, refusal, split
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.facts import RELEASED, RETRIED
from onyxq.core.ids import Run
from onyxq.core.replica import Replica

VERSION = 1

COMPLETED_EVENT = 4
"""A completion fact of the runs is stored: no history row is needed."""
EVENTS = (RELEASED, RETRIED, COMPLETED_EVENT)


class Release(NamedTuple):
    """Runs claimed under one token, and their outcome.

    For RETRIED, ``retry_ms`` is the wall-clock time at which they are due again,
    ``attempts`` the number of counted attempts, ``note`` the error.
    """

    token: int
    event: int
    retry_ms: int
    attempts: int
    note: str
    runs: tuple[Run, ...]


@frozen
class Args:
    """The leader's partition and epoch, and the claims that it releases."""

    partition: int
    epoch: int
    releases: tuple[Release, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Drop the claims that are held."""
    refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp)
    if refused:
        return replica, refused
    if any(release.event not in EVENTS for release in args.releases):
        return replica, "bad event"
    wanted = gather(args.partition, [(release.token, release.runs) for release in args.releases])
    if wanted is None:
        return replica, BAD_RUN

    def release(pieces: Pieces, token: int, bits: int) -> Pieces | None:
        # No peer can know a token of this very record yet. If it were released, a later
        # grant of the same record would give the task the same token again.
        outside, inside = split(pieces, bits, lambda piece: piece[2] == token != stamp.position)
        return merged(outside) if inside else None

    changed = change(replica, args.partition, wanted, release)
    return (replica, NOTHING_HELD) if changed is None else (changed, APPLIED)

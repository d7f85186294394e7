"""The chained digest of the log, which tells a log that continues from one that was set back or replaced.

Pure.  Every record that is read changes the digest, also a record that changes nothing else.  So two
readers have read the same records if their digests are equal at one position.  The replica carries
the digest, a snapshot of the replica carries it to new readers, and a store keeps the digest of the
last record that its node has read.

A reader that starts from a snapshot does not read the records before it.  For these the replica also
carries *milestones*: the digests at some earlier positions, many of them recent and few of them old.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TypeAlias

DIGEST_BYTES = 16
MILESTONE_POSITIONS = 1_024
"""A milestone is taken at every multiple of this position."""
MILESTONES_DENSE = 8
"""Milestones this recent are all kept; of older ones fewer and fewer."""

Milestones: TypeAlias = tuple[tuple[int, bytes], ...]
"""(position, digest), oldest first."""

_PLACE = Struct(">qq")


def chained(digest: bytes, position: int, ctime_ms: int, data: bytes) -> bytes:
    """Return the digest after one more record; ``digest`` is the one before it, empty at first."""
    found = blake2b(digest, digest_size=DIGEST_BYTES)
    found.update(_PLACE.pack(position, ctime_ms))
    found.update(data)
    return found.digest()


def with_milestone(milestones: Milestones, position: int, digest: bytes) -> Milestones:
    """Return the milestones after the record at a multiple of `MILESTONE_POSITIONS`.

    Their number grows with the logarithm of the position.  Two replicas of one log always have
    milestones in common: those at multiples of a higher power of two are kept for longer.
    """
    kept = [one for one in milestones if _is_kept(one[0], position)]
    return (*kept, (position, digest))


def _is_kept(older: int, newest: int) -> bool:
    """Whether the milestone at ``older`` is kept once there is one at ``newest``."""
    distance = (newest - older) // MILESTONE_POSITIONS
    spacing = max(1, 2 * distance // MILESTONES_DENSE)
    return older // MILESTONE_POSITIONS % (1 << spacing.bit_length() - 1) == 0

"""The chained digest of the log, which shows whether a log continues or was set back or replaced.

Pure.  Every record that is read changes the digest, even a record that changes nothing else.  So two
readers have read the same records if their digests are equal at one position.  The replica carries
the digest, and a snapshot carries it to new readers.  A store keeps the digest of the
last record that its node has read.

A reader that starts from a snapshot does not read the records before it.  For these records the replica
also carries the *trail*, which has some bytes of the digest at each of the last positions, and *milestones*:
the digests at some earlier positions, many of them recent and few of them old.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TypeAlias

from attrs import frozen

DIGEST_BYTES = 16
MILESTONE_POSITIONS = 1_024
"""Positions between milestones: one is taken at every multiple of this number."""
MILESTONES_DENSE = 8
"""Number of recent milestones that are all kept; of older ones, fewer are kept the older they are."""

TRAIL_BLOCKS = 16
"""Blocks of `MILESTONE_POSITIONS` positions that the trail covers: about as many as between two collections."""
TRAIL_BYTES = 4
"""Bytes of each digest in the trail."""

Trail: TypeAlias = tuple[tuple[int, bytes], ...]
"""Blocks of the trail: (position divided by `MILESTONE_POSITIONS`, the first `TRAIL_BYTES` of each digest).

Oldest first.
"""
Milestones: TypeAlias = tuple[tuple[int, bytes], ...]
"""Digests at some positions: (position, digest), oldest first."""

_PLACE = Struct(">qq")


def chained(digest: bytes, position: int, ctime_ms: int, data: bytes) -> bytes:
    """Return the digest after one more record; ``digest`` is the one before it, empty at first."""
    found = blake2b(digest, digest_size=DIGEST_BYTES)
    found.update(_PLACE.pack(position, ctime_ms))
    found.update(data)
    return found.digest()


def with_step(trail: Trail, position: int, digest: bytes) -> Trail:
    """Return the trail after one more record."""
    number, place = divmod(position, MILESTONE_POSITIONS)
    block = b""
    if trail and trail[-1][0] == number:
        block, trail = trail[-1][1], trail[:-1]
    steps = block.ljust(place * TRAIL_BYTES, b"\0")  # positions without a record
    return (*trail[1 - TRAIL_BLOCKS :], (number, steps + digest[:TRAIL_BYTES]))


def trail_at(trail: Trail, position: int) -> bytes | None:
    """Return the first bytes of the digest at a position; None if the trail does not cover it."""
    number, place = divmod(position, MILESTONE_POSITIONS)
    found = dict(trail).get(number, b"")[place * TRAIL_BYTES : (place + 1) * TRAIL_BYTES]
    return found if any(found) else None


def with_milestone(milestones: Milestones, position: int, digest: bytes) -> Milestones:
    """Return the milestones after the record at a multiple of `MILESTONE_POSITIONS`.

    Their number grows with the logarithm of the position.  Two replicas of one log always have
    milestones in common: those at multiples of a higher power of two are kept for longer.
    """
    kept = [one for one in milestones if _is_kept(one[0], position)]
    return (*kept, (position, digest))


def _is_kept(older: int, newest: int) -> bool:
    """Return whether the milestone at ``older`` is kept once there is one at ``newest``."""
    distance = (newest - older) // MILESTONE_POSITIONS
    spacing = max(1, 2 * distance // MILESTONES_DENSE)
    return older // MILESTONE_POSITIONS % (1 << spacing.bit_length() - 1) == 0


@frozen
class ReadMark:
    """The last position that a reader has read, and the digest that identifies the log."""

    position: int
    """Position of the last record that was read; -1 if none was."""
    digest: bytes
    """The digest at that position."""
    milestones: Milestones = ()
    """Some earlier digests; the latest may be far before the position."""

    def is_at(self, position: int, digest: bytes) -> bool:
        """Return whether a reader with this digest has read the same records, up to the same position."""
        return position == self.position and digest == self.digest

    def contradicted_by(self, trail: Trail, milestones: Milestones) -> int | None:
        """Return a position up to which another reader, which has read at least as far, has read other records.

        None if no record is known to differ.  If the trail does not reach back to this reader's
        position, nothing is known about the records after the last milestone that both have.
        """
        mine = dict(self.milestones)
        for place, found in milestones:
            if place <= self.position and mine.get(place, found) != found:
                return place
        step = trail_at(trail, self.position)
        return self.position if step is not None and step != self.digest[:TRAIL_BYTES] else None

"""Claims in flight, and how entries change them (design: claims).

Pure.  In the replica, a stretch's claims are plain tuples ``(offset, count, token,
worker, deadline)``, sorted and disjoint; equal neighbours are one piece.  Requests of
an entry are first gathered into one bit mask per stretch and kind.  So a
stretch is rewritten once, even if many runs name it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from onyxq.core.entry import Stamp
from onyxq.core.ids import ID_BYTES, STRETCH_TASKS, Run, offset_of, spans, stretch_of
from onyxq.core.limits import LEASE_MS_MAX
from onyxq.core.log.clock import LOG_TIME_SLACK_MS
from onyxq.core.replica import HELD_MS, ClaimPiece, Replica, with_pieces

WINDOW_PIECES_MIN = 8
"""A stretch with at most this many pieces is processed as a whole."""
GRACE_MS = LOG_TIME_SLACK_MS
"""Time after its deadline during which a claim cannot expire, in ms.

Within a lease, log time may run ahead by as much, so no lease ends too early.
"""

BAD_RUN = "bad run"
BAD_LEASE = "bad lease"
NOTHING_HELD = "nothing held"

Kind = TypeVar("Kind", bound=Hashable)
Pieces = tuple[ClaimPiece, ...]


def lapsed(deadline_ms: float, log_time_ms: int) -> bool:
    """Return whether a claim with this deadline may expire now."""
    return deadline_ms + GRACE_MS < log_time_ms


def refusal(replica: Replica, *, partition: int, epoch: int, stamp: Stamp) -> str:
    """Return why the writer may not change the partition's claims now, or an empty string."""
    found = replica.partitions.get(partition)
    if found is None:
        return "no such partition"
    if found.epoch != epoch:
        return "stale epoch"
    if found.leader != stamp.peer:
        return "not the leader"
    return "" if found.ready else "not ready"


def lease_fits(lease_ms: int) -> bool:
    """Return whether a lease is from 1 ms to 24 hours."""
    return 1 <= lease_ms <= LEASE_MS_MAX


def gather(partition: int, wanted: Iterable[tuple[Kind, Sequence[Run]]]) -> dict[bytes, dict[Kind, int]] | None:
    """Return the tasks of some runs as one bit mask per stretch and kind.

    Returns None if there are no runs. Also if a run is malformed, of another partition, or crosses the border of a
    stretch.
    """
    prefix = partition.to_bytes(2, "big")
    out: dict[bytes, dict[Kind, int]] = {}
    for kind, runs in wanted:
        for first, count in runs:
            if len(first) != ID_BYTES or first[6:8] != prefix:
                return None
            offset = offset_of(first)
            if not 1 <= count <= STRETCH_TASKS - offset:
                return None
            masks = out.setdefault(stretch_of(first), {})
            masks[kind] = masks.get(kind, 0) | ((1 << count) - 1) << offset
    return out or None


def change(
    replica: Replica,
    partition: int,
    wanted: dict[bytes, dict[Kind, int]],
    edit: Callable[[Pieces, Kind, int], Pieces | None],
) -> Replica | None:
    """Return the replica with ``edit(pieces, kind, mask)`` applied to every stretch of ``wanted``.

    ``edit`` returns None if it changes nothing. `change` returns None if no edit changes anything.
    """
    present = replica.claims.get(partition)
    changes: dict[bytes, Pieces] = {}
    for stretch, masks in wanted.items():
        pieces = present.get(stretch, ()) if present is not None else ()
        touched = False
        for kind, bits in masks.items():
            start, end = window(pieces, bits)
            edited = edit(pieces[start:end], kind, bits) if pieces else None
            if edited is not None:
                pieces, touched = pieces[:start] + edited + pieces[end:], True
        if touched:
            changes[stretch] = pieces
    return with_pieces(replica, partition, changes) if changes else None


def window(pieces: Pieces, bits: int) -> tuple[int, int]:
    """Return the range of the pieces that a mask touches, and one neighbour on either side to merge with.

    A stretch may have a thousand pieces; an entry about one task must not look at all of them.
    """
    if len(pieces) <= WINDOW_PIECES_MIN or not bits:
        return 0, len(pieces)
    low, high = (bits & -bits).bit_length() - 1, bits.bit_length()
    return max(0, bisect_left(pieces, (low,)) - 1), min(len(pieces), bisect_left(pieces, (high,)) + 1)


def under(token: int) -> Callable[[ClaimPiece], bool]:
    """Return the test whether a piece is claimed under a fencing token."""
    return lambda piece: piece[2] == token


def split(
    pieces: Pieces, bits: int, concerns: Callable[[ClaimPiece], bool], *, held: bool = False
) -> tuple[list[ClaimPiece], list[ClaimPiece]]:
    """Return ``pieces`` in two parts: those not affected, and the rest.

    A piece is not affected if it is outside ``bits`` or ``concerns`` is False for it.  Only the code that ends a
    transaction passes ``held``: it selects pieces that a transaction holds, instead of all others.
    """
    outside: list[ClaimPiece] = []
    inside: list[ClaimPiece] = []
    for piece in pieces:
        offset, count, token, worker, deadline = piece
        mine = ((1 << count) - 1) << offset
        if not mine & bits or (deadline == HELD_MS) != held or not concerns(piece):
            outside.append(piece)
        elif not mine & ~bits:
            inside.append(piece)
        else:
            outside += [(at, n, token, worker, deadline) for at, n in spans(mine & ~bits)]
            inside += [(at, n, token, worker, deadline) for at, n in spans(mine & bits)]
    return outside, inside


def merged(pieces: Iterable[ClaimPiece]) -> Pieces:
    """Return disjoint pieces in order, with equal neighbours (token, worker, deadline) merged into one."""
    given = sorted(pieces)
    if len(given) < 2:
        return tuple(given)
    out: list[ClaimPiece] = []
    for piece in given:
        if out:
            offset, count, *alike = out[-1]
            if offset + count == piece[0] and alike == list(piece[2:]):
                out[-1] = (offset, count + piece[1], *piece[2:])
                continue
        out.append(piece)
    return tuple(out)

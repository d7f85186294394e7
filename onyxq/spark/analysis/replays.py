"""Replays an archive of the log, its files in parallel, and compares each with the beginning of the next.

A file starts at the origin before it, so each can be replayed alone. Where a file ends, the next one's origin must
be the replica that the replay led to. Together the files then prove as much as one replay from the first record to
the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from onyxq.core import snapshot
from onyxq.core.errors import OnyxqError
from onyxq.core.log.interface import START
from onyxq.history.archive import parts
from onyxq.history.dump import read
from onyxq.history.replay import CHECK_EVERY, Tally, checked


@frozen
class Piece:
    """A file to replay; ``seams``: positions at which other files start and its digest is needed."""

    path: str
    first: int
    last: int
    start: int | None
    """Position of its origin; None: it cannot be replayed alone."""
    seams: tuple[int, ...] = ()


@define
class Replayed(Tally):
    """The findings of the replay of a file.

    ``violations`` also hold why it could not be replayed to its end.
    """

    path: str = ""
    start_digest: str = ""
    digests: dict[int, str] = field(factory=dict)
    """Position of a seam -> digest of the replica there."""


@define
class Sum(Tally):
    """The sum over all files."""

    files: int = 0
    alone: int = 0
    """Files that cannot be replayed alone, because no origin is known before them."""
    seams: int = 0
    """Origins at which another file has a replica, too; both are compared."""


def pieces(directory: Path) -> list[Piece]:
    """Return the files of an archive of the log; raises `NotFound` if there are none, and `Corrupt`."""
    found = [Piece(str(one.path), one.after + 1, one.last or 0, one.start) for one in parts([directory])]
    starts = {one.start for one in found if one.start not in (None, START)}
    return [
        evolve(one, seams=tuple(sorted(at for at in starts if at and one.first <= at <= one.last))) for one in found
    ]


def replayed(piece: Piece, *, check_every: int = CHECK_EVERY) -> Replayed:
    """Replay one file in this process."""
    out = Replayed(path=piece.path)
    if piece.start is None:
        return out
    wanted = [at for at in piece.seams if at > piece.start]
    try:
        dump = read(piece.path)
        start = snapshot.digest(dump.start)
        for report in checked(dump, check_every=check_every):
            if report.replica.position in wanted and report.replica.position not in out.digests:
                out.digests[report.replica.position] = snapshot.digest(report.replica)
    except OnyxqError as error:
        return Replayed(path=piece.path, violations=[f"{piece.path}: {error.message}"])
    out.start_digest = start
    out.add(report)
    return out


def on_spark(session: Any, some: list[Piece], *, check_every: int = CHECK_EVERY) -> Iterable[Replayed]:
    """Replay files on the executors of a session, which must reach them under the same paths."""
    tasks = session.sparkContext.parallelize(some, len(some))
    found: Iterable[Replayed] = tasks.map(partial(replayed, check_every=check_every)).collect()
    return found


def summed(some: list[Piece], results: Iterable[Replayed]) -> Sum:
    """Return the sum of all files' results, with the seams between them compared."""
    out = Sum(files=len(some), alone=sum(one.start is None for one in some))
    by_path = {one.path: one for one in results}
    for one in by_path.values():
        out.add(one)
    for piece in some:
        began = by_path[piece.path]
        for one in by_path.values():
            if began.start_digest and piece.start in one.digests:
                out.seams += 1
                if one.digests[piece.start] != began.start_digest:
                    out.violations.append(
                        f"at {piece.start}: {one.path} leads to {one.digests[piece.start]}, "
                        f"{began.path} starts from {began.start_digest}"
                    )
    return out

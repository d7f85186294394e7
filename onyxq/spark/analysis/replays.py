"""Replays an archive of the log, its files in parallel, and compares each with the beginning of the next.

A file starts at the origin before it, so each can be replayed alone. Where a file ends, the next one's origin must
be the replica that the replay led to. Together the files then prove as much as one replay from the first record to
the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from onyxq.core import snapshot
from onyxq.core.errors import NotFound, OnyxqError
from onyxq.core.replica import START_POSITION
from onyxq.history.archive import files
from onyxq.history.dump import read
from onyxq.history.replay import CHECK_EVERY, checked


@frozen
class Piece:
    """A file to replay; ``seams``: positions at which other files start and its digest is needed."""

    path: str
    first: int
    last: int
    start: int | None
    """Position of its origin; None: it cannot be replayed alone."""
    seams: tuple[int, ...] = ()


@frozen
class Replayed:
    """The findings of the replay of a file."""

    path: str
    start_digest: str = ""
    digests: dict[int, str] = field(factory=dict)
    """Position of a seam -> digest of the replica there."""
    records: int = 0
    entries: int = 0
    checked: int = 0
    verdicts: dict[tuple[str, str], int] = field(factory=dict)
    problems: dict[str, int] = field(factory=dict)
    violations: tuple[str, ...] = ()
    """Also why it could not be replayed to its end."""


@define
class Sum:
    """The sum over all files."""

    files: int = 0
    alone: int = 0
    """Files that cannot be replayed alone, because no origin is known before them."""
    seams: int = 0
    """Origins at which another file has a replica, too; both are compared."""
    records: int = 0
    entries: int = 0
    checked: int = 0
    verdicts: Counter[tuple[str, str]] = field(factory=Counter)
    problems: Counter[str] = field(factory=Counter)
    violations: list[str] = field(factory=list)


def pieces(directory: Path) -> list[Piece]:
    """Return the files of an archive of the log; raises `NotFound` if there are none, and `Corrupt`."""
    found = []
    for first, last, path in files(directory):
        origin = read(path).origin
        start = origin.position if origin is not None else START_POSITION if first == 0 else None
        found.append(Piece(str(path), first, last, start))
    if not found:
        raise NotFound(f"there are no archived records in {directory}", field="file", hint="Check its name.")
    starts = {one.start for one in found if one.start not in (None, START_POSITION)}
    return [
        evolve(one, seams=tuple(sorted(at for at in starts if at and one.first <= at <= one.last))) for one in found
    ]


def replayed(piece: Piece, *, check_every: int = CHECK_EVERY) -> Replayed:
    """Replay one file in this process."""
    if piece.start is None:
        return Replayed(piece.path)
    digests: dict[int, str] = {}
    wanted = [at for at in piece.seams if at > piece.start]
    try:
        dump = read(piece.path)
        start = snapshot.digest(dump.start)
        for report in checked(dump, check_every=check_every):
            if report.replica.position in wanted and report.replica.position not in digests:
                digests[report.replica.position] = snapshot.digest(report.replica)
    except OnyxqError as error:
        return Replayed(piece.path, violations=(f"{piece.path}: {error.message}",))
    return Replayed(
        piece.path,
        start,
        digests,
        report.records,
        report.entries,
        report.checked,
        dict(report.verdicts),
        dict(report.problems),
        tuple(report.violations),
    )


def on_spark(session: Any, some: list[Piece], *, check_every: int = CHECK_EVERY) -> Iterable[Replayed]:
    """Replay files on the executors of a session, which must reach them under the same paths."""
    tasks = session.sparkContext.parallelize(some, len(some))
    found: Iterable[Replayed] = tasks.map(partial(replayed, check_every=check_every)).collect()
    return found


def summed(some: list[Piece], results: Iterable[Replayed]) -> Sum:
    """Return the sum of all files' results, with the seams between them compared."""
    out = Sum(files=len(some))
    by_path = {one.path: one for one in results}
    for piece in some:
        one = by_path[piece.path]
        out.alone += piece.start is None
        out.records += one.records
        out.entries += one.entries
        out.checked += one.checked
        out.verdicts.update(one.verdicts)
        out.problems.update(one.problems)
        out.violations += one.violations
    starts = [(piece.start, by_path[piece.path]) for piece in some if by_path[piece.path].start_digest]
    for position, began in starts:
        for one in by_path.values():
            if position in one.digests:
                out.seams += 1
                if one.digests[position] != began.start_digest:
                    out.violations.append(
                        f"at {position}: {one.path} leads to {one.digests[position]}, "
                        f"{began.path} starts from {began.start_digest}"
                    )
    return out

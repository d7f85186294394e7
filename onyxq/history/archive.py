"""The archive: records kept in a directory when the log is trimmed (design: log collection).

Before it trims the log, the collector writes the records to a file of its archive. The file is a dump
(`onyxq.history.dump`) that starts at the previous origin. The log is trimmed only once the file is durable.
So every record is in the log or in the archive of the peer that trimmed it, even after a crash at any time.
Peers may share one directory, or have one each; several are read together. After a crash a collector may
write records again; readers skip repeated records.

A file is named ``<first position>-<last position>-<node>.onyxqlog``. It holds every record from the first to
the last position in its name.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from onyxq.core.errors import BadRequest, Conflict, NotFound, OnyxqError
from onyxq.core.log.interface import START, Origin, Record
from onyxq.core.replica import Cluster
from onyxq.history.dump import KIND, Dump, as_dump
from onyxq.history.file_format import HistoryFileWriter, cluster_in, open_file

SUFFIX = ".onyxqlog"
_NAME = re.compile(r"(\d{19})-(\d{19})-(.*)\.onyxqlog")
_NOW = 1 << 62


@frozen
class Range:
    """Positions that files hold without a gap."""

    first: int
    last: int


@frozen
class Part:
    """A piece of history: every record after ``after`` up to ``last`` (None: up to now)."""

    after: int
    last: int | None
    dump: Dump
    path: Path | None = None
    """The part's file, if it has its own."""

    @property
    def end(self) -> int:
        """Its last position. For a part up to now, a position that no record reaches."""
        return _NOW if self.last is None else self.last

    @property
    def start(self) -> int | None:
        """Position of the part's first replica. None if the part has none, so it can only follow another part."""
        if self.dump.origin is not None:
            return self.dump.origin.position
        return START if self.after == START else None


@frozen
class Archive:
    """One peer's access to its archive directory."""

    directory: Path
    node: str

    def reached(self, old: Origin | None, cluster: Cluster | None = None) -> int:
        """Return the position up to which it has every record that is still in the log with the origin ``old``.

        Raises `Conflict` if another cluster than ``cluster`` wrote records there that seem to be among these, and
        `NotFound` if the file is moved away at this time.
        """
        found = files(self.directory)
        trimmed = START if old is None else old.trimmed
        _, last, path = max(found, key=lambda one: one[1], default=(START, START, self.directory))
        if last <= trimmed:
            return trimmed
        if cluster is not None and (other := _cluster_of(path)) not in ("", cluster.id):
            raise Conflict(
                f"{path} has records of another cluster, {other}, at positions of this one, {cluster.id}",
                field="archive",
                hint="Give each cluster an archive directory of its own, or move the files of the other one away.",
            )
        return last

    def writer(self, cluster: Cluster, old: Origin | None, last: int) -> HistoryFileWriter:
        """Return a writer for the file that holds the missing records up to ``last``."""
        after = self.reached(old, cluster)
        # An origin before the file's first record would claim that the records between them are in the file.
        packed = old.data if old is not None and old.position >= after else b""
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(f"*-{glob.escape(self.node)}{SUFFIX}.*.part"):
            left.unlink(missing_ok=True)  # Left by an earlier process of this node: a node has one process at a time.
        path = self.directory / f"{after + 1:019d}-{last:019d}-{self.node}{SUFFIX}"
        return HistoryFileWriter(path, KIND, cluster=cluster.name, cluster_id=cluster.id, origin=packed, after=after)


def _cluster_of(path: Path) -> str:
    """Return the id of the cluster that a file is of; empty if it cannot be read.

    Raises `NotFound` for a file that was moved away meanwhile: its records are in the directory no longer.
    """
    try:
        return cluster_in(path, KIND)
    except (OnyxqError, OSError):
        if not path.exists():
            raise
        return ""


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order, with overlapping and adjacent ones merged."""
    out: list[Range] = []
    for one in sorted(ranges, key=lambda one: (one.first, one.last)):
        if out and one.first <= out[-1].last + 1:
            out[-1] = Range(out[-1].first, max(one.last, out[-1].last))
        else:
            out.append(one)
    return out


def files(directory: Path) -> list[tuple[int, int, Path]]:
    """Return (first, last, path) of every complete file, in the order of the log.

    A directory that does not exist has none.
    """
    if not directory.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)


def parts(directories: Iterable[Path]) -> list[Part]:
    """Return the contents of some directories.

    Raises `NotFound` for a directory that does not exist or has no files.
    """
    out = []
    for directory in directories:
        found = files(directory)
        if not found:
            raise NotFound(f"there are no archived records in {directory}", field="archive", hint="Check its name.")
        out += [part(*one) for one in found]
    return out


def part(first: int, last: int, path: Path) -> Part:
    """Return the content of a file that `files` names; raises `BadRequest`, and `Corrupt` for a damaged file."""
    file = open_file(path, KIND)
    if file.after != first - 1:
        raise BadRequest(
            f"{path} has the records after {file.after}, and not those that its name says",
            field="archive",
            hint="Give the file its own name again.",
        )
    return Part(first - 1, last, as_dump(file), path)


def groups(pieces: Sequence[Part]) -> list[Dump]:
    """Return all history in as few dumps as possible, in order: more than one where records are missing."""
    out: list[Dump] = []
    reached = START - 1
    for piece in sorted(pieces, key=lambda one: (one.after, -one.end)):
        if piece.end > reached and piece.start is not None:
            chain = _chain(piece, pieces)
            out.append(_whole(chain))
            reached = chain[-1].end
    return out


def best(pieces: Sequence[Part], position: int) -> Dump | None:
    """Return history that starts as late as possible and reaches ``position``; None if there is none."""
    known = [(piece.start, piece) for piece in pieces if piece.start is not None and piece.start <= position]
    for _, piece in sorted(known, key=lambda one: one[0], reverse=True):
        chain = _chain(piece, pieces)
        if chain[-1].end >= position:
            return _whole(chain)
    return None


def _chain(piece: Part, pieces: Sequence[Part]) -> list[Part]:
    """Return the part and those that continue it without a gap; they may overlap, and each reaches further."""
    chain = [piece]
    for one in sorted(pieces, key=lambda one: (one.after, -one.end)):
        if one.after <= chain[-1].end < one.end:
            chain.append(one)
    return chain


def _whole(chain: Sequence[Part]) -> Dump:
    first = chain[0].dump
    return Dump(first.cluster, first.origin, _Chained(tuple(chain)), first.cluster_id)


@frozen
class _Chained:
    """The records of a chain of parts, each once."""

    chain: tuple[Part, ...]

    def __iter__(self) -> Iterator[Record]:
        reached = START
        for piece in self.chain:
            for record in piece.dump.records:
                if record.position > reached:
                    reached = record.position
                    yield record

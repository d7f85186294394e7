"""The table ``entries``: every entry of the log with its verdict, each once.

Files of records (`onyxq.history.parquet.records`) have verdicts. For other positions the verdicts are computed: the
records are read from dumps, archives of the log and a peer, and applied to a replica. This is one piece of work,
because records are applied in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from onyxq.core.errors import Corrupt, NotFound
from onyxq.history import dump
from onyxq.history.archive import Part, Range, best, groups, joined, parts
from onyxq.history.dump import Dump
from onyxq.history.live_log import Call, live
from onyxq.history.parquet.layout import FAR_MS, day_of
from onyxq.history.parquet.records import FILE_NAME, reached, rows_of
from onyxq.history.parquet.schema import RECORDS, pyarrow
from onyxq.history.replay import replay
from onyxq.history.tables.columns import ENTRIES, fitted, table_of
from onyxq.history.tables.selection import Selection

CHUNK_ROWS = 10_000


@frozen
class RecordFile:
    """A file of records, and the positions in it that no other piece of work reads."""

    path: Path
    spans: tuple[Range, ...]


@frozen
class Replay:
    """The log from dumps, archives and a peer, without the positions in files of records."""

    dumps: tuple[Path, ...]
    logs: tuple[Path, ...]
    held: tuple[Range, ...]


def shares(
    call: Call | None, tables: Sequence[Path], *, logs: Sequence[Path], dumps: Sequence[Path], selection: Selection
) -> list[RecordFile | Replay]:
    """Return the pieces of work that together read each entry once.

    ``tables``: directories with ``records/``; ``logs``: archives of the log; ``dumps``: files of ``onyxq log dump``.
    Raises `NotFound` if a directory has no records.
    """
    found: list[RecordFile | Replay] = []
    held: list[Range] = []
    for directory in tables:
        files = sorted((directory / RECORDS).glob("day=*/*.parquet"))
        if not files:
            raise NotFound(
                f"{directory} has no table of the log's records: it has no {RECORDS}/ in it",
                field="records",
                hint="Name the directory of the peers' record_archive, or one that onyxq archive log wrote.",
            )
        for path in files:
            if name := FILE_NAME.fullmatch(path.name):
                own = Range(int(name[1]), int(name[2]))
                spans = tuple(without(own, held))
                held = joined([*held, own])
                if spans and _within(path.parent.name.removeprefix("day="), selection):
                    found.append(RecordFile(path, spans))
    if call is not None or logs or dumps:
        found.append(Replay(tuple(dumps), tuple(logs), tuple(held)))
    return found


def without(one: Range, held: Iterable[Range]) -> Iterator[Range]:
    """Yield the parts of a range that are in no other range; ``held`` is sorted, without overlaps."""
    first = one.first
    for other in held:
        if other.last >= first and other.first <= one.last:
            if other.first > first:
                yield Range(first, other.first - 1)
            first = max(first, other.last + 1)
    if first <= one.last:
        yield Range(first, one.last)


def _within(day: str, selection: Selection) -> bool:
    since, until = (day_of(min(ms, FAR_MS - 1)) for ms in (selection.since_ms, selection.until_ms))
    return since <= day <= until


def read_share(call: Call | None, share: RecordFile | Replay) -> Iterator[Any]:
    """Yield the entries of a piece of work as Arrow tables.

    Raises `Corrupt`, and `Trimmed` if the log was trimmed meanwhile.
    """
    if isinstance(share, RecordFile):
        yield from _read_file(share)
        return
    rows = []
    for row in _replayed(call, share):
        rows.append(row)
        if len(rows) == CHUNK_ROWS:
            yield table_of(ENTRIES, rows)
            rows = []
    if rows:
        yield table_of(ENTRIES, rows)


def _read_file(share: RecordFile) -> Iterator[Any]:
    pa = pyarrow()
    try:
        found = pa.parquet.ParquetFile(share.path, pre_buffer=False).read(use_threads=False)
        for span in share.spans:
            place = found["position"]
            within = pa.compute.and_(
                pa.compute.greater_equal(place, span.first), pa.compute.less_equal(place, span.last)
            )
            yield fitted(ENTRIES, found.filter(within))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(
            f"{share.path} cannot be read: {error}",
            hint="Remove the file, and write its records again with onyxq archive log.",
        ) from error


def _replayed(call: Call | None, share: Replay) -> Iterator[tuple[Any, ...]]:
    held = list(share.held)
    pieces: list[Part] = [*([] if call is None else [live(call)]), *parts(share.logs)]
    for one in map(dump.read, share.dumps):
        yield from _others(one, held)
    for one in groups(pieces):
        after = reached(held, one.start.position)
        if after > one.start.position:
            one = best(pieces, after) or one  # starts later, so there is less to apply
        yield from _others(one, held)


def _others(one: Dump, held: list[Range]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a history that are not in the ranges ``held``, and add its positions to these at the end."""
    first = last = None
    for done in replay(one):
        last = done.replica.position
        first = last if first is None else first
        if not any(span.first <= last <= span.last for span in held):
            yield from rows_of(done)
    if first is not None and last is not None:
        held[:] = joined([*held, Range(first, last)])

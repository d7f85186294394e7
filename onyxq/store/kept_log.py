"""The copy of the log that a store keeps: the last snapshot of the replica and the records after it.

ZooKeeper owns the log.  A node's own copy serves one purpose: if ZooKeeper is wiped or set back, the
replica at `Store.log_position` can be built again (`onyxq.history.recovery`).  Records are added in the
transaction that raises the position, so the copy never ends before the position.

Keys of the table:

* ``S``, position (8) and part number (4): a piece of a snapshot.
* ``R`` and the position (8) of the first of some records: those records (`onyxq.core.log.stored`).
* ``E``: the position of the snapshot and the end of the copy.

If ``E`` is damaged, the copy begins again.  A node that starts reads the log from its snapshot, and so completes the
copy.  Otherwise the beginning is missing until the next snapshot, and the copy cannot be read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgpack

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import seal, unseal
from onyxq.core.log.interface import START, Record
from onyxq.core.log.stored import pack_records, unpack_records
from onyxq.store.interface import KeptLog, SnapshotPart
from onyxq.store.tables import Table

SNAPSHOT, RECORDS, ENDS = b"S", b"R", b"E"
DROP_ROWS_MAX = 256
"""Rows of records before the snapshot that one batch deletes. Bounds how long the event loop is busy."""

_log = logging.getLogger(__name__)


class Ends(NamedTuple):
    """Start and end of the copy."""

    snapshot: int = START
    """Position of the snapshot. If -1, the copy begins with the log's first record."""
    parts: int = 0
    """Number of pieces of the snapshot. If -1, the beginning of the copy is missing."""
    position: int = START
    """Position of the last record, or of the snapshot if no record follows it."""
    dropped: int = START
    """Position of the last snapshot whose earlier records were all deleted."""


NO_BEGINNING = Ends(parts=-1)
"""Ends of a copy that was deleted because its ends were damaged."""


def check_kept(records: Sequence[Record], part: SnapshotPart | None) -> None:
    """Raise `BadRequest` if the records or the snapshot piece are malformed."""
    places = [one.position for one in records]
    if any(place < 0 for place in places) or any(a >= b for a, b in zip(places, places[1:], strict=False)):
        raise BadRequest("records of the log must be in order", field="records")
    if part is not None and not (0 <= part.number < 1 << 32 and part.position >= 0):
        raise BadRequest("a piece of a snapshot is out of range", field="snapshot")


def add_records(table: Table, records: Sequence[Record]) -> None:
    """Add the records after the copy's end; skip those that it has already."""
    ends = _usable_ends(table)
    new = [one for one in records if one.position > ends.position]
    if not new:
        return
    if ends == NO_BEGINNING and new[0].position == START + 1:
        ends = Ends()
    key = RECORDS + _number(new[0].position)
    table.put(key, seal(key, pack_records(new)))
    _put_ends(table, _drop_some(table, ends._replace(position=new[-1].position)))


def add_part(table: Table, part: SnapshotPart) -> None:
    """Add a piece of a snapshot. With the last piece, the snapshot replaces an older one."""
    ends = _usable_ends(table)
    if part.position <= ends.snapshot:
        return
    key = SNAPSHOT + _number(part.position) + part.number.to_bytes(4, "big")
    table.put(key, seal(key, part.data))
    if not part.last or (ends.parts < 0 and not _may_begin_with(table, part)):
        return
    for key, _ in list(_range(table, SNAPSHOT, upto=part.position - 1)):
        table.delete(key)
    newer = ends._replace(snapshot=part.position, parts=part.number + 1, position=max(part.position, ends.position))
    _put_ends(table, _drop_some(table, newer))


def kept_log(table: Table) -> KeptLog:
    """Return the whole copy; raises `Corrupt`."""
    ends = ends_of(table)
    if ends.parts < 0:
        raise Corrupt("the store's copy of the log has no beginning before the next snapshot")
    parts = [unseal(key, bytes(value)) for key, value in _range(table, SNAPSHOT, start=ends.snapshot)]
    records: list[Record] = []
    for key, value in _range(table, RECORDS):
        found = unpack_records(unseal(key, bytes(value)))
        records += [one for one in found if one.position > ends.snapshot]
    if len(parts[: ends.parts]) != ends.parts or (records[-1].position if records else ends.snapshot) != ends.position:
        raise Corrupt("parts of the store's copy of the log are missing")
    return KeptLog(ends.snapshot, b"".join(parts[: ends.parts]), tuple(records))


def ends_of(table: Table) -> Ends:
    """Return where the copy begins and ends; raises `Corrupt`."""
    stored = table.get(ENDS)
    try:
        return Ends() if stored is None else Ends(*msgpack.unpackb(unseal(ENDS, bytes(stored))))
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise Corrupt(f"the store's copy of the log is malformed: {error}") from None


def _usable_ends(table: Table) -> Ends:
    """Return where the copy begins and ends, after deleting it if that is damaged."""
    try:
        return ends_of(table)
    except Corrupt:
        _log.error("the ends of the store's copy of the log are damaged: the copy begins again")
    for kind in (SNAPSHOT, RECORDS):
        table.clear(kind)
    _put_ends(table, NO_BEGINNING)
    return NO_BEGINNING


def _may_begin_with(table: Table, last: SnapshotPart) -> bool:
    """Return whether all pieces of a snapshot are in the copy, and no record is missing after it."""
    pieces = sum(1 for _ in _range(table, SNAPSHOT, start=last.position, upto=last.position))
    first = next((int.from_bytes(key[1:9], "big") for key, _ in _range(table, RECORDS)), START)
    return pieces > last.number and first <= last.position + 1


def _put_ends(table: Table, ends: Ends) -> None:
    table.put(ENDS, seal(ENDS, msgpack.packb(ends)))


def _drop_some(table: Table, ends: Ends) -> Ends:
    """Delete records that the snapshot contains, a limited number of rows at a time; return the ends afterwards.

    A row may end with records after the snapshot, so the last row before its end stays.
    """
    if ends.dropped >= ends.snapshot:
        return ends
    old = [key for key, _ in _few(_range(table, RECORDS, upto=ends.snapshot), DROP_ROWS_MAX + 1)]
    for key in old[:-1]:
        table.delete(key)
    return ends if len(old) > DROP_ROWS_MAX else ends._replace(dropped=ends.snapshot)


def _few(rows: Iterator[tuple[bytes, bytes]], limit: int) -> list[tuple[bytes, bytes]]:
    return [row for row, _ in zip(rows, range(limit), strict=False)]


def _range(table: Table, kind: bytes, *, start: int = 0, upto: int = (1 << 63) - 1) -> Iterator[tuple[bytes, bytes]]:
    for key, value in table.ascend(kind + _number(max(start, 0))):
        if key[:1] != kind or int.from_bytes(key[1:9], "big") > upto:
            return
        yield key, value


def _number(position: int) -> bytes:
    return position.to_bytes(8, "big")

"""A whole cluster in one file: a replica, every row, and the log up to behind the last of them.

The file is made of checked blocks (`onyxq.blocks`), in this order:

* ``H``: msgpack map: ``format``, ``cluster`` and ``cluster_id``, ``origin`` (the position of the replica),
* ``O``: a part of the packed replica (`onyxq.snapshot`) from which the records go on,
* ``R`` and ``P``, mixed as they were read: packed records ``[position, ctime in ms, bytes]`` in the order of
  the log, and packed pages ``[partition, [[key, value], ...]]`` of rows,
* ``E``: msgpack map: ``records`` and ``rows``, how many there are, and ``last``, the last record's position.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgpack
from attrs import frozen

from onyxq import snapshot
from onyxq.blocks import BlockFile, Kind, damaged, packed, read_blocks, unpacked, unpacked_map
from onyxq.errors import BadRequest, Corrupt
from onyxq.facts import Row
from onyxq.log.interface import Record
from onyxq.replica import Replica

FORMAT = 1
KIND = Kind(
    b"ONYXQBAK",
    (b"H", b"O", b"R", b"P", b"E"),
    what="backup of a cluster",
    make="onyxq cluster backup",
    damaged="Nothing was restored. Use another backup.",
    mode=0o600,
)
ORIGIN_PART_BYTES = 4 << 20
RECORDS_BLOCK_BYTES = 1 << 20


class BackupWriter:
    """Writes a backup; use ``with``. The file has its name only once it is complete and durable."""

    def __init__(self, path: str | os.PathLike[str], *, cluster: str, cluster_id: str, origin: Replica) -> None:
        self.records = 0
        self.rows = 0
        self.last = origin.position
        self._cluster, self._cluster_id = cluster, cluster_id
        self._origin = origin
        self._path = Path(path)
        self._pending: list[Record] = []
        self._pending_bytes = 0

    def __enter__(self) -> BackupWriter:
        self._file = BlockFile(self._path, KIND).__enter__()
        header = {
            "format": FORMAT,
            "cluster": self._cluster,
            "cluster_id": self._cluster_id,
            "origin": self._origin.position,
        }
        self._file.add(b"H", msgpack.packb(header))
        origin = snapshot.pack(self._origin)
        for start in range(0, len(origin), ORIGIN_PART_BYTES):
            self._file.add(b"O", origin[start : start + ORIGIN_PART_BYTES])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            self._file.add(b"E", msgpack.packb({"records": self.records, "rows": self.rows, "last": self.last}))
        self._file.__exit__(kind, error, trace)

    def add_record(self, record: Record) -> None:
        """Append a record, which must lie behind the last one."""
        self._pending.append(record)
        self._pending_bytes += len(record.data)
        self.last = record.position
        self.records += 1
        if self._pending_bytes >= RECORDS_BLOCK_BYTES:
            self._flush()

    def add_rows(self, partition: int, rows: Sequence[Sequence[bytes]]) -> None:
        """Append a page of a partition's rows."""
        if rows:
            self._file.add(b"P", packed([partition, rows]))
            self.rows += len(rows)

    def _flush(self) -> None:
        if self._pending:
            self._file.add(b"R", packed([[one.position, one.ctime_ms, one.data] for one in self._pending]))
            self._pending, self._pending_bytes = [], 0


@frozen
class Backup:
    """A backup whose header and replica were checked; ``records`` and ``rows`` may be gone through repeatedly."""

    path: Path
    cluster: str
    cluster_id: str
    origin: Replica

    def records(self) -> Iterator[Record]:
        """The records behind the replica, in the order of the log; raises `Corrupt`."""
        last = self.origin.position
        for number, (kind, body) in enumerate(read_blocks(self.path, KIND)):
            if kind != b"R":
                continue
            for one in unpacked(self.path, KIND, number, body):
                record = _record(self.path, number, one)
                if record.position <= last:
                    raise damaged(self.path, KIND, number, f"record {record.position} is out of order")
                last = record.position
                yield record

    def pages(self) -> Iterator[tuple[int, list[Row]]]:
        """Partitions and some of their rows; raises `Corrupt`."""
        for number, (kind, body) in enumerate(read_blocks(self.path, KIND)):
            if kind != b"P":
                continue
            try:
                partition, rows = unpacked(self.path, KIND, number, body)
                yield int(partition), [Row(*row) for row in rows]
            except (TypeError, ValueError) as error:
                raise damaged(self.path, KIND, number, str(error)) from None

    def check(self) -> dict[str, int]:
        """Read every block and compare what there is with what the last one says; raises `Corrupt`."""
        records = rows = number = 0
        said: dict[str, int] = {}
        for number, (kind, body) in enumerate(read_blocks(self.path, KIND)):
            if kind == b"R":
                records += len(unpacked(self.path, KIND, number, body))
            elif kind == b"P":
                rows += len(unpacked(self.path, KIND, number, body)[1])
            elif kind == b"E":
                said = unpacked_map(self.path, KIND, number, body)
        if (said.get("records"), said.get("rows")) != (records, rows):
            raise damaged(self.path, KIND, number, f"it has {records} records and {rows} rows and should have others")
        return said


def read(path: str | os.PathLike[str]) -> Backup:
    """Open a backup; raises `NotFound`, `BadRequest` for another kind of file, `Corrupt` naming the block."""
    path = Path(path)
    blocks = read_blocks(path, KIND)
    kind, body = next(blocks)
    if kind != b"H":
        raise damaged(path, KIND, 0, "the header is expected there")
    header = unpacked_map(path, KIND, 0, body)
    if header.get("format") != FORMAT:
        raise BadRequest(
            f"{path} has format {header.get('format')}, this program reads {FORMAT}",
            field="file",
            hint="Read it with the version that wrote it.",
        )
    parts = []
    for kind, body in blocks:
        if kind != b"O":
            break
        parts.append(body)
    try:
        origin = snapshot.unpack(b"".join(parts))
        if origin.position != header["origin"] or origin.cluster is None:
            raise Corrupt("the replica does not fit the header")
        return Backup(path, str(header["cluster"]), str(header["cluster_id"]), origin)
    except (Corrupt, KeyError) as error:
        raise damaged(path, KIND, 1, str(error)) from None


def _record(path: Path, number: int, one: Sequence[object]) -> Record:
    try:
        position, ctime_ms, data = one
        if isinstance(position, int) and isinstance(ctime_ms, int) and isinstance(data, bytes):
            return Record(position, ctime_ms, data)
    except (TypeError, ValueError):
        pass
    raise damaged(path, KIND, number, "a record is malformed")

"""The newest records of the log, as stored, for clients that follow the log through a node."""

from __future__ import annotations

from collections import deque

from onyxq.core.log.interface import Record

RECENT_BYTES_MAX = 8 << 20
RECENT_RECORDS_MAX = 20_000


class RecentRecords:
    """The records that a node applied last, in order and without gaps."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._bytes = 0

    def add(self, record: Record) -> None:
        """Keep a record that was applied."""
        self._records.append(record)
        self._bytes += len(record.data)
        while self._bytes > RECENT_BYTES_MAX or len(self._records) > RECENT_RECORDS_MAX:
            self._bytes -= len(self._records.popleft().data)

    def clear(self) -> None:
        """Drop all records: the node's replica was replaced."""
        self._records.clear()
        self._bytes = 0

    @property
    def newest(self) -> Record | None:
        """The record that was applied last; None if the replica is from a snapshot."""
        return self._records[-1] if self._records else None

    def reaches(self, position: int) -> bool:
        """Return whether every record from ``position`` is here."""
        return bool(self._records) and self._records[0].position <= position

    def page(self, start: int, limit: int, bytes_max: int) -> list[Record]:
        """Return records from ``start``, up to both limits; a single record may exceed ``bytes_max``."""
        skip = 0
        if self._records:
            # Positions rise by one, except at segment borders: this is at or before the right index.
            skip = max(0, min(start - self._records[0].position, len(self._records) - 1))
            while skip and self._records[skip].position > start:
                skip -= 1
        out: list[Record] = []
        size = 0
        for index in range(skip, len(self._records)):
            record = self._records[index]
            if record.position < start:
                continue
            if len(out) == limit or (out and size + len(record.data) > bytes_max):
                break
            out.append(record)
            size += len(record.data)
        return out

"""Records of the log as bytes, alike wherever they are kept.

The embedded log, a store's copy of the log and every file of history (`onyxq.history.file_format`) hold records as
msgpack of a list of ``[position, ctime in ms, bytes]``.  Each place adds its own key and checksum.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgpack

from onyxq.core.errors import Corrupt
from onyxq.core.limits import INT_MAX
from onyxq.core.log.interface import START, Record

_TYPES = (int, int, bytes)


def pack_records(records: Iterable[Record]) -> bytes:
    """Return the bytes of some records."""
    data: bytes = msgpack.packb([(one.position, one.ctime_ms, one.data) for one in records])
    return data


def unpack_records(data: bytes, *, after: int = START) -> list[Record]:
    """Return the records in bytes that `pack_records` made; raises `Corrupt` for any others.

    Their positions must rise, from above ``after``.
    """
    try:
        found = msgpack.unpackb(data, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(f"records are malformed: {error}") from None
    out: list[Record] = []
    for one in found if type(found) is tuple else (found,):
        if type(one) is not tuple or tuple(map(type, one)) != _TYPES:
            raise Corrupt("a record is malformed")
        record = Record(*one)
        if not (after < record.position <= INT_MAX and 0 <= record.ctime_ms <= INT_MAX):
            raise Corrupt(f"record {record.position} is out of order")
        out.append(record)
        after = record.position
    return out

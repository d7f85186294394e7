"""Pending rows, which become facts when their transaction commits; kept apart from facts.

A value is ``msgpack (name, deadline, body) | CRC-32 over key and the rest``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

import msgpack

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import seal, unseal
from onyxq.store.interface import PendingRow
from onyxq.store.tables import Table, within

NUMBER_MAX = (1 << 32) - 1
PARTITION_MAX = (1 << 16) - 1
BODY_BYTES_MAX = 17 * 1024 * 1024
NAME_BYTES_MAX = 4096

_NUMBER = struct.Struct(">I")


@lru_cache(maxsize=1024)
def _prefix(partition: int, transaction: str) -> bytes:
    return partition.to_bytes(2, "big") + blake2b(transaction.encode(), digest_size=16).digest()


def check_pending(row: PendingRow) -> None:
    """Raise `BadRequest` if a pending row is malformed."""
    check_transaction(row.partition, row.transaction)
    if type(row.number) is not int or not 0 <= row.number <= NUMBER_MAX:
        raise BadRequest("a pending row's number is out of range", field="pending")
    if type(row.deadline_ms) is not int or not 0 <= row.deadline_ms < 1 << 63:
        raise BadRequest("a transaction's deadline is out of range", field="pending")
    if type(row.body) is not bytes or len(row.body) > BODY_BYTES_MAX:
        raise BadRequest(f"a pending row has at most {BODY_BYTES_MAX} bytes", field="pending")


def check_transaction(partition: int, transaction: str) -> None:
    """Raise `BadRequest` if a partition or a transaction's name is malformed."""
    if type(partition) is not int or not 0 <= partition <= PARTITION_MAX:
        raise BadRequest("a partition is out of range", field="pending")
    if type(transaction) is not str or not 1 <= len(transaction.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise BadRequest(f"a transaction's name has 1 to {NAME_BYTES_MAX} bytes", field="pending")


def put_pending(table: Table, rows: Iterable[PendingRow]) -> None:
    """Put checked rows."""
    for row in rows:
        key = _prefix(row.partition, row.transaction) + _NUMBER.pack(row.number)
        table.put(key, seal(key, msgpack.packb((row.transaction, row.deadline_ms, row.body))))


def drop_pending(table: Table, partition: int, transaction: str) -> None:
    """Delete a transaction's rows of a partition."""
    table.clear(_prefix(partition, transaction))


def pending_rows(table: Table, partition: int, transaction: str) -> list[PendingRow]:
    """Return a transaction's rows in a partition, by number; raises `Corrupt`."""
    found = within(table, _prefix(partition, transaction))
    return [_unpack(bytes(key), bytes(value)) for key, value in found]


def pending_transactions(table: Table, partition: int) -> dict[str, int]:
    """Return name and deadline of each transaction with rows in a partition, by name.

    A transaction whose rows are all damaged is left out.
    """
    prefix = partition.to_bytes(2, "big")
    out: dict[str, int] = {}
    start = prefix
    while found := next(table.ascend(start), None):
        key, value = found
        if key[:2] != prefix:
            break
        try:
            row = _unpack(bytes(key), bytes(value))
        except Corrupt:
            start = bytes(key) + b"\0"
        else:
            out[row.transaction] = row.deadline_ms
            start = bytes(key[:18]) + b"\xff" * 5
    return dict(sorted(out.items()))


def _unpack(key: bytes, value: bytes) -> PendingRow:
    try:
        body = unseal(key, value)
    except Corrupt:
        raise Corrupt(f"pending row {key.hex()} does not match its checksum") from None
    transaction, deadline_ms, content = msgpack.unpackb(body)
    return PendingRow(transaction, deadline_ms, int.from_bytes(key[:2], "big"), _NUMBER.unpack(key[18:])[0], content)

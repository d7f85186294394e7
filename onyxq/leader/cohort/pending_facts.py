"""Pending rows of transactions: their encoding, and how their copies are exchanged (design: transactions).

A part of a transaction is what it does in one partition. Its items are stored as pending rows under
a name that identifies the attempt, `part_key`. So rows of an abandoned attempt, or of a repeat with
other contents, never mix. Between nodes they are sent among the rows of a write, under the row kind
``P``, which no store accepts as a fact.

Items are lists:

* ``["T", first, body, at_ms]``: a task run, and the due time that its user named, or nil,
* ``["C", first, count, token, results]``: a completion,
* ``["U", id, token, seq, data]``: an update.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgpack

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import Row, seal, sealed, task_header, unseal
from onyxq.core.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.core.jobs.batch_names import is_void
from onyxq.core.replica import Replica, Transaction, claim_of
from onyxq.store.interface import Batch, PendingRow
from onyxq.store.row_checks import Prepared
from onyxq.store.store import Store

PENDING = b"P"
"""Kind of the rows in which pending rows are sent."""
ROW_BYTES_MAX = 256 * 1024
"""Item bytes after which a new pending row of the part begins."""
PAGE_BYTES = 4 * 1024 * 1024

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


class Part(NamedTuple):
    """Identifies a part of one attempt of a transaction; the name of its pending rows contains all of it."""

    deadline_ms: int
    digest: bytes
    name: str


def part_key(part: Part) -> str:
    """Return the name of a part's pending rows."""
    return f"{part.deadline_ms}/{part.digest.hex()}/{part.name}"


def part_of(key: str) -> Part:
    """Return the part that a name identifies; raises `ValueError`."""
    deadline, digest, name = key.split("/", 2)
    return Part(int(deadline), bytes.fromhex(digest), name)


def key_in(found: Transaction, name: str, partition: int) -> str:
    """Return the name of the pending rows that a committed transaction has in a partition."""
    _, digest = found.parts.get(partition, (0, b""))
    return part_key(Part(found.deadline_ms, digest, name))


def is_over(replica: Replica, partition: int, key: str) -> bool:
    """Return whether a part's pending rows can never be needed again."""
    part = part_of(key)
    found = replica.transactions.get(part.name)
    if found is not None and found.deadline_ms == part.deadline_ms:
        _, digest = found.parts.get(partition, (0, b""))
        if digest == part.digest:
            return False
    return replica.log_time_ms > part.deadline_ms or is_void(replica, part.name)


def completed_runs(items: Iterable[Any]) -> list[Run]:
    """Return the tasks that a part completes."""
    return [Run(TaskId(item[1]), item[2]) for item in items if item[0] == "C"]


def is_completed(store: Store, replica: Replica, task_id: TaskId) -> bool:
    """Return whether a transaction that is or may be committed completes a claimed task; raises `Corrupt`.

    A commit needs the claim, so none can follow once the log has ended it.
    """
    if claim_of(replica, task_id) is None:
        return False
    bits = completed_bits(store, replica, partition_of(task_id))
    return bool(bits.get(stretch_of(task_id), 0) & mask_of(task_id, 1))


def completed_bits(store: Store, replica: Replica, partition: int) -> dict[bytes, int]:
    """Return the tasks that transactions complete which are or may be committed, by stretch; raises `Corrupt`."""
    bits: dict[bytes, int] = {}
    for key in store.pending_transactions(partition):
        if not is_over(replica, partition, key):
            for run in completed_runs(unpack_items(row.body for row in store.pending(partition, key))):
                stretch = stretch_of(run.first)
                bits[stretch] = bits.get(stretch, 0) | mask_of(*run)
    return bits


def coming_bits(store: Store, replica: Replica, partition: int, *, without: Container[TaskId]) -> dict[bytes, int]:
    """Return the tasks that committed transactions enqueue in a partition and that may not be stored yet, by stretch.

    ``without``: first ids of runs to leave out. Raises `Corrupt` if the tasks are not known here, because pending
    rows are damaged or must be fetched first.
    """
    bits: dict[bytes, int] = {}
    for name, found in sorted(replica.transactions.items()):
        count, _ = found.parts.get(partition, (0, b""))
        bodies = [row.body for row in store.pending(partition, key_in(found, name, partition))] if count else []
        if len(bodies) != count:
            raise Corrupt(f"pending rows of transaction {name} are not here")
        for _, first, body, _ in (item for item in unpack_items(bodies) if item[0] == "T"):
            if first not in without:
                stretch = stretch_of(first)
                bits[stretch] = bits.get(stretch, 0) | mask_of(first, task_header(body)[1])
    return bits


def pack_items(items: Sequence[Any]) -> list[bytes]:
    """Return the bodies of a part's pending rows."""
    bodies: list[bytes] = []
    packed: list[bytes] = []
    size = 0
    for item in items:
        if packed and size > ROW_BYTES_MAX:
            bodies.append(b"".join(packed))
            packed, size = [], 0
        packed.append(msgpack.packb(item))
        size += len(packed[-1])
    if packed:
        bodies.append(b"".join(packed))
    return bodies


def unpack_items(bodies: Iterable[bytes]) -> list[Any]:
    """Return the items in the bodies of pending rows."""
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    items: list[Any] = []
    for body in bodies:
        unpacker.feed(body)
        items += unpacker
    return items


def digest_of(bodies: Iterable[bytes]) -> bytes:
    """Return the digest that identifies the contents of a part's pending rows."""
    digest = blake2b(digest_size=16)
    for body in bodies:
        digest.update(len(body).to_bytes(8, "big"))
        digest.update(body)
    return digest.digest()


def pending_rows(partition: int, part: Part, bodies: Sequence[bytes]) -> list[PendingRow]:
    """Return the pending rows of a part."""
    key = part_key(part)
    return [PendingRow(key, part.deadline_ms, partition, number, body) for number, body in enumerate(bodies)]


# --- on the way between nodes


def as_row(pending: PendingRow) -> Row:
    """Return a pending row in the form in which it is sent among the rows of a write."""
    key = pending.partition.to_bytes(2, "big") + PENDING
    return Row(key, seal(key, msgpack.packb((pending.transaction, pending.deadline_ms, pending.number, pending.body))))


def split_rows(rows: Sequence[Row | Prepared]) -> tuple[Sequence[Row | Prepared], list[PendingRow]]:
    """Split the rows of a write into facts and pending rows; raises `BadRequest` for malformed pending rows."""
    if not any(row.key[2:3] == PENDING for row in rows):
        return rows, []
    pending = [from_row(Row(row.key, row.value)) for row in rows if row.key[2:3] == PENDING]
    return [row for row in rows if row.key[2:3] != PENDING], pending


def from_row(row: Row) -> PendingRow:
    """Return the pending row that was sent as ``row``; raises `BadRequest`."""
    try:
        if len(row.key) != 3 or not sealed(*row):
            raise ValueError
        name, deadline_ms, number, body = msgpack.unpackb(unseal(*row))
        if part_of(name).deadline_ms != deadline_ms or type(number) is not int or type(body) is not bytes:
            raise ValueError
        if not 0 <= number < 1 << 32:
            raise ValueError
    except (ValueError, TypeError, AttributeError, Corrupt, msgpack.UnpackException):
        raise BadRequest("a pending row is malformed", field="rows") from None
    return PendingRow(name, deadline_ms, int.from_bytes(row.key[:2], "big"), number, body)


def split_wire_rows(rows: Any, partition: int) -> tuple[list[Any], list[PendingRow]]:
    """Split rows from the wire into other rows and pending rows; raises `BadRequest`."""
    if not isinstance(rows, list):
        raise BadRequest("rows must be a list", field="rows")
    others: list[Any] = []
    pending: list[PendingRow] = []
    for row in rows:
        if isinstance(row, list) and len(row) == 2 and isinstance(row[0], bytes) and row[0][2:] == PENDING:
            if not isinstance(row[1], bytes):
                raise BadRequest("a row must be [key, value]", field="rows")
            pending.append(from_row(Row(*row)))
            if pending[-1].partition != partition:
                raise BadRequest("a row is of another partition", field="rows")
        else:
            others.append(row)
    return others, pending


# --- copies


def page(store: Store, partition: int, *, known: Sequence[str], want: str | None) -> dict[str, Any]:
    """Return the answer to a request for pending rows: all names here, and the rows of names not in ``known``.

    ``want``: return rows of this name only.
    """
    names = store.pending_transactions(partition)
    rows: list[list[bytes]] = []
    size = 0
    have = set(known)
    for name in [want] if want is not None else names:
        if name in have or name not in names:
            continue
        if size > PAGE_BYTES:
            return {"names": list(names), "rows": rows, "more": True}
        try:
            found = [as_row(row) for row in store.pending(partition, name)]
        except Corrupt:
            continue  # another node has them
        rows += map(list, found)
        size += sum(len(row.value) for row in found)
    return {"names": list(names), "rows": rows, "more": False}


async def pull(store: Store, call: Call, partition: int, *, want: str | None = None) -> set[str]:
    """Fetch pending rows that this node lacks (or only ``want``); return the names that the other node has."""
    known = set(store.pending_transactions(partition)) if want is None else set()
    while True:
        answer = await call("cohort.pending", {"partition": partition, "known": sorted(known), "want": want})
        _, rows = split_wire_rows(answer["rows"], partition)
        if rows:
            await store.write(Batch(pending=rows))
            known |= {row.transaction for row in rows}
        if not answer["more"]:
            return set(answer["names"])


async def push(store: Store, call: Call, partition: int, epoch: int, *, theirs: set[str]) -> None:
    """Send a node the pending rows whose names are not among ``theirs``."""
    rows: list[list[bytes]] = []
    size = 0
    for name in store.pending_transactions(partition):
        if name in theirs:
            continue
        try:
            found = [as_row(row) for row in store.pending(partition, name)]
        except Corrupt:
            continue  # the leader that makes it visible gets it from another node
        rows += map(list, found)
        size += sum(len(row.value) for row in found)
        if size > PAGE_BYTES:
            await call("cohort.push", {"partition": partition, "epoch": epoch, "rows": rows})
            rows, size = [], 0
    if rows:
        await call("cohort.push", {"partition": partition, "epoch": epoch, "rows": rows})

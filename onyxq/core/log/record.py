"""Bytes of records, as a peer appends them and every peer decodes them (design: the log).

A record is msgpack of ``[cluster id, peer, outbox number, wall clock in ms, measured, entries]``.
``measured`` is ``[position, waited in ms, reached in ms]``, see `onyxq.core.log.clock.Measured`.  An
entry is ``[name, version, [argument, ...]]``.  Entries are packed once, where they are
made, and refused there if they are too large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from onyxq.core.entry import RECORD_BYTES_MAX, Entries, encode_args, plain_map
from onyxq.core.errors import NotEnabled, TooLarge
from onyxq.core.limits import ENTRY_BYTES_MAX
from onyxq.core.log.clock import Measured

TIME_MAX_MS = 1 << 53
NUMBER_MAX = 1 << 53
NOTHING = Measured()
"""The measure of a writer that has read no record."""

_HEAD = msgpack.Packer(autoreset=True)


class RawEntry(NamedTuple):
    """One entry of a record. `onyxq.core.step` checks its arguments against the entry's types."""

    name: str
    version: int
    args: list[Any]


class RecordContent(NamedTuple):
    """A decoded record."""

    cluster_id: str
    peer: str
    number: int
    """Outbox number: 1 for the peer's first record, then one more each."""
    wall_ms: int
    measured: Measured
    """The writer's measure of log time."""
    entries: tuple[RawEntry, ...]


def encode_entry(args: Any, entries: Entries, enabled: Mapping[str, int] | None = None) -> bytes:
    """Return the bytes of the entry with the arguments ``args``, in its highest ``enabled`` version.

    By default, the highest version that ``entries`` know.  Raises `TooLarge` above 256 KiB, and `NotEnabled`.
    """
    form = entries.enabled_form(args, entries.versions if enabled is None else enabled)
    if form is None:
        raise NotEnabled(f"{entries.name_of(args)} cannot be used yet: not every peer in the ring knows it")
    entry, version, args = form
    data: bytes = msgpack.packb([entry.name, version, encode_args(args)], default=plain_map)
    if len(data) > ENTRY_BYTES_MAX:
        raise TooLarge(f"the log entry {entry.name} has {len(data)} bytes; at most {ENTRY_BYTES_MAX} are allowed")
    return data


def encode_record(
    cluster_id: str, peer: str, number: int, wall_ms: int, entries: Sequence[bytes], *, measured: Measured = NOTHING
) -> bytes:
    """Return the bytes of a record of packed entries. Raises `TooLarge` above 512 KiB.

    The default for ``measured`` adds nothing to log time.
    """
    head = _HEAD.pack([cluster_id, peer, number, wall_ms, measured, None])[:-1]
    data = b"".join((head, _array_header(len(entries)), *entries))
    if len(data) > RECORD_BYTES_MAX:
        raise TooLarge(f"a record of {len(data)} bytes; at most {RECORD_BYTES_MAX}")
    return data


def decode_record(data: bytes) -> RecordContent | None:
    """Return the content of a record; None if the bytes are not a record."""
    try:
        content = msgpack.unpackb(data)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return None
    if type(content) is not list or len(content) != 6:
        return None
    cluster_id, peer, number, wall_ms, measured, entries = content
    if type(cluster_id) is not str or type(peer) is not str or type(entries) is not list:
        return None
    if type(number) is not int or type(wall_ms) is not int or not _is_measured(measured):
        return None
    if not (0 < number < NUMBER_MAX and 0 <= wall_ms < TIME_MAX_MS and all(map(_is_entry, entries))):
        return None
    return RecordContent(
        cluster_id, peer, number, wall_ms, Measured._make(measured), tuple(map(RawEntry._make, entries))
    )


def _is_measured(item: Any) -> bool:
    if type(item) is not list or len(item) != 3 or any(type(number) is not int for number in item):
        return False
    position, waited_ms, reached_ms = item
    return bool(position >= NOTHING.position and waited_ms >= 0 and reached_ms >= 0)


def _is_entry(item: Any) -> bool:
    if type(item) is not list or len(item) != 3:
        return False
    name, version, args = item
    return type(name) is str and type(version) is int and version > 0 and type(args) is list


def _array_header(count: int) -> bytes:
    """Return the msgpack header of an array of ``count`` items."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")

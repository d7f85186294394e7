"""State of many keys in few pieces. One part of a job's windows and joins keeps it between batches.

Spark stores bytes by number, and each read or write takes some hundred microseconds, so keys do not get one number
each. They are hashed into *buckets* that split in two as they grow (extendible hashing). A small state is one piece;
of a large one only the pieces with affected keys are touched. The *index* holds the list of buckets and a note about
each, such as when something in it is due. So a bucket is read only if a batch has something for it, or it is due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from onyxq.jobs.values import pack, unpack

BUCKET_BYTES_MAX = 64 * 1024
"""Size above which a bucket is split, in bytes."""
DEPTH_MAX = 48
ROOT = 1

Notes = dict[int, Any]
"""Notes of all buckets. Bucket ``n`` splits into ``2n`` and ``2n + 1``."""


class Store(Protocol):
    """Storage of buckets."""

    def load(self, number: int) -> bytes | None:
        """Return the bytes stored under a number; None if there are none."""

    def save(self, number: int, data: bytes | None) -> None:
        """Store bytes under a number; None deletes them."""


class Buckets:
    """The state of each key, spread over buckets.

    The state of a key is its *cell*: a list that msgpack can encode. An empty cell is not stored. ``note`` is a
    function that makes the note of a bucket from its cells. `refresh` and `save` update the notes of changed buckets.
    """

    def __init__(
        self,
        store: Store,
        notes: Notes,
        note: Callable[[dict[bytes, list[Any]]], Any],
        bytes_max: int = BUCKET_BYTES_MAX,
    ) -> None:
        self.notes = notes or {ROOT: None}
        self._bytes_max = bytes_max
        self._store = store
        self._note = note
        self._open: dict[int, dict[bytes, list[Any]]] = {}
        self._changed: set[int] = set()

    def cell(self, key: bytes) -> list[Any]:
        """Return the cell of a key; the caller may change it. A new key gets an empty cell."""
        number = self._number(hash64(key))
        self._changed.add(number)
        return self._bucket(number).setdefault(key, [])

    def cells(self, number: int) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield all keys and cells of a bucket; the caller may change the cells."""
        self._changed.add(number)
        yield from self._bucket(number).items()

    def refresh(self) -> None:
        """Update the notes of all buckets that may have changed."""
        for number in sorted(self._changed):
            self.notes[number] = self._note(self._kept(number))

    def save(self) -> None:
        """Write all buckets that may have changed, and update their notes."""
        for number in sorted(self._changed):
            self._write(number, self._kept(number))
        self._changed.clear()
        self._open.clear()

    def _kept(self, number: int) -> dict[bytes, list[Any]]:
        return {key: cell for key, cell in self._bucket(number).items() if cell}

    def _number(self, hashed: int) -> int:
        number = ROOT
        while number not in self.notes:
            number = 2 * number + (hashed & 1)
            hashed >>= 1
        return number

    def _bucket(self, number: int) -> dict[bytes, list[Any]]:
        if number not in self._open:
            data = self._store.load(number)
            self._open[number] = {} if data is None else unpack(data)
        return self._open[number]

    def _write(self, number: int, cells: dict[bytes, list[Any]]) -> None:
        data: bytes | None = pack(cells) if cells else None
        if data is not None and len(data) > self._bytes_max and len(cells) > 1 and number >> DEPTH_MAX == 0:
            self._split(number, cells)
            return
        self._store.save(number, data)
        self.notes[number] = self._note(cells)

    def _split(self, number: int, cells: dict[bytes, list[Any]]) -> None:
        depth = number.bit_length() - 1
        halves: tuple[dict[bytes, list[Any]], dict[bytes, list[Any]]] = ({}, {})
        for key, cell in cells.items():
            halves[hash64(key) >> depth & 1][key] = cell
        self._store.save(number, None)
        self.notes.pop(number, None)
        for bit, half in enumerate(halves):
            self._write(2 * number + bit, half)


def hash64(key: bytes) -> int:
    """Return a hash that is the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def later(one: int | None, other: int | None) -> int | None:
    """Return the later of two times; None counts as no time."""
    return other if one is None else one if other is None else max(one, other)

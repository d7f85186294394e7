"""State of many keys in few pieces: what one part of a job's windows and joins keeps between batches.

Spark keeps bytes by number, at some hundred microseconds for each that is read or written, so keys do
not get one each.  They are hashed into *buckets* that split in two as they grow (extendible
hashing): a small state is one piece, and of a large one only the pieces are touched whose keys are.
The *index* holds which buckets there are, and a note about each, such as when something in
it is due; so a bucket is read only if a batch has something for it, or its time has come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from onyxq.jobs.values import pack, unpack

BUCKET_BYTES_MAX = 64 * 1024
"""Size above which a bucket is split."""
DEPTH_MAX = 48
ROOT = 1

Notes = dict[int, Any]
"""What is known of each bucket. Bucket ``n`` splits into ``2n`` and ``2n + 1``."""


class Store(Protocol):
    """Where buckets are kept."""

    def load(self, number: int) -> bytes | None:
        """The bytes that were kept under a number."""

    def save(self, number: int, data: bytes | None) -> None:
        """Keep bytes under a number, or (None) nothing."""


class Buckets:
    """Cells by key: lists that msgpack holds, the empty ones forgotten.

    ``note`` makes the note of a bucket out of its cells; what changed is noted by `refresh` and `save`.
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
        """The cell of a key, to be changed; an empty one if there is none."""
        number = self._number(hash64(key))
        self._changed.add(number)
        return self._bucket(number).setdefault(key, [])

    def cells(self, number: int) -> Iterator[tuple[bytes, list[Any]]]:
        """All keys and cells of a bucket, to be changed."""
        self._changed.add(number)
        yield from self._bucket(number).items()

    def refresh(self) -> None:
        """Note what may have changed."""
        for number in sorted(self._changed):
            self.notes[number] = self._note(self._kept(number))

    def save(self) -> None:
        """Write what may have changed, and note it."""
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
    """A hash that is the same wherever it is made."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def later(one: int | None, other: int | None) -> int | None:
    """The later of two times, of which there may be none."""
    return other if one is None else one if other is None else max(one, other)

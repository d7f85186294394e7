"""Bodies of granted tasks: the task row's body, or the body with data that replaced the original.

A unique task runs with the data of its first grant and with no other. An earlier leader may have
written a replacement that was never acknowledged and that is found later. So before the first grant
under another leader, that leader writes the data again with its own mark, which wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onyxq.core.errors import Corrupt
from onyxq.core.facts import DATA, GRANTED, pack_task, slice_task, task_header, unpack_data, unpack_task
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, runs_of, stretch_of
from onyxq.core.task_headers import EXPIRES_MS, UNIQUE_KEY, may_say
from onyxq.leader.completion_rows import history_of
from onyxq.leader.grants.early_rows import EarlyRows
from onyxq.store.interface import Piece
from onyxq.store.store import Store

ROW_CACHE_ROWS = 256
ROW_CACHE_BYTES = 16 * 1024 * 1024


class Bodies:
    """Bodies of the tasks that a node grants."""

    def __init__(
        self,
        store: Store,
        early: EarlyRows,
        is_final: Callable[[TaskId, int, bytes], bool],
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        """Read bodies from ``store``, and those of rows that are being written from ``early``.

        ``is_final(task, epoch, data)`` returns whether the data of a unique task can no longer change. If it can,
        the task is not granted now. It is offered again once its data is final.
        """
        self._store = store
        self._early = early
        self._is_final = is_final
        self._wall_ms = wall_ms
        self._rows: dict[bytes, tuple[bytes, bool]] = {}
        """First id of a task row -> its body, and whether the body needs a closer check."""
        self._rows_bytes = 0

    def of(self, piece: Piece, bits: int, *, most: int) -> list[tuple[Run, bytes]]:
        """Return grantable tasks among ``bits`` of a piece, at most ``most``, in runs with bodies; raises `Corrupt`."""
        body, special = self._early.body(piece.row_first), False
        if body is None:
            if self._never_stored(piece.row_first):
                return []
            body, special = self._row(piece.row_first)
        if special:
            header, _ = task_header(body)
            bits = self._wanted(piece, bits, header)
            if bits and UNIQUE_KEY in header:
                return self._unique(TaskId(piece.row_first), header, body)
        base = offset_of(piece.row_first)
        found = []
        for run in runs_of(stretch_of(piece.first), bits):
            part = Run(run.first, min(run.count, most))
            found.append((part, slice_task(body, offset_of(part.first) - base, part.count)))
            most -= part.count
            if most == 0:
                break
        return found

    def _never_stored(self, first: bytes) -> bool:
        """Return whether a row was refused and did not arrive otherwise: by anti-entropy, or by a repeated request."""
        if not self._early.is_refused(first):
            return False
        return not self._store.known_bits(stretch_of(first)) & mask_of(first, 1)

    def _unique(self, first: TaskId, header: dict[str, Any], body: bytes) -> list[tuple[Run, bytes]]:
        """Return a unique task with its data, or nothing if the data is not final yet."""
        epoch, payload = self._latest(first, header, body)
        had = any(one.event == GRANTED for one in history_of(self._store, first))
        if not had and not self._is_final(first, epoch, payload):
            return []
        return [(Run(first, 1), pack_task(header, [payload]))]

    def _latest(self, first: TaskId, header: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        """Return the data of a unique task, and the epoch of the leader that wrote it."""
        epoch = (header.get("order") or (0, 0, 0))[1]
        payload = unpack_task(body).payload(0)
        for _, stored in self._store.covering(DATA, first):
            replaced = unpack_data(stored)
            epoch, payload = replaced.mark.epoch, replaced.payload
        return epoch, payload

    def _row(self, first: bytes) -> tuple[bytes, bool]:
        found = self._rows.get(first)
        if found is None:
            row = self._store.task_row(first)
            if row is None or row[0] != first:
                raise Corrupt(f"the task row at {first.hex()} is missing")
            if len(self._rows) >= ROW_CACHE_ROWS or self._rows_bytes >= ROW_CACHE_BYTES:
                self._rows.clear()
                self._rows_bytes = 0
            self._rows_bytes += len(row[1])
            found = self._rows[first] = (row[1], may_say(row[1], UNIQUE_KEY, EXPIRES_MS))
        return found

    def _wanted(self, piece: Piece, bits: int, header: dict[str, object]) -> int:
        """Return ``bits`` without tasks that another task of their unique key replaced, and without expired ones."""
        queue, key = header["queue"], header.get(UNIQUE_KEY)
        partition = int.from_bytes(piece.row_first[6:8], "big")
        if key is not None and self._store.unique(partition, str(queue), str(key)) != piece.row_first:
            return 0
        expires_ms = header.get(EXPIRES_MS)
        if isinstance(expires_ms, int) and expires_ms <= self._wall_ms():
            stretch = stretch_of(piece.first)
            for offset in [place for place in range(bits.bit_length()) if bits >> place & 1]:
                if not any(one.event == GRANTED for one in history_of(self._store, id_at(stretch, offset))):
                    bits &= ~(1 << offset)
        return bits

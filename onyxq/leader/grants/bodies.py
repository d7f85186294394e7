"""Bodies of granted tasks, which are those of their rows.

A unique task runs with the data of its first grant and with no other. An earlier leader may have
changed its row without an acknowledgement, and that change may be found later. So before the first
grant under another leader, that leader writes the row again with its own mark, which wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onyxq.core.errors import Corrupt
from onyxq.core.facts import GRANTED, Mark, pack_task, slice_task, task_header, task_mark, unpack_task
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, runs_of, stretch_of
from onyxq.core.task_headers import EXPIRES_MS, MARK, UNIQUE_KEY, may_say
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
        is_final: Callable[[TaskId, int], bool],
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        """Read bodies from ``store``, and those of rows that are being written from ``early``.

        ``is_final(task, epoch)`` returns whether the row of a unique task, which a leader of that epoch wrote, can no
        longer change. If it can, the task is not granted now. It is offered again once its row is final.
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
        """Return a unique task with its body, or nothing if its row is not final yet."""
        had = any(one.event == GRANTED for one in history_of(self._store, first))
        if not had and not self._is_final(first, task_mark(header).epoch):
            return []
        return [(Run(first, 1), body)]

    def _row(self, first: bytes) -> tuple[bytes, bool]:
        found = self._rows.get(first)
        if found is None:
            row = self._store.task_row(first)
            if row is None or row[0] != first:
                raise Corrupt(f"the task row at {first.hex()} is missing")
            if may_say(row[1], UNIQUE_KEY):
                return row[1], True  # it may change
            if len(self._rows) >= ROW_CACHE_ROWS or self._rows_bytes >= ROW_CACHE_BYTES:
                self._rows.clear()
                self._rows_bytes = 0
            self._rows_bytes += len(row[1])
            found = self._rows[first] = (row[1], may_say(row[1], EXPIRES_MS))
        return found

    def _wanted(self, piece: Piece, bits: int, header: dict[str, object]) -> int:
        """Return ``bits`` without superseded tasks, tasks of a piece that has changed, and expired ones."""
        if UNIQUE_KEY in header:
            found = self._store.pieces(stretch_of(piece.row_first), mask_of(TaskId(piece.row_first), 1))
            if (piece.priority, piece.due_ms) not in [(one.priority, one.due_ms) for one in found]:
                return 0
        expires_ms = header.get(EXPIRES_MS)
        if isinstance(expires_ms, int) and expires_ms <= self._wall_ms():
            stretch = stretch_of(piece.first)
            for offset in [place for place in range(bits.bit_length()) if bits >> place & 1]:
                if not any(one.event == GRANTED for one in history_of(self._store, id_at(stretch, offset))):
                    bits &= ~(1 << offset)
        return bits


def marked(body: bytes, mark: Mark) -> bytes:
    """Return the body of a task row of one task with another mark."""
    run = unpack_task(body)
    return pack_task(dict(sorted((run.header | {MARK: list(mark)}).items())), [run.payload(0)])

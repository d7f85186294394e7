"""A simulated disk under a node's memory store: slow, full, or crashing.

Whatever happens is decided by the caller's seeded generator through the fields below,
never here, so a seed replays a run.  Rows can be damaged in place to model bit rot.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from onyxq.core.errors import StoreFailed
from onyxq.core.facts import sealed
from onyxq.store import identity
from onyxq.store.memory import MemoryTable, MemoryTables
from onyxq.store.tables import DERIVED_TABLES


class SimulatedDisk:
    """A `onyxq.store.memory.Disk` with faults; it outlives the stores that open it."""

    def __init__(self, *, delay_ms: Callable[[], int] = lambda: 0) -> None:
        self.tables = MemoryTables()
        self.failing = False
        """While set, nothing is taken: the disk is full or broken."""
        self.damaged = False
        """A page is damaged: the next store finds nothing."""
        self._refused = 0
        self._lands = False
        self.delay_ms = delay_ms
        """How long the next write takes."""
        self._run = 0
        self._pending: Callable[[], None] | None = None

    def open(self) -> int:
        """Begin a run of a store; a store of an earlier run writes no more."""
        self._run += 1
        if self.damaged:
            kept = [(name.encode(), self.tables.meta.get(name.encode())) for name in identity.NAMES]
            self.tables, self.damaged = MemoryTables(), False
            for name, value in kept:
                if value is not None:
                    self.tables.meta.put(name, value)
        return self._run

    def refuse(self, *, times: int, lands: bool) -> None:
        """Refuse the next writes; each is on the disk nevertheless if it ``lands``."""
        self._refused, self._lands = times, lands

    async def sync(self, run: int, apply: Callable[[], None], size: int) -> None:
        """Take the bytes after the delay, all or nothing."""
        self._check(run)
        self._pending = apply
        try:
            await trio.sleep(self.delay_ms() / 1000)
            self._check(run)
            if self._refused:
                self._refused -= 1
                if self._lands:
                    apply()
                raise StoreFailed("the simulated disk refused a write")
            apply()
        finally:
            if run == self._run:
                self._pending = None

    def _check(self, run: int) -> None:
        if run != self._run:
            raise StoreFailed("the process that wrote this crashed")
        if self.failing:
            raise StoreFailed("the simulated disk is full")

    def crash(self, *, keep_unsynced: bool = False) -> None:
        """The process dies now. What was not yet synced is lost, unless it is kept:
        it then is on disk although it was never acknowledged."""
        if keep_unsynced and self._pending is not None and not (self.failing or self.damaged):
            self._pending()
        self._pending = None
        self._run += 1

    def rot(self, key: bytes, *, bit: int = 0, name: str = "rows") -> bool:
        """Flip one bit in the value at a key of a table; False if there is none."""
        table: MemoryTable = getattr(self.tables, name)
        value = table.get(key)
        if value is None:
            return False
        damaged = bytearray(value)
        damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
        table.put(key, bytes(damaged))
        return True

    def sound(self, key: bytes) -> bool:
        """Whether a row is there, and matches its checksum."""
        value = self.tables.rows.get(key)
        return value is not None and sealed(key, value)

    def row_keys(self) -> list[bytes]:
        """Keys of all rows, sorted: what `rot` may damage."""
        return [key for key, _ in self.tables.rows.ascend(b"")]

    def index_keys(self) -> list[tuple[str, bytes]]:
        """Table and key of all entries of the index, which `rot` may damage too."""
        tables: list[tuple[str, MemoryTable]] = [(name, getattr(self.tables, name)) for name in DERIVED_TABLES]
        return [(name, key) for name, table in tables for key, _ in table.ascend(b"")]

"""The store in memory: for the simulator, for tests, and as the model of the LMDB store.

Tables are dictionaries with a sorted list of keys.  They belong to a `Disk`, which outlives the
store as a real disk outlives a process.  Batches enter the tables only after the disk accepted
them, all waiting ones together.  So a crash loses exactly what was not acknowledged, or keeps
it without an acknowledgement, as real disks do.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from onyxq.core.errors import OnyxqError, StoreDamaged, StoreFailed
from onyxq.store.index.applier import Applier, PreparedBatch, prepare_batch
from onyxq.store.index.purge import watermarks_in
from onyxq.store.interface import Batch, Rider, Written
from onyxq.store.store import Store
from onyxq.store.tables import TABLE_NAMES, CheckedTables, Tables
from onyxq.system.procedures import Wait


class MemoryTable:
    """One ordered map; see `onyxq.store.tables.Table`."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self.get: Callable[[bytes], bytes | None] = self._entries.get

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self._entries:
            self._insert(key)
        self._entries[key] = value

    def add(self, key: bytes, value: bytes) -> bool:
        if key in self._entries:
            return False
        self._insert(key)
        self._entries[key] = value
        return True

    def _insert(self, key: bytes) -> None:
        if not self._keys or key > self._keys[-1]:
            self._keys.append(key)
        else:
            self._keys.insert(bisect_left(self._keys, key), key)

    def delete(self, key: bytes) -> bool:
        if self._entries.pop(key, None) is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        return True

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        for place in range(bisect_left(self._keys, start), len(self._keys)):
            key = self._keys[place]
            yield key, self._entries[key]

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        for place in range(bisect_right(self._keys, start) - 1, -1, -1):
            key = self._keys[place]
            yield key, self._entries[key]

    def first(self, start: bytes) -> tuple[bytes, bytes] | None:
        return next(self.ascend(start), None)

    def clear(self, prefix: bytes, limit: int | None = None) -> int:
        begin = end = bisect_left(self._keys, prefix)
        while end < len(self._keys) and self._keys[end].startswith(prefix) and end - begin != limit:
            del self._entries[self._keys[end]]
            end += 1
        del self._keys[begin:end]
        return end - begin

    def equals(self, other: MemoryTable) -> bool:
        """Return whether two tables have the same entries."""
        return self._entries == other._entries

    def size_bytes(self) -> int:
        """Return the bytes of keys and values."""
        return sum(len(key) + len(value) for key, value in self._entries.items())


class MemoryTables(Tables):
    """All tables."""

    rows: MemoryTable

    def __init__(self) -> None:
        for name in TABLE_NAMES:
            setattr(self, name, MemoryTable())


class Disk(Protocol):
    """A home for the tables of a memory store; `simulation.world.disk` has one with faults."""

    tables: MemoryTables

    def open(self) -> int:
        """Begin a run of the store and return its number; writes of earlier runs are refused from now on."""

    async def sync(self, run: int, apply: Callable[[], None], size: int) -> None:
        """Call ``apply`` once ``size`` bytes are durable.

        Raises `StoreFailed` if they cannot be, or if ``run`` is over (then they may or may not be stored).
        """


class PlainDisk:
    """A disk without faults or delay."""

    def __init__(self) -> None:
        self.tables = MemoryTables()

    def open(self) -> int:
        return 0

    async def sync(self, run: int, apply: Callable[[], None], size: int) -> None:
        await trio.lowlevel.checkpoint()
        apply()


class _Ticket:
    """A waiting batch and its outcome."""

    def __init__(self, prepared: PreparedBatch, rider: Rider | None = None) -> None:
        self.prepared = prepared
        self.rider = rider
        self.outcome: Written | OnyxqError | None = None
        self.over = Wait()

    def end(self, outcome: Written | OnyxqError) -> None:
        """Tell the outcome to the writer, or to the rider."""
        self.outcome = outcome
        self.over.end()
        if self.rider is not None:
            self.rider.heard(outcome)


class MemoryStore(Store):
    """A `Store` whose tables live in a `Disk`."""

    def __init__(self, disk: Disk | None = None, *, now_ms: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._disk: Disk = disk or PlainDisk()
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._run = self._disk.open()
        self._tables = CheckedTables(self._disk.tables, self._met_entry)
        self._watermarks = watermarks_in(self._tables.meta)
        self._waiting: list[_Ticket] = []
        self._turn = trio.Lock()
        self._riders_ask = trio.Event()
        self._runs = False
        """Whether a task in `run` commits, as the thread of a store on disk does. Otherwise each writer does."""

    def begin_soon(self) -> None:
        self._check_open()
        self._riders_ask.set()

    async def run(self) -> None:
        self._runs = True
        try:
            while True:
                await self._riders_ask.wait()
                self._riders_ask = trio.Event()
                async with self._turn:
                    await self._commit()
        finally:
            self._runs = False
            for ticket in self._waiting:
                ticket.over.end()  # its writer commits then

    async def write(self, batch: Batch) -> Written:
        self._check_open()
        ticket = _Ticket(prepare_batch(batch))
        self._note_purge(batch)
        self._waiting.append(ticket)
        with self.condition.writing():
            if self._runs:
                self.begin_soon()
                await ticket.over.wait()
            if ticket.outcome is None:
                async with self._turn:
                    if ticket.outcome is None:
                        await self._commit()
        assert ticket.outcome is not None
        if isinstance(ticket.outcome, OnyxqError):
            raise ticket.outcome
        return ticket.outcome

    async def _commit(self) -> None:
        """Commit all waiting batches. A cancelled commit leaves them for the next."""
        riding = [_Ticket(prepared, rider) for rider, prepared in self._taken()]
        self._waiting[:0] = riding
        group = list(self._waiting)
        if not group:
            return
        written: list[Written] = []

        def apply() -> None:
            applier = Applier(self._tables.raw, self._now_ms(), self._watermarks, self._records, self._heads)
            written.extend(applier.apply(ticket.prepared) for ticket in group)
            applier.flush()
            applier.committed()
            for ticket in group:
                self._tell(ticket.prepared.rows)

        try:
            await self._disk.sync(self._run, apply, sum(ticket.prepared.bytes for ticket in group))
        except (StoreFailed, StoreDamaged) as error:
            self.condition.refused(error.message)
            outcomes: list[Written | OnyxqError] = [error] * len(group)
        else:
            self.condition.wrote()
            outcomes = [*written]
        del self._waiting[: len(group)]
        for ticket, outcome in zip(group, outcomes, strict=True):
            ticket.end(outcome)

    def read_through(self, tables: MemoryTables) -> None:
        """Read and write through other tables, which wrap those of the disk."""
        self._tables = CheckedTables(tables, self._met_entry)
        self._heads.forget()

    async def aclose(self) -> None:
        self._closed = True
        async with self._turn:
            if self._waiting or self._riders_ask.is_set():
                await self._commit()

    def size_bytes(self) -> int:
        tables: list[MemoryTable] = list(vars(self._tables.raw).values())
        return sum(table.size_bytes() for table in tables)

"""The store on disk: one LMDB environment per node.

Waiting batches are applied together to one transaction.  Its durable commit takes time and
does not hold the interpreter lock, so it runs in one writer thread.  Batches that arrive
meanwhile form the next group.  Applying happens on the event loop's thread.  It is interpreter
work: a second thread would only pass the interpreter lock back and forth at every call into
LMDB.

Reads see a snapshot that is renewed when a commit ends, before the writers are woken.
LMDB's own locks are off.  The data directory's lock admits one process.  Transactions begin
one after the other on one thread.  The snapshot is never older than the transaction before the
one being written, and LMDB does not reuse that transaction's pages.

After a failed write of its meta page, LMDB accepts no more writes.  Then the meta pages are
written again until the disk accepts them, and the environment is opened again.  It holds
everything that was acknowledged, and perhaps the batch of the failed write.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import lmdb
import trio

from onyxq.core.errors import Corrupt, OnyxqError, StoreDamaged, StoreFailed
from onyxq.core.facts import seal
from onyxq.store import identity
from onyxq.store.environment import Failure, cannot_open, judge, open_file
from onyxq.store.index.applier import Applier, PreparedBatch, prepare_batch
from onyxq.store.index.purge import watermarks_in
from onyxq.store.integrity.lmdb_check import DATA, note_closed, note_doubt, set_aside, write_metas_again
from onyxq.store.interface import NODE_META, Batch, Rider, Written
from onyxq.store.store import Store
from onyxq.store.tables import FORMAT_KEY, TABLE_NAMES, CheckedTables, Tables
from onyxq.system.directories import PRIVATE, PRIVATE_FILE
from onyxq.system.directory_lock import lock_file
from onyxq.system.procedures import Wait

MAP_BYTES = 1 << 30
"""First size of the memory map, in bytes; it doubles when it is full. Only the used part takes space on the disk."""
GROUP_BATCHES_MAX = 256
"""Batches in one transaction. Bounds how long the event loop is busy with one group."""
GROUP_BYTES_MAX = 32 * 1024 * 1024
IN_USE = "Stop that process, or give this one a data directory of its own."
FORMAT = b"6"
_OPTIONS: dict[str, Any] = {
    "max_dbs": len(TABLE_NAMES),
    "lock": False,
    "meminit": False,
    "max_spare_txns": 2,
    "mode": PRIVATE_FILE,
}
_Done: TypeAlias = Callable[[Exception | None], None]

_log = logging.getLogger(__name__)


class LmdbTable:
    """One named database inside a transaction; values are views into the map.

    Keys that are out of order raise `lmdb.CorruptedError`: LMDB would miss some of them.
    """

    __slots__ = ("_db", "_txn")

    def __init__(self, txn: lmdb.Transaction, db: Any) -> None:
        self._txn = txn
        self._db = db

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return cast("bytes | None", self._txn.get(key, db=self._db))

    def put(self, key: bytes, value: bytes) -> object:
        """Set the value of a key."""
        return self._txn.put(key, value, db=self._db)

    def add(self, key: bytes, value: bytes) -> bool:
        """Put unless the key exists; return whether it was put."""
        return self._txn.put(key, value, overwrite=False, db=self._db)

    def delete(self, key: bytes) -> bool:
        """Delete a key; return whether it existed."""
        return self._txn.delete(key, db=self._db)

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(self._db) as cursor:
            found = cursor.set_range(start) if start else cursor.first()
            last: bytes | None = None
            while found:
                key = bytes(cursor.key())
                if last is not None and key <= last:
                    raise lmdb.CorruptedError("keys are out of order")
                yield key, cast(bytes, cursor.value())
                last = key
                found = cursor.next()

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(self._db) as cursor:
            if not cursor.set_range(start):
                found = cursor.last()
            else:
                found = bytes(cursor.key()) == start or cursor.prev()
            last: bytes | None = None
            while found:
                key = bytes(cursor.key())
                if last is not None and key >= last:
                    raise lmdb.CorruptedError("keys are out of order")
                yield key, cast(bytes, cursor.value())
                last = key
                found = cursor.prev()

    def first(self, start: bytes) -> tuple[bytes, bytes] | None:
        with self._txn.cursor(self._db) as cursor:
            if not cursor.set_range(start):
                return None
            return bytes(cursor.key()), cast(bytes, cursor.value())

    def clear(self, prefix: bytes, limit: int | None = None) -> int:
        with self._txn.cursor(self._db) as cursor:
            size, deleted = len(prefix), 0
            found = cursor.set_range(prefix)
            while found and deleted != limit and bytes(cursor.key()[:size]) == prefix:
                cursor.delete()
                deleted += 1
                # Deleting leaves the cursor at the next entry, or without one.
                found = bool(cursor.key())
            return deleted


class ReadTable(LmdbTable):
    """A table that is only read; ``failed`` converts an LMDB error into the error to raise."""

    __slots__ = ("_failed",)

    def __init__(self, txn: lmdb.Transaction, db: Any, failed: Callable[[lmdb.Error], OnyxqError]) -> None:
        super().__init__(txn, db)
        self._failed = failed

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        try:
            return cast("bytes | None", self._txn.get(key, db=self._db))
        except lmdb.Error as error:
            raise self._failed(error) from error

    def first(self, start: bytes) -> tuple[bytes, bytes] | None:
        try:
            return super().first(start)
        except lmdb.Error as error:
            raise self._failed(error) from error

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from super().ascend(start)
        except lmdb.Error as error:
            raise self._failed(error) from error

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from super().descend(start)
        except lmdb.Error as error:
            raise self._failed(error) from error


class LmdbTables(Tables):
    """All tables of one transaction.

    ``failed``: given for a transaction that only reads; see `ReadTable`.
    """

    def __init__(
        self, txn: lmdb.Transaction, dbs: dict[str, Any], failed: Callable[[lmdb.Error], OnyxqError] | None = None
    ) -> None:
        self._txn = txn
        self._dbs = dbs
        self._failed = failed

    def __getattr__(self, name: str) -> LmdbTable:
        # Made on first use: most transactions touch few tables.
        if name not in self._dbs:
            raise AttributeError(name)
        db, failed = self._dbs[name], self._failed
        table = LmdbTable(self._txn, db) if failed is None else ReadTable(self._txn, db, failed)
        setattr(self, name, table)
        return table


class _Ticket:
    """A waiting batch, and its outcome."""

    __slots__ = ("over", "prepared", "result", "rider")

    def __init__(self, prepared: PreparedBatch, *, rider: Rider | None = None) -> None:
        self.prepared = prepared
        self.rider = rider
        self.result: Written | OnyxqError | None = None
        self.over = Wait()


class LmdbStore(Store):
    """A `Store` in one LMDB environment. Make it with `LmdbStore.open`."""

    def __init__(self, env: lmdb.Environment, lock: int, *, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._directory = Path(env.path())
        self._lock = lock
        self._now_ms = now_ms
        self._token = trio.lowlevel.current_trio_token()
        self._waiting: deque[_Ticket] = deque()
        self._group: list[_Ticket] = []
        self._written: list[Written] = []
        self._applier: Applier | None = None
        """Of the transaction under way."""
        self._busy = False
        self._begin_asked = False
        self._riders_ask = False
        """Whether a transaction is due although no batch waits: a rider may have one."""
        self._sound = True
        """Whether the file may be trusted once it is closed."""
        self._idle = trio.Event()
        self._work: queue.SimpleQueue[tuple[Callable[[], None], _Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work_loop, name="onyxq-store", daemon=True)
        self._use(env)

    def _use(self, env: lmdb.Environment) -> None:
        """Read and write in an environment that was just opened."""
        self._env = env
        self._map_bytes = int(env.info()["map_size"])
        self._heads.forget()
        self._dbs = {name: env.open_db(name.encode()) for name in TABLE_NAMES}
        self._begin_snapshot()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        now_ms: Callable[[], int] | None = None,
        map_bytes: int = MAP_BYTES,
    ) -> LmdbStore:
        """Open or create the store in a directory; call it inside trio.

        ``now_ms`` gives milliseconds since the epoch. Raises `Conflict` if another
        process has the directory, `StoreFailed` if it cannot be used, and `Corrupt` if
        the file is damaged and must not be opened (see `onyxq.store.integrity.lmdb_check`).
        """
        directory = Path(path)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
            lock = lock_file(directory / "node.lock", what=f"the data directory {directory}", hint=IN_USE)
        except OSError as error:
            raise StoreFailed(f"the data directory {directory} cannot be used: {error}") from error
        env = store = None
        try:
            env = open_file(directory, map_size=map_bytes, **_OPTIONS)
            _check_format(env, directory)
            _take_identity(env, directory)
            now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
            store = cls(env, lock, now_ms=now_ms)
            store.check_promises()
            store._watermarks = watermarks_in(store._tables.meta)
        except BaseException as error:
            if store is not None:
                store._snapshot.abort()
            if env is not None:
                env.close()
            os.close(lock)
            raise cannot_open(error, directory) from error
        store._thread.start()
        return store

    @classmethod
    def open_or_begin_anew(cls, path: str | os.PathLike[str], *, now_ms: Callable[[], int] | None = None) -> LmdbStore:
        """Open as `open` does, but replace a damaged store by an empty one; the damaged file is renamed."""
        try:
            return cls.open(path, now_ms=now_ms)
        except Corrupt as error:
            try:
                set_aside(Path(path), error.message)
            except OSError as failed:
                raise StoreFailed(f"{error.message}; it cannot be set aside: {failed}") from failed
        return cls.open(path, now_ms=now_ms)

    # --- writing ------------------------------------------------------------------

    async def write(self, batch: Batch) -> Written:
        self._check_open()
        ticket = _Ticket(prepare_batch(batch))
        self._note_purge(batch)
        self._waiting.append(ticket)
        self._ask_begin()
        with self.condition.writing():
            await ticket.over.wait()
        if isinstance(ticket.result, OnyxqError):
            raise ticket.result
        assert ticket.result is not None
        return ticket.result

    def begin_soon(self) -> None:
        self._check_open()
        self._riders_ask = True
        self._ask_begin()

    async def run(self) -> None:
        await trio.sleep_forever()  # the event loop begins them

    def _ask_begin(self) -> None:
        """Begin in the loop's next tick, so that other writes of this tick join the group."""
        if not self._busy and not self._begin_asked:
            self._begin_asked = True
            self._token.run_sync_soon(self._begin)

    def _begin(self) -> None:
        """Apply waiting groups until one is on its way to the disk."""
        self._begin_asked = False
        while (self._waiting or self._riders_ask) and not self._busy:
            self._riders_ask = False
            for rider, prepared in self._taken():
                self._waiting.appendleft(_Ticket(prepared, rider=rider))
            self._group = self._take()
            if self._group:
                self._apply()
        if not self._waiting and not self._busy:
            self._idle.set()

    def _take(self) -> list[_Ticket]:
        size = 0
        group: list[_Ticket] = []
        while self._waiting and len(group) < GROUP_BATCHES_MAX and size < GROUP_BYTES_MAX:
            group.append(self._waiting.popleft())
            size += group[-1].prepared.bytes
        return group

    def _apply(self) -> None:
        """Apply the group to a transaction and pass that to the writer thread."""
        if self.condition.fatal is not None:
            self._fail(self.condition.fatal)
            return
        txn = None
        try:
            txn = self._env.begin(write=True, buffers=True)
            tables = LmdbTables(txn, self._dbs)
            applier = Applier(tables, self._now_ms(), self._watermarks, self._records, self._heads)
            self._written = [applier.apply(ticket.prepared) for ticket in self._group]
            applier.flush()
            self._applier = applier
        except Exception as error:
            if txn is not None:
                txn.abort()
            self._not_written(error)
        else:
            known = identity.kept_in(entry for ticket in self._group for entry in ticket.prepared.batch.meta)
            self._do(partial(self._commit, txn, known) if known else txn.commit, self._committed)

    def _commit(self, txn: lmdb.Transaction, known: dict[str, str]) -> None:
        """Commit values that the identity file keeps, in the writer thread."""
        try:
            identity.write(self._directory, known)
        except OSError:
            txn.abort()
            raise
        txn.commit()

    def _do(self, work: Callable[[], None], done: _Done) -> None:
        """Run ``work`` in the writer thread, then call ``done`` in the event loop with the failure or None."""
        self._busy = True
        self._work.put((work, done))

    def _work_loop(self) -> None:
        """Make one transaction after the other durable, in the writer thread."""
        while (item := self._work.get()) is not None:
            work, done = item
            failure: Exception | None = None
            try:
                work()
            except Exception as error:
                failure = error
            del item, work
            try:
                self._token.run_sync_soon(done, failure)
            except trio.RunFinishedError:
                return

    def _committed(self, failure: Exception | None) -> None:
        self._busy = False
        if failure is not None:
            self._not_written(failure)
        elif self.condition.fatal is None:
            group, written = self._group, self._written
            self._group, self._written = [], []
            if self._applier is not None:
                self._applier.committed()
            self._renew()
            self.condition.wrote()
            for ticket in group:
                self._tell(ticket.prepared.rows)
            for ticket, result in zip(group, written, strict=True):
                _wake(ticket, result)
        self._begin()

    # --- failures -----------------------------------------------------------------

    def _not_written(self, error: Exception) -> None:
        """Try the group that failed again where that helps; otherwise fail its writers."""
        failure = judge(error)
        if failure is Failure.FULL:
            self._grow()
            self._apply()
        elif failure is Failure.STOPPED:
            self._do(partial(write_metas_again, self._directory / DATA), self._open_again)
        elif failure is Failure.DAMAGE:
            self._fail(self._met_damage(error))
        else:
            if failure is Failure.BUG:
                _log.error("a group of %d batches could not be applied", len(self._group), exc_info=error)
                self.doubt()
            self.condition.refused(str(error))
            self._fail(StoreFailed(f"the store could not write: {error}"))

    def _open_again(self, failure: Exception | None) -> None:
        """Continue from the last transaction in a new environment: the disk and LMDB agree about it."""
        self._busy = False
        if failure is not None:
            self._not_written(failure)
        else:
            self._snapshot.abort()
            self._env.close()
            try:
                self._use(lmdb.open(str(self._directory), map_size=self._map_bytes, **_OPTIONS))
            except (lmdb.Error, OSError) as error:
                self._end(StoreFailed(f"the store in {self._directory} cannot be opened again: {error}"))
            else:
                _log.warning("the store in %s was opened again after a write that failed", self._directory)
                self._apply()
        self._begin()

    def _not_read(self, error: lmdb.Error) -> OnyxqError:
        """Return the error that a reader gets for an error of LMDB."""
        if self._closed or self.condition.fatal is not None:
            return self.condition.fatal or StoreFailed("the store is closed")
        if judge(error) is Failure.DAMAGE:
            return self._met_damage(error)
        return StoreFailed(f"the store could not read: {error}")

    def _met_damage(self, error: Exception) -> OnyxqError:
        """Note that the file is damaged: the next start examines it, and the node must end."""
        if self.condition.fatal is None:
            note_doubt(self._directory, f"{type(error).__name__}: {error}")
        return self._end(StoreDamaged(f"the store in {self._directory} is damaged: {error}"))

    def _end(self, error: OnyxqError) -> OnyxqError:
        """End the use of the store: all waiting writes fail with the error, which is returned."""
        self._sound = False
        self.condition.end(error)
        waiting, self._waiting = self._waiting, deque()
        for ticket in waiting:
            _wake(ticket, error)
        self._fail(error)
        return error

    def doubt(self) -> None:
        """Have the file examined page by page before it is opened the next time."""
        if self._sound:
            self._sound = False
            note_doubt(self._directory)

    def _fail(self, error: OnyxqError) -> None:
        group, self._group, self._written = self._group, [], []
        for ticket in group:
            _wake(ticket, error)

    # --- the map ------------------------------------------------------------------

    def _grow(self) -> None:
        """Double the map. No write transaction may be open."""
        self._snapshot.abort()
        try:
            self._env.set_mapsize(2 * self._map_bytes)
            self._map_bytes *= 2
            self._begin_snapshot()
        except lmdb.Error as error:
            self._end(StoreFailed(f"the store in {self._directory} cannot be mapped: {error}"))

    def _renew(self) -> None:
        """Let reads see the last committed transaction."""
        self._snapshot.abort()
        try:
            self._begin_snapshot()
        except lmdb.Error as error:
            self._end(StoreFailed(f"the store in {self._directory} cannot be read: {error}"))

    def _begin_snapshot(self) -> None:
        self._snapshot = self._env.begin(buffers=True)
        self._tables = CheckedTables(LmdbTables(self._snapshot, self._dbs, self._not_read), self._met_entry)

    # --- the end ------------------------------------------------------------------

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        with trio.CancelScope(shield=True):
            while self._busy or self._waiting or self._riders_ask:
                self._idle = trio.Event()
                self._ask_begin()
                await self._idle.wait()
            self._work.put(None)
            await trio.to_thread.run_sync(self._thread.join)
        self._snapshot.abort()
        self._env.close()
        try:
            if self._sound:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(note_closed, self._directory)
        except OSError as error:
            _log.warning("the store in %s was closed, but that cannot be noted: %s", self._directory, error)
        finally:
            os.close(self._lock)

    def size_bytes(self) -> int:
        """Return the bytes of the file that were ever used; LMDB reuses but does not return them."""
        return (int(self._env.info()["last_pgno"]) + 1) * int(self._env.stat()["psize"])


def _wake(ticket: _Ticket, result: Written | OnyxqError) -> None:
    ticket.result = result
    if ticket.rider is not None:
        ticket.rider.heard(result)
    ticket.over.end()


def _take_identity(env: lmdb.Environment, directory: Path) -> None:
    """Give a new store the identity of the node whose directory it is in."""
    meta = env.open_db(b"meta")
    with env.begin(write=True) as txn:
        if txn.get(NODE_META.encode(), db=meta) is None:
            for name, value in identity.read(directory).items():
                txn.put(name.encode(), seal(name.encode(), value.encode()), db=meta)


def _check_format(env: lmdb.Environment, directory: Path) -> None:
    meta = env.open_db(b"meta")
    with env.begin(write=True) as txn:
        stored = txn.get(FORMAT_KEY, db=meta)
        if stored is None:
            txn.put(FORMAT_KEY, FORMAT, db=meta)
        elif bytes(stored) != FORMAT:
            raise StoreFailed(
                f"the store in {directory} has format {stored!r}, this version reads {FORMAT!r}",
                hint="Use the version of OnyxQ that wrote it.",
            )

"""The file of the embedded log: records, the origin and the ends of segments in one LMDB environment.

A record's key is its position, its value the record (`onyxq.core.log.stored`) and a checksum.

One thread writes, the event loop's thread reads records.  After a write that stops LMDB, the
environment is opened again; it may then hold records that were not acknowledged.  A damaged file is
never replaced: no other copy of the log exists.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import lmdb
import msgpack
from attrs import astuple, evolve, frozen

from onyxq.core.errors import Corrupt, LogDamaged, LogUnavailable
from onyxq.core.facts import seal, unseal
from onyxq.core.log.interface import START, Origin, Record, segment_of, segment_start
from onyxq.core.log.stored import pack_records, unpack_records
from onyxq.store.environment import Failure, cannot_open, judge, open_file
from onyxq.store.integrity.lmdb_check import DATA, note_closed, note_doubt, write_metas_again
from onyxq.system.directories import PRIVATE_FILE

MAP_BYTES = 64 << 30
"""Address space reserved for the log, in bytes. It takes disk space only as it grows."""
LOAD_RECORDS, LOAD_BYTES = 256, 4 << 20
"""Most records, and bytes, that a late reader takes from the disk at once."""
TRIM_BATCH_RECORDS = 1_000

FORMAT = b"1"
_FORMAT, _NEXT, _ORIGIN, _ENDS = b"format", b"next", b"origin", b"ends"
_OPTIONS: dict[str, Any] = {"map_size": MAP_BYTES, "max_dbs": 2, "readahead": False, "mode": PRIVATE_FILE}

_log = logging.getLogger(__name__)
T = TypeVar("T")


@frozen
class Pointer:
    """The origin's row (a msgpack list of these fields); the origin's bytes are a row of their own."""

    position: int
    trimmed: int
    generation: int


class LogFile:
    """The file of the embedded log. All methods but `fetch` belong to one thread.

    They raise `LogDamaged`, and `LogUnavailable` if the disk refuses something. Then the data to be
    written may or may not be stored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        """Held by a reader, and while the environment is replaced."""
        self._sound = True
        self._stopped = False
        """Whether the environment must be opened again."""
        self.next = 0
        """Position of the next record."""
        self.ends: tuple[int, ...] = ()
        """End position of each closed segment."""
        self.pointer: Pointer | None = None
        env = None
        try:
            # Sync on commit; no read-ahead, because the log is read in order once, or from memory.
            env = open_file(path, follow_bytes_max=MAP_BYTES, **_OPTIONS)
            self._use(env)
        except Exception as error:
            if env is not None:
                env.close()
            raise cannot_open(error, f"the log in {path}", damaged=LogDamaged, failed=LogUnavailable) from error

    def _use(self, env: lmdb.Environment) -> None:
        self._env = env
        self._records = env.open_db(b"records")
        self._meta = env.open_db(b"meta")
        self.next, self.pointer, self.ends = self._load()

    def _load(self) -> tuple[int, Pointer | None, tuple[int, ...]]:
        with self._env.begin(write=True) as transaction:
            stored = transaction.get(_FORMAT, db=self._meta)
            if stored is None:
                transaction.put(_FORMAT, FORMAT, db=self._meta)
            elif stored != FORMAT:
                raise LogUnavailable(
                    f"the log in {self._path} has format {stored!r}, this version reads {FORMAT!r}",
                    hint="Use the version of OnyxQ that wrote it.",
                )
            following, pointer, ends = (transaction.get(key, db=self._meta) for key in (_NEXT, _ORIGIN, _ENDS))
        try:
            return (
                msgpack.unpackb(following) if following else 0,
                Pointer(*msgpack.unpackb(pointer)) if pointer else None,
                tuple(msgpack.unpackb(ends)) if ends else (),
            )
        except (TypeError, ValueError, msgpack.UnpackException) as error:
            raise LogDamaged(f"the description of the log is malformed: {error}") from None

    def close(self) -> None:
        """Close the file, and leave a note of that if no damage was met."""
        self._env.close()
        if self._sound:
            note_closed(self._path)

    # --- failures ---------------------------------------------------------------------

    def write(self, work: Callable[[], T]) -> T:
        """Do work that writes; open the environment again first if the last write stopped it."""
        try:
            if not self._stopped:
                with suppress(lmdb.PanicError):
                    return work()
            self._open_again()
            return work()
        except (lmdb.Error, OSError) as error:
            self._failed(error, "written")

    def _open_again(self) -> None:
        self._stopped = True
        write_metas_again(self._path / DATA)
        with self._lock:
            self._env.close()
            self._use(lmdb.open(str(self._path), **_OPTIONS))
        self._stopped = False
        _log.warning("the log in %s was opened again after a write that failed", self._path)

    def _failed(self, error: Exception, what: str) -> NoReturn:
        if judge(error) is Failure.DAMAGE:
            self._sound = False
            note_doubt(self._path, f"{type(error).__name__}: {error}")
            raise LogDamaged(f"the log in {self._path} is damaged: {error}") from error
        raise LogUnavailable(f"the log in {self._path} cannot be {what}: {error}") from error

    # --- records ----------------------------------------------------------------------

    def append(self, data: Sequence[bytes], ctime_ms: int) -> list[Record]:
        """Write records after the last one and return them."""
        first = self.next
        written = [Record(first + number, ctime_ms, one) for number, one in enumerate(data)]
        with self._env.begin(write=True) as transaction:
            for record in written:
                key = _key(record.position)
                transaction.put(key, seal(key, pack_records([record])), db=self._records, append=True)
            transaction.put(_NEXT, msgpack.packb(first + len(data)), db=self._meta)
        self.next = first + len(data)
        return written

    def fetch(self, position: int, end: int) -> list[Record]:
        """Return some records from ``position`` to below ``end``; none if the first one was trimmed."""
        try:
            with self._lock, self._env.begin() as transaction, transaction.cursor(db=self._records) as cursor:
                return _load_records(cursor, position, end) if cursor.set_key(_key(position)) else []
        except lmdb.Error as error:
            self._failed(error, "read")

    def close_segment(self, segment_records: int) -> bool:
        """Begin the next segment with the next record if this one is full; return whether it was."""
        end = self.next
        if end - segment_start(segment_of(end)) < segment_records:
            return False
        following, ends = segment_start(segment_of(end) + 1), (*self.ends, end)
        with self._env.begin(write=True) as transaction:
            transaction.put(_NEXT, msgpack.packb(following), db=self._meta)
            transaction.put(_ENDS, msgpack.packb(ends), db=self._meta)
        self.next, self.ends = following, ends
        return True

    def drop_all(self) -> None:
        """Delete every record and the origin."""
        with self._env.begin(write=True) as transaction:
            transaction.drop(self._records, delete=False)
            transaction.drop(self._meta, delete=False)
            transaction.put(_FORMAT, FORMAT, db=self._meta)
        self.next, self.pointer, self.ends = 0, None, ()

    # --- the origin -------------------------------------------------------------------

    def origin(self) -> Origin | None:
        """Return the origin, or None."""
        found = self.pointer
        if found is None:
            return None
        key = _origin_key(found.generation)
        with self._env.begin() as transaction:
            data = transaction.get(key, db=self._meta)
        try:
            return Origin(found.position, unseal(key, data or b""), found.trimmed, found.generation)
        except Corrupt:
            raise LogDamaged(f"the origin at {found.position} does not match its checksum") from None

    def put_origin(self, position: int, data: bytes, expected: int) -> Pointer | None:
        """Replace the origin of generation ``expected`` and return the new pointer.

        None if the present origin has another generation, or is not older.
        """
        found = self.pointer
        if (found.generation if found else -1) != expected or (found and position <= found.position):
            return None
        pointer = Pointer(position, found.trimmed if found else START, expected + 1)
        key = _origin_key(pointer.generation)
        with self._env.begin(write=True) as transaction:
            if found:
                transaction.delete(_origin_key(found.generation), db=self._meta)
            transaction.put(key, seal(key, data), db=self._meta)
            transaction.put(_ORIGIN, msgpack.packb(astuple(pointer)), db=self._meta)
        self.pointer = pointer
        return pointer

    def trim_batch(self, upto: int) -> tuple[Pointer | None, int]:
        """Delete up to `TRIM_BATCH_RECORDS`; return the new pointer and the number of deleted records."""
        found = self.pointer
        if found is None:
            return None, 0
        last = min(upto, found.position)
        if last <= found.trimmed:
            return found, 0
        with self._env.begin(write=True) as transaction, transaction.cursor(db=self._records) as cursor:
            deleted = 0
            cursor.first()
            while (key := cursor.key()) and key <= _key(last) and deleted < TRIM_BATCH_RECORDS:
                cursor.delete()
                deleted += 1
            # The remaining records begin here; positions without a record are skipped.
            trimmed = min(last, int.from_bytes(key, "big") - 1) if key else last
            pointer = evolve(found, trimmed=trimmed)
            transaction.put(_ORIGIN, msgpack.packb(astuple(pointer)), db=self._meta)
        self.pointer = pointer
        return pointer, deleted


def _load_records(cursor: lmdb.Cursor, position: int, end: int) -> list[Record]:
    records: list[Record] = []
    size = 0
    for key, value in cursor:
        if int.from_bytes(key, "big") >= end or len(records) == LOAD_RECORDS or size >= LOAD_BYTES:
            break
        records.append(_unseal(bytes(key), bytes(value)))
        size += len(value)
    return records


def _unseal(key: bytes, value: bytes) -> Record:
    try:
        (record,) = unpack_records(unseal(key, value))
    except (Corrupt, ValueError):
        position = int.from_bytes(key, "big")
        raise LogDamaged(f"record {position} of the log does not match its checksum") from None
    return record


def _key(position: int) -> bytes:
    return position.to_bytes(8, "big")


def _origin_key(generation: int) -> bytes:
    return b"origin-%d" % generation

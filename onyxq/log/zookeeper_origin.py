"""The origin in ZooKeeper: chunks, then one pointer set last; and trimming of the log before it.

Chunk names carry the position and a random name of their writer, so writers never touch
each other's chunks. The pointer is replaced only if its znode is unchanged since it was
read and still has the generation that the writer built upon. It also holds how far the
log is trimmed: records and progress change in one ZooKeeper transaction.
"""

from __future__ import annotations

import secrets
import zlib
from typing import Any

import msgpack
import trio
from attrs import astuple, evolve, frozen
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from onyxq.core.errors import Corrupt
from onyxq.core.log.interface import START, Origin, segment_of, segment_start
from onyxq.log.kazoo_client import BROKEN, Link, create, delete, get, replace, sync
from onyxq.log.zookeeper_reader import Layout
from onyxq.log.zookeeper_segments import Segments

CHUNK_BYTES = 512 * 1024
TRIM_BATCH_RECORDS = 50
"""Records deleted in one transaction.

Appends wait for it. Readers wait too, because each deletion is an event for each of them.
"""
TRIM_S = 20.0
"""Target duration of a trim, in seconds.

It leaves room for appends. It still outpaces them, because a trim deletes only what was
appended since the last one.
"""
TRIM_RECORDS_PER_S_MIN = 1_000
TRIM_RECORDS_PER_S_MAX = 2_500
_READ_TRIES = 10


@frozen
class Pointer:
    """Contents of the pointer's znode (as a msgpack list of these fields)."""

    position: int
    chunks: int
    crc: int
    """CRC-32 over all chunks."""
    trimmed: int
    writer: str
    generation: int
    """Number of the origin among those of this cluster; `Origin.version`."""

    def pack(self) -> bytes:
        return bytes(msgpack.packb(astuple(self)))

    @staticmethod
    def unpack(data: bytes) -> Pointer:
        """Return the pointer in a znode's bytes; raises `Corrupt`."""
        try:
            return Pointer(*msgpack.unpackb(data))
        except (TypeError, ValueError, msgpack.UnpackException) as error:
            raise Corrupt(f"the origin's pointer is malformed: {error}") from None


def position_of(data: bytes) -> int:
    """Return the origin's position in the pointer's bytes."""
    return Pointer.unpack(data).position


class Origins:
    """Reads and stores one cluster's origin, and trims the log before it."""

    def __init__(self, link: Link, layout: Layout) -> None:
        self._link = link
        self._layout = layout

    async def position(self) -> int:
        """Return the origin's position; START if there is none."""
        pointer, _ = await self._pointer()
        return pointer.position if pointer is not None else START

    async def trimmed(self) -> int:
        """Return the last deleted position; START if there is none. It needs no chunks, which may be damaged."""
        await self._link.insist(sync(self._layout.root))
        pointer, _ = await self._pointer()
        return pointer.trimmed if pointer is not None else START

    async def read(self) -> Origin | None:
        await self._link.insist(sync(self._layout.root))
        for _ in range(_READ_TRIES):
            pointer, _version = await self._pointer()
            if pointer is None:
                return None
            try:
                chunks = [await self._chunk(pointer, number) for number in range(pointer.chunks)]
            except NoNodeError:  # a newer origin replaced it meanwhile
                continue
            data = b"".join(chunks)
            if zlib.crc32(data) != pointer.crc:
                raise Corrupt(f"the origin at {pointer.position} does not match its checksum")
            return Origin(pointer.position, data, pointer.trimmed, pointer.generation)
        raise Corrupt(f"chunks of the origin at {self._layout.pointer} are missing")

    async def store(self, position: int, data: bytes, *, expected_version: int) -> bool:
        found, _ = await self._pointer()
        if not _may_follow(found, position, expected_version):
            return False
        count = max(1, -(-len(data) // CHUNK_BYTES))
        pointer = Pointer(position, count, zlib.crc32(data), START, secrets.token_hex(8), expected_version + 1)
        for number in range(count):
            await self._write_chunk(pointer, number, data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])
        won = await self._set_pointer(pointer, expected_version)
        if won:
            await self._delete_older_chunks(pointer)
        else:
            await self._delete([self._chunk_path(pointer, number) for number in range(count)])
        return won

    async def trim(self, upto: int, segments: Segments) -> int:
        deleted, per_s = 0, 0.0
        while True:
            await self._link.wait_connected()
            pointer, version = await self._pointer()
            if pointer is None:
                return deleted
            per_s = per_s or _pace(upto - pointer.trimmed)
            first, last = pointer.trimmed + 1, min(upto, pointer.position)
            if first > last:
                return deleted
            started = trio.current_time()
            if (segment := segment_of(first)) < segment_of(last):
                last = segment_start(segment) + await segments.written(segment) - 1
                if first > last:
                    if await segments.drop(segment):
                        await self._skip_segment(pointer, version, segment)
                    continue
            last = min(last, first + TRIM_BATCH_RECORDS - 1)
            try:
                deleted += await self._trim_batch(evolve(pointer, trimmed=last), version, first)
            except BROKEN:  # the pointer shows whether it was carried out
                await self._link.pause()
                continue
            await trio.sleep_until(started + (last - first + 1) / per_s)

    async def _skip_segment(self, pointer: Pointer, version: int, segment: int) -> None:
        """Note that a closed segment is gone, unless another change came first."""
        moved = evolve(pointer, trimmed=segment_start(segment + 1) - 1)
        try:
            await self._link.call(replace(self._layout.pointer, moved.pack(), version=version))
        except BadVersionError:
            pass
        except BROKEN:
            await self._link.pause()

    async def _trim_batch(self, pointer: Pointer, version: int, first: int) -> int:
        paths = [self._layout.record(position) for position in range(first, pointer.trimmed + 1)]

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            transaction.set_data(self._layout.pointer, pointer.pack(), version)
            for path in paths:
                transaction.delete(path)
            return transaction.commit_async()

        results = await self._link.call(commit)
        if not any(isinstance(result, Exception) for result in results):
            return len(paths)
        if isinstance(results[0], BadVersionError):  # a new origin, or another writer's progress
            return 0
        # Another client deleted a record: delete the rest one by one.
        deleted = await self._delete(paths)
        try:
            await self._link.call(replace(self._layout.pointer, pointer.pack(), version=version))
        except BadVersionError:
            pass
        return deleted

    async def _set_pointer(self, pointer: Pointer, expected_version: int) -> bool:
        while True:
            found, version = await self._pointer()
            if found is not None and found.writer == pointer.writer:
                return True  # an earlier try, whose answer was lost, was carried out
            if not _may_follow(found, pointer.position, expected_version):
                return False
            data = evolve(pointer, trimmed=found.trimmed if found else START).pack()
            try:
                if found is None:
                    await self._link.call(create(self._layout.pointer, data))
                else:
                    await self._link.call(replace(self._layout.pointer, data, version=version))
                return True
            except (BadVersionError, NodeExistsError):
                continue
            except BROKEN:
                await self._link.pause()

    async def _pointer(self) -> tuple[Pointer | None, int]:
        """Return the pointer and its znode's version."""
        try:
            data, stat = await self._link.insist(get(self._layout.pointer))
        except NoNodeError:
            return None, -1
        return Pointer.unpack(data), stat.version

    def _chunk_path(self, pointer: Pointer, number: int) -> str:
        return f"{self._layout.origins}/{pointer.position}-{pointer.writer}-{number}"

    async def _chunk(self, pointer: Pointer, number: int) -> bytes:
        path = self._chunk_path(pointer, number)
        data, _ = await self._link.insist(get(path))
        return bytes(data)

    async def _write_chunk(self, pointer: Pointer, number: int, data: bytes) -> None:
        path = self._chunk_path(pointer, number)
        try:
            await self._link.insist(create(path, data))
        except NodeExistsError:
            pass  # an earlier try, whose answer was lost, was carried out

    async def _delete_older_chunks(self, pointer: Pointer) -> None:
        """Delete the chunks below the new origin: its predecessor's, and those of crashed writers."""
        names = await self._link.insist(lambda client: client.get_children_async(self._layout.origins))
        older = [name for name in names if name[:1].isdigit() and int(name.split("-")[0]) < pointer.position]
        await self._delete([f"{self._layout.origins}/{name}" for name in sorted(older)])

    async def _delete(self, paths: list[str]) -> int:
        """Delete the existing ones of ``paths``; return how many existed."""
        deleted = 0
        for path in paths:
            try:
                await self._link.insist(delete(path))
                deleted += 1
            except NoNodeError:
                continue
        return deleted


def _pace(records: int) -> float:
    """Return the records per second at which to trim this number of records."""
    return min(max(records / TRIM_S, TRIM_RECORDS_PER_S_MIN), TRIM_RECORDS_PER_S_MAX)


def _may_follow(found: Pointer | None, position: int, expected_version: int) -> bool:
    """Return whether an origin at ``position``, built upon generation ``expected_version``, may replace ``found``.

    It must lie above ``found``. Otherwise deleting older chunks could hit those of a writer at work.
    """
    if found is None:
        return expected_version == -1
    return found.generation == expected_version and position > found.position

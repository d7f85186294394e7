"""Writes finished tasks to the archive, a bucket at a time, before they are purged (design: retention).

``await write_bucket(replica, store, directory, bucket, offload=node.offload) -> Written``, where
``bucket = Bucket(partition=, from_ms=, before_ms=, keep=, again=)`` selects the tasks: those between the old
and the new watermark, and those of the stretches that are not kept any more. ``again``: all stretches that
were kept; ``keep``: those that stay. Only tasks of queues whose setting ``archive`` is on are written. The
call returns once all files are durable.

The store is read on the event loop, in small steps. Blocking work runs in threads through ``offload``. The
same bucket overwrites its earlier files, so a repeat after a crash, or by the next leader, is harmless.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from onyxq.core.errors import StoreFailed
from onyxq.core.replica import Replica
from onyxq.history.parquet.bucket import Bucket, BucketReader, Progress, Run
from onyxq.history.parquet.files import BucketFiles
from onyxq.history.parquet.layout import FileName, Place
from onyxq.history.parquet.schema import pyarrow
from onyxq.store.store import Store

PORTION_BYTES_MAX = 1024 * 1024
PORTION_RUNS_MAX = 64
"""About how many runs are handed to a thread at a time."""

Offload = Callable[..., Awaitable[Any]]


@frozen
class Written:
    """Numbers of archived rows, and of the files that hold them."""

    tasks: int = 0
    claims: int = 0
    updates: int = 0
    files: int = 0

    def plus(self, other: dict[str, int]) -> Written:
        """Return the sum with numbers by name."""
        return Written(**{name: getattr(self, name) + count for name, count in other.items()})


async def write_bucket(
    replica: Replica,
    store: Store,
    directory: Path,
    bucket: Bucket,
    *,
    offload: Offload = trio.to_thread.run_sync,
) -> Written:
    """Write a bucket's tasks of archived queues; see the module's docstring.

    Raises `Incomplete` without pyarrow, `StoreFailed` if the directory cannot be written, `Corrupt` if a row of the
    bucket is damaged, and `Conflict` if a task is not finished. After an error no task of the bucket may be purged.
    """
    pyarrow()
    written = Written()
    done: frozenset[Place] = frozenset()
    while True:
        files = BucketFiles(directory, _name(bucket), [bucket.from_ms.to_bytes(8, "big"), *_parts(bucket)])
        try:
            async with aclosing(_portions(BucketReader(replica, store), bucket)) as portions:
                async for portion in portions:
                    await offload(files.add, portion, done)
            await offload(files.finish)
        except OSError as error:
            await _abort(files, offload)
            raise StoreFailed(
                f"the archive of tasks in {directory} cannot be written: {error}",
                hint="Free space in, or give access to, the directory; nothing is purged until then.",
            ) from error
        except BaseException:
            await _abort(files, offload)
            raise
        written = written.plus(files.written())
        if not files.left:
            return written
        done |= files.places


async def _abort(files: BucketFiles, offload: Offload) -> None:
    with trio.CancelScope(shield=True):
        await offload(files.abort)


def _name(bucket: Bucket) -> FileName:
    return FileName(bucket.partition, bucket.earliest_ms, bucket.before_ms)


def _parts(bucket: Bucket) -> Iterator[bytes]:
    """Yield what distinguishes the bucket from others of the same times."""
    return chain((b"keep",), sorted(bucket.keep), (b"again",), bucket.again)


async def _portions(reader: BucketReader, bucket: Bucket) -> AsyncGenerator[list[Run | Progress], None]:
    """Yield what is to be archived, in lists of about `PORTION_BYTES_MAX`."""
    portion: list[Run | Progress] = []
    size = 0
    for firsts in reader.stretches(bucket):
        for one in reader.runs(firsts):
            portion.append(one)
            size += len(one.body) if isinstance(one, Run) else len(one.update.data)
            if size >= PORTION_BYTES_MAX or len(portion) >= PORTION_RUNS_MAX:
                yield portion
                portion, size = [], 0
        await trio.lowlevel.checkpoint()
    if portion:
        yield portion

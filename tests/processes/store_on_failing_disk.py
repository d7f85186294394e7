"""A program for tests: writes to a store or an embedded log while operations that its input names fail.

Each line of the input is ``KIND TIMES``; for each the program makes one write and prints ``kept``
or ``refused``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from onyxq.errors import LogUnavailable, OnyxqError, StoreFailed
from onyxq.log.embedded import EmbeddedBackend
from onyxq.store.interface import Batch
from onyxq.store.lmdb_store import LmdbStore
from tests.processes.failing_disk import FailingDisk

FILL = 4_000
"""Bytes of each write: a page of its own."""


async def store(directory: Path, disk: FailingDisk) -> None:
    """Write one named value per line."""
    opened = LmdbStore.open(directory)
    for number, line in enumerate(sys.stdin):
        kind, times = map(int, line.split())
        disk.fail(kind, times=times)
        try:
            await opened.write(Batch(meta=((f"value {number}", bytes(FILL)),)))
            print("kept", flush=True)
        except StoreFailed:
            print("refused", flush=True)
    disk.heal()
    await opened.aclose()


async def log(directory: Path, disk: FailingDisk) -> None:
    """Append one record per line."""
    backend = EmbeddedBackend.open(directory)
    session = await backend.session()
    for number, line in enumerate(sys.stdin):
        kind, times = map(int, line.split())
        disk.fail(kind, times=times)
        try:
            await session.append(b"%d " % number + bytes(FILL))
            print("kept", flush=True)
        except LogUnavailable:
            print("refused", flush=True)
    disk.heal()
    await backend.aclose()


if __name__ == "__main__":
    found = FailingDisk.attached()
    try:
        trio.run({"store": store, "log": log}[sys.argv[1]], Path(sys.argv[2]), found)
    except OnyxqError as error:
        sys.exit(f"{error.code}: {error.message}")

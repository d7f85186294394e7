"""Files of history made block by block, and archives of the log made without a cluster."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack

from onyxq.core import snapshot
from onyxq.core.replica import Replica
from onyxq.history import dump
from onyxq.history.archive import SUFFIX
from onyxq.history.file_format import (
    COMPRESSED,
    DIGEST_BYTES,
    END,
    MAGIC,
    PLAIN,
    SNAPSHOT,
    Block,
    HistoryFileWriter,
    packed_block,
)
from tests.entries.world import World


def archived(world: World, directory: Path, after: int, last: int, *, origin: Replica | None, node: str = "n1") -> None:
    """Archive the records after ``after`` up to ``last``."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{after + 1:019d}-{last:019d}-{node}{SUFFIX}"
    packed = b"" if origin is None else snapshot.pack(origin)
    with HistoryFileWriter(path, dump.KIND, cluster="main", cluster_id="c1", origin=packed, after=after) as writer:
        writer.add_all(world.records[after + 1 : last + 1])


def content(block: Block) -> Any:
    """Return the content of a block: bytes of a snapshot, else decoded msgpack with lists."""
    return block.body if block.kind == SNAPSHOT else msgpack.unpackb(block.data(), strict_map_key=False)


def file_of(blocks: Sequence[tuple[bytes, Any]]) -> bytes:
    """Make a file of blocks with right checksums; each has a kind, and its content or bytes.

    An end without a digest gets the right one.
    """
    data = MAGIC
    for number, (kind, value) in enumerate(blocks):
        if kind == END and isinstance(value, dict) and value.get("digest", b"") is None:
            value = {**value, "digest": blake2b(data[len(MAGIC) :], digest_size=DIGEST_BYTES).digest()}
        body = value if isinstance(value, bytes) else zlib.compress(msgpack.packb(value))
        data += packed_block(number, kind, PLAIN if kind == SNAPSHOT else COMPRESSED, body)
    return data

"""Ids that follow from lineage, and still lie in runs (design: jobs on Spark; facts, runs).

A lineage begins with 20 bytes like an id: time of the batch, partition, maker, counter.  Whatever
follows them is the path: how a segment came to be from its source.  A task that a segment becomes
has the batch's time, a partition and a maker that are hashed from lineage (and output), and the
*source's* counter.  So tasks made of consecutive sources by the same way are consecutive, a repeat
makes the same ids, and neither where nor in what order rows are computed plays a part.

The path is 8 bytes: a hash over the edges of the workflow that a segment took, and its place among its siblings
at each.  The source itself has none.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from onyxq.core.ids import ID_BYTES

PREFIX_BYTES = 16
"""Of an id without its counter."""


def source_prefix(prefix: bytes, time_ms: int) -> bytes:
    """What the lineages of tasks begin with whose ids begin with ``prefix``, read by a batch of this time."""
    return time_ms.to_bytes(6, "big") + prefix[6:8] + _hash(prefix)


def made_prefix(lineage: bytes, output: str, *, time_ms: int, partitions: int, partition: int | None = None) -> bytes:
    """What the ids of the tasks begin with that an output makes of segments whose lineages differ in their
    counters only; ``partition``: where the task's key decides about it."""
    prefix, path = lineage[:PREFIX_BYTES], lineage[ID_BYTES:]
    if partition is None:
        partition = int.from_bytes(_hash(prefix), "big") % partitions
    maker = _hash(prefix + len(path).to_bytes(4, "big") + path + output.encode())
    return time_ms.to_bytes(6, "big") + partition.to_bytes(2, "big") + maker


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


PATH_BYTES = 8
START = bytes(PATH_BYTES)
"""The path of a source segment."""


def child(lineage: bytes, edge: int, ordinal: int) -> bytes:
    """The lineage of what comes over an edge of the workflow, the ``ordinal``-th of its siblings."""
    return lineage[:ID_BYTES] + _longer(lineage[ID_BYTES:], edge, ordinal)


def source_of(lineage: bytes) -> bytes:
    """The 20 bytes of the source."""
    return lineage[:ID_BYTES]


def path_of(lineage: bytes) -> bytes:
    """The 8 bytes of the path."""
    return lineage[ID_BYTES:] or START


@lru_cache(maxsize=1 << 16)
def _longer(path: bytes, edge: int, ordinal: int) -> bytes:
    said = (path or START) + edge.to_bytes(4, "big") + ordinal.to_bytes(8, "big")
    return blake2b(said, digest_size=PATH_BYTES).digest()

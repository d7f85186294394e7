"""Task ids derived from lineage that still lie in runs (design: jobs on Spark; facts, runs).

A lineage begins with 20 bytes like an id: time of the batch, partition, maker, counter. The bytes after them are
the path: how a segment was made from its source. A task made of a segment has the batch's time, a partition and
a maker that are hashed from lineage (and output), and the *source's* counter. So tasks made in the same way of
consecutive sources are consecutive, and a repeat makes the same ids. It does not matter where, or in which
order, rows are computed.

The path has 8 bytes: a hash over the edges of the workflow that a segment took, and its index among its siblings
at each. The path of the source itself is empty.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from onyxq.core.ids import ID_BYTES

PREFIX_BYTES = 16
"""Bytes of an id without its counter."""
HASH_BYTES = 8
LETTER_EDGE = (1 << 32) - 1
"""Number of the edge that a dead letter takes; it is greater than that of any edge of a workflow."""
START = bytes(HASH_BYTES)
"""The path that the first edge of a source segment continues."""


def source_prefix(prefix: bytes, time_ms: int) -> bytes:
    """Return the prefix of the lineages of tasks whose ids begin with ``prefix``, for a batch of this time."""
    return time_ms.to_bytes(6, "big") + prefix[6:8] + _hash(prefix)


def made_prefix(lineage: bytes, output: str, *, time_ms: int, partitions: int, partition: int | None = None) -> bytes:
    """Return the id prefix of the tasks that an output makes of segments whose lineages differ only in counters.

    ``partition``: the partition of the task's key, if it has one.
    """
    prefix, path = lineage[:PREFIX_BYTES], lineage[ID_BYTES:]
    if partition is None:
        partition = int.from_bytes(_hash(prefix), "big") % partitions
    maker = _hash(prefix + len(path).to_bytes(4, "big") + path + output.encode())
    return time_ms.to_bytes(6, "big") + partition.to_bytes(2, "big") + maker


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=HASH_BYTES).digest()


def child(lineage: bytes, edge: int, ordinal: int) -> bytes:
    """Return the lineage of the ``ordinal``-th segment that was made over an edge of the workflow."""
    return lineage[:ID_BYTES] + _longer(lineage[ID_BYTES:], edge, ordinal)


def of_letter(lineage: bytes, way: str, task: str) -> bytes:
    """Return the lineage of the dead letter that a segment becomes at a task, which ran on the given way."""
    return child(lineage, LETTER_EDGE, int.from_bytes(_hash(f"{way}/{task}".encode()), "big"))


@lru_cache(maxsize=1 << 16)
def _longer(path: bytes, edge: int, ordinal: int) -> bytes:
    return _hash((path or START) + edge.to_bytes(4, "big") + ordinal.to_bytes(8, "big"))
